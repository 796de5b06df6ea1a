/* attention.cu - one warp a query head of a token: grid ceil(T * H / 4), block (32, 4), no shared
 * memory. A lane holds every 32nd number of the query and of the result; each key costs a warp
 * sum. Online softmax: one pass over the keys.
 *
 * Float32 arithmetic throughout. It reads each key once a query, so it is for correctness and for
 * short prompts; tensor cores over blocks of queries are the fast way. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 4, PARTS = OPS_MAX_HEAD / 32 };

template <typename Act>
static __global__ void attention_kernel(Act *o, const float *qkv, const int32_t *begin, int B,
                                        int T, int H, int K, int E, float scale, int window)
{
    int index = blockIdx.x * WARPS + threadIdx.y, t = index / H, h = index % H, low = 0, high = B;
    size_t stride = (size_t)(H + 2 * K) * E;
    float q[PARTS], sum[PARTS], max = -INFINITY, total = 0.0f;
    const float *k, *v;
    int first;

    if (t >= T)
        return;
    while (high - low > 1) { /* the prompt that t lies in: begin[low] <= t < begin[high] */
        int middle = (low + high) / 2;
        if (begin[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    first = begin[low];
    if (t - first >= window)
        first = t - window + 1;
    k = qkv + (size_t)(H + h / (H / K)) * E;
    v = k + (size_t)K * E;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int e = threadIdx.x + 32 * i;
        q[i] = e < E ? qkv[t * stride + (size_t)h * E + e] * scale : 0.0f;
        sum[i] = 0.0f;
    }
    for (int j = first; j <= t; j++) {
        float score = 0.0f, new_max, keep, p;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int e = threadIdx.x + 32 * i;
            if (e < E)
                score += q[i] * k[j * stride + e];
        }
        score = warp_sum(score);
        new_max = fmaxf(max, score);
        keep = expf(max - new_max);
        p = expf(score - new_max);
        total = total * keep + p;
        max = new_max;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int e = threadIdx.x + 32 * i;
            if (e < E)
                sum[i] = sum[i] * keep + p * v[j * stride + e];
        }
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int e = threadIdx.x + 32 * i;
        if (e < E)
            put(&o[((size_t)t * H + h) * E + e], sum[i] / total);
    }
}

int cuda_attention(struct device *d, void *o, const float *qkv, const int32_t *begin, int B, int T,
                   int H, int K, int E, float scale, int window, struct error *err)
{
    unsigned grid = (unsigned)(((size_t)T * H + WARPS - 1) / WARPS);
    dim3 block(32, WARPS);

    if (T == 0)
        return OK;
    if (E > OPS_MAX_HEAD)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, at most %d", E, OPS_MAX_HEAD);
    if (d->act == DTYPE_F32)
        attention_kernel<<<grid, block, 0, d->stream>>>((float *)o, qkv, begin, B, T, H, K, E,
                                                        scale, window);
    else
        attention_kernel<<<grid, block, 0, d->stream>>>((__nv_bfloat16 *)o, qkv, begin, B, T, H, K,
                                                        E, scale, window);
    return launch_result(d, "attention", err);
}
