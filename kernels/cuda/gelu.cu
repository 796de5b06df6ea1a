/* gelu.cu - one thread a number: grid (T, ceil(F / 256)), block 256; memory-bound. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };

template <typename Act> static __global__ void gelu_kernel(Act *y, const float *x, int F)
{
    int f = blockIdx.y * BLOCK + threadIdx.x;
    size_t i = (size_t)blockIdx.x * F + f;

    if (f < F) {
        float value = x[i];
        float inner = 0.7978845608028654f * (value + 0.044715f * value * value * value);
        put(&y[i], 0.5f * value * (1.0f + tanhf(inner)));
    }
}

int cuda_gelu(struct device *d, void *y, const float *x, int T, int F, struct error *err)
{
    dim3 grid((unsigned)T, (unsigned)((F + BLOCK - 1) / BLOCK));

    if (T == 0)
        return OK;
    if (d->act == DTYPE_F32)
        gelu_kernel<<<grid, BLOCK, 0, d->stream>>>((float *)y, x, F);
    else
        gelu_kernel<<<grid, BLOCK, 0, d->stream>>>((__nv_bfloat16 *)y, x, F);
    return launch_result(d, "gelu", err);
}
