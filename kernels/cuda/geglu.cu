/* geglu.cu - four numbers a thread where F is a multiple of four, else one: grid (ceil(F / 4 /
 * 256), T), block 256; memory-bound. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"

enum { BLOCK = 256 };

template <typename Act> static __global__ void geglu4_kernel(Act *y, const Act *gu, int F)
{
    int f = 4 * (blockIdx.x * BLOCK + threadIdx.x);
    const Act *row = gu + (size_t)blockIdx.y * 2 * F;

    wait_for_inputs();
    if (f < F) {
        float4 gate = load4(row + f), up = load4(row + F + f);
        put4(&y[(size_t)blockIdx.y * F + f], make_float4(gelu(gate.x) * up.x, gelu(gate.y) * up.y,
                                                         gelu(gate.z) * up.z, gelu(gate.w) * up.w));
    }
}

template <typename Act> static __global__ void geglu_kernel(Act *y, const Act *gu, int F)
{
    int f = blockIdx.x * BLOCK + threadIdx.x;
    const Act *row = gu + (size_t)blockIdx.y * 2 * F;

    wait_for_inputs();
    if (f < F)
        put(&y[(size_t)blockIdx.y * F + f], gelu(to_float(row[f])) * to_float(row[F + f]));
}

template <typename Act>
static int run(struct device *d, Act *y, const Act *gu, int T, int F, struct error *err)
{
    int n = F % 4 == 0 ? F / 4 : F;
    dim3 grid((unsigned)((n + BLOCK - 1) / BLOCK), (unsigned)T);

    return launch(d, "geglu", err, F % 4 == 0 ? geglu4_kernel<Act> : geglu_kernel<Act>, grid, BLOCK,
                  0, y, gu, F);
}

int cuda_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err)
{
    if (T == 0)
        return OK;
    if (d->act == DTYPE_F32)
        return run(d, (float *)y, (const float *)gu, T, F, err);
    return run(d, (__nv_bfloat16 *)y, (const __nv_bfloat16 *)gu, T, F, err);
}
