/* room.c - see room.h.
 *
 * The code that takes memory runs, over a table of ops that has none to give and adds up what it
 * was asked for, so a count cannot drift from what it counts. Only what an engine and the device
 * take for themselves (results on their way out, rounded rows) is worked out here. */
#include "engine/room.h"

#include <stdio.h>

#include "engine/ltx/ltx.h"
#include "engine/model/gemma.h"
#include "engine/rank.h"
#include "kernels/float8.h"

enum { REST_BYTES = 512 << 20 }; /* kernels' code, graphs, what plans are tried on: at most */

/* What the device of such a table is. */
struct sum {
    uint64_t bytes;
    int widest; /* rows of float8 matrices */
};

static void add(struct device *d, uint64_t bytes)
{
    ((struct sum *)(void *)d)->bytes += bytes;
}

static int count_alloc(struct device *d, void **out, size_t bytes, struct error *err)
{
    (void)err;
    *out = NULL;
    add(d, bytes);
    return OK;
}

static void count_release(struct device *d, void *memory)
{
    (void)d;
    (void)memory;
}

static int count_upload(struct device *d, void *to, const void *from, size_t bytes,
                        struct error *err)
{
    (void)d;
    (void)to;
    (void)from;
    (void)bytes;
    (void)err;
    return OK;
}

static int count_sync(struct device *d, struct error *err)
{
    (void)d;
    (void)err;
    return OK;
}

/* A table for each type: a matrix does not say in which it will be. */
static int count_f32_matrix(struct device *d, struct matrix **out, int N, int K, float size,
                            uint64_t seed, struct error *err)
{
    (void)size;
    (void)seed;
    (void)err;
    *out = NULL;
    add(d, (uint64_t)N * (uint64_t)K * sizeof(float));
    return OK;
}

static int count_bf16_matrix(struct device *d, struct matrix **out, int N, int K, float size,
                             uint64_t seed, struct error *err)
{
    (void)size;
    (void)seed;
    (void)err;
    *out = NULL;
    add(d, (uint64_t)N * (uint64_t)K * sizeof(bf16));
    return OK;
}

static int count_float8_matrix(struct device *d, struct matrix **out, int N, int K, float size,
                               uint64_t seed, struct error *err)
{
    struct sum *sum = (struct sum *)(void *)d;

    if (!float8_serves(N, K))
        return count_bf16_matrix(d, out, N, K, size, seed, err);
    *out = NULL;
    sum->widest = sum->widest > K ? sum->widest : K;
    add(d, (uint64_t)N * (uint64_t)K + (uint64_t)N * sizeof(float));
    return OK;
}

static void count_matrix_free(struct device *d, struct matrix *m)
{
    (void)d;
    (void)m;
}

static size_t count_matrix_bytes(const struct matrix *m)
{
    (void)m;
    return 0;
}

static void count_table_free(struct device *d, struct table *t)
{
    (void)d;
    (void)t;
}

static int count_view(struct device *d, struct matrix **out, const struct matrix *m,
                      const struct row_range *ranges, int n_ranges, int k_begin, int K,
                      struct error *err)
{
    (void)d;
    (void)m;
    (void)ranges;
    (void)n_ranges;
    (void)k_begin;
    (void)K;
    (void)err;
    *out = NULL;
    return OK;
}

static int count_clear(struct device *d, void *memory, size_t bytes, struct error *err)
{
    (void)d;
    (void)memory;
    (void)bytes;
    (void)err;
    return OK;
}

uint64_t room_table_bytes(const struct gemma_config *c, int n_rows, enum dtype type)
{
    bool plain = type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;

    return (uint64_t)n_rows * (uint64_t)c->D * (plain ? dtype_info(type)->bytes : sizeof(float));
}

int room_count(struct room *out, const struct gemma_config *gemma, const struct ltx_config *ltx,
               enum dtype table, const struct portion *portion, int rank, const struct ops *like,
               enum dtype compute, int max_batch_tokens, struct error *err)
{
    enum dtype act = rank_act(compute);
    struct ops ops = *like;
    struct sum sum = {0};
    struct device *device = (struct device *)(void *)&sum;
    struct weights *weights = NULL;
    struct ltx_weights *ltx_weights = NULL;
    struct gemma *g = NULL;
    struct ltx *x = NULL;
    int n_ranks = portion->n_ranks, rc;

    *out = (struct room){0};
    ops.alloc = count_alloc;
    ops.release = count_release;
    ops.upload = count_upload;
    ops.sync = count_sync;
    ops.clear = count_clear;
    ops.matrix_view = count_view;
    ops.matrix_random = compute == DTYPE_F32       ? count_f32_matrix
                        : compute == DTYPE_F8_E4M3 ? count_float8_matrix
                                                   : count_bf16_matrix;
    ops.matrix_free = count_matrix_free;
    ops.matrix_bytes = count_matrix_bytes;
    ops.table_free = count_table_free;
    if ((rc = weights_outline(&weights, gemma, portion, &ops, device, err)) != OK ||
        (ltx != NULL && (rc = ltx_weights_random(&ltx_weights, ltx, gemma->L + 1, gemma->D, portion,
                                                 &ops, device, act, err)) != OK))
        goto out;
    out->weights = sum.bytes;
    if (!like->is_host)
        out->weights += room_table_bytes(gemma, weights->ids.end - weights->ids.begin, table);
    sum.bytes = 0;
    if ((rc = gemma_create(&g, gemma, weights, device, rank, n_ranks, act, ENGINE_MAX_TOKENS,
                           max_batch_tokens, err)) != OK ||
        (ltx != NULL && (rc = ltx_create(&x, ltx_weights, device, rank, n_ranks, act,
                                         max_batch_tokens, err)) != OK))
        goto out;
    out->activations = sum.bytes;
    if (!like->is_host)
        out->activations +=
            OPS_MARKS * rank_part_bytes(gemma->D, ltx != NULL ? ltx->connectors[LTX_VIDEO].W : 0,
                                        ltx != NULL ? ltx->connectors[LTX_AUDIO].W : 0);
    if (compute == DTYPE_F8_E4M3) /* of a product's rows: E4M3 and a scale */
        out->activations +=
            (uint64_t)rank_max_rows(max_batch_tokens) * ((uint64_t)sum.widest + sizeof(float));
out:
    ltx_free(x);
    gemma_free(g);
    ltx_weights_free(ltx_weights);
    weights_free(weights);
    return rc;
}

uint64_t room_total(const struct room *r)
{
    return r->weights + r->activations + REST_BYTES;
}

static double gb(uint64_t bytes)
{
    return (double)bytes / 1e9;
}

/* What would fit instead: as few other settings as will do. */
static int advise(char *out, size_t cap, const struct device_memory *memory, enum dtype compute,
                  int max_batch_tokens, int min_batch_tokens, room_count_fn *count, void *arg,
                  struct error *err)
{
    /* compute, then what takes less */
    enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F8_E4M3};
    static const char *const words[] = {"", " in bfloat16", " in float8 (it loses accuracy)"};
    int first = compute == DTYPE_F32 ? 0 : compute == DTYPE_BF16 ? 1 : 2;

    for (int i = first; i < 3; i++)
        for (int tokens = max_batch_tokens, last = 0; tokens != last;) {
            struct room room;
            int rc = count(arg, &room, types[i], tokens, err);
            if (rc != OK)
                return rc;
            if (room_total(&room) <= memory->free) {
                int n = snprintf(out, cap, "%.1f GB are enough", gb(room_total(&room)));
                if (i > first)
                    n += snprintf(out + n, cap - (size_t)n, "%s", words[i]);
                if (tokens != max_batch_tokens)
                    snprintf(out + n, cap - (size_t)n, " for batches of %d tokens", tokens);
                return OK;
            }
            last = tokens;
            if (tokens > min_batch_tokens)
                tokens = tokens / 2 > min_batch_tokens ? tokens / 2 : min_batch_tokens;
        }
    snprintf(out, cap, "no smaller batch would fit: it takes another GPU");
    return OK;
}

int room_check(const char *what, const struct device_memory *memory, enum dtype compute,
               int max_batch_tokens, int min_batch_tokens, room_count_fn *count, void *arg,
               struct error *err)
{
    struct room room;
    char advice[128];
    int rc;

    if ((rc = count(arg, &room, compute, max_batch_tokens, err)) != OK ||
        room_total(&room) <= memory->free ||
        (rc = advise(advice, sizeof(advice), memory, compute, max_batch_tokens, min_batch_tokens,
                     count, arg, err)) != OK)
        return rc;
    return error_set(err, ERR_MEM,
                     "%s needs %.1f GB of the GPU's memory (weights %.1f, batches of %d "
                     "tokens %.1f, the rest %.1f), and %.1f of its %.1f GB are free: %s",
                     what, gb(room_total(&room)), gb(room.weights), max_batch_tokens,
                     gb(room.activations), gb(REST_BYTES), gb(memory->free), gb(memory->total),
                     advice);
}
