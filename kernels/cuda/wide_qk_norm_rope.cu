/* wide_qk_norm_rope.cu - one block a row, its q and then its k: grid T. By halves in bf16, with
 * heads of a multiple of 16 numbers: a thread has 8 pairs of the row in registers, W / 16 threads;
 * cos and sin are read once for q and k. Everything else: block 256, a thread rotates whole pairs
 * (it writes only what it alone reads), and reads the row twice, the second time from cache. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256, PAIRS = 8, MAX_BLOCK = 1024 };

static __device__ float block_sum(float sum)
{
    __shared__ float partial[MAX_BLOCK / 32];
    int n_warps = blockDim.x / 32;

    sum = warp_sum(sum);
    __syncthreads(); /* an earlier sum has been read by all, and no row is written before */
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < n_warps; i++)
        sum += partial[i];
    return sum;
}

template <typename Act>
static __global__ void plain_kernel(Act *qkv, const float *q_w, const float *k_w, const float *cos,
                                    const float *sin, int P, int H, int E, int stride,
                                    bool interleaved, float eps)
{
    int W = H * E, half = E / 2;
    size_t angle = (size_t)(blockIdx.x % P) * (W / 2);

    wait_for_inputs();
    for (int which = 0; which < 2; which++) {
        const float *w = which == 0 ? q_w : k_w;
        Act *x = qkv + (size_t)blockIdx.x * stride + (size_t)which * W;
        float sum = 0.0f, factor;
        for (int i = threadIdx.x; i < W; i += BLOCK)
            sum += to_float(x[i]) * to_float(x[i]);
        factor = 1.0f / sqrtf(block_sum(sum) / (float)W + eps);
        for (int i = threadIdx.x; i < W / 2; i += BLOCK) {
            int first = interleaved ? 2 * i : i / half * E + i % half;
            int second = interleaved ? first + 1 : first + half;
            float c = cos[angle + i], s = sin[angle + i];
            float low = to_float(x[first]) * factor * w[first];
            float high = to_float(x[second]) * factor * w[second];
            put(&x[first], low * c - high * s);
            put(&x[second], high * c + low * s);
        }
    }
}

/* Eight numbers at `from`, on a boundary of eight. */
template <typename T> static __device__ inline void load8(float (&x)[PAIRS], const T *from)
{
    float4 a = load4(from), b = load4(from + 4);

    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

static __device__ inline void put8(__nv_bfloat16 *to, const float (&x)[PAIRS])
{
    put4(to, make_float4(x[0], x[1], x[2], x[3]));
    put4(to + 4, make_float4(x[4], x[5], x[6], x[7]));
}

static __global__ void __launch_bounds__(MAX_BLOCK)
    halves_kernel(__nv_bfloat16 *qkv, const float *q_w, const float *k_w, const float *cos,
                  const float *sin, int P, int H, int E, int stride, float eps)
{
    int W = H * E, half = E / 2, i = PAIRS * threadIdx.x, first = i / half * E + i % half;
    bool there = i < W / 2;
    size_t angle = (size_t)(blockIdx.x % P) * (W / 2) + i;
    float c[PAIRS], s[PAIRS], low[PAIRS], high[PAIRS], low_w[PAIRS], high_w[PAIRS];

    if (there) {
        load8(c, cos + angle);
        load8(s, sin + angle);
    }
    wait_for_inputs();
    for (int which = 0; which < 2; which++) {
        const float *w = which == 0 ? q_w : k_w;
        __nv_bfloat16 *x = qkv + (size_t)blockIdx.x * stride + (size_t)which * W + first;
        float sum = 0.0f, factor;
        if (there) {
            load8(low, x);
            load8(high, x + half);
            load8(low_w, w + first);
            load8(high_w, w + first + half);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
                sum += low[n] * low[n] + high[n] * high[n];
        }
        factor = 1.0f / sqrtf(block_sum(sum) / (float)W + eps);
        if (there) {
#pragma unroll
            for (int n = 0; n < PAIRS; n++) {
                float a = low[n] * factor * low_w[n], b = high[n] * factor * high_w[n];
                low[n] = a * c[n] - b * s[n];
                high[n] = b * c[n] + a * s[n];
            }
            put8(x, low);
            put8(x + half, high);
        }
    }
}

int cuda_wide_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                           const float *cos, const float *sin, int T, int P, int H, int E,
                           int stride, bool interleaved, float eps, struct error *err)
{
    int threads = (H * E / (2 * PAIRS) + 31) / 32 * 32;

    if (T == 0)
        return OK;
    if (E % 2 != 0)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, expected an even number", E);
    if (d->act == DTYPE_F32)
        return launch(d, "wide_qk_norm_rope", err, plain_kernel<float>, T, BLOCK, 0, (float *)qkv,
                      q_w, k_w, cos, sin, P, H, E, stride, interleaved, eps);
    if (interleaved || E % (2 * PAIRS) != 0 || stride % PAIRS != 0 || threads > MAX_BLOCK)
        return launch(d, "wide_qk_norm_rope", err, plain_kernel<__nv_bfloat16>, T, BLOCK, 0,
                      (__nv_bfloat16 *)qkv, q_w, k_w, cos, sin, P, H, E, stride, interleaved, eps);
    return launch(d, "wide_qk_norm_rope", err, halves_kernel, T, threads, 0, (__nv_bfloat16 *)qkv,
                  q_w, k_w, cos, sin, P, H, E, stride, eps);
}
