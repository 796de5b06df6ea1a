/* qk_norm_rope.cu - one warp a head of a token: grid (T, ceil(heads / 4)), block (32, 4), the
 * value heads among them where they are normed. A lane keeps the pairs (e, e + E/2) that it
 * rotates, so the head is read once. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 4, PAIRS = OPS_MAX_HEAD / 2 / 32 }; /* pairs a lane holds at most */

template <typename Act>
static __global__ void qk_norm_rope_kernel(Act *qkv, const float *q_w, const float *k_w,
                                           const float *cos, const float *sin,
                                           const int32_t *positions, int H, int K, int E, float eps,
                                           int n_heads)
{
    int t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.y, half = E / 2;
    float low[PAIRS], high[PAIRS], sum = 0.0f, factor;
    const float *w = head < H ? q_w : k_w;
    size_t angle;
    Act *x = qkv + ((size_t)t * (H + 2 * K) + head) * E;

    wait_for_inputs();
    if (head >= n_heads)
        return;
    angle = (size_t)positions[t] * half;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int e = threadIdx.x + 32 * i;
        low[i] = e < half ? to_float(x[e]) : 0.0f;
        high[i] = e < half ? to_float(x[e + half]) : 0.0f;
        sum += low[i] * low[i] + high[i] * high[i];
    }
    factor = 1.0f / sqrtf(warp_sum(sum) / (float)E + eps);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int e = threadIdx.x + 32 * i;
        if (e < half && head >= H + K) { /* a value: no weight, and it does not turn */
            put(&x[e], low[i] * factor);
            put(&x[e + half], high[i] * factor);
        } else if (e < half) {
            float c = cos[angle + e], s = sin[angle + e];
            float a = low[i] * factor * w[e], b = high[i] * factor * w[e + half];
            put(&x[e], a * c - b * s);
            put(&x[e + half], b * c + a * s);
        }
    }
}

int cuda_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                      const float *cos, const float *sin, const int32_t *positions, int T, int H,
                      int K, int E, float eps, bool norm_v, struct error *err)
{
    int n_heads = H + K + (norm_v ? K : 0);
    dim3 grid((unsigned)T, (unsigned)((n_heads + WARPS - 1) / WARPS)), block(32, WARPS);

    if (T == 0)
        return OK;
    if (E > OPS_MAX_HEAD || E % 2 != 0)
        return error_set(err, ERR_INPUT,
                         "cuda: heads of %d numbers, expected an even number up to %d", E,
                         OPS_MAX_HEAD);
    if (d->act == DTYPE_F32)
        return launch(d, "qk_norm_rope", err, qk_norm_rope_kernel<float>, grid, block, 0,
                      (float *)qkv, q_w, k_w, cos, sin, positions, H, K, E, eps, n_heads);
    return launch(d, "qk_norm_rope", err, qk_norm_rope_kernel<__nv_bfloat16>, grid, block, 0,
                  (__nv_bfloat16 *)qkv, q_w, k_w, cos, sin, positions, H, K, E, eps, n_heads);
}
