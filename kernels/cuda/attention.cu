/* attention.cu - causal attention inside prompts. bf16: tensor_attention.cuh, 64 rows a block,
 * whichever prompts they are of; a row's keys begin with its prompt or its window. Everything else:
 * one warp a query head of a token, grid ceil(T * H / 4), block (32, 4), no shared memory; a lane
 * holds every 32nd number of the query and of the result, each key costs a warp sum. It reads each
 * key once a query: for correctness. */
#include "kernels/cuda/tensor_attention.cuh"

enum { WARPS = 4, FEW = 128, PARTS = OPS_MAX_HEAD / 32 };

/* The first token of the prompt that t lies in: begin[low] <= t < begin[high]. */
static __device__ int prompt_begin(const int32_t *begin, int B, int t)
{
    int low = 0, high = B;

    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (begin[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return begin[low];
}

template <typename Act>
static __global__ void attention_kernel(Act *o, const Act *qkv, const int32_t *begin, int B, int T,
                                        int H, int K, int E, float scale, int window)
{
    int index = blockIdx.x * WARPS + threadIdx.y, t = index / H, h = index % H;
    size_t stride = (size_t)(H + 2 * K) * E;
    float q[PARTS], sum[PARTS], max = -INFINITY, total = 0.0f;
    const Act *k, *v;
    int first;

    wait_for_inputs();
    if (t >= T)
        return;
    first = prompt_begin(begin, B, t);
    if (t - first >= window)
        first = t - window + 1;
    k = qkv + (size_t)(H + h / (H / K)) * E;
    v = k + (size_t)K * E;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int e = threadIdx.x + 32 * i;
        q[i] = e < E ? to_float(qkv[t * stride + (size_t)h * E + e]) * scale : 0.0f;
        sum[i] = 0.0f;
    }
    for (int j = first; j <= t; j++) {
        float score = 0.0f, new_max, keep, p;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int e = threadIdx.x + 32 * i;
            if (e < E)
                score += q[i] * to_float(k[j * stride + e]);
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
                sum[i] = sum[i] * keep + p * to_float(v[j * stride + e]);
        }
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int e = threadIdx.x + 32 * i;
        if (e < E)
            put(&o[((size_t)t * H + h) * E + e], sum[i] / total);
    }
}

template <int E, int EV, int KEYS>
static __global__ void __launch_bounds__(32 * WARPS)
    tensor_kernel(__nv_bfloat16 *o, heads where, const int32_t *begin, int B, int T, int H,
                  int window)
{
    typedef attention_tile<E, EV, WARPS, 1, KEYS> tile;

    wait_for_inputs();
    tile::run(
        where, blockIdx.x * tile::ROWS, T, blockIdx.y, blockIdx.z * EV,
        [=](int t) {
            int first = prompt_begin(begin, B, t);
            return key_range{t - first >= window ? t - window + 1 : first, t};
        },
        [=](int t, int e, float low, float high) {
            *(unsigned *)&o[((size_t)t * H + blockIdx.y) * E + e] = packed(low, high);
        });
}

template <int E, int EV, int KEYS>
static int run_tensor(struct device *d, __nv_bfloat16 *o, const heads &where, const int32_t *begin,
                      int B, int T, int H, int window, struct error *err)
{
    typedef attention_tile<E, EV, WARPS, 1, KEYS> tile;
    dim3 grid((unsigned)((T + tile::ROWS - 1) / tile::ROWS), (unsigned)H, E / EV);
    int rc = OK;

    CUDA_TRY(cudaFuncSetAttribute(tensor_kernel<E, EV, KEYS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, tile::BYTES));
    rc = launch(d, "attention", err, tensor_kernel<E, EV, KEYS>, grid, tile::THREADS, tile::BYTES,
                o, where, begin, B, T, H, window);
out:
    return rc;
}

int cuda_attention(struct device *d, void *o, const void *qkv, const int32_t *begin, int B, int T,
                   int H, int K, int E, float scale, int window, struct error *err)
{
    unsigned grid = (unsigned)(((size_t)T * H + WARPS - 1) / WARPS);
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)qkv;
    __nv_bfloat16 *out = (__nv_bfloat16 *)o;
    size_t stride = (size_t)(H + 2 * K) * E;
    heads where = {q, q + (size_t)H * E, q + (size_t)(H + K) * E, stride, stride, H / K, scale};
    dim3 block(32, WARPS);

    if (T == 0)
        return OK;
    if (E > OPS_MAX_HEAD)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, at most %d", E, OPS_MAX_HEAD);
    if (d->act == DTYPE_F32)
        return launch(d, "attention", err, attention_kernel<float>, grid, block, 0, (float *)o,
                      (const float *)qkv, begin, B, T, H, K, E, scale, window);
    switch (E) {
    case 64:
        return run_tensor<64, 64, 64>(d, out, where, begin, B, T, H, window, err);
    case 128:
        return run_tensor<128, 128, 64>(d, out, where, begin, B, T, H, window, err);
    case 256:
        if (T <= FEW) /* more blocks, each with a share of the result's columns */
            return run_tensor<256, 64, 32>(d, out, where, begin, B, T, H, window, err);
        return run_tensor<256, 256, 32>(d, out, where, begin, B, T, H, window, err);
    case 512:
        return run_tensor<512, 256, 32>(d, out, where, begin, B, T, H, window, err);
    default:
        return launch(d, "attention", err, attention_kernel<__nv_bfloat16>, grid, block, 0, out, q,
                      begin, B, T, H, K, E, scale, window);
    }
}
