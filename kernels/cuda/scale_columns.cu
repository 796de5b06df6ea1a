/* scale_columns.cu - a thread has one number: grid (T, ceil(N / BLOCK)); memory-bound. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 512 };

static __global__ void scale_columns_kernel(float *y, int y_stride, const float *x, int x_stride,
                                            float scale, const float *bias, int N)
{
    int n = blockIdx.y * BLOCK + threadIdx.x;

    wait_for_inputs();
    if (n < N)
        y[(size_t)blockIdx.x * y_stride + n] =
            x[(size_t)blockIdx.x * x_stride + n] * scale + (bias != NULL ? bias[n] : 0.0f);
}

int cuda_scale_columns(struct device *d, float *y, int y_stride, const float *x, int x_stride,
                       float scale, const float *bias, int T, int N, struct error *err)
{
    dim3 grid((unsigned)T, (unsigned)((N + BLOCK - 1) / BLOCK));

    if (T == 0)
        return OK;
    return launch(d, "scale_columns", err, scale_columns_kernel, grid, BLOCK, 0, y, y_stride, x,
                  x_stride, scale, bias, N);
}
