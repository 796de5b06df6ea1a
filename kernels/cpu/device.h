/* device.h - what the files of the CPU backend share: the device, its weights, and the entries of
 * the ops table (see ops.h for what each means). Private to kernels/cpu/. */
#pragma once
#include <string.h>

#include "kernels/cpu/pool.h"
#include "kernels/matrix_parts.h"
#include "kernels/ops.h"

struct matmul_plans;

struct device {
    enum dtype act;
    bool float8;
    int max_rows, rounded_width;
    bf16 *rounded;     /* float8: [max_rows, rounded_width] what a product reads; NULL: none yet */
    float *row_scales; /* and the scale of each row */
    struct pool *pool;
    struct group *group;        /* borrowed; NULL: joined none */
    struct matmul_plans *plans; /* oneDNN's primitives by shape; NULL in the loop nests */
};

/* Rows of a matrix that lie in one panel, and the column of y that their first one makes. */
struct piece {
    int row, n, column;
};

/* A view has its own N, K, k_begin and pieces; the rest is as in the matrix, which owns it. */
struct matrix {
    int N, K, k_begin;
    struct piece *pieces; /* in the order of columns; the unit of work of a product */
    int n_pieces;
    bool is_view;

    enum dtype type; /* F32, BF16 or F8_E4M3, whose values are stored as if they were BF16's */
    size_t bytes;    /* 0: a view */
    int rows, columns, panel; /* what is stored, and how many rows of it together */
    void *data;    /* loop nests: [rows, columns]; others: panels, see simd.c, matmul_onednn.c */
    float *scales; /* [rows] of F8_E4M3; else NULL */

    /* oneDNN: columns chunk[i] .. chunk[i + 1] - 1 of a panel are chunk_at[i] bytes from its start
     */
    int n_chunks, chunk[GROUP_MAX_RANKS + 1];
    size_t chunk_at[GROUP_MAX_RANKS], panel_bytes;
};

struct table {
    const void *data; /* borrowed: [V, D] as the file stores it */
    enum dtype type;
    int V, D;
    size_t row_bytes;
};

/* Stores one number of an activation of type F32 or BF16. */
static inline void store_act(void *y, enum dtype type, size_t i, float value)
{
    if (type == DTYPE_F32)
        ((float *)y)[i] = value;
    else
        ((bf16 *)y)[i] = bf16_from_float(value);
}

/* Stores n numbers of a product's row, with what `linear` adds to them. */
static inline void store_row(float *y, const float *sums, const float *bias, bool add, int n)
{
    if (bias == NULL && !add) {
        memcpy(y, sums, (size_t)n * sizeof(*y));
        return;
    }
    for (int i = 0; i < n; i++) {
        float value = bias != NULL ? sums[i] + bias[i] : sums[i];
        y[i] = add ? y[i] + value : value;
    }
}

/* Sums of row t of x by the matrix's rows from `row` on, to what they stand for in float8; left
 * alone in other types. */
static inline void scale_sums(float *sums, const struct device *d, const struct matrix *w, int t,
                              int row, int n)
{
    if (w->scales != NULL)
        for (int i = 0; i < n; i++)
            sums[i] = sums[i] * d->row_scales[t] * w->scales[row + i];
}

/* matrix.c. create: all but the data, of rows that lie together `panel` at a time. */
int cpu_matrix_create(struct device *d, struct matrix **out, const struct matrix_part *parts,
                      int n_parts, int K, int panel, struct error *err);
void cpu_matrix_free(struct device *d, struct matrix *m);
size_t cpu_matrix_bytes(const struct matrix *m);
int cpu_matrix_view(struct device *d, struct matrix **out, const struct matrix *m,
                    const struct row_range *ranges, int n_ranges, int k_begin, int K,
                    struct error *err);

/* float8.c. reserve: the type of a new matrix, and what it needs of the device's and of its own for
 * float8. widen: place for rounded rows of K numbers. round_weights: decoded rows, from row `row`
 * on, to values of that type. rows: a product's T rows at *x; in float8 *x becomes those that the
 * device has rounded. ERR_MEM; ERR_SIZE. */
int cpu_float8_widen(struct device *d, int K, struct error *err);
int cpu_float8_reserve(struct device *d, struct matrix *m, struct error *err);
void cpu_round_weights(float *rows, const struct matrix *m, int row, int n_rows);
int cpu_float8_rows(struct device *d, const void **x, const struct matrix *w, int T,
                    struct error *err);

int cpu_open(struct device **out, const struct device_options *options, struct error *err);
void cpu_close(struct device *d);
int cpu_bind(struct device *d, struct error *err);
int cpu_alloc(struct device *d, void **out, size_t bytes, struct error *err);
void cpu_release(struct device *d, void *memory);
int cpu_upload(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cpu_download(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cpu_sync(struct device *d, struct error *err);
int cpu_clear(struct device *d, void *memory, size_t bytes, struct error *err);
int cpu_copy_rows(struct device *d, void *y, size_t y_stride, const void *x, size_t x_stride,
                  size_t bytes, int n_rows, struct error *err);
int cpu_memory(struct device *d, struct device_memory *out, struct error *err);
int cpu_join(struct device *d, struct group *group, struct error *err);
int cpu_all_reduce(struct device *d, float *y, size_t n, struct error *err);
int cpu_all_gather(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cpu_broadcast(struct device *d, void *data, size_t bytes, int root, struct error *err);
void cpu_host_run(struct device *d, void (*task)(void *arg, int index, int thread), void *arg,
                  int n_tasks);

int cpu_table_load(struct device *d, struct table **out, const void *data, enum dtype type, int V,
                   int D, struct error *err);
void cpu_table_free(struct device *d, struct table *t);
size_t cpu_table_bytes(const struct table *t);
int cpu_embed(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
              float scale, struct error *err);

int loops_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                      int n_parts, int K, const struct column_cuts *cuts, struct error *err);
int loops_matmul(struct device *d, void *y, const void *x, const struct matrix *w, const void *bias,
                 int T, struct error *err);
int loops_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                 const float *bias, bool add, int T, struct error *err);
int loops_rmsnorm(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                  const float *w, int T, int D, float eps, struct error *err);
int loops_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale,
                      int T, int D, float eps, struct error *err);
int loops_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                       const float *cos, const float *sin, const int32_t *positions, int T, int H,
                       int K, int E, float eps, bool norm_v, struct error *err);
int loops_attention(struct device *d, void *o, const void *qkv, const int32_t *begin, int B, int T,
                    int H, int K, int E, float scale, int window, struct error *err);
int loops_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err);
int loops_gelu(struct device *d, void *y, const void *x, int T, int F, struct error *err);
int loops_range_norm(struct device *d, void *y, const float *x, const int32_t *begin,
                     float *scratch, int B, int T, int D, struct error *err);
int loops_scale_columns(struct device *d, float *y, int y_stride, const float *x, int x_stride,
                        float scale, const float *bias, int T, int N, struct error *err);
int cpu_fill_rows(struct device *d, void *h, const void *x, const void *registers, enum dtype type,
                  const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R,
                  int W, struct error *err);
int loops_wide_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                            const float *cos, const float *sin, int T, int P, int H, int E,
                            int stride, bool interleaved, float eps, struct error *err);
int loops_full_attention(struct device *d, void *o, const void *q, const void *g, int q_stride,
                         const void *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H,
                         int E, float scale, struct error *err);
int cpu_encode(struct device *d, void *y, enum dtype type, const float *x, size_t n,
               int32_t *has_nan, struct error *err);

/* Overrides of the loop nests. simd_fill_*: simd.c, compiled once per instruction set. */
void onednn_fill(struct ops *ops);
void simd_fill_baseline(struct ops *ops);
void simd_fill_v3(struct ops *ops);
void simd_fill_v4(struct ops *ops);
