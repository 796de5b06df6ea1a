/* fill_rows.cu - one block a row: grid B * P, block 256; memory-bound. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };

static __global__ void fill_rows_kernel(float *h, const float *x, const float *registers,
                                        const int32_t *first, const int32_t *count, int P, int R,
                                        int W)
{
    int b = blockIdx.x / P, p = blockIdx.x % P;
    const float *from;

    wait_for_inputs();
    from = p < count[b] ? x + (size_t)(first[b] + p) * W : registers + (size_t)(p % R) * W;

    for (int i = threadIdx.x; i < W; i += BLOCK)
        h[(size_t)blockIdx.x * W + i] = from[i];
}

int cuda_fill_rows(struct device *d, float *h, const float *x, const float *registers,
                   const int32_t *first, const int32_t *count, int B, int P, int R, int W,
                   struct error *err)
{
    if (B == 0)
        return OK;
    return launch(d, "fill_rows", err, fill_rows_kernel, B * P, BLOCK, 0, h, x, registers, first,
                  count, P, R, W);
}
