/* measure.cu - the ceilings of this GPU, by what is simplest and fast: reading memory with 16-byte
 * loads, four at a time in each of 2048 threads a multiprocessor, over a matrix far larger than the
 * cache; and cuBLASLt's product of [8192, 8192] by itself, in float8 of as many rows as the device
 * was opened for and their rounding with it. The best of a few runs. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 512, LOADS = 4, RUNS = 6, SIDE = 8192, READ_SIDE = 32768 };

static __global__ void read_kernel(const uint4 *from, size_t n, unsigned *sink)
{
    size_t step = (size_t)gridDim.x * BLOCK;
    unsigned sum = 0;

    wait_for_inputs();
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += LOADS * step) {
        uint4 x[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            x[k] = i + k * step < n ? from[i + k * step] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            sum += x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
    }
    if (sum == 1) /* never certain, so the loads have to happen */
        *sink = sum;
}

int cuda_measure(struct device *d, double *bytes_per_s, double *operations_per_s, struct error *err)
{
    size_t n_large = (size_t)READ_SIDE * READ_SIDE, bytes = n_large * dtype_info(d->act)->bytes;
    struct matrix *w = NULL;
    cudaEvent_t start = NULL, stop = NULL;
    float *y = NULL, ms;
    int n_processors, T = d->float8 && d->max_rows < SIDE ? d->max_rows : SIDE, rc = OK;
    void *x = NULL, *large = NULL;

    *bytes_per_s = *operations_per_s = 0.0;
    CUDA_TRY(cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, d->gpu));
    CUDA_TRY(cudaEventCreate(&start));
    CUDA_TRY(cudaEventCreate(&stop));
    if ((rc = cuda_alloc(d, (void **)&y, (size_t)SIDE * SIDE * sizeof(float), err)) != OK ||
        (rc = cuda_alloc(d, &x, (size_t)SIDE * SIDE * sizeof(float), err)) != OK ||
        (rc = cuda_alloc(d, &large, bytes, err)) != OK ||
        (rc = cuda_random_numbers(d, x, (size_t)SIDE * SIDE, 1.0f, 1, err)) != OK ||
        (rc = cuda_matrix_random(d, &w, SIDE, SIDE, 0.01f, 2, err)) != OK ||
        (rc = cuda_random_numbers(d, large, n_large, 1.0f, 3, err)) != OK)
        goto out;
    for (int i = 0; i < RUNS; i++) {
        CUDA_TRY(cudaEventRecord(start, d->stream));
        if ((rc = launch(d, "read", err, read_kernel, 4 * n_processors, BLOCK, 0,
                         (const uint4 *)large, bytes / sizeof(uint4), (unsigned *)y)) != OK)
            goto out;
        CUDA_TRY(cudaEventRecord(stop, d->stream));
        CUDA_TRY(cudaEventSynchronize(stop));
        CUDA_TRY(cudaEventElapsedTime(&ms, start, stop));
        if ((double)bytes / ms * 1e3 > *bytes_per_s)
            *bytes_per_s = (double)bytes / ms * 1e3;
    }
    for (int i = 0; i < RUNS; i++) {
        CUDA_TRY(cudaEventRecord(start, d->stream));
        if ((rc = cuda_matmul(d, y, x, w, NULL, T, err)) != OK)
            goto out;
        CUDA_TRY(cudaEventRecord(stop, d->stream));
        CUDA_TRY(cudaEventSynchronize(stop));
        CUDA_TRY(cudaEventElapsedTime(&ms, start, stop));
        if (2.0 * T * SIDE * SIDE / ms * 1e3 > *operations_per_s)
            *operations_per_s = 2.0 * T * SIDE * SIDE / ms * 1e3;
    }
out:
    cuda_matrix_free(d, w);
    cudaFree(large);
    cudaFree(x);
    cudaFree(y);
    if (start != NULL)
        cudaEventDestroy(start);
    if (stop != NULL)
        cudaEventDestroy(stop);
    return rc;
}
