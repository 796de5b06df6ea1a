/* rmsnorm.cu - rmsnorm and add_rmsnorm: one block a row; grid T, block 256, one float of shared
 * memory a warp; reads x twice, the second time from cache. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32 };

/* 1 / sqrt(mean(x^2) + eps), in every thread. */
static __device__ float row_factor(const float *x, int D, float eps)
{
    __shared__ float partial[WARPS];
    float sum = 0.0f;

    for (int i = threadIdx.x; i < D; i += BLOCK)
        sum += x[i] * x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        sum += partial[i];
    return 1.0f / sqrtf(sum / (float)D + eps);
}

/* y may be x: a thread writes only what it alone reads, and all have read it for the sum. */
template <typename T>
static __global__ void rmsnorm_kernel(T *y, const float *x, const float *w, int D, float eps)
{
    const float *row = x + (size_t)blockIdx.x * D;
    float factor = row_factor(row, D, eps);

    for (int i = threadIdx.x; i < D; i += BLOCK)
        put(&y[(size_t)blockIdx.x * D + i], row[i] * factor * w[i]);
}

static __global__ void add_rmsnorm_kernel(float *h, const float *x, const float *w, float scale,
                                          int D, float eps)
{
    const float *row = x + (size_t)blockIdx.x * D;
    float factor = row_factor(row, D, eps);

    for (int i = threadIdx.x; i < D; i += BLOCK) {
        float *to = &h[(size_t)blockIdx.x * D + i];
        *to = (*to + row[i] * factor * w[i]) * scale;
    }
}

int cuda_rmsnorm(struct device *d, void *y, enum dtype y_type, const float *x, const float *w,
                 int T, int D, float eps, struct error *err)
{
    if (T == 0)
        return OK;
    if (y_type == DTYPE_F32)
        rmsnorm_kernel<<<T, BLOCK, 0, d->stream>>>((float *)y, x, w, D, eps);
    else
        rmsnorm_kernel<<<T, BLOCK, 0, d->stream>>>((__nv_bfloat16 *)y, x, w, D, eps);
    return launch_result(d, "rmsnorm", err);
}

int cuda_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale, int T,
                     int D, float eps, struct error *err)
{
    if (T == 0)
        return OK;
    add_rmsnorm_kernel<<<T, BLOCK, 0, d->stream>>>(h, x, w, scale, D, eps);
    return launch_result(d, "add_rmsnorm", err);
}
