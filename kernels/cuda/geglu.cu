/* geglu.cu - one thread a number: grid (T, ceil(F / 256)), block 256; memory-bound. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };

template <typename Act> static __global__ void geglu_kernel(Act *y, const float *gu, int F)
{
    int f = blockIdx.y * BLOCK + threadIdx.x, t = blockIdx.x;
    const float *row = gu + (size_t)t * 2 * F;

    if (f < F) {
        float x = row[f];
        float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x); /* sqrt(2/pi) */
        put(&y[(size_t)t * F + f], 0.5f * x * (1.0f + tanhf(inner)) * row[F + f]);
    }
}

int cuda_geglu(struct device *d, void *y, const float *gu, int T, int F, struct error *err)
{
    dim3 grid((unsigned)T, (unsigned)((F + BLOCK - 1) / BLOCK));

    if (T == 0)
        return OK;
    if (d->act == DTYPE_F32)
        geglu_kernel<<<grid, BLOCK, 0, d->stream>>>((float *)y, gu, F);
    else
        geglu_kernel<<<grid, BLOCK, 0, d->stream>>>((__nv_bfloat16 *)y, gu, F);
    return launch_result(d, "geglu", err);
}
