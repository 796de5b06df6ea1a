/* ops.h - every operation the encoder is made of, as one table per backend.
 *
 * The forward pass (engine/model/) calls only through this table. The meaning of each op is its
 * loop nest in kernels/cpu/; the other tables are faster ways to the same numbers.
 *
 * Letters: T tokens of all prompts packed end to end, B prompts, D model width, H query heads,
 * K key/value heads, E head width, F feed-forward width, V vocabulary. Matrices are row-major.
 *
 * Numbers: the residual stream is float32; what a matmul reads is the device's compute type ("act"
 * below: F32 or BF16), rounded once where it is stored. What other ops make of a product before the
 * next one is "mid": float32, or act where `mid_is_act` (where fewer bytes are faster). Sums are
 * float32 at least.
 *
 * Float8: with act BF16 a device may be opened for products in E4M3. A row of a weight matrix and a
 * row of x are then each rounded once more, from bf16, to
 *     q[k] = E4M3 nearest to r[k] * (1/s)      s = largest |r[k]| / 448, a float32 for each row
 * and a product is  sum over k of qx[t,k] * qw[n,k], summed in float32, * sx[t] * sw[n]. A matrix
 * is stored so where N and K are multiples of 16, else as without. All else stays as it is in BF16.
 * (kernels/float8.h has the corners: rows of zeros, NaN.) A GPU's tensor cores add E4M3 products
 * with 13 bits after the point of the largest, and may round a float32 bias to bf16; no op promises
 * more there.
 *
 * Memory: every pointer handed to an op is memory of its device (`alloc`), but where "host" is
 * said. No op allocates. T == 0 is a no-op.
 *
 * Threads: a device belongs to one thread; that thread alone calls its ops. An op may return before
 * its work is done: work on one device happens in the order of the calls, and `sync`, `download`
 * wait for it. Errors of the hardware are ERR_GPU and final. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/dtype.h"
#include "kernels/group.h"

struct device;        /* one rank's hardware: a pool of CPU threads, or a GPU */
struct group;         /* the ranks that compute together (kernels/group.h) */
struct matrix;        /* a resident weight matrix, in the layout its backend likes */
struct table;         /* a resident embedding table */
struct saved_weights; /* a copy of a device's weights in the host's memory */

enum {
    OPS_MAX_HEAD = 512, /* E is at most this */
    OPS_MARKS = 4,
    OPS_DEVICE_NAME = 64
};

struct device_options {
    enum dtype act; /* what matmuls compute in: DTYPE_F32 or DTYPE_BF16 */
    bool float8;    /* they compute in E4M3; act is BF16 */
    int max_rows;   /* float8: rows of x of a product, at most; place for them is kept */
    int n_threads;  /* of the host: they compute, or load for a GPU; the caller's among them */
    int gpu;        /* CUDA: which of the visible GPUs, from 0 */
    bool sleeps;    /* it is to sleep now and then (ops.sleep) */
    const struct device *like; /* of the same table and types: this one computes with matrices that
                                  that one has loaded; NULL: with its own alone */
};

/* Rows of a weight matrix as a file stores them, or some columns of each. */
struct matrix_part {
    const void *data; /* host: [rows, K], or [rows, stored_columns] */
    enum dtype type;  /* any that dtype_decode() reads */
    int rows;
    /* the K columns from first_column on are taken, wherever they cut a block; 0 and 0: a stored
     * row is K numbers, all of them taken */
    int stored_columns, first_column;
};

/* Rows begin .. begin + n - 1 of a matrix. */
struct row_range {
    int begin, n;
};

/* Where views of a matrix may cut its columns (matrix_view). */
struct column_cuts {
    int n, at[GROUP_MAX_RANKS - 1]; /* rising, between 0 and K */
};

/* In bytes. A GPU: of all processes that use it; peak: when the least was free, of the times at
 * which this device took some. A CPU: the machine's, and peak: the most that this process had. */
struct device_memory {
    size_t total, free, peak;
};

struct ops {
    const char *name;
    bool is_host; /* device memory can be read by the host as it is, once `sync` has returned */
    bool mid_is_act;

    /* Devices and memory.
     * n_devices: how many there are to open, by device_options.gpu; optional: as many as wanted.
     * identify: a name of that device that stays the same over restarts, and whatever else is
     * visible; optional: there is none.
     * bind: makes the calling thread the device's; cheap, and needed when another had it before.
     * open: ERR_INPUT when the hardware cannot compute in `act`; ERR_MEM; ERR_GPU.
     * alloc: 64-byte aligned, contents undefined. upload and download move between host and device
     * memory; both may be called with bytes == 0. What was uploaded from must stay until `sync` or
     * a later download returns. */
    int (*n_devices)(int *n, struct error *err);
    int (*identify)(char name[OPS_DEVICE_NAME], int gpu, struct error *err);
    int (*open)(struct device **out, const struct device_options *options, struct error *err);
    void (*close)(struct device *d); /* NULL is fine */
    int (*bind)(struct device *d, struct error *err);
    int (*alloc)(struct device *d, void **out, size_t bytes, struct error *err);
    void (*release)(struct device *d, void *memory); /* NULL is fine */
    int (*upload)(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
    int (*download)(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
    int (*sync)(struct device *d, struct error *err);

    /* optional, both: a download beside what is still computed. What is written when mark returns,
     * and is not written again before download_marked of the same mark (0 .. OPS_MARKS - 1) has
     * returned, that one downloads without waiting for calls after the mark. */
    int (*mark)(struct device *d, int mark, struct error *err);
    int (*download_marked)(struct device *d, int mark, void *to, const void *from, size_t bytes,
                           struct error *err);
    int (*memory)(struct device *d, struct device_memory *out, struct error *err);

    /* Zero bytes; and n_rows rows of `bytes` each from x to y, whose rows are so many bytes apart
     * and not the same memory. */
    int (*clear)(struct device *d, void *memory, size_t bytes, struct error *err);
    int (*copy_rows)(struct device *d, void *y, size_t y_stride, const void *x, size_t x_stride,
                     size_t bytes, int n_rows, struct error *err);

    /* The device becomes that of this process's rank in the group, which it borrows until it is
     * closed or joins another or none (NULL); every rank of the group calls it, on devices of one
     * table. From then on `sync` and `download` end with ERR_GPU, too, when the group is aborted or
     * when what they wait for takes longer than its deadline.
     *
     * Collectives: all ranks call the same ones in the same order with the same sizes. They are ops
     * like any other: in order, and part of a run that is recorded.
     * all_reduce: y[i] becomes the sum of all ranks' y[i], the same bits on every rank.
     * all_gather: what rank r has at `from` is at to + r * bytes on every rank; `from` may be its
     * own place there. broadcast: what the root has at `data` is there on every rank. */
    int (*join)(struct device *d, struct group *group, struct error *err);
    int (*all_reduce)(struct device *d, float *y, size_t n, struct error *err);
    int (*all_gather)(struct device *d, void *to, const void *from, size_t bytes,
                      struct error *err);
    int (*broadcast)(struct device *d, void *data, size_t bytes, int root, struct error *err);

    /* optional: while a rehearsal is on, collectives do nothing and no run is recorded or replayed.
     * What a backend does the first time it meets a shape (making plans, loading code) may have to
     * wait for other ranks' devices, which must not wait for this rank in a collective meanwhile:
     * so each shape is rehearsed by all ranks before they meet in it. */
    void (*rehearse)(struct device *d, bool on);

    /* Runs tasks 0 .. n_tasks - 1 on the host threads of the device, the caller's among them, and
     * returns when all are done. `thread` is below the number of threads, and not shared at one
     * moment. */
    void (*host_run)(struct device *d, void (*task)(void *arg, int index, int thread), void *arg,
                     int n_tasks);

    /* optional, both: many ops as one, for runs of the same ops on the same memory, told apart by
     * `key`. A run is: record, then unless *known the ops, then replay. Where it is known the ops
     * are left out, as replay does them all. Uploads, downloads, alloc and sync are not part of a
     * run; contents of memory are read when it is replayed. */
    int (*record)(struct device *d, uint64_t key, bool *known, struct error *err);
    int (*replay)(struct device *d, uint64_t key, struct error *err);

    /* Weights. matrix_load stacks the parts' rows: N is their sum. Values are rounded to `act`, or
     * to E4M3. The parts have been read when it returns. `cuts`: where views will cut its columns;
     * NULL: nowhere.
     * matrix_bytes, table_bytes: what they hold of the device's memory.
     * table_load: `data` (host, [V, D]) is borrowed until table_free.
     * loading_end: gives back what loading alone needs; optional. */
    int (*matrix_load)(struct device *d, struct matrix **out, const struct matrix_part *parts,
                       int n_parts, int K, const struct column_cuts *cuts, struct error *err);
    /* optional, see kernels/random_matrix.h: the same matrix made where it will lie */
    int (*matrix_random)(struct device *d, struct matrix **out, int N, int K, float size,
                         uint64_t seed, struct error *err);
    void (*matrix_free)(struct device *d, struct matrix *m); /* NULL is fine */
    size_t (*matrix_bytes)(const struct matrix *m);
    int (*table_load)(struct device *d, struct table **out, const void *data, enum dtype type,
                      int V, int D, struct error *err);
    void (*table_free)(struct device *d, struct table *t); /* NULL is fine */
    size_t (*table_bytes)(const struct table *t);
    int (*loading_end)(struct device *d, struct error *err);

    /* optional, all of them: a device that is not needed for a while gives its memory to others. It
     * was opened with `sleeps`, which is ERR_INPUT where that cannot be done. Its weights are what
     * it took between open and loading_end: tables, matrices, and by `alloc`. They alone leave;
     * what is taken later stays.
     * save: a copy of them, from which they come back as fast as the bus allows. It is right for
     * all devices that loaded the same in the same order. ERR_MEM: the host has no memory for it.
     * saved_bytes: what it holds of the host's memory. saved_free: NULL is fine.
     * sleep: gives their memory back. Until the device is awake again nothing is asked of it but
     * bind, sync, wake, and what frees.
     * wake: they are back where they were: what points there, views, and what was recorded, is
     * right again. `from`: such a copy. ERR_MEM: others have the memory by now: it sleeps on, and
     * may be woken later. Without effect on a device that is awake. */
    int (*save)(struct device *d, struct saved_weights **out, struct error *err);
    size_t (*saved_bytes)(const struct saved_weights *w);
    void (*saved_free)(struct saved_weights *w);
    int (*sleep)(struct device *d, struct error *err);
    int (*wake)(struct device *d, const struct saved_weights *from, struct error *err);

    /* A part of a matrix as a matrix of its own, for the ops below: the ranges' rows, one after
     * another, columns k_begin .. k_begin + K - 1 of each. Takes no memory of the device's; freed
     * by matrix_free, before `m`. Columns are cut at 0, at m's, or where `m` was loaded with cuts.
     * A view without rows or columns is ERR_INPUT. In float8 a view's rows keep the scales of the
     * whole ones, and a row of x has that of its K numbers. */
    int (*matrix_view)(struct device *d, struct matrix **out, const struct matrix *m,
                       const struct row_range *ranges, int n_ranges, int k_begin, int K,
                       struct error *err);

    /* optional: a product of T tokens takes longer the first time, and readies all of up to
     * plan_size(T) tokens, T or more, down to the next smaller size. */
    int (*plan_size)(int T);

    /* What this hardware reaches at its best, measured now; takes some GB for a moment.
     * bytes_per_s: reading memory; operations_per_s: a large product of random numbers in `act`.
     * optional: NULL where nobody measures it. */
    int (*measure)(struct device *d, double *bytes_per_s, double *operations_per_s,
                   struct error *err);

    /* Rows of the embedding table.
     *     h[t,d] = ids[t] < 0 ? 0 : table[ids[t],d] * scale
     * h [T, D] f32; ids [T] int32, each below V (the caller has checked); a negative one is of a
     * row that another rank has */
    int (*embed)(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
                 float scale, struct error *err);

    /* RMS norm with a whole factor: where a stored weight w means 1 + w, the loader has added the
     * 1 (engine/model/weights.c).
     *     y[t,d] = x[t,d] / sqrt(mean over d of x[t,d]^2 + eps) * w[d]
     * y [T, D] of y_type (F32 or BF16), its rows `stride` numbers apart; x [T, D] f32; w [D] f32,
     * or NULL: all ones; y may be x when y_type is F32 and stride D */
    int (*rmsnorm)(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                   const float *w, int T, int D, float eps, struct error *err);

    /* The same, added to the residual stream, and the sum scaled (by 1: not at all, to the bit).
     *     h[t,d] = (h[t,d] + x[t,d] / sqrt(mean over d of x[t,d]^2 + eps) * w[d]) * scale
     * h, x [T, D] f32; w [D] f32 */
    int (*add_rmsnorm)(struct device *d, float *h, const float *x, const float *w, float scale,
                       int T, int D, float eps, struct error *err);

    /* optional: add_rmsnorm, then rmsnorm of the sum, in one step.
     * y [T, D] act; next_w [D] f32 */
    int (*add_rmsnorm_rmsnorm)(struct device *d, float *h, void *y, const float *x, const float *w,
                               float scale, const float *next_w, int T, int D, float eps,
                               struct error *err);

    /* Product with a weight matrix.
     *     y[t,n] = bias[n] + sum over k of x[t,k] * w[n,k]
     * y [T, N] mid; x [T, K] act; w [N, K]; bias [N] mid, or NULL: none. On a CPU a row's sum does
     * not depend on the other rows. In float8 this and the next three are ERR_SIZE for more than
     * max_rows rows. */
    int (*matmul)(struct device *d, void *y, const void *x, const struct matrix *w,
                  const void *bias, int T, struct error *err);

    /* optional: matmul, then gelu, in one step.
     * y [T, N] act; bias [N] mid, or NULL */
    int (*matmul_gelu)(struct device *d, void *y, const void *x, const struct matrix *w,
                       const void *bias, int T, struct error *err);

    /* optional: matmul without a bias, then geglu.
     * y [T, F] act; w [2F, K]: gate, then up; gu [T, 2F] mid, whose contents are lost */
    int (*matmul_geglu)(struct device *d, void *y, const void *x, const struct matrix *w, void *gu,
                        int T, struct error *err);

    /* The same product in float32, stored or added to what is there.
     *     y[t,n] = (add ? y[t,n] : 0) + bias[n] + sum over k of x[t,k] * w[n,k]
     * y [T, N] f32; bias [N] f32, or NULL: none */
    int (*linear)(struct device *d, float *y, const void *x, const struct matrix *w,
                  const float *bias, bool add, int T, struct error *err);

    /* RMS norm of each query and key head, then rotary positions by halves (rotate_half), in place.
     *     z = head / sqrt(mean(head^2) + eps) * w
     *     e < E/2:  head[e]       = z[e] * cos[p,e] - z[e+E/2] * sin[p,e]
     *               head[e+E/2]   = z[e+E/2] * cos[p,e] + z[e] * sin[p,e]       p = positions[t]
     * With norm_v also the norm alone, without a weight, of each value head:
     *     head[e] = head[e] / sqrt(mean(head^2) + eps)
     * qkv [T, (H + 2K) * E] mid: H query heads, K key heads, K value heads (without norm_v left as
     * they are); q_w, k_w [E] f32; cos, sin [any, E/2] f32; positions [T] int32; E even */
    int (*qk_norm_rope)(struct device *d, void *qkv, const float *q_w, const float *k_w,
                        const float *cos, const float *sin, const int32_t *positions, int T, int H,
                        int K, int E, float eps, bool norm_v, struct error *err);

    /* Causal attention inside each prompt, keys shared by H/K query heads.
     *     o[t,h,:] = softmax over j of (q[t,h,:] . k[j,h/(H/K),:] * scale) applied to v[j,...]
     *     j runs over the tokens of t's prompt with j <= t and t - j < window
     * o [T, H * E] act; qkv as above; begin [B + 1] int32: prompt b is tokens begin[b] ..
     * begin[b+1]-1, begin[0] = 0, begin[B] = T; window >= 1 (INT_MAX: no window) */
    int (*attention)(struct device *d, void *o, const void *qkv, const int32_t *begin, int B, int T,
                     int H, int K, int E, float scale, int window, struct error *err);

    /* Gated feed-forward: GELU by tanh of the gate, times the other half.
     *     y[t,f] = gelu(gu[t,f]) * gu[t,F+f]
     *     gelu(x) = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
     * y [T, F] act; gu [T, 2F] mid */
    int (*geglu)(struct device *d, void *y, const void *gu, int T, int F, struct error *err);

    /* GELU by tanh.
     *     y[t,f] = gelu(x[t,f])
     * y [T, F] act; x [T, F] mid */
    int (*gelu)(struct device *d, void *y, const void *x, int T, int F, struct error *err);

    /* Each prompt's numbers brought into a range of 8 about their mean, n being its tokens.
     *     mean   = sum of the prompt's x / (n * D + 1e-6)
     *     y[t,d] = 8 * (x[t,d] - mean) / (max of the prompt's x - min of them + 1e-6)
     * y [T, D] act; x [T, D] f32; begin [B + 1] int32 as for attention; scratch [T, 3] f32, its
     * contents are lost */
    int (*range_norm)(struct device *d, void *y, const float *x, const int32_t *begin,
                      float *scratch, int B, int T, int D, struct error *err);

    /* Some columns of sums, scaled, to some columns.
     *     y[t,n] = x[t,n] * scale + bias[n]
     * y, x: the N numbers of each row, so many f32 apart; bias [N] f32, or NULL: none */
    int (*scale_columns)(struct device *d, float *y, int y_stride, const float *x, int x_stride,
                         float scale, const float *bias, int T, int N, struct error *err);

    /* Prompts of any length to rows: a prompt's own rows, then registers. Row p takes register
     * p % R, wherever the prompt ends. Of each prompt the P rows from p_begin on:
     *     h[b*P + i, :] = p < count[b] ? x[first[b] + p, :] : registers[p % R, :]
     *     p = p_begin + i
     * h [B * P, W], x [any, W], registers [R, W], all of `type` (F32 or BF16); first, count [B]
     * int32 */
    int (*fill_rows)(struct device *d, void *h, const void *x, const void *registers,
                     enum dtype type, const int32_t *first, const int32_t *count, int B,
                     int p_begin, int P, int R, int W, struct error *err);

    /* RMS norm of q and of k over all heads at once, then rotary positions; in place. With
     * W = H * E, for q and for k:
     *     z = q / sqrt(mean of the W numbers' squares + eps) * q_w
     *     pairs (a, b) of z and their angle i:   q[a] = z[a] * cos[p,i] - z[b] * sin[p,i]
     *                                            q[b] = z[b] * cos[p,i] + z[a] * sin[p,i]
     *     split:        a = h * E + e, b = a + E/2, i = h * E/2 + e      e < E/2
     *     interleaved:  a = 2i, b = 2i + 1
     * qkv [T, stride] mid: a row is q [W], k [W] and what is left as it is; q_w, k_w [W] f32;
     * cos, sin [P, W/2] f32; row t has position p = t % P; E even */
    int (*wide_qk_norm_rope)(struct device *d, void *qkv, const float *q_w, const float *k_w,
                             const float *cos, const float *sin, int T, int P, int H, int E,
                             int stride, bool interleaved, float eps, struct error *err);

    /* Attention without a mask inside blocks, a gate on each head's result. A block is Q rows of
     * queries and P rows of keys and values.
     *     o[t,h,:] = softmax over j of (q[t,h,:] . k[j,h,:] * scale) applied to v[j,h,:]
     *                * (g != NULL ? 2 / (1 + e^-g[t,h]) : 1)
     *     j runs over the P rows from kv_rows * (t / Q) on; P <= kv_rows
     * o [T, H * E] act, T % Q == 0; q: the H * E numbers of each row, and g the H gates, q_stride
     * mid apart; kv: the k [H * E] and v [H * E] of each row, kv_stride mid apart */
    int (*full_attention)(struct device *d, void *o, const void *q, const void *g, int q_stride,
                          const void *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H,
                          int E, float scale, struct error *err);

    /* Numbers as a result has them.
     *     y[i] = x[i], rounded to `type` as dtype_encode() does
     * y [n] of `type` (F32, F16 or BF16), on a boundary of 16 bytes unless is_host; x [n] f32;
     * *has_nan becomes 1 where one of them is a NaN, and stays what it was otherwise */
    int (*encode)(struct device *d, void *y, enum dtype type, const float *x, size_t n,
                  int32_t *has_nan, struct error *err);
};

/* The CPU at its best: oneDNN's matmul where it was built in, vector loops for the rest. */
const struct ops *ops_cpu(void);

/* One NVIDIA GPU. NULL where the build has no CUDA. */
const struct ops *ops_cuda(void);

/* The loop nests: the meaning of every op, for tests and for the thread sanitizer. */
const struct ops *ops_loops(void);
