/* gelu.cu - one thread a number: grid (ceil(F / 256), T), block 256; memory-bound. The connectors'
 * products have it as their epilogue (matmul.cu). */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gelu.cuh"

enum { BLOCK = 256 };

template <typename Act> static __global__ void gelu_kernel(Act *y, const Act *x, int F)
{
    int f = blockIdx.x * BLOCK + threadIdx.x;
    size_t i = (size_t)blockIdx.y * F + f;

    wait_for_inputs();
    if (f < F)
        put(&y[i], gelu(to_float(x[i])));
}

int cuda_gelu(struct device *d, void *y, const void *x, int T, int F, struct error *err)
{
    dim3 grid((unsigned)((F + BLOCK - 1) / BLOCK), (unsigned)T);

    if (T == 0)
        return OK;
    if (d->act == DTYPE_F32)
        return launch(d, "gelu", err, gelu_kernel<float>, grid, BLOCK, 0, (float *)y,
                      (const float *)x, F);
    return launch(d, "gelu", err, gelu_kernel<__nv_bfloat16>, grid, BLOCK, 0, (__nv_bfloat16 *)y,
                  (const __nv_bfloat16 *)x, F);
}
