/* wide_qk_norm_rope.cu - by halves in bf16, with heads of a multiple of 16 numbers: W / 16 threads,
 * each with 8 pairs of q and of k in registers. A row's weights, cos and sin are three times as
 * many bytes as the row, and L2's rate would bound all: a block has POSITIONS positions of all
 * blocks of rows, keeps the weights, and reads cos and sin of a position once.
 *
 * Everything else: one block a row, its q and then its k: grid T, block 256; a thread rotates whole
 * pairs (it writes only what it alone reads), and reads the row twice, the second time from cache.
 */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256, PAIRS = 8, MAX_BLOCK = 512, POSITIONS = 4 };

/* Two sums at once. */
static __device__ float2 block_sums(float2 sum)
{
    __shared__ float2 partial[MAX_BLOCK / 32];
    int n_warps = blockDim.x / 32;

    sum.x = warp_sum(sum.x);
    sum.y = warp_sum(sum.y);
    __syncthreads(); /* earlier sums have been read by all, and no row is written before */
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = make_float2(0.0f, 0.0f);
    for (int i = 0; i < n_warps; i++) {
        sum.x += partial[i].x;
        sum.y += partial[i].y;
    }
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
        factor = 1.0f / sqrtf(block_sums(make_float2(sum, 0.0f)).x / (float)W + eps);
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

/* Eight pairs of a row. */
struct pairs {
    float low[PAIRS], high[PAIRS];
};

template <typename T> static __device__ inline void load_pairs(pairs *to, const T *from, int half)
{
    load8(to->low, from);
    load8(to->high, from + half);
}

static __device__ inline float squares(const pairs &x)
{
    float sum = 0.0f;

#pragma unroll
    for (int n = 0; n < PAIRS; n++)
        sum += x.low[n] * x.low[n] + x.high[n] * x.high[n];
    return sum;
}

static __device__ inline void put_turned(__nv_bfloat16 *to, const pairs &x, float factor,
                                         const pairs &w, const float (&c)[PAIRS],
                                         const float (&s)[PAIRS], int half)
{
    pairs y;

#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
        float a = x.low[n] * factor * w.low[n], b = x.high[n] * factor * w.high[n];
        y.low[n] = a * c[n] - b * s[n];
        y.high[n] = b * c[n] + a * s[n];
    }
    put8(to, y.low);
    put8(to + half, y.high);
}

static __global__ void __launch_bounds__(MAX_BLOCK)
    halves_kernel(__nv_bfloat16 *qkv, const float *q_w, const float *k_w, const float *cos,
                  const float *sin, int T, int P, int H, int E, int stride, float eps)
{
    int W = H * E, half = E / 2, i = PAIRS * threadIdx.x, first = i / half * E + i % half;
    bool there = i < W / 2;
    float c[PAIRS], s[PAIRS];
    pairs of_q, of_k, q, k; /* weights, numbers */

    if (there) { /* no kernel's output */
        load_pairs(&of_q, q_w + first, half);
        load_pairs(&of_k, k_w + first, half);
    }
    wait_for_inputs();
    for (int p = blockIdx.x; p < P; p += gridDim.x) {
        if (there) {
            load8(c, cos + (size_t)p * (W / 2) + i);
            load8(s, sin + (size_t)p * (W / 2) + i);
        }
        for (int row = p; row < T; row += P) {
            __nv_bfloat16 *x = qkv + (size_t)row * stride + first;
            float2 sums = make_float2(0.0f, 0.0f);
            if (there) {
                load_pairs(&q, x, half);
                load_pairs(&k, x + W, half);
                sums = make_float2(squares(q), squares(k));
            }
            sums = block_sums(sums);
            if (there) {
                put_turned(x, q, 1.0f / sqrtf(sums.x / (float)W + eps), of_q, c, s, half);
                put_turned(x + W, k, 1.0f / sqrtf(sums.y / (float)W + eps), of_k, c, s, half);
            }
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
    return launch(d, "wide_qk_norm_rope", err, halves_kernel, (P + POSITIONS - 1) / POSITIONS,
                  threads, 0, (__nv_bfloat16 *)qkv, q_w, k_w, cos, sin, T, P, H, E, stride, eps);
}
