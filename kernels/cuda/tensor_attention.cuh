/* tensor_attention.cuh - attention of bf16 heads on tensor cores, for attention.cu and
 * full_attention.cu. Private to kernels/cuda/.
 *
 * One block has ROWS = 16 * MT * WARPS rows of one query head (and EV of its E result columns):
 * grid (ceil(T / ROWS), H, E / EV). A warp has MT times 16 rows: with two, what it reads of keys
 * and values in shared memory serves twice as much arithmetic. Keys and values come KEYS rows at a
 * time, by cp.async, two tiles deep; scores, online softmax and result stay in registers (mma.sync
 * m16n8k16, float32 sums). Rows of shared memory are 16 bytes longer than they need to be: eight
 * rows of an ldmatrix then lie in eight different banks.
 *
 * Each row has a range of keys, lo .. hi; what a block reads is the union over its rows. */
#pragma once
#include "kernels/cuda/device.cuh"

/* The heads of one kind of attention, and where they lie. */
struct heads {
    const __nv_bfloat16 *q, *k, *v; /* head 0 of row 0 */
    size_t q_stride, kv_stride;     /* numbers from row to row */
    int per_kv;                     /* query heads that share a key/value head */
    float scale;
};

struct key_range {
    int lo, hi;
};

static __device__ inline void copy_async(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0));
}

static __device__ inline void load_matrices(unsigned (&x)[4], const __nv_bfloat16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

static __device__ inline void load_transposed(unsigned (&x)[4], const __nv_bfloat16 *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

/* c [16, 8] += a [16, 16] b [16, 8] */
static __device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                       unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline unsigned packed(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);

    return *(unsigned *)&x;
}

/* The largest, and the sum, over the four lanes that share a row. */
static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int E, int EV, int WARPS, int MT, int KEYS> struct attention_tile {
    enum {
        ROWS = 16 * MT * WARPS,
        THREADS = 32 * WARPS,
        PITCH = E + 8,
        PITCH_V = EV + 8,
        BYTES = 2 * (ROWS * PITCH + 2 * KEYS * (PITCH + PITCH_V))
    };

    /* n rows of `width` numbers, `pitch` apart, from global row `first`; rows from `end` on are 0
     */
    template <int width, int pitch>
    static __device__ void fetch(__nv_bfloat16 *to, const __nv_bfloat16 *from, size_t stride,
                                 int first, int n, int end)
    {
        enum { CHUNKS = width / 8 };

#pragma unroll 4
        for (int i = threadIdx.x; i < n * CHUNKS; i += THREADS) {
            int row = i / CHUNKS, column = i % CHUNKS * 8;
            bool there = first + row < end;
            copy_async(to + row * pitch + column,
                       from + (there ? first + row : 0) * stride + column, there);
        }
    }

    /* Rows first_row .. first_row + ROWS - 1 of query head h, those before `end`. range(row) is a
     * row's keys, rising with the row; finish(row, e, low, high) takes numbers e and e + 1 of its
     * result. */
    template <typename Range, typename Finish>
    static __device__ void run(const heads &where, int first_row, int end, int h, int column_v,
                               Range range, Finish finish)
    {
        extern __shared__ __align__(16) __nv_bfloat16 shared[];
        __nv_bfloat16 *q = shared, *k = q + ROWS * PITCH, *v = k + 2 * KEYS * PITCH;
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        int last_row = first_row + ROWS <= end ? first_row + ROWS - 1 : end - 1;
        int begin_keys = range(first_row).lo, end_keys = range(last_row).hi + 1;
        int n_tiles = (end_keys - begin_keys + KEYS - 1) / KEYS, least = 0, most = end_keys;
        const __nv_bfloat16 *key = where.k + (size_t)(h / where.per_kv) * E;
        const __nv_bfloat16 *value = where.v + (size_t)(h / where.per_kv) * E + column_v;
        float factor = where.scale * 1.4426950408889634f; /* powers of 2, not of e */
        float o[MT][EV / 8][4], largest[MT][2], sum[MT][2];
        int row[MT][2]; /* of the two that a lane has numbers of, in each 16 */
        key_range keys[MT][2];

        fetch<E, PITCH>(q, where.q + (size_t)h * E, where.q_stride, first_row, ROWS, end);
        fetch<E, PITCH>(k, key, where.kv_stride, begin_keys, KEYS, end_keys);
        fetch<EV, PITCH_V>(v, value, where.kv_stride, begin_keys, KEYS, end_keys);
        asm volatile("cp.async.commit_group;");
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                row[m][r] = first_row + 16 * (warp * MT + m) + lane / 4 + 8 * r;
                keys[m][r] = range(row[m][r] < end ? row[m][r] : last_row);
                least = max(least, keys[m][r].lo);
                most = min(most, keys[m][r].hi);
                largest[m][r] = -INFINITY;
                sum[m][r] = 0.0f;
            }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < EV / 8; i++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    o[m][i][n] = 0.0f;
        for (int tile = 0; tile < n_tiles; tile++) {
            int key0 = begin_keys + tile * KEYS, next = (tile + 1) % 2;
            const __nv_bfloat16 *tile_k = k + tile % 2 * KEYS * PITCH;
            const __nv_bfloat16 *tile_v = v + tile % 2 * KEYS * PITCH_V;
            float s[MT][KEYS / 8][4];

            if (tile + 1 < n_tiles) {
                fetch<E, PITCH>(k + next * KEYS * PITCH, key, where.kv_stride, key0 + KEYS, KEYS,
                                end_keys);
                fetch<EV, PITCH_V>(v + next * KEYS * PITCH_V, value, where.kv_stride, key0 + KEYS,
                                   KEYS, end_keys);
            }
            asm volatile("cp.async.commit_group;");
            asm volatile("cp.async.wait_group 1;");
            __syncthreads(); /* this tile is there for all */

#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (int n = 0; n < 4; n++)
                        s[m][i][n] = 0.0f;
#pragma unroll
            for (int e = 0; e < E; e += 16) {
                unsigned a[MT][4], b[4];
#pragma unroll
                for (int m = 0; m < MT; m++)
                    load_matrices(a[m], q + (16 * (warp * MT + m) + lane % 16) * PITCH + e +
                                            lane / 16 * 8);
#pragma unroll
                for (int i = 0; i < KEYS / 16; i++) {
                    load_matrices(b, tile_k + (16 * i + lane % 8 + lane / 16 * 8) * PITCH + e +
                                         lane / 8 % 2 * 8);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        multiply(s[m][2 * i], a[m], b[0], b[1]);
                        multiply(s[m][2 * i + 1], a[m], b[2], b[3]);
                    }
                }
            }
            if (key0 < least || key0 + KEYS - 1 > most) /* some of it is not for all rows */
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
                        for (int n = 0; n < 4; n++) {
                            int j = key0 + 8 * i + lane % 4 * 2 + n % 2;
                            if (j < keys[m][n / 2].lo || j > keys[m][n / 2].hi)
                                s[m][i][n] = -INFINITY;
                        }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float before = largest[m][r], now = before, base, keep;
#pragma unroll
                    for (int i = 0; i < KEYS / 8; i++)
                        now = fmaxf(now, fmaxf(s[m][i][2 * r], s[m][i][2 * r + 1]));
                    now = quad_max(now);
                    /* a row that has seen no key of its own yet: any finite number will do */
                    base = now == -INFINITY ? 0.0f : now * factor;
                    keep = exp2f(before * factor - base);
                    largest[m][r] = now;
                    sum[m][r] *= keep;
#pragma unroll
                    for (int i = 0; i < KEYS / 8; i++) {
                        s[m][i][2 * r] = exp2f(s[m][i][2 * r] * factor - base);
                        s[m][i][2 * r + 1] = exp2f(s[m][i][2 * r + 1] * factor - base);
                        sum[m][r] += s[m][i][2 * r] + s[m][i][2 * r + 1];
                    }
#pragma unroll
                    for (int i = 0; i < EV / 8; i++) {
                        o[m][i][2 * r] *= keep;
                        o[m][i][2 * r + 1] *= keep;
                    }
                }
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                unsigned a[MT][4], b[4];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    a[m][0] = packed(s[m][2 * i][0], s[m][2 * i][1]);
                    a[m][1] = packed(s[m][2 * i][2], s[m][2 * i][3]);
                    a[m][2] = packed(s[m][2 * i + 1][0], s[m][2 * i + 1][1]);
                    a[m][3] = packed(s[m][2 * i + 1][2], s[m][2 * i + 1][3]);
                }
#pragma unroll
                for (int e = 0; e < EV; e += 16) {
                    load_transposed(b, tile_v + (16 * i + lane % 16) * PITCH_V + e + lane / 16 * 8);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        multiply(o[m][e / 8], a[m], b[0], b[1]);
                        multiply(o[m][e / 8 + 1], a[m], b[2], b[3]);
                    }
                }
            }
            __syncthreads(); /* all are done with it before it is written again */
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float total = 1.0f / quad_sum(sum[m][r]);
                if (row[m][r] < end)
#pragma unroll
                    for (int i = 0; i < EV / 8; i++)
                        finish(row[m][r], column_v + 8 * i + lane % 4 * 2, o[m][i][2 * r] * total,
                               o[m][i][2 * r + 1] * total);
            }
    }
};
