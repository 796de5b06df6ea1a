/* geglu.cu - four numbers at a time where F is a multiple of four, else one; block 256. A grid of
 * few blocks that go on to the next numbers: all of them are there at once, so that the product
 * after this can begin to fetch its weights. Memory-bound. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"

enum { BLOCK = 256, FEW_BLOCKS = 256, MANY_BLOCKS = 2048 };

template <typename Act> static __global__ void geglu4_kernel(Act *y, const Act *gu, int T, int F)
{
    unsigned columns = (unsigned)F / 4, n = (unsigned)T * columns;

    wait_for_inputs();
#pragma unroll 2
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) {
        unsigned t = i / columns, f = i % columns * 4;
        const Act *row = gu + (size_t)t * 2 * F;
        float4 gate = load4(row + f), up = load4(row + F + f);
        put4(&y[(size_t)t * F + f], make_float4(gelu(gate.x) * up.x, gelu(gate.y) * up.y,
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
    size_t n_blocks = ((size_t)T * F / 4 + BLOCK - 1) / BLOCK;
    size_t most = T <= 128 ? FEW_BLOCKS : MANY_BLOCKS;
    dim3 grid((unsigned)((F + BLOCK - 1) / BLOCK), (unsigned)T);

    if (F % 4 != 0)
        return launch(d, "geglu", err, geglu_kernel<Act>, grid, BLOCK, 0, y, gu, F);
    return launch(d, "geglu", err, geglu4_kernel<Act>,
                  dim3((unsigned)(n_blocks < most ? n_blocks : most)), BLOCK, 0, y, gu, T, F);
}

int cuda_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err)
{
    if (T == 0)
        return OK;
    if (d->act == DTYPE_F32)
        return run(d, (float *)y, (const float *)gu, T, F, err);
    return run(d, (__nv_bfloat16 *)y, (const __nv_bfloat16 *)gu, T, F, err);
}
