/* full_attention_hopper.cu - full_attention of bf16 heads of 64 and 128 on Hopper (sm_90a), where
 * blocks of queries are whole tiles of 128 rows, or better of 256 (64), and those of keys too.
 *
 * A tile is ROWS rows of one head, 64 for each of WARPGROUPS; as many blocks of threads as there
 * are multiprocessors take tile after tile, so that the first keys of the next are on their way
 * while the last one is stored. A warp of its own brings queries, keys and values by the bulk
 * tensor copy engine, keys and values KEYS rows at a time and STAGES deep. Scores are products of
 * two tiles in shared memory; weights are made of them in registers, where the second product
 * takes them from; values lie as they come, [keys, E], which the instruction can transpose.
 *
 * The softmax of one tile of keys runs beside the product of the weights before it with values, and
 * beside the products of the other warpgroups: these take turns to begin theirs.
 *
 * Bound by arithmetic; blocks of 1024 rows on an H200, 4096 rows and 1024: 557 and 503 TFLOP/s for
 * heads of 128, 401 and 363 for heads of 64 (the products alone could reach 800, and for heads of
 * 64 as many exponentials take as long as the products). No faster: three stages, tiles of 192
 * rows, exponentials by polynomials, queries in registers; slower: pairs of blocks that share keys
 * and values (multicast), 386. Rescaling only where the largest score has grown by much gave 5% and
 * cost a fifth of the accuracy. */
#include "kernels/cuda/full_attention_hopper.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_attention.cuh"
#include "kernels/cuda/wgmma.cuh"

template <int E_, int WARPGROUPS_, int KEYS_, int STAGES_> struct shape {
    enum {
        E = E_,
        WARPGROUPS = WARPGROUPS_,
        KEYS = KEYS_,
        STAGES = STAGES_,
        ROWS = 64 * WARPGROUPS,
        THREADS = 128 * (WARPGROUPS + 1), /* of the last warpgroup one lane works */
        Q_BYTES = ROWS * E * 2,
        KEYS_BYTES = KEYS * E * 2,
        BYTES = 1024 + Q_BYTES + 2 * STAGES * KEYS_BYTES,
        /* registers of a thread: all begin with as many, then one warpgroup leaves the rest its */
        AT_FIRST = 65536 / THREADS / 8 * 8,
        FEW = 24,
        SHARE = (AT_FIRST * (WARPGROUPS + 1) - FEW) / WARPGROUPS / 8 * 8,
        MANY = SHARE < 240 ? SHARE : 240
    };
    static_assert(ROWS % KEYS == 0, "copies are of KEYS rows");
};

typedef shape<64, 4, 64, 4> narrow;
typedef shape<64, 2, 64, 4> narrow_few; /* of few rows, as a rank of many has */
typedef shape<128, 2, 128, 2> wide;

/* A place in a ring of stages, and the phase of its barrier that is waited for. */
template <int STAGES> struct place {
    int stage, phase;

    __device__ void advance(void)
    {
        stage = (stage + 1) % STAGES;
        phase ^= stage == 0;
    }
};

struct tile {
    int first, row, h; /* of its block's keys; of its queries; head */
};

static __device__ inline tile tile_at(int i, int n_row_tiles, int rows, int Q, int kv_rows, int H)
{
    int block = i / n_row_tiles / H;

    return {block * kv_rows, block * Q + i % n_row_tiles * rows, i / n_row_tiles % H};
}

/* ROWS rows of a head, each 64 of its columns a tile of their own. */
template <int ROWS, typename S>
static __device__ inline void fetch_head(uint8_t *to, const CUtensorMap *map, uint64_t *barrier,
                                         int column, int row)
{
    barrier_expect(barrier, ROWS * S::E * 2);
    for (int e = 0; e < S::E; e += TILE_WIDTH)
        for (int i = 0; i < ROWS; i += S::KEYS)
            fetch_tile(to + (e / TILE_WIDTH * ROWS + i) * TILE_ROW_BYTES, map, barrier, column + e,
                       row + i, READ_AGAIN);
}

/* s [64, KEYS] = q k^T */
template <typename S>
static __device__ inline void score(float (&s)[S::KEYS / 2], unsigned q, unsigned k)
{
#pragma unroll
    for (int e = 0; e < S::E; e += 16) {
        int column = e / TILE_WIDTH, inside = e % TILE_WIDTH / 16 * 2;
        wgmma(s, wgmma_tile(q + column * S::ROWS * TILE_ROW_BYTES) + inside,
              wgmma_tile(k + column * S::KEYS * TILE_ROW_BYTES) + inside, e > 0);
    }
}

/* out [64, E] = (add ? out : 0) + weights v */
template <typename S>
static __device__ inline void
apply(float (&out)[S::E / 2], const unsigned (&weights)[S::KEYS / 16][4], unsigned v, bool add)
{
    uint64_t tile = wgmma_tile_transposed(v, S::KEYS * TILE_ROW_BYTES);

#pragma unroll
    for (int i = 0; i < S::KEYS / 16; i++)
        wgmma_transposed(out, weights[i], tile + i * 128, i > 0 || add);
}

/* 2^x; below 2^-126 it is 0, which exp2f would spend instructions on. */
static __device__ inline float power_of_2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Scores to weights, not yet divided by their sum. keep: what becomes of all that was summed
 * before, in each of the two rows that a lane has numbers of. */
template <int N>
static __device__ inline void soften(float (&s)[N], float (&largest)[2], float (&sum)[2],
                                     float (&keep)[2], float factor)
{
    float now[4], base[2], more[4] = {0.0f, 0.0f, 0.0f, 0.0f};

#pragma unroll
    for (int n = 0; n < 4; n++)
        now[n] = s[n];
#pragma unroll
    for (int i = 4; i < N; i++)
        now[i % 4] = fmaxf(now[i % 4], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float before = largest[r];
        largest[r] = fmaxf(before, quad_max(fmaxf(now[2 * r], now[2 * r + 1])));
        keep[r] = power_of_2((before - largest[r]) * factor);
        base[r] = largest[r] * factor;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        s[i] = power_of_2(fmaf(s[i], factor, -base[i / 2 % 2]));
        more[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        sum[r] = sum[r] * keep[r] + (more[2 * r] + more[2 * r + 1]);
#pragma unroll
    for (int i = 0; i < N; i++) /* all of it here: beside the product that is under way */
        asm volatile("" : "+f"(s[i])::"memory");
}

template <int KEYS>
static __device__ inline void pack(unsigned (&weights)[KEYS / 16][4], const float (&s)[KEYS / 2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++)
        weights[i / 4][i % 4] = packed(s[2 * i], s[2 * i + 1]);
}

static __device__ inline unsigned exchanged(unsigned x, int lanes)
{
    return __shfl_xor_sync(0xffffffffu, x, lanes);
}

/* What the four lanes of a row have of 32 columns, x[i] in columns 8i + lane % 4 * 2 and the next,
 * to eight columns a lane, from column lane % 4 * 8 on. */
static __device__ inline uint4 gathered(const unsigned (&x)[4])
{
    bool odd = threadIdx.x % 2, upper = threadIdx.x % 4 > 1;
    unsigned low[2], high[2], got[2];

#pragma unroll
    for (int n = 0; n < 2; n++) {
        got[n] = exchanged(odd ? x[2 * n] : x[2 * n + 1], 1);
        low[n] = odd ? got[n] : x[2 * n];
        high[n] = odd ? x[2 * n + 1] : got[n];
    }
    got[0] = exchanged(upper ? low[0] : low[1], 2);
    got[1] = exchanged(upper ? high[0] : high[1], 2);
    return upper ? make_uint4(got[0], got[1], low[1], high[1])
                 : make_uint4(low[0], high[0], got[0], got[1]);
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    hopper_kernel(const __grid_constant__ CUtensorMap q_map,
                  const __grid_constant__ CUtensorMap kv_map, __nv_bfloat16 *o,
                  const __nv_bfloat16 *gates, int q_stride, int Q, int P, int kv_rows, int H,
                  int n_tiles, float factor)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t q_full, q_empty;
    __shared__ uint64_t k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES],
        v_empty[S::STAGES];
    uint8_t *q = tiles_begin(raw), *k = q + S::Q_BYTES, *v = k + S::STAGES * S::KEYS_BYTES;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, W = H * S::E;
    int n_row_tiles = Q / S::ROWS, n_key_tiles = P / S::KEYS;

    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        barrier_init(&q_empty, 4 * S::WARPGROUPS);
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&k_full[i], 1);
            barrier_init(&k_empty[i], 4 * S::WARPGROUPS);
            barrier_init(&v_full[i], 1);
            barrier_init(&v_empty[i], 4 * S::WARPGROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_inputs();
    if (warp >= 4 * S::WARPGROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)S::FEW));
        if (warp == 4 * S::WARPGROUPS && lane == 0) {
            place<S::STAGES> to = {0, 1}; /* all places are free at first */
            int q_phase = 1;
            for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
                tile t = tile_at(i, n_row_tiles, S::ROWS, Q, kv_rows, H);
                barrier_wait(&q_empty, q_phase);
                q_phase ^= 1;
                fetch_head<S::ROWS, S>(q, &q_map, &q_full, t.h * S::E, t.row);
                for (int j = 0; j < P; j += S::KEYS) {
                    barrier_wait(&k_empty[to.stage], to.phase);
                    fetch_head<S::KEYS, S>(k + to.stage * S::KEYS_BYTES, &kv_map, &k_full[to.stage],
                                           t.h * S::E, t.first + j);
                    barrier_wait(&v_empty[to.stage], to.phase);
                    fetch_head<S::KEYS, S>(v + to.stage * S::KEYS_BYTES, &kv_map, &v_full[to.stage],
                                           W + t.h * S::E, t.first + j);
                    to.advance();
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)S::MANY));
        int group = warp / 4, turn = 1 + group, next_turn = 1 + (group + 1) % S::WARPGROUPS;
        unsigned q_at = shared_address(q) + group * 64 * TILE_ROW_BYTES;
        unsigned k_at = shared_address(k), v_at = shared_address(v);
        place<S::STAGES> keys = {0, 0}, values = {0, 0};
        int q_phase = 0;

        if (group == S::WARPGROUPS - 1) /* the first begins */
            asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory");
        for (int i = blockIdx.x; i < n_tiles; i += gridDim.x) {
            tile t = tile_at(i, n_row_tiles, S::ROWS, Q, kv_rows, H);
            int row = t.row + group * 64 + warp % 4 * 16 + lane / 4;
            float out[S::E / 2], s[S::KEYS / 2], gate[2] = {0.0f, 0.0f};
            float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, keep[2];
            unsigned weights[S::KEYS / 16][4];

            if (gates != NULL)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    gate[r] = to_float(gates[(size_t)(row + 8 * r) * q_stride + t.h]);
            barrier_wait(&q_full, q_phase);
            q_phase ^= 1;
            barrier_wait(&k_full[keys.stage], keys.phase);
            wgmma_begin();
            score<S>(s, q_at, k_at + keys.stage * S::KEYS_BYTES);
            wgmma_commit();
            wgmma_wait<0>(s);
            if (lane == 0)
                barrier_arrive(&k_empty[keys.stage]);
            keys.advance();
            soften(s, largest, sum, keep, factor);
            pack<S::KEYS>(weights, s);
            barrier_wait(&v_full[values.stage], values.phase);
            for (int j = 1; j < n_key_tiles; j++) {
                int used = values.stage;
                barrier_wait(&k_full[keys.stage], keys.phase);
                asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory");
                wgmma_begin();
                score<S>(s, q_at, k_at + keys.stage * S::KEYS_BYTES);
                wgmma_commit();
                wgmma_begin();
                apply<S>(out, weights, v_at + used * S::KEYS_BYTES, j > 1);
                wgmma_commit();
                asm volatile("bar.arrive %0, 256;" ::"r"(next_turn) : "memory");
                wgmma_wait<1>(s);
                if (lane == 0)
                    barrier_arrive(&k_empty[keys.stage]);
                keys.advance();
                soften(s, largest, sum, keep, factor);
                values.advance();
                /* here, as ptxas moves the softmax across a wait for products but not for this */
                barrier_wait(&v_full[values.stage], values.phase);
                wgmma_wait<0>(out);
                if (lane == 0)
                    barrier_arrive(&v_empty[used]);
                pack<S::KEYS>(weights, s);
#pragma unroll
                for (int n = 0; n < S::E / 2; n++)
                    out[n] *= keep[n / 2 % 2];
            }
            if (lane == 0)
                barrier_arrive(&q_empty);
            wgmma_begin();
            apply<S>(out, weights, v_at + values.stage * S::KEYS_BYTES, n_key_tiles > 1);
            wgmma_commit();
            wgmma_wait<0>(out);
            if (lane == 0)
                barrier_arrive(&v_empty[values.stage]);
            values.advance();
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float by = 1.0f / quad_sum(sum[r]);
                __nv_bfloat16 *to = o + (size_t)(row + 8 * r) * W + t.h * S::E + lane % 4 * 8;
                if (gates != NULL)
                    by *= 2.0f / (1.0f + expf(-gate[r]));
#pragma unroll
                for (int e = 0; e < S::E; e += 32) { /* stores of 4 bytes cost 4% of all */
                    const float *of = &out[e / 2 + 2 * r];
                    unsigned x[4];
#pragma unroll
                    for (int n = 0; n < 4; n++)
                        x[n] = packed(of[4 * n] * by, of[4 * n + 1] * by);
                    *(uint4 *)(to + e) = gathered(x);
                }
            }
        }
    }
#endif
}

/* ---- the host's side ---- */

bool hopper_attention_serves(const struct device *d, int Q, int P, int E)
{
    return d->hopper != NULL && (E == 64 || E == 128) && Q % 128 == 0 && P % 128 == 0;
}

template <typename S>
static int run(struct device *d, __nv_bfloat16 *o, const heads &where, const __nv_bfloat16 *gates,
               int T, int Q, int P, int kv_rows, int H, struct error *err)
{
    int W = H * S::E, n_tiles = T / S::ROWS * H, rc;
    int grid = n_tiles < d->hopper->n_processors ? n_tiles : d->hopper->n_processors;
    float factor = where.scale * 1.4426950408889634f; /* powers of 2, not of e */
    CUtensorMap q_map, kv_map;

    if ((rc = hopper_map(d, &q_map, DTYPE_BF16, where.q, T, W, where.q_stride, S::KEYS, err)) !=
            OK ||
        (rc = hopper_map(d, &kv_map, DTYPE_BF16, where.k, (T / Q - 1) * kv_rows + P, 2 * W,
                         where.kv_stride, S::KEYS, err)) != OK)
        return rc;
    CUDA_TRY(cudaFuncSetAttribute(hopper_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  S::BYTES));
    rc = launch(d, "full_attention", err, hopper_kernel<S>, grid, S::THREADS, S::BYTES, q_map,
                kv_map, o, gates, (int)where.q_stride, Q, P, kv_rows, H, n_tiles, factor);
out:
    return rc;
}

int hopper_attention(struct device *d, __nv_bfloat16 *o, const heads &where,
                     const __nv_bfloat16 *gates, int T, int Q, int P, int kv_rows, int H, int E,
                     struct error *err)
{
    if (E == 128)
        return run<wide>(d, o, where, gates, T, Q, P, kv_rows, H, err);
    if (Q % narrow::ROWS == 0)
        return run<narrow>(d, o, where, gates, T, Q, P, kv_rows, H, err);
    return run<narrow_few>(d, o, where, gates, T, Q, P, kv_rows, H, err);
}
