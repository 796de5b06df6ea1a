/* float8.cu - rows of bf16 rounded to E4M3 with a scale each: what a product reads, and weights as
 * they are loaded. One block a row, grid T, block BLOCK; a thread has eight numbers at a time and
 * keeps up to HELD times eight in registers between finding the largest and rounding; what is
 * beyond is read again from cache. Memory-bound; three bytes a number. */
#include <cuda_fp8.h>

#include "kernels/cuda/float8.cuh"
#include "kernels/float8.h"

enum { BLOCK = 256, WARPS = BLOCK / 32, HELD = 8 };

static __device__ inline float2 two(unsigned bits)
{
    return __bfloat1622float2(*(__nv_bfloat162 *)&bits);
}

static __device__ inline float larger(float largest, unsigned bits)
{
    float2 x = two(bits);

    return fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y))); /* a NaN is not the largest */
}

static __device__ inline float larger(float largest, uint4 x)
{
    return larger(larger(larger(larger(largest, x.x), x.y), x.z), x.w);
}

static __device__ inline unsigned rounded(unsigned low, unsigned high, float inverse)
{
    float2 a = two(low), b = two(high);
    unsigned x = __nv_cvt_float2_to_fp8x2(make_float2(a.x * inverse, a.y * inverse), __NV_SATFINITE,
                                          __NV_E4M3);
    unsigned y = __nv_cvt_float2_to_fp8x2(make_float2(b.x * inverse, b.y * inverse), __NV_SATFINITE,
                                          __NV_E4M3);

    return x | y << 16;
}

static __device__ inline uint2 rounded(uint4 x, float inverse)
{
    return make_uint2(rounded(x.x, x.y, inverse), rounded(x.z, x.w, inverse));
}

/* n: eights of numbers in a row. */
static __global__ void __launch_bounds__(BLOCK)
    round_kernel(uint2 *to, float *scales, const uint4 *from, int n)
{
    __shared__ float partial[WARPS];
    const uint4 *x = from + (size_t)blockIdx.x * n;
    uint2 *y = to + (size_t)blockIdx.x * n;
    float largest = 0.0f, scale;
    uint4 held[HELD];

    wait_for_inputs();
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (threadIdx.x + i * BLOCK < n)
            held[i] = x[threadIdx.x + i * BLOCK];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (threadIdx.x + i * BLOCK < n)
            largest = larger(largest, held[i]);
    for (int i = threadIdx.x + HELD * BLOCK; i < n; i += BLOCK)
        largest = larger(largest, x[i]);
    for (int offset = 16; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        largest = fmaxf(largest, partial[i]);
    scale = fmaxf(largest, FLOAT8_LEAST) / FLOAT8_MAX; /* float8_scale() */
    if (threadIdx.x == 0)
        scales[blockIdx.x] = scale;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (threadIdx.x + i * BLOCK < n)
            y[threadIdx.x + i * BLOCK] = rounded(held[i], 1.0f / scale);
    for (int i = threadIdx.x + HELD * BLOCK; i < n; i += BLOCK)
        y[i] = rounded(x[i], 1.0f / scale);
}

static __global__ void bias_kernel(__nv_bfloat16 *to, const float *bias, int N)
{
    int n = blockIdx.x * BLOCK + threadIdx.x;

    wait_for_inputs();
    if (n < N)
        put(&to[n], bias[n]);
}

int float8_open(struct device *d, const struct device_options *options, struct error *err)
{
    cudaDeviceProp gpu;
    int rc = OK;

    if (!options->float8)
        return OK;
    CUDA_TRY(cudaGetDeviceProperties(&gpu, d->gpu));
    /* scales of rows, which it has on Hopper, came with 12.9 */
    if (gpu.major * 10 + gpu.minor < 89 || cublasLtGetVersion() < 120900)
        return error_set(err, ERR_INPUT,
                         "cuda: GPU %d (%s) cannot compute in float8: that takes compute "
                         "capability 8.9 (Ada, Hopper or later), this has %d.%d; and cuBLASLt "
                         "120900, this is %zu",
                         d->gpu, gpu.name, gpu.major, gpu.minor, cublasLtGetVersion());
    d->float8 = true;
    d->max_rows = options->max_rows;
    if ((rc = cuda_alloc(d, (void **)&d->row_scales, (size_t)d->max_rows * sizeof(float), err)) ==
            OK &&
        options->like != NULL)
        rc = float8_reserve(d, options->like->n_biases, options->like->rounded_width, err);
out:
    return rc;
}

void float8_close(struct device *d)
{
    cudaFree(d->rounded);
    cudaFree(d->row_scales);
    cudaFree(d->biases);
}

int float8_reserve(struct device *d, int N, int K, struct error *err)
{
    int rc;

    if (N > d->n_biases) {
        cudaFree(d->biases);
        d->n_biases = 0;
        if ((rc = cuda_alloc(d, &d->biases, (size_t)N * sizeof(__nv_bfloat16), err)) != OK)
            return rc;
        d->n_biases = N;
    }
    if (K <= d->rounded_width)
        return OK;
    cudaFree(d->rounded);
    d->rounded_width = 0;
    if ((rc = cuda_alloc(d, &d->rounded, (size_t)d->max_rows * K, err)) == OK)
        d->rounded_width = K;
    return rc;
}

int float8_round_rows(struct device *d, void *to, float *scales, const void *x, int T, int K,
                      struct error *err)
{
    return launch(d, "float8", err, round_kernel, (unsigned)T, BLOCK, 0, (uint2 *)to, scales,
                  (const uint4 *)x, K / 8);
}

int float8_round_bias(struct device *d, const float *bias, int N, struct error *err)
{
    return launch(d, "float8", err, bias_kernel, (unsigned)((N + BLOCK - 1) / BLOCK), BLOCK, 0,
                  (__nv_bfloat16 *)d->biases, bias, N);
}
