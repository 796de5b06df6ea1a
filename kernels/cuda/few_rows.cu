/* few_rows.cu - the product of few rows of x with a large matrix, at the speed at which the matrix
 * comes from memory; bf16 or E4M3, Hopper (sm_90a).
 *
 * A block has ROWS rows of w (the wgmma's 64, by two warpgroups) and a part of k, and all TN >= T
 * rows of x: grid (ceil(N / ROWS), parts), block 288. The last warp brings tiles of 128 bytes of k
 * by the bulk tensor copy engine, as many stages deep as half a multiprocessor's shared memory
 * holds; the warpgroups multiply. The parts of k of the same rows are a cluster: each leaves its
 * sums in shared memory and adds up a share of the rows of y from all of them, always in the same
 * order. A view's ranges of rows follow each other in the grid, each with blocks of its own.
 *
 * Memory-bound: for T up to 128 the matrix is read once and x comes from L2. It begins when the
 * kernel before it has ended, while small kernels may begin before it ends: fetching the first
 * stages of weights earlier was slower (Gemma 3 12B, 61 tokens, H200: 7.22 ms instead of 6.77), as
 * was sending the beginning of the next matrix to L2 (8.2), or one block a multiprocessor. */
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wgmma_float8.cuh"

typedef uint8_t e4m3;

enum {
    WARPGROUPS = 2,
    ROWS = 64 * WARPGROUPS,
    THREADS = 128 * WARPGROUPS + 32,
    MAX_PARTS = 8,
    SHARED_BYTES = 110 << 10
};

template <int TN> struct shape {
    enum {
        W_BYTES = ROWS * TILE_ROW_BYTES,
        X_BYTES = TN * TILE_ROW_BYTES,
        STAGE_BYTES = W_BYTES + X_BYTES,
        STAGES = (SHARED_BYTES - 2048) / STAGE_BYTES,
        PITCH = ROWS + 4, /* of the sums [TN, ROWS]; eight lanes' stores lie in eight banks */
        BYTES = STAGES * STAGE_BYTES + 1024
    };
    static_assert(TN * PITCH * 4 <= STAGES * STAGE_BYTES, "the sums take the place of the stages");
};

static __device__ inline void cluster_barrier(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four floats at the same place in the shared memory of another block of the cluster. */
static __device__ inline float4 load_remote(const float *here, int block)
{
    unsigned there;
    float4 x;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(shared_address(here)), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(there));
    return x;
}

static __device__ inline float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* The sums at one place, of all the blocks of the cluster. */
static __device__ inline float4 sum_of_parts(const float *here, int n_parts)
{
    float4 of[MAX_PARTS], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

#pragma unroll
    for (int k = 0; k < MAX_PARTS; k++) /* all on their way at once */
        if (k < n_parts)
            of[k] = load_remote(here, k);
#pragma unroll
    for (int k = 0; k < MAX_PARTS; k++)
        if (k < n_parts)
            sum = plus(sum, of[k]);
    return sum;
}

/* Where the rows of w lie that a block has, and their results. */
struct range {
    int block;  /* the first that has rows of it */
    int row, n; /* of w; of gate */
    int up;     /* the first row of up */
    int column; /* of y */
};
struct ranges {
    struct range of[MAX_RANGES];
    int n, columns; /* columns: of all of y */
};

static __device__ inline range range_of_block(const ranges &all)
{
    int i = 0;

    while (i + 1 < all.n && blockIdx.x >= all.of[i + 1].block)
        i++;
    return all.of[i];
}

/* Rows of w from `row` on; of gate and up half of them each. */
template <bool GEGLU>
static __device__ inline void fetch_w(uint8_t *to, const CUtensorMap *map, uint64_t *barrier, int k,
                                      int row, int up)
{
    fetch_tile(to, map, barrier, k, row, READ_ONCE);
    if (GEGLU)
        fetch_tile(to + ROWS / 2 * TILE_ROW_BYTES, map, barrier, k, up, READ_ONCE);
}

/* What 32 bytes of k of both tiles add. */
template <typename W, int C>
static __device__ inline void multiply(float (&c)[C], uint64_t a, uint64_t b)
{
    if constexpr (sizeof(W) == 1)
        wgmma_float8(c, a, b);
    else
        wgmma(c, a, b);
}

static __device__ inline float4 times(float4 a, float4 b, float factor)
{
    return make_float4(a.x * factor * b.x, a.y * factor * b.y, a.z * factor * b.z,
                       a.w * factor * b.w);
}

/* GEGLU: the first half of w's rows is gate, the second up; the block has as many of each, and
 * stores y [T, N / 2]. The scales are those of float8; NULL in bf16. */
template <int TN, bool GEGLU, typename W, typename Y>
static __global__ void __launch_bounds__(THREADS, 2)
    few_rows_kernel(const __grid_constant__ CUtensorMap w_map,
                    const __grid_constant__ CUtensorMap x_map, Y *y, const Y *bias,
                    const float *w_scales, const float *x_scales, bool add, int T,
                    const __grid_constant__ ranges rows, int n_tiles)
{
    const int TILE_K = TILE_ROW_BYTES / sizeof(W);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef shape<TN> s;
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[s::STAGES], empty[s::STAGES];
    uint8_t *stages = tiles_begin(raw);
    float *sums = (float *)stages; /* [TN, PITCH], in the end */
    int part = blockIdx.y, n_parts = gridDim.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = (int)((long)n_tiles * part / n_parts);
    int n = (int)((long)n_tiles * (part + 1) / n_parts) - first;
    const int width = GEGLU ? ROWS / 2 : ROWS; /* of y, that the block stores */
    const range here = range_of_block(rows);
    const int begin = (blockIdx.x - here.block) * width;

    asm volatile("griddepcontrol.launch_dependents;");
    if (threadIdx.x == 0) {
        for (int i = 0; i < s::STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 4 * WARPGROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == 4 * WARPGROUPS) {
        if (lane == 0) {
            for (int i = 0; i < n; i++) {
                int stage = i % s::STAGES;
                uint8_t *to = stages + stage * s::STAGE_BYTES;
                if (i >= s::STAGES)
                    barrier_wait(&empty[stage], (i / s::STAGES - 1) & 1);
                barrier_expect(&full[stage], s::STAGE_BYTES);
                fetch_w<GEGLU>(to, &w_map, &full[stage], (first + i) * TILE_K, here.row + begin,
                               here.up + begin);
                fetch_tile(to + s::W_BYTES, &x_map, &full[stage], (first + i) * TILE_K, 0,
                           READ_OFTEN);
            }
        }
        __syncwarp();
    } else {
        int group = warp / 4;
        float c[TN / 2];

#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            c[i] = 0.0f;
        for (int i = 0; i < n; i++) {
            int stage = i % s::STAGES;
            unsigned at = shared_address(stages + stage * s::STAGE_BYTES);
            uint64_t a = wgmma_tile(at + group * 64 * TILE_ROW_BYTES);
            uint64_t b = wgmma_tile(at + s::W_BYTES);
            barrier_wait(&full[stage], i / s::STAGES & 1);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < TILE_ROW_BYTES / 32; k++)
                multiply<W>(c, a + 2 * k, b + 2 * k);
            wgmma_end();
            if (lane == 0)
                barrier_arrive(&empty[stage]);
        }
        /* all stages have been read by both warpgroups: their place is free */
        asm volatile("bar.sync 1, %0;" ::"n"(128 * WARPGROUPS) : "memory");
#pragma unroll
        for (int i = 0; i < TN / 2; i++)
            sums[(i / 4 * 8 + lane % 4 * 2 + i % 2) * s::PITCH + group * 64 + warp % 4 * 16 +
                 lane / 4 + i % 4 / 2 * 8] = c[i];
    }
    cluster_barrier();
    /* This block's share of the rows of y: four numbers a thread. */
    for (int i = threadIdx.x; i < (T - part + n_parts - 1) / n_parts * (width / 4); i += THREADS) {
        int t = part + i / (width / 4) * n_parts, column = i % (width / 4) * 4;
        int at = begin + column; /* of the range */
        Y *to = y + (size_t)t * rows.columns + here.column + at;
        float4 sum;
        if (at >= here.n)
            continue;
        sum = sum_of_parts(&sums[t * s::PITCH + column], n_parts);
        if (sizeof(W) == 1)
            sum = times(sum, load4(w_scales + here.row + at), x_scales[t]);
        if (GEGLU) {
            float4 up = sum_of_parts(&sums[t * s::PITCH + width + column], n_parts);
            if (sizeof(W) == 1)
                up = times(up, load4(w_scales + here.up + at), x_scales[t]);
            sum = make_float4(gelu(sum.x) * up.x, gelu(sum.y) * up.y, gelu(sum.z) * up.z,
                              gelu(sum.w) * up.w);
        }
        if (bias != NULL)
            sum = plus(sum, load4(bias + here.column + at));
        if (add)
            sum = plus(sum, load4(to));
        put4(to, sum);
    }
    cluster_barrier(); /* nobody leaves while its sums are read */
#endif
}

/* ---- the host's side ---- */

bool few_rows_serves(const struct device *d, const struct matrix *w, int T)
{
    int size = w->scales != NULL ? 1 : 2;

    for (int i = 0; i < w->n_ranges; i++)
        if (w->ranges[i].n % 4 != 0) /* it stores four columns at a time */
            return false;
    return d->hopper != NULL && T <= FEW_ROWS && w->K * size % 16 == 0 &&
           (size_t)w->stride * size % 16 == 0 && (uintptr_t)w->data % 16 == 0;
}

/* As many parts of k as make one block a multiprocessor, each of at least 4 tiles. */
static int choose_parts(const struct device *d, int n_blocks, int n_tiles)
{
    int n_parts = 1;

    while (n_parts < MAX_PARTS && n_blocks * (n_parts + 1) <= d->hopper->n_processors &&
           n_tiles / (n_parts + 1) >= 4)
        n_parts++;
    return n_parts;
}

/* Returns how many blocks there are. */
static int lay_out(ranges *out, const struct matrix *w, bool geglu)
{
    int n_blocks = 0, column = 0;

    *out = {};
    if (geglu) {
        const struct row_range *gate = &w->ranges[0], *up = &w->ranges[w->n_ranges - 1];
        int F = w->N / 2;
        out->of[0] = {0, gate->begin, F, up->begin + up->n - F, 0};
        out->n = 1;
        out->columns = F;
        return w->N / ROWS;
    }
    for (int i = 0; i < w->n_ranges; i++) {
        out->of[i] = {n_blocks, w->ranges[i].begin, w->ranges[i].n, 0, column};
        n_blocks += (w->ranges[i].n + ROWS - 1) / ROWS;
        column += w->ranges[i].n;
    }
    out->n = w->n_ranges;
    out->columns = w->N;
    return n_blocks;
}

/* Rows in memory up to the last one of w. */
static int rows_below(const struct matrix *w)
{
    int rows = 0;

    for (int i = 0; i < w->n_ranges; i++)
        if (w->ranges[i].begin + w->ranges[i].n > rows)
            rows = w->ranges[i].begin + w->ranges[i].n;
    return rows;
}

template <int TN, bool GEGLU, typename W, typename Y>
static int run(struct device *d, Y *y, const void *x, const struct matrix *w, const Y *bias,
               bool add, int T, struct error *err)
{
    const int tile_k = TILE_ROW_BYTES / sizeof(W);
    const enum dtype type = sizeof(W) == 1 ? DTYPE_F8_E4M3 : DTYPE_BF16;
    ranges rows;
    int n_tiles = (w->K + tile_k - 1) / tile_k, n_blocks = lay_out(&rows, w, GEGLU), rc;
    int n_parts = choose_parts(d, n_blocks, n_tiles);
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    CUtensorMap w_map, x_map;

    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 1;
    attribute.val.clusterDim.y = (unsigned)n_parts;
    attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)n_blocks, (unsigned)n_parts);
    config.blockDim = THREADS;
    config.dynamicSmemBytes = shape<TN>::BYTES;
    config.stream = d->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if ((rc = hopper_map(d, &w_map, type, w->data, rows_below(w), w->K, (size_t)w->stride,
                         GEGLU ? ROWS / 2 : ROWS, err)) != OK ||
        (rc = hopper_map(d, &x_map, type, x, T, w->K, (size_t)w->K, TN, err)) != OK)
        return rc;
    CUDA_TRY(cudaFuncSetAttribute(few_rows_kernel<TN, GEGLU, W, Y>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shape<TN>::BYTES));
    CUDA_TRY(cudaLaunchKernelEx(&config, few_rows_kernel<TN, GEGLU, W, Y>, w_map, x_map, y, bias,
                                (const float *)w->scales, (const float *)d->row_scales, add, T,
                                rows, n_tiles));
out:
    return rc;
}

template <bool GEGLU, typename W, typename Y>
static int run_of(struct device *d, Y *y, const void *x, const struct matrix *w, const Y *bias,
                  bool add, int T, struct error *err)
{
    if (T <= 32)
        return run<32, GEGLU, W, Y>(d, y, x, w, bias, add, T, err);
    if (T <= 64)
        return run<64, GEGLU, W, Y>(d, y, x, w, bias, add, T, err);
    if (T <= 96)
        return run<96, GEGLU, W, Y>(d, y, x, w, bias, add, T, err);
    return run<128, GEGLU, W, Y>(d, y, x, w, bias, add, T, err);
}

template <bool GEGLU, typename Y>
static int run_any(struct device *d, Y *y, const void *x, const struct matrix *w, const Y *bias,
                   bool add, int T, struct error *err)
{
    if (w->scales != NULL)
        return run_of<GEGLU, e4m3>(d, y, x, w, bias, add, T, err);
    return run_of<GEGLU, __nv_bfloat16>(d, y, x, w, bias, add, T, err);
}

int few_rows_product(struct device *d, void *y, enum dtype y_type, const void *x,
                     const struct matrix *w, const void *bias, bool add, int T, struct error *err)
{
    if (y_type == DTYPE_F32)
        return run_any<false>(d, (float *)y, x, w, (const float *)bias, add, T, err);
    return run_any<false>(d, (__nv_bfloat16 *)y, x, w, (const __nv_bfloat16 *)bias, add, T, err);
}

bool few_rows_serves_geglu(const struct device *d, const struct matrix *w, int T)
{
    /* gate and up are the halves of one range of rows, or a range each */
    bool halves = w->n_ranges == 1 || (w->n_ranges == 2 && w->ranges[0].n == w->ranges[1].n);

    return halves && few_rows_serves(d, w, T) && w->N % ROWS == 0;
}

int few_rows_geglu(struct device *d, void *y, const void *x, const struct matrix *w, int T,
                   struct error *err)
{
    const __nv_bfloat16 *none = NULL;

    return run_any<true>(d, (__nv_bfloat16 *)y, x, w, none, false, T, err);
}
