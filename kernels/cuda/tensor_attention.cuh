/* tensor_attention.cuh - attention of bf16 heads on tensor cores, for attention.cu and
 * full_attention.cu. Private to kernels/cuda/.
 *
 * One block has TILE = 16 * WARPS rows of one query head (and EV of its E result columns): grid
 * (ceil(T / TILE), H, E / EV). A warp has 16 rows. Keys and values come KEYS rows at a time, by
 * cp.async, two tiles deep; scores, online softmax and result stay in registers (mma.sync
 * m16n8k16, float32 sums). Rows of shared memory are 16 bytes longer than they need to be: eight
 * rows of an ldmatrix then lie in eight different banks.
 *
 * Each row has a range of keys, lo .. hi; what a block reads is the union over its rows. */
#pragma once
#include "kernels/cuda/device.cuh"

/* The heads of one kind of attention, and where they lie. */
struct heads {
    const __nv_bfloat16 *q, *k, *v; /* head 0 of row 0 */
    size_t stride;                  /* numbers from row to row */
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

template <int E, int EV, int WARPS, int KEYS> struct attention_tile {
    enum {
        ROWS = 16 * WARPS,
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
        int row0 = first_row + 16 * warp + lane / 4, row1 = row0 + 8;
        int begin_keys = range(first_row).lo, end_keys = range(last_row).hi + 1;
        int n_tiles = (end_keys - begin_keys + KEYS - 1) / KEYS;
        key_range range0 = range(row0 < end ? row0 : last_row);
        key_range range1 = range(row1 < end ? row1 : last_row);
        int least = max(range0.lo, range1.lo), most = min(range0.hi, range1.hi);
        const __nv_bfloat16 *key = where.k + (size_t)(h / where.per_kv) * E;
        const __nv_bfloat16 *value = where.v + (size_t)(h / where.per_kv) * E + column_v;
        float factor = where.scale * 1.4426950408889634f; /* powers of 2, not of e */
        float o[EV / 8][4], max0 = -INFINITY, max1 = -INFINITY, sum0 = 0.0f, sum1 = 0.0f;

#pragma unroll
        for (int i = 0; i < EV / 8; i++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                o[i][n] = 0.0f;
        fetch<E, PITCH>(q, where.q + (size_t)h * E, where.stride, first_row, ROWS, end);
        fetch<E, PITCH>(k, key, where.stride, begin_keys, KEYS, end_keys);
        fetch<EV, PITCH_V>(v, value, where.stride, begin_keys, KEYS, end_keys);
        asm volatile("cp.async.commit_group;");
        for (int tile = 0; tile < n_tiles; tile++) {
            int key0 = begin_keys + tile * KEYS, next = (tile + 1) % 2;
            const __nv_bfloat16 *tile_k = k + tile % 2 * KEYS * PITCH;
            const __nv_bfloat16 *tile_v = v + tile % 2 * KEYS * PITCH_V;
            float s[KEYS / 8][4], new0 = max0, new1 = max1, keep0, keep1;

            if (tile + 1 < n_tiles) {
                fetch<E, PITCH>(k + next * KEYS * PITCH, key, where.stride, key0 + KEYS, KEYS,
                                end_keys);
                fetch<EV, PITCH_V>(v + next * KEYS * PITCH_V, value, where.stride, key0 + KEYS,
                                   KEYS, end_keys);
            }
            asm volatile("cp.async.commit_group;");
            asm volatile("cp.async.wait_group 1;");
            __syncthreads(); /* this tile is there for all */

#pragma unroll
            for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    s[i][n] = 0.0f;
#pragma unroll
            for (int e = 0; e < E; e += 16) {
                unsigned a[4], b[4];
                load_matrices(a, q + (16 * warp + lane % 16) * PITCH + e + lane / 16 * 8);
#pragma unroll
                for (int i = 0; i < KEYS / 16; i++) {
                    load_matrices(b, tile_k + (16 * i + lane % 8 + lane / 16 * 8) * PITCH + e +
                                         lane / 8 % 2 * 8);
                    multiply(s[2 * i], a, b[0], b[1]);
                    multiply(s[2 * i + 1], a, b[2], b[3]);
                }
            }
            if (key0 < least || key0 + KEYS - 1 > most) /* some of it is not for all rows */
#pragma unroll
                for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        int j = key0 + 8 * i + lane % 4 * 2 + n % 2;
                        if (n < 2 ? j < range0.lo || j > range0.hi : j < range1.lo || j > range1.hi)
                            s[i][n] = -INFINITY;
                    }
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                new0 = fmaxf(new0, fmaxf(s[i][0], s[i][1]));
                new1 = fmaxf(new1, fmaxf(s[i][2], s[i][3]));
            }
            new0 = quad_max(new0);
            new1 = quad_max(new1);
            /* a row that has seen no key of its own yet: any finite number will do */
            float base0 = new0 == -INFINITY ? 0.0f : new0 * factor;
            float base1 = new1 == -INFINITY ? 0.0f : new1 * factor;
            keep0 = exp2f(max0 * factor - base0);
            keep1 = exp2f(max1 * factor - base1);
            max0 = new0;
            max1 = new1;
            sum0 *= keep0;
            sum1 *= keep1;
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++) {
                s[i][0] = exp2f(s[i][0] * factor - base0);
                s[i][1] = exp2f(s[i][1] * factor - base0);
                s[i][2] = exp2f(s[i][2] * factor - base1);
                s[i][3] = exp2f(s[i][3] * factor - base1);
                sum0 += s[i][0] + s[i][1];
                sum1 += s[i][2] + s[i][3];
            }
#pragma unroll
            for (int i = 0; i < EV / 8; i++) {
                o[i][0] *= keep0;
                o[i][1] *= keep0;
                o[i][2] *= keep1;
                o[i][3] *= keep1;
            }
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) {
                unsigned a[4], b[4];
                a[0] = packed(s[2 * i][0], s[2 * i][1]);
                a[1] = packed(s[2 * i][2], s[2 * i][3]);
                a[2] = packed(s[2 * i + 1][0], s[2 * i + 1][1]);
                a[3] = packed(s[2 * i + 1][2], s[2 * i + 1][3]);
#pragma unroll
                for (int e = 0; e < EV; e += 16) {
                    load_transposed(b, tile_v + (16 * i + lane % 16) * PITCH_V + e + lane / 16 * 8);
                    multiply(o[e / 8], a, b[0], b[1]);
                    multiply(o[e / 8 + 1], a, b[2], b[3]);
                }
            }
            __syncthreads(); /* all are done with it before it is written again */
        }
        sum0 = 1.0f / quad_sum(sum0);
        sum1 = 1.0f / quad_sum(sum1);
#pragma unroll
        for (int i = 0; i < EV / 8; i++) {
            int e = column_v + 8 * i + lane % 4 * 2;
            if (row0 < end)
                finish(row0, e, o[i][0] * sum0, o[i][1] * sum0);
            if (row1 < end)
                finish(row1, e, o[i][2] * sum1, o[i][3] * sum1);
        }
    }
};
