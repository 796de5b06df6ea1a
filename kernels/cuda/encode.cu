/* encode.cu - numbers as results have them, four a thread and step; memory-bound. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };
static const size_t MAX_BLOCKS = 1024;

static __device__ void put(__half *y, float value)
{
    *y = __float2half_rn(value);
}

static __device__ void put4(__half *y, float4 x)
{
    __half2 low = __floats2half2_rn(x.x, x.y), high = __floats2half2_rn(x.z, x.w);

    *(uint2 *)y = make_uint2(*(unsigned *)&low, *(unsigned *)&high);
}

template <typename Number>
static __global__ void encode_kernel(Number *y, const float *x, size_t n, int32_t *has_nan)
{
    size_t step = (size_t)gridDim.x * BLOCK * 4, i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 4;
    bool found = false;

    wait_for_inputs();
    for (; i + 4 <= n; i += step) {
        float4 four = load4(x + i);
        found |= isnan(four.x) || isnan(four.y) || isnan(four.z) || isnan(four.w);
        put4(y + i, four);
    }
    for (; i < n; i++) { /* of one thread: the last three at most */
        found |= isnan(x[i]);
        put(y + i, x[i]);
    }
    if (found)
        *has_nan = 1; /* all who write it write the same */
}

int cuda_encode(struct device *d, void *y, enum dtype type, const float *x, size_t n,
                int32_t *has_nan, struct error *err)
{
    size_t blocks = (n + 4 * BLOCK - 1) / (4 * BLOCK);
    dim3 grid((unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS));

    if (n == 0)
        return OK;
    if (type == DTYPE_F32)
        return launch(d, "encode", err, encode_kernel<float>, grid, BLOCK, 0, (float *)y, x, n,
                      has_nan);
    if (type == DTYPE_F16)
        return launch(d, "encode", err, encode_kernel<__half>, grid, BLOCK, 0, (__half *)y, x, n,
                      has_nan);
    return launch(d, "encode", err, encode_kernel<__nv_bfloat16>, grid, BLOCK, 0,
                  (__nv_bfloat16 *)y, x, n, has_nan);
}
