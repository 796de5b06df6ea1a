/* hopper.cu - the host's side of hopper.cuh: whether this GPU is one, and tensor maps. */
#include <stdlib.h>

#include "kernels/cuda/hopper.cuh"

int hopper_open(struct device *d, struct error *err)
{
    cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    int major, minor, rc = OK;

    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->gpu));
    CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d->gpu));
    if (major != 9 || minor != 0 || d->act != DTYPE_BF16)
        return OK;
    CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
        return OK;
    if ((d->hopper = (struct hopper *)calloc(1, sizeof(*d->hopper))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the device");
    d->hopper->encode = (encode_fn *)function;
    CUDA_TRY(
        cudaDeviceGetAttribute(&d->hopper->n_processors, cudaDevAttrMultiProcessorCount, d->gpu));
out:
    return rc;
}

void hopper_close(struct device *d)
{
    free(d->hopper);
    d->hopper = NULL;
}

int hopper_map(struct device *d, CUtensorMap *map, enum dtype type, const void *data, int rows,
               int columns, size_t stride, int box_rows, struct error *err)
{
    cuuint64_t size[] = {(cuuint64_t)columns, (cuuint64_t)rows}, bytes = dtype_info(type)->bytes;
    cuuint64_t strides[] = {(cuuint64_t)stride * bytes};
    cuuint32_t box[] = {(cuuint32_t)(TILE_ROW_BYTES / bytes), (cuuint32_t)box_rows},
               step[] = {1, 1};
    CUtensorMapDataType number =
        type == DTYPE_F8_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

    if (d->hopper->encode(map, number, 2, (void *)data, size, strides, box, step,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return error_set(err, ERR_GPU, "cuda: gpu %d: no tensor map of [%d,%d]", d->gpu, rows,
                         columns);
    return OK;
}
