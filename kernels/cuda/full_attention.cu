/* full_attention.cu - attention of blocks of Q rows over P rows each. bf16:
 * full_attention_hopper.cu where it serves; else tensor_attention.cuh, 128 rows a block of threads
 * where they divide Q, else 64 of which the last are idle.
 *
 * Everything else: one block a head and QUERIES rows of a block of Q: grid (ceil(Q / QUERIES) *
 * blocks of rows, H), block (32, QUERIES); a warp has one query, whose result lies over its lanes.
 * KEYS rows of k and v at a time are read once into shared memory, 2 * KEYS * E floats, and serve
 * all the block's queries. Online softmax, one step for KEYS keys: a lane scores one key. For
 * correctness. */
#include "kernels/cuda/full_attention_hopper.cuh"
#include "kernels/cuda/tensor_attention.cuh"

enum { QUERIES = 16, KEYS = 32, PARTS = OPS_MAX_HEAD / 32, TILE_WARPS = 4 };

static __device__ float warp_max(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

template <typename Act>
static __global__ void full_attention_kernel(Act *o, const Act *queries, const Act *gates,
                                             int q_stride, const Act *kv, int kv_stride, int Q,
                                             int P, int kv_rows, int H, int E, float scale)
{
    extern __shared__ float floats[];
    int n_tiles = (Q + QUERIES - 1) / QUERIES, h = blockIdx.y, W = H * E, pitch = E + 1;
    int row = blockIdx.x % n_tiles * QUERIES + threadIdx.y, lane = threadIdx.x;
    bool is_row = row < Q;
    size_t block = blockIdx.x / n_tiles, t = block * Q + (is_row ? row : 0);
    const Act *query = queries + t * q_stride + (size_t)h * E;
    const Act *key = kv + block * kv_rows * kv_stride + (size_t)h * E, *value = key + W;
    float *q = floats + threadIdx.y * E, *k = floats + QUERIES * E, *v = k + KEYS * pitch;
    float sum[PARTS] = {0.0f}, max = -INFINITY, total = 0.0f;

    wait_for_inputs();
    for (int e = lane; e < E; e += 32)
        q[e] = to_float(query[e]) * scale;
    for (int key0 = 0; key0 < P; key0 += KEYS) {
        int n = P - key0 < KEYS ? P - key0 : KEYS;
        float score = -INFINITY, new_max, keep, p;

        __syncthreads(); /* all are done with the keys before, and q is there */
        for (int j = threadIdx.y; j < n; j += QUERIES)
            for (int e = lane; e < E; e += 32) {
                k[j * pitch + e] = to_float(key[(size_t)(key0 + j) * kv_stride + e]);
                v[j * E + e] = to_float(value[(size_t)(key0 + j) * kv_stride + e]);
            }
        __syncthreads();
        if (lane < n) {
            score = 0.0f;
            for (int e = 0; e < E; e++)
                score += q[e] * k[lane * pitch + e];
        }
        new_max = fmaxf(max, warp_max(score));
        keep = expf(max - new_max);
        p = lane < n ? expf(score - new_max) : 0.0f;
        total = total * keep + warp_sum(p);
        max = new_max;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            sum[i] *= keep;
        for (int j = 0; j < n; j++) {
            float weight = __shfl_sync(0xffffffffu, p, j);
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                if (lane + 32 * i < E)
                    sum[i] += weight * v[j * E + lane + 32 * i];
        }
    }
    if (!is_row)
        return;
    total = 1.0f / total;
    if (gates != NULL)
        total *= 2.0f / (1.0f + expf(-to_float(gates[t * q_stride + h])));
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (lane + 32 * i < E)
            put(&o[t * W + (size_t)h * E + lane + 32 * i], sum[i] * total);
}

template <typename Act>
static int run_plain(struct device *d, Act *o, const Act *q, const Act *gates, int q_stride,
                     const Act *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H, int E,
                     float scale, struct error *err)
{
    dim3 grid((unsigned)((Q + QUERIES - 1) / QUERIES * (T / Q)), (unsigned)H), block(32, QUERIES);
    size_t bytes = ((size_t)QUERIES * E + (size_t)KEYS * (2 * E + 1)) * sizeof(float);
    int rc = OK;

    /* past 48 KiB a kernel must be told; E = 512 asks for 160 KiB */
    CUDA_TRY(cudaFuncSetAttribute(full_attention_kernel<Act>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    rc = launch(d, "full_attention", err, full_attention_kernel<Act>, grid, block, bytes, o, q,
                gates, q_stride, kv, kv_stride, Q, P, kv_rows, H, E, scale);
out:
    return rc;
}

template <int E, int MT>
static __global__ void __launch_bounds__(32 * TILE_WARPS, 2)
    tensor_kernel(__nv_bfloat16 *o, heads where, const __nv_bfloat16 *gates, int Q, int P,
                  int kv_rows, int H)
{
    typedef attention_tile<E, E, TILE_WARPS, MT, 64> tile;
    int n_tiles = (Q + tile::ROWS - 1) / tile::ROWS, block = blockIdx.x / n_tiles;
    int h = blockIdx.y, W = H * E;

    wait_for_inputs();
    tile::run(
        where, block * Q + (int)(blockIdx.x % n_tiles) * tile::ROWS, (block + 1) * Q, h, 0,
        [=](int) {
            return key_range{block * kv_rows, block * kv_rows + P - 1};
        },
        [=](int t, int e, float low, float high) {
            float gate = 1.0f;
            if (gates != NULL)
                gate = 2.0f / (1.0f + expf(-to_float(gates[t * where.q_stride + h])));
            *(unsigned *)&o[(size_t)t * W + h * E + e] = packed(low * gate, high * gate);
        });
}

template <int E, int MT>
static int run_tensor(struct device *d, __nv_bfloat16 *o, const heads &where,
                      const __nv_bfloat16 *gates, int T, int Q, int P, int kv_rows, int H,
                      struct error *err)
{
    typedef attention_tile<E, E, TILE_WARPS, MT, 64> tile;
    dim3 grid((unsigned)((Q + tile::ROWS - 1) / tile::ROWS * (T / Q)), (unsigned)H);
    int rc = OK;

    CUDA_TRY(cudaFuncSetAttribute(tensor_kernel<E, MT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  tile::BYTES));
    rc = launch(d, "full_attention", err, tensor_kernel<E, MT>, grid, tile::THREADS, tile::BYTES, o,
                where, gates, Q, P, kv_rows, H);
out:
    return rc;
}

static bool on_16_bytes(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

int cuda_full_attention(struct device *d, void *o, const void *q, const void *g, int q_stride,
                        const void *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H,
                        int E, float scale, struct error *err)
{
    const __nv_bfloat16 *queries = (const __nv_bfloat16 *)q, *gates = (const __nv_bfloat16 *)g;
    const __nv_bfloat16 *keys = (const __nv_bfloat16 *)kv;
    __nv_bfloat16 *out = (__nv_bfloat16 *)o;
    size_t W = (size_t)H * E;
    heads where = {queries, keys, keys + W, (size_t)q_stride, (size_t)kv_stride, 1, scale};
    /* each row of a head begins on 16 bytes */
    bool aligned =
        on_16_bytes(q) && on_16_bytes(kv) && q_stride % 8 == 0 && kv_stride % 8 == 0 && W % 8 == 0;

    if (T == 0)
        return OK;
    if (E > OPS_MAX_HEAD)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, at most %d", E, OPS_MAX_HEAD);
    if (d->act == DTYPE_F32)
        return run_plain(d, (float *)o, (const float *)q, (const float *)g, q_stride,
                         (const float *)kv, kv_stride, T, Q, P, kv_rows, H, E, scale, err);
    if (aligned && hopper_attention_serves(d, Q, P, E))
        return hopper_attention(d, out, where, gates, T, Q, P, kv_rows, H, E, err);
    if (aligned && E == 128 && Q % 128 == 0)
        return run_tensor<128, 2>(d, out, where, gates, T, Q, P, kv_rows, H, err);
    if (aligned && E == 128)
        return run_tensor<128, 1>(d, out, where, gates, T, Q, P, kv_rows, H, err);
    if (aligned && E == 64 && Q % 128 == 0)
        return run_tensor<64, 2>(d, out, where, gates, T, Q, P, kv_rows, H, err);
    if (aligned && E == 64)
        return run_tensor<64, 1>(d, out, where, gates, T, Q, P, kv_rows, H, err);
    return run_plain(d, out, queries, gates, q_stride, keys, kv_stride, T, Q, P, kv_rows, H, E,
                     scale, err);
}
