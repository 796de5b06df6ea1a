/* simd.c - the CPU's ops over whole vectors; compiled once per instruction set.
 *
 * Written with the compiler's vector types, W floats wide (SIMD_LEVEL decides), so that the same
 * text serves AVX-512, AVX2, SSE and NEON. Sums run in W partial sums and are added at the end: in
 * the order of additions, and only there, these differ from the loop nests.
 *
 * Attention goes over blocks of ROWS queries and COLS keys with a running maximum and sum (online
 * softmax), so its scratch space is a few KiB of stack whatever the prompt's length. Blocks are
 * counted from the prompt's first token: a prompt's numbers do not depend on its neighbours.
 *
 * Widths that W does not divide go to the loop nest. Not taken: letting the compiler find the
 * vectors (it may not reorder a sum without -ffast-math, which we never use). */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"

#if SIMD_LEVEL == 4
#define FILL simd_fill_v4
enum { W = 16 };
#elif SIMD_LEVEL == 3
#define FILL simd_fill_v3
enum { W = 8 };
#else
#define FILL simd_fill_baseline
enum { W = 4 };
#endif

typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef uint16_t hvec __attribute__((vector_size(W * 2)));

static inline vec load(const float *p)
{
    vec v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void store(float *p, vec v)
{
    memcpy(p, &v, sizeof(v));
}

static inline vec splat(float x)
{
    return x - (vec){0}; /* x - 0 keeps the sign of zero */
}

static inline vec select_vec(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

static inline float sum_of(vec v)
{
    float sum = 0.0f;

    for (int i = 0; i < W; i++)
        sum += v[i];
    return sum;
}

static inline float max_of(vec v)
{
    float max = v[0];

    for (int i = 1; i < W; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

/* Stores W numbers of an activation, bf16 rounded to nearest even; NaN stays NaN. */
static inline void store_act_vec(void *y, enum dtype type, size_t i, vec v)
{
    ivec bits, rounded;
    hvec half;

    if (type == DTYPE_F32) {
        store((float *)y + i, v);
        return;
    }
    bits = (ivec)v;
    rounded = bits + 0x7fff + ((bits >> 16) & 1);
    rounded = ((v != v) & (bits | 0x400000)) | (~(v != v) & rounded);
    half = __builtin_convertvector(rounded >> 16 & 0xffff, hvec);
    memcpy((bf16 *)y + i, &half, sizeof(half));
}

/* e^x: x = n ln 2 + r, a polynomial in r (coefficients of Cephes' expf), times 2^n. Within 2 ulp;
 * below -87 it is 0, above 88 it stays at e^88. */
static inline vec exp_vec(vec x)
{
    const float round =
        12582912.0f; /* 1.5 * 2^23: adding it leaves a whole number in the low bits */
    ivec tiny = x < -87.0f;
    vec n, r, p;

    x = select_vec(x > 88.0f, splat(88.0f), x);
    x = select_vec(tiny, splat(-87.0f), x);
    n = (x * 1.44269504088896341f + round) - round;
    r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    p = (vec)((ivec)p + (__builtin_convertvector(n, ivec) << 23));
    return select_vec(tiny, (vec){0}, p);
}

static inline float sum_of_squares(const float *x, int n)
{
    vec a = {0}, b = {0};
    int i = 0;

    for (; i + 2 * W <= n; i += 2 * W) {
        vec x0 = load(x + i), x1 = load(x + i + W);
        a += x0 * x0;
        b += x1 * x1;
    }
    if (i < n)
        a += load(x + i) * load(x + i);
    return sum_of(a + b);
}

/* ---- rmsnorm, add_rmsnorm: a task is a few rows ---- */

enum { NORM_ROWS = 8 };

struct rmsnorm_args {
    void *y; /* NULL: add to h */
    enum dtype y_type;
    float *h;
    const float *x, *w;
    int stride, T, D;
    float eps, scale;
};

static void rmsnorm_rows(void *arg, int index, int thread)
{
    const struct rmsnorm_args *a = arg;
    int D = a->D, end = (index + 1) * NORM_ROWS < a->T ? (index + 1) * NORM_ROWS : a->T;

    (void)thread;
    for (int t = index * NORM_ROWS; t < end; t++) {
        const float *x = a->x + (size_t)t * D;
        vec factor = splat(1.0f / sqrtf(sum_of_squares(x, D) / (float)D + a->eps));
        for (int d = 0; d < D; d += W) {
            size_t i = (size_t)t * a->stride + d;
            vec value = load(x + d) * factor;
            if (a->w != NULL)
                value *= load(a->w + d);
            if (a->y == NULL)
                store(a->h + i, (load(a->h + i) + value) * a->scale);
            else
                store_act_vec(a->y, a->y_type, i, value);
        }
    }
}

static int simd_rmsnorm(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                        const float *w, int T, int D, float eps, struct error *err)
{
    struct rmsnorm_args args = {y, y_type, NULL, x, w, stride, T, D, eps, 1.0f};

    if (D % W != 0)
        return loops_rmsnorm(d, y, y_type, stride, x, w, T, D, eps, err);
    pool_run(d->pool, rmsnorm_rows, &args, (T + NORM_ROWS - 1) / NORM_ROWS);
    return OK;
}

static int simd_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale,
                            int T, int D, float eps, struct error *err)
{
    struct rmsnorm_args args = {NULL, DTYPE_F32, h, x, w, D, T, D, eps, scale};

    if (D % W != 0)
        return loops_add_rmsnorm(d, h, x, w, scale, T, D, eps, err);
    pool_run(d->pool, rmsnorm_rows, &args, (T + NORM_ROWS - 1) / NORM_ROWS);
    return OK;
}

/* ---- range_norm: a task is a row, twice, as in the loop nest ---- */

struct range_args {
    void *y;
    const float *x;
    const int32_t *begin;
    float *scratch; /* [T, 3]: sum, least, largest */
    int B, D;
    enum dtype act;
};

static void measure_row(void *arg, int t, int thread)
{
    const struct range_args *a = arg;
    const float *x = a->x + (size_t)t * a->D;
    vec sum = {0}, least = load(x), largest = load(x);

    (void)thread;
    for (int d = 0; d < a->D; d += W) {
        vec v = load(x + d);
        sum += v;
        least = select_vec(v < least, v, least);
        largest = select_vec(v > largest, v, largest);
    }
    a->scratch[(size_t)t * 3] = sum_of(sum);
    a->scratch[(size_t)t * 3 + 1] = -max_of(-least);
    a->scratch[(size_t)t * 3 + 2] = max_of(largest);
}

static void range_row(void *arg, int t, int thread)
{
    const struct range_args *a = arg;
    float sum = 0.0f, least = INFINITY, largest = -INFINITY, mean;
    vec factor;
    int b = 0;

    (void)thread;
    while (t >= a->begin[b + 1])
        b++;
    for (int i = a->begin[b]; i < a->begin[b + 1]; i++) {
        const float *measures = a->scratch + (size_t)i * 3;
        sum += measures[0];
        least = measures[1] < least ? measures[1] : least;
        largest = measures[2] > largest ? measures[2] : largest;
    }
    mean = sum / ((float)(a->begin[b + 1] - a->begin[b]) * (float)a->D + 1e-6f);
    factor = splat(8.0f / (largest - least + 1e-6f));
    for (size_t i = (size_t)t * a->D; i < (size_t)(t + 1) * a->D; i += W)
        store_act_vec(a->y, a->act, i, (load(a->x + i) - mean) * factor);
}

static int simd_range_norm(struct device *d, void *y, const float *x, const int32_t *begin,
                           float *scratch, int B, int T, int D, struct error *err)
{
    struct range_args args = {y, x, begin, scratch, B, D, d->act};

    if (D % W != 0)
        return loops_range_norm(d, y, x, begin, scratch, B, T, D, err);
    pool_run(d->pool, measure_row, &args, T);
    pool_run(d->pool, range_row, &args, T);
    return OK;
}

/* ---- qk_norm_rope: a task is a few tokens ---- */

struct qk_args {
    float *qkv;
    const float *q_w, *k_w, *cos, *sin;
    const int32_t *positions;
    int T, H, K, E;
    float eps;
    bool norm_v;
};

static vec norm_factor(const float *head, int E, float eps)
{
    return splat(1.0f / sqrtf(sum_of_squares(head, E) / (float)E + eps));
}

static void norm_and_rotate(float *head, const float *w, const float *cos, const float *sin, int E,
                            float eps)
{
    vec factor = norm_factor(head, E, eps);
    int half = E / 2;

    for (int e = 0; e < half; e += W) {
        vec low = load(head + e) * factor * load(w + e);
        vec high = load(head + e + half) * factor * load(w + e + half);
        vec c = load(cos + e), s = load(sin + e);
        store(head + e, low * c - high * s);
        store(head + e + half, high * c + low * s);
    }
}

static void qk_tokens(void *arg, int index, int thread)
{
    const struct qk_args *a = arg;
    int end = (index + 1) * NORM_ROWS < a->T ? (index + 1) * NORM_ROWS : a->T;

    (void)thread;
    for (int t = index * NORM_ROWS; t < end; t++) {
        float *row = a->qkv + (size_t)t * (a->H + 2 * a->K) * a->E;
        size_t angle = (size_t)a->positions[t] * (a->E / 2);
        for (int h = 0; h < a->H + a->K; h++)
            norm_and_rotate(row + (size_t)h * a->E, h < a->H ? a->q_w : a->k_w, a->cos + angle,
                            a->sin + angle, a->E, a->eps);
        for (int h = a->H + a->K; a->norm_v && h < a->H + 2 * a->K; h++) {
            float *head = row + (size_t)h * a->E;
            vec factor = norm_factor(head, a->E, a->eps);
            for (int e = 0; e < a->E; e += W)
                store(head + e, load(head + e) * factor);
        }
    }
}

static int simd_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                             const float *cos, const float *sin, const int32_t *positions, int T,
                             int H, int K, int E, float eps, bool norm_v, struct error *err)
{
    struct qk_args args = {qkv, q_w, k_w, cos, sin, positions, T, H, K, E, eps, norm_v};

    if (E % (2 * W) != 0)
        return loops_qk_norm_rope(d, qkv, q_w, k_w, cos, sin, positions, T, H, K, E, eps, norm_v,
                                  err);
    pool_run(d->pool, qk_tokens, &args, (T + NORM_ROWS - 1) / NORM_ROWS);
    return OK;
}

/* ---- wide_qk_norm_rope by halves: a task is a row ---- */

struct wide_args {
    float *qkv;
    const float *q_w, *k_w, *cos, *sin;
    int P, H, E, stride;
    float eps;
};

static void wide_norm_and_rotate(const struct wide_args *a, float *x, const float *w,
                                 const float *cos, const float *sin)
{
    int width = a->H * a->E, half = a->E / 2;
    vec factor = splat(1.0f / sqrtf(sum_of_squares(x, width) / (float)width + a->eps));

    for (int h = 0; h < a->H; h++, x += a->E, w += a->E, cos += half, sin += half)
        for (int e = 0; e < half; e += W) {
            vec low = load(x + e) * factor * load(w + e);
            vec high = load(x + e + half) * factor * load(w + e + half);
            vec c = load(cos + e), s = load(sin + e);
            store(x + e, low * c - high * s);
            store(x + e + half, high * c + low * s);
        }
}

static void wide_row(void *arg, int t, int thread)
{
    const struct wide_args *a = arg;
    int width = a->H * a->E;
    float *row = a->qkv + (size_t)t * a->stride;
    size_t angle = (size_t)(t % a->P) * (width / 2);

    (void)thread;
    wide_norm_and_rotate(a, row, a->q_w, a->cos + angle, a->sin + angle);
    wide_norm_and_rotate(a, row + width, a->k_w, a->cos + angle, a->sin + angle);
}

/* Neighbours, the old type, are left to the loop nest. */
static int simd_wide_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                                  const float *cos, const float *sin, int T, int P, int H, int E,
                                  int stride, bool interleaved, float eps, struct error *err)
{
    struct wide_args args = {qkv, q_w, k_w, cos, sin, P, H, E, stride, eps};

    if (interleaved || E % (2 * W) != 0)
        return loops_wide_qk_norm_rope(d, qkv, q_w, k_w, cos, sin, T, P, H, E, stride, interleaved,
                                       eps, err);
    pool_run(d->pool, wide_row, &args, T);
    return OK;
}

/* ---- attention, full_attention: a task is one query head of up to ROWS tokens of one prompt
 * (of one block of rows) ----
 *
 * Scores are kept with the rows in the lanes: a key's number is multiplied with ROWS queries at
 * once, so neither a score nor the softmax needs a sum or a maximum across lanes. */

enum {
    ROWS = W == 16 ? 32 : 16,
    COLS = 64,
    ROW_VECS = ROWS / W,
    SCORE_COLS = W / 2,          /* keys of a tile: ROW_VECS times as many sums */
    VALUE_ROWS = W == 16 ? 8 : 4 /* rows of a tile, of 2 vectors each */
};

struct attention_args {
    void *o;
    const float *q, *k, *v; /* of the first row's first head */
    const float *g;         /* of the first row: a logit for each head; NULL: none */
    size_t q_stride, kv_stride;
    int H, K, E, window;
    float scale;
    enum dtype act;
    bool causal; /* else every row sees all */

    const int32_t *begin; /* causal: [B + 1] */
    int B;
    int Q, P, kv_rows; /* full: rows of a block, and those of keys up to the next one's */
};

/* Some queries that see the same rows of keys: rows of q, and of k and v. */
struct attention_block {
    int q_row, n_queries, kv_row, n_keys;
};

/* scores[c][r] = q[r] . k[c] * scale for all rows and SCORE_COLS keys from c on */
static void score_tile(float scores[COLS][ROWS], float q[OPS_MAX_HEAD][ROWS], const float *const *k,
                       int c, int E, float scale)
{
    vec sums[SCORE_COLS][ROW_VECS] = {0};

    for (int e = 0; e < E; e++)
        for (int j = 0; j < SCORE_COLS; j++) {
            vec key = splat(k[c + j][e]);
            for (int v = 0; v < ROW_VECS; v++)
                sums[j][v] += load(q[e] + v * W) * key;
        }
    for (int j = 0; j < SCORE_COLS; j++)
        for (int v = 0; v < ROW_VECS; v++)
            store(scores[c + j] + v * W, sums[j][v] * scale);
}

/* out[r] = out[r] * keep[r] + sum over c of p[c][r] * v[c], VALUE_ROWS rows and 2 vectors */
static void value_tile(float out[ROWS][OPS_MAX_HEAD], float p[COLS][ROWS], const float *keep,
                       const float *const *v, int n_cols, int r, int e)
{
    vec sums[VALUE_ROWS][2];

    for (int i = 0; i < VALUE_ROWS; i++) {
        sums[i][0] = load(out[r + i] + e) * keep[r + i];
        sums[i][1] = load(out[r + i] + e + W) * keep[r + i];
    }
    for (int c = 0; c < n_cols; c++) {
        vec v0 = load(v[c] + e), v1 = load(v[c] + e + W);
        for (int i = 0; i < VALUE_ROWS; i++) {
            sums[i][0] += p[c][r + i] * v0;
            sums[i][1] += p[c][r + i] * v1;
        }
    }
    for (int i = 0; i < VALUE_ROWS; i++) {
        store(out[r + i] + e, sums[i][0]);
        store(out[r + i] + e + W, sums[i][1]);
    }
}

/* Turns the scores of W rows into exponentials under the running maximum, which a row has as -inf
 * while it has seen no key; `keep` says by how much what was summed before shrinks. */
static void softmax_step(float *scores, int n_cols, float *max, float *sum, float *keep)
{
    vec largest = load(max), total = {0}, base, shrink;

    for (int c = 0; c < n_cols; c++) {
        vec s = load(scores + c * ROWS);
        largest = select_vec(s > largest, s, largest);
    }
    base = select_vec(largest == -INFINITY, (vec){0}, largest);
    shrink = exp_vec(load(max) - base);
    for (int c = 0; c < n_cols; c++) {
        vec p = exp_vec(load(scores + c * ROWS) - base);
        store(scores + c * ROWS, p);
        total += p;
    }
    store(keep, shrink);
    store(sum, load(sum) * shrink + total);
    store(max, largest);
}

/* -inf where a key lies behind its row or out of the window. */
static void mask_scores(float scores[COLS][ROWS], int row0, int key0, int n_cols, int window)
{
    for (int c = 0; c < n_cols; c++)
        for (int r = 0; r < ROWS; r++) {
            int distance = row0 + r - key0 - c;
            scores[c][r] = distance < 0 || distance >= window ? -INFINITY : scores[c][r];
        }
}

static void attend(const struct attention_args *a, struct attention_block b, int row0, int h)
{
    /* queries row0 .. row0 + n_rows - 1, counted from the block's first */
    size_t q_stride = a->q_stride, kv_stride = a->kv_stride;
    int E = a->E, left = b.n_queries - row0, n_rows = left < ROWS ? left : ROWS;
    int last = row0 + n_rows - 1, last_key = a->causal ? last : b.n_keys - 1;
    int first_key = row0 - a->window < 0 ? 0 : row0 - a->window + 1;
    size_t kv_at = b.kv_row * kv_stride + (size_t)(h / (a->H / a->K)) * E;
    const float *queries = a->q + b.q_row * q_stride + (size_t)h * E;
    const float *keys = a->k + kv_at, *values = a->v + kv_at;
    float q[OPS_MAX_HEAD][ROWS], scores[COLS][ROWS], out[ROWS][OPS_MAX_HEAD];
    float max[ROWS], sum[ROWS] = {0}, keep[ROWS];
    const float *k[COLS], *v[COLS];

    for (int r = 0; r < ROWS; r++) { /* rows past the end repeat the last one, unread */
        int row = row0 + r <= last ? row0 + r : last;
        const float *from = queries + row * q_stride;
        for (int e = 0; e < E; e++)
            q[e][r] = from[e];
        max[r] = -INFINITY;
        memset(out[r], 0, (size_t)E * sizeof(float));
    }
    for (int key0 = first_key / COLS * COLS; key0 <= last_key; key0 += COLS) {
        int n_cols = last_key + 1 - key0 < COLS ? last_key + 1 - key0 : COLS;
        for (int c = 0; c < COLS; c++) { /* keys past the end, too */
            int key = key0 + c <= last_key ? key0 + c : last_key;
            k[c] = keys + key * kv_stride;
            v[c] = values + key * kv_stride;
        }
        for (int c = 0; c < n_cols; c += SCORE_COLS)
            score_tile(scores, q, k, c, E, a->scale);
        if (a->causal)
            mask_scores(scores, row0, key0, n_cols, a->window);
        for (int r = 0; r < ROWS; r += W)
            softmax_step(scores[0] + r, n_cols, max + r, sum + r, keep + r);
        for (int e = 0; e < E; e += 2 * W)
            for (int r = 0; r < n_rows; r += VALUE_ROWS)
                value_tile(out, scores, keep, v, n_cols, r, e);
    }
    for (int r = 0; r < n_rows; r++) {
        size_t row = (size_t)b.q_row + row0 + r, i = (row * a->H + h) * E;
        float factor = 1.0f / sum[r];
        if (a->g != NULL)
            factor *= 2.0f / (1.0f + expf(-a->g[row * q_stride + h]));
        for (int e = 0; e < E; e += W)
            store_act_vec(a->o, a->act, i + e, load(out[r] + e) * factor);
    }
}

/* Task `index` counts blocks of ROWS tokens of all prompts, and heads inside a block. */
static void causal_task(void *arg, int index, int thread)
{
    const struct attention_args *a = arg;
    int block = index / a->H, h = index % a->H;

    (void)thread;
    for (int b = 0; b < a->B; b++) {
        int n = a->begin[b + 1] - a->begin[b], n_blocks = (n + ROWS - 1) / ROWS;
        if (block < n_blocks) {
            /* the last rows of a prompt see the most keys: begin with them */
            attend(a, (struct attention_block){a->begin[b], n, a->begin[b], n},
                   (n_blocks - 1 - block) * ROWS, h);
            return;
        }
        block -= n_blocks;
    }
}

static int simd_attention(struct device *d, void *o, const void *qkv, const int32_t *begin, int B,
                          int T, int H, int K, int E, float scale, int window, struct error *err)
{
    const float *q = qkv, *k = q + (size_t)H * E;
    struct attention_args args = {.o = o,
                                  .q = q,
                                  .k = k,
                                  .v = k + (size_t)K * E,
                                  .begin = begin,
                                  .B = B,
                                  .H = H,
                                  .K = K,
                                  .E = E,
                                  .window = window,
                                  .scale = scale,
                                  .act = d->act,
                                  .q_stride = (size_t)(H + 2 * K) * E,
                                  .kv_stride = (size_t)(H + 2 * K) * E,
                                  .causal = true};
    int n_blocks = 0;

    if (E % (2 * W) != 0)
        return loops_attention(d, o, qkv, begin, B, T, H, K, E, scale, window, err);
    for (int b = 0; b < B; b++)
        n_blocks += (begin[b + 1] - begin[b] + ROWS - 1) / ROWS;
    pool_run(d->pool, causal_task, &args, n_blocks * H);
    return OK;
}

static void full_task(void *arg, int index, int thread)
{
    const struct attention_args *a = arg;
    int n_blocks = (a->Q + ROWS - 1) / ROWS, part = index / a->H, block = part / n_blocks;

    (void)thread;
    attend(a, (struct attention_block){block * a->Q, a->Q, block * a->kv_rows, a->P},
           part % n_blocks * ROWS, index % a->H);
}

static int simd_full_attention(struct device *d, void *o, const void *q, const void *g,
                               int q_stride, const void *kv, int kv_stride, int T, int Q, int P,
                               int kv_rows, int H, int E, float scale, struct error *err)
{
    struct attention_args args = {.o = o,
                                  .q = q,
                                  .k = kv,
                                  .v = (const float *)kv + (size_t)H * E,
                                  .g = g,
                                  .q_stride = (size_t)q_stride,
                                  .kv_stride = (size_t)kv_stride,
                                  .H = H,
                                  .K = H,
                                  .E = E,
                                  .window = INT_MAX,
                                  .scale = scale,
                                  .act = d->act,
                                  .Q = Q,
                                  .P = P,
                                  .kv_rows = kv_rows};

    if (E % (2 * W) != 0)
        return loops_full_attention(d, o, q, g, q_stride, kv, kv_stride, T, Q, P, kv_rows, H, E,
                                    scale, err);
    if (T > 0)
        pool_run(d->pool, full_task, &args, T / Q * ((Q + ROWS - 1) / ROWS) * H);
    return OK;
}

/* ---- matmul, linear: a task is one panel of columns, or a piece of one, for all
 * tokens ----
 *
 * A panel is LANES rows of w, stored with k outermost, so that one k is one contiguous load. Each
 * number of y is summed over k in order, in one lane: the same for one token as for many, which no
 * blocked library kernel promises. Up to MR tokens share a load of w; tokens are dealt out evenly,
 * as what a row or two alone would take is nearly what MR take. */

enum { LANES = 2 * W, MR = 6 };

struct pack_args {
    const struct matrix *m;
    const struct matrix_part *parts;
    int n_parts;
    float *rows; /* [n_threads, LANES, K] */
};

static void pack_panel(void *arg, int panel, int thread)
{
    const struct pack_args *a = arg;
    int K = a->m->K, first = panel * LANES, n = a->m->N - first < LANES ? a->m->N - first : LANES;
    float *rows = a->rows + (size_t)thread * LANES * K;
    float *to = (float *)a->m->data + (size_t)panel * LANES * K;

    matrix_parts_decode(rows, a->parts, a->n_parts, K, first, n);
    cpu_round_weights(rows, a->m, first, n);
    for (int k = 0; k < K; k++)
        for (int i = 0; i < LANES; i++)
            to[(size_t)k * LANES + i] = i < n ? rows[(size_t)i * K + k] : 0.0f;
}

static int simd_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                            int n_parts, int K, const struct column_cuts *cuts, struct error *err)
{
    struct pack_args args = {.parts = parts, .n_parts = n_parts};
    void *rows = NULL;
    struct matrix *m;
    int rc;

    (void)cuts; /* k is outermost in a panel: it can be cut anywhere */
    *out = NULL;
    if ((rc = cpu_matrix_create(d, &m, parts, n_parts, K, LANES, err)) != OK)
        return rc;
    m->bytes = (size_t)m->n_pieces * LANES * K * sizeof(float);
    if ((rc = cpu_alloc(d, &m->data, m->bytes, err)) != OK ||
        (rc = cpu_alloc(d, &rows, (size_t)pool_n_threads(d->pool) * LANES * K * sizeof(float),
                        err)) != OK)
        goto out;
    args.m = m;
    args.rows = rows;
    pool_run(d->pool, pack_panel, &args, m->n_pieces);
    *out = m;
    m = NULL;
out:
    cpu_release(d, rows);
    cpu_matrix_free(d, m);
    return rc;
}

struct matmul_args {
    const struct device *d;
    float *y;
    const void *x;
    const struct matrix *w;
    const float *bias; /* or NULL */
    bool add;
    int T;
};

/* n tokens from t on by one panel; n a constant, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void multiply_rows(const struct matmul_args *a,
                                                                const float *panel, int t,
                                                                const int n, float y[MR][LANES])
{
    vec sums[MR][2] = {0};
    int K = a->w->K;
    const float *f32[MR];
    const bf16 *half[MR];

    for (int i = 0; i < n; i++) {
        size_t row = (size_t)(t + i) * K;
        f32[i] = (const float *)a->x + row;
        half[i] = (const bf16 *)a->x + row;
    }
    if (a->w->type == DTYPE_F32)
        for (int k = 0; k < K; k++) {
            vec w0 = load(panel + (size_t)k * LANES), w1 = load(panel + (size_t)k * LANES + W);
            for (int i = 0; i < n; i++) {
                sums[i][0] += f32[i][k] * w0;
                sums[i][1] += f32[i][k] * w1;
            }
        }
    else
        for (int k = 0; k < K; k++) {
            vec w0 = load(panel + (size_t)k * LANES), w1 = load(panel + (size_t)k * LANES + W);
            for (int i = 0; i < n; i++) {
                sums[i][0] += bf16_to_float(half[i][k]) * w0;
                sums[i][1] += bf16_to_float(half[i][k]) * w1;
            }
        }
    for (int i = 0; i < n; i++) {
        store(y[i], sums[i][0]);
        store(y[i] + W, sums[i][1]);
    }
}

static void multiply(const struct matmul_args *a, const float *panel, int t, int n,
                     float y[MR][LANES])
{
    switch (n) {
    case 1:
        multiply_rows(a, panel, t, 1, y);
        break;
    case 2:
        multiply_rows(a, panel, t, 2, y);
        break;
    case 3:
        multiply_rows(a, panel, t, 3, y);
        break;
    case 4:
        multiply_rows(a, panel, t, 4, y);
        break;
    case 5:
        multiply_rows(a, panel, t, 5, y);
        break;
    default:
        multiply_rows(a, panel, t, MR, y);
    }
}

static void matmul_piece(void *arg, int index, int thread)
{
    const struct matmul_args *a = arg;
    const struct matrix *w = a->w;
    struct piece piece = w->pieces[index];
    int lane = piece.row % LANES;
    const float *panel = (const float *)w->data + (size_t)(piece.row / LANES) * LANES * w->columns +
                         (size_t)w->k_begin * LANES;
    const float *bias = a->bias != NULL ? a->bias + piece.column : NULL;
    float y[MR][LANES];

    (void)thread;
    for (int t = 0, n, left = (a->T + MR - 1) / MR; left > 0; t += n, left--) {
        n = (a->T - t + left - 1) / left;
        multiply(a, panel, t, n, y);
        for (int i = 0; i < n; i++) {
            scale_sums(y[i] + lane, a->d, w, t + i, piece.row, piece.n);
            store_row(a->y + (size_t)(t + i) * w->N + piece.column, y[i] + lane, bias, a->add,
                      piece.n);
        }
    }
}

static int simd_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                       const float *bias, bool add, int T, struct error *err)
{
    struct matmul_args args = {d, y, x, w, bias, add, T};
    int rc;

    if ((rc = cpu_float8_rows(d, &args.x, w, T, err)) != OK)
        return rc;
    if (T > 0)
        pool_run(d->pool, matmul_piece, &args, w->n_pieces);
    return OK;
}

static int simd_matmul(struct device *d, void *y, const void *x, const struct matrix *w,
                       const void *bias, int T, struct error *err)
{
    return simd_linear(d, y, x, w, bias, false, T, err);
}

/* ---- geglu, gelu: a task is a row ---- */

/* 1 + tanh(u) = 2 / (1 + e^-2u): gelu needs no tanh */
static inline vec gelu_vec(vec x)
{
    vec u = 0.7978845608028654f * (x + 0.044715f * x * x * x);

    return x / (1.0f + exp_vec(-2.0f * u));
}

struct geglu_args {
    void *y;
    const float *gu;
    int F;
    enum dtype act;
};

static void geglu_row(void *arg, int t, int thread)
{
    const struct geglu_args *a = arg;
    const float *gate = a->gu + (size_t)t * 2 * a->F, *up = gate + a->F;

    (void)thread;
    for (int f = 0; f < a->F; f += W) {
        store_act_vec(a->y, a->act, (size_t)t * a->F + f, gelu_vec(load(gate + f)) * load(up + f));
    }
}

static int simd_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err)
{
    struct geglu_args args = {y, gu, F, d->act};

    if (F % W != 0)
        return loops_geglu(d, y, gu, T, F, err);
    pool_run(d->pool, geglu_row, &args, T);
    return OK;
}

struct gelu_args {
    void *y;
    const float *x;
    int F;
    enum dtype act;
};

static void gelu_row(void *arg, int t, int thread)
{
    const struct gelu_args *a = arg;

    (void)thread;
    for (size_t i = (size_t)t * a->F; i < (size_t)(t + 1) * a->F; i += W)
        store_act_vec(a->y, a->act, i, gelu_vec(load(a->x + i)));
}

static int simd_gelu(struct device *d, void *y, const void *x, int T, int F, struct error *err)
{
    struct gelu_args args = {y, x, F, d->act};

    if (F % W != 0)
        return loops_gelu(d, y, x, T, F, err);
    pool_run(d->pool, gelu_row, &args, T);
    return OK;
}

void FILL(struct ops *ops)
{
    ops->rmsnorm = simd_rmsnorm;
    ops->add_rmsnorm = simd_add_rmsnorm;
    ops->qk_norm_rope = simd_qk_norm_rope;
    ops->attention = simd_attention;
    ops->geglu = simd_geglu;
    ops->gelu = simd_gelu;
    ops->range_norm = simd_range_norm;
    ops->wide_qk_norm_rope = simd_wide_qk_norm_rope;
    ops->full_attention = simd_full_attention;
    ops->matrix_load = simd_matrix_load;
    ops->matmul = simd_matmul;
    ops->linear = simd_linear;
}
