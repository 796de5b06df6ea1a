/* full_attention.cu - one block a head and QUERIES rows of a block of P: grid (ceil(P / QUERIES) *
 * blocks of rows, H), block (32, QUERIES); a warp has one query, whose result lies over its lanes.
 * KEYS rows of k and v at a time are read once into shared memory, 2 * KEYS * E floats, and serve
 * all the block's queries. Online softmax, one step for KEYS keys: a lane scores one key.
 *
 * Float32 arithmetic: right, and short of the GPU's peak. Tensor cores over blocks of queries are
 * the fast way. */
#include "kernels/cuda/device.cuh"

enum { QUERIES = 16, KEYS = 32, PARTS = OPS_MAX_HEAD / 32 };

static __device__ float warp_max(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

template <typename Act>
static __global__ void full_attention_kernel(Act *o, const float *qkvg, int P, int H, int E,
                                             float scale, bool gated)
{
    extern __shared__ float shared[];
    int n_tiles = (P + QUERIES - 1) / QUERIES, h = blockIdx.y, W = H * E, pitch = E + 1;
    int row = blockIdx.x % n_tiles * QUERIES + threadIdx.y, lane = threadIdx.x;
    bool is_row = row < P;
    size_t stride = (size_t)3 * W + (gated ? H : 0), first = (size_t)(blockIdx.x / n_tiles) * P;
    const float *block = qkvg + first * stride + (size_t)h * E;
    const float *query = block + (size_t)(is_row ? row : 0) * stride;
    float *q = shared + threadIdx.y * E, *k = shared + QUERIES * E, *v = k + KEYS * pitch;
    float sum[PARTS] = {0.0f}, max = -INFINITY, total = 0.0f;

    for (int e = lane; e < E; e += 32)
        q[e] = query[e] * scale;
    for (int key0 = 0; key0 < P; key0 += KEYS) {
        int n = P - key0 < KEYS ? P - key0 : KEYS;
        float score = -INFINITY, new_max, keep, p;

        __syncthreads(); /* all are done with the keys before, and q is there */
        for (int j = threadIdx.y; j < n; j += QUERIES)
            for (int e = lane; e < E; e += 32) {
                k[j * pitch + e] = block[(size_t)(key0 + j) * stride + W + e];
                v[j * E + e] = block[(size_t)(key0 + j) * stride + 2 * W + e];
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
    if (gated)
        total *= 2.0f / (1.0f + expf(-qkvg[(first + row) * stride + (size_t)3 * W + h]));
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (lane + 32 * i < E)
            put(&o[(first + row) * W + (size_t)h * E + lane + 32 * i], sum[i] * total);
}

template <typename Act>
static int launch(struct device *d, Act *o, const float *qkvg, int T, int P, int H, int E,
                  float scale, bool gated, struct error *err)
{
    dim3 grid((unsigned)((P + QUERIES - 1) / QUERIES * (T / P)), (unsigned)H), block(32, QUERIES);
    size_t bytes = ((size_t)QUERIES * E + (size_t)KEYS * (2 * E + 1)) * sizeof(float);
    int rc = OK;

    /* past 48 KiB a kernel must be told; E = 512 asks for 160 KiB */
    CUDA_TRY(cudaFuncSetAttribute(full_attention_kernel<Act>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    full_attention_kernel<<<grid, block, bytes, d->stream>>>(o, qkvg, P, H, E, scale, gated);
    rc = launch_result(d, "full_attention", err);
out:
    return rc;
}

int cuda_full_attention(struct device *d, void *o, const float *qkvg, int T, int P, int H, int E,
                        float scale, bool gated, struct error *err)
{
    if (T == 0)
        return OK;
    if (E > OPS_MAX_HEAD)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, at most %d", E, OPS_MAX_HEAD);
    if (d->act == DTYPE_F32)
        return launch(d, (float *)o, qkvg, T, P, H, E, scale, gated, err);
    return launch(d, (__nv_bfloat16 *)o, qkvg, T, P, H, E, scale, gated, err);
}
