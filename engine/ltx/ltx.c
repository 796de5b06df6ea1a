/* ltx.c - the extractor's and the connectors' forward pass, a list of ops for every backend.
 *
 * As in the decoder, sums and the residual stream are float32 and a matmul reads the device's
 * compute type. The connectors work on LTX_ROWS rows a prompt, whatever its length; their memory is
 * bounded by how many prompts go through at once.
 *
 * In a sharded pass each rank makes some columns of the features, which are then gathered, and runs
 * the connectors on some rows of each prompt: with all weights, as norms of q and k run over whole
 * rows; keys and values are gathered once a block, and nothing else is exchanged.
 *
 * Where weights are dealt out by layer, a rank adds up the states that it has, the sums of all are
 * added up once, and connectors go from rank to rank as the decoder does. */
#include "engine/ltx/ltx.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/group/share.h"

static const float EPS = 1e-6f; /* of every norm here */

/* What this rank has of a sharded pass: some columns of the features, which all then get, and some
 * rows of each prompt's sequence. */
struct part {
    int rank, n_ranks;
    struct share_piece columns, rows;
    struct matrix **views;  /* as the projection's states, of its rows; NULL: there are none */
    struct matrix **states; /* what it multiplies by: views, or all there is; NULL: no columns are
                               left */
    void *kv; /* device, [max_prompts, n_ranks * rows.each, 2W], W the wider one; mid: keys and
                 values of all rows */
};

struct ltx {
    const struct ltx_weights *weights;
    const struct ops *ops;
    struct device *device;
    enum dtype act;
    int max_batch_tokens, max_prompts; /* prompts that go through a connector at once */
    struct part part;

    /* the pack */
    int B, T, n_added;
    bool sharded;
    bool wanted[LTX_N_MODALITIES];
    int32_t *host_begin;                   /* host, [max_batch_tokens + 1] */
    int32_t *host_first[LTX_N_MODALITIES]; /* host, [2 * max_batch_tokens]: of each group of prompts
                                              that go through together first tokens, then counts */
    int32_t *begin;                        /* device, [B + 1] */
    float *scratch;                        /* device, [T, 3]; V1 only */
    void *normed; /* device, [T, D of each state in a product, or W] act; lies in `wide` */
    float *sums;  /* device, [T, the projection's width]: of the states so far; V1: the features.
                     Sharded: each rank's [T, its columns], T * columns.each numbers apart */
    float *features[LTX_N_MODALITIES]; /* device, [T, W]; V1: the first serves both */

    /* q, k, v and gate of a connector's first block, mid: a row's depend on that row alone, so they
     * are made of registers once, and of tokens before they go to their places among those */
    void *register_qkvg[LTX_N_MODALITIES];    /* device, [R, 3W (+ H)]; NULL: there is no such
                                                 block, or it is another rank's */
    bool has_register_qkvg[LTX_N_MODALITIES]; /* made with the first prompt */
    void *token_qkvg; /* device, [T, 3W (+ H)], W the wider one; in the place of sums that are
                         features by then */

    /* a connector's activations, on the device; R is max_prompts * LTX_ROWS, W the wider one */
    int32_t *first; /* [2 * max_prompts]: first tokens of n prompts, then how many each has */
    float *h;       /* [R, W] the residual stream */
    void *wide;     /* [R, max(3W + H, 4W)] mid: q, k, v and gate; then the feed-forward. Before it
                       is needed: `normed` */
    void *x;        /* [R, W], or 4W without matmul_gelu; act: what the next matmul reads */

    _Atomic uint64_t steps;
};

/* Numbers of a row of q, k, v and gate. */
static int qkvg_width(const struct ltx *x, enum ltx_modality modality)
{
    const struct ltx_config *all = &x->weights->config;
    const struct ltx_connector_config *c = &all->connectors[modality];

    return 3 * c->W + (all->gated ? c->H : 0);
}

/* Device memory for n things of `size` bytes; NULL, and *rc set, when this or an earlier one
 * failed. */
static void *take(const struct ltx *x, size_t n, size_t size, int *rc, struct error *err)
{
    void *memory = NULL;

    if (*rc == OK)
        *rc = x->ops->alloc(x->device, &memory, n * size, err);
    return memory;
}

static int take_memory(struct ltx *x, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    size_t T = (size_t)x->max_batch_tokens, rows = (size_t)x->max_prompts * LTX_ROWS;
    size_t W = 0, wide, normed, qkvg = 0, act = dtype_info(x->act)->bytes;
    size_t mid = x->ops->mid_is_act ? act : sizeof(float);
    bool v1 = w->config.extractor == LTX_EXTRACTOR_V1;
    size_t sums = v1 ? 0 : (size_t)w->projection.width * sizeof(float);
    size_t pieces = (size_t)x->part.columns.each * x->part.n_ranks * sizeof(float);
    int rc = OK;

    if ((x->host_begin = calloc(T + 1, sizeof(int32_t))) == NULL ||
        (x->host_first[LTX_VIDEO] = calloc(2 * T, sizeof(int32_t))) == NULL ||
        (x->host_first[LTX_AUDIO] = calloc(2 * T, sizeof(int32_t))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %zu tokens", T);
    x->begin = take(x, T + 1, sizeof(int32_t), &rc, err);
    if (v1)
        x->scratch = take(x, T * 3, sizeof(float), &rc, err);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        const struct ltx_connector_config *c = &w->config.connectors[m];
        size_t row = (size_t)qkvg_width(x, (enum ltx_modality)m);
        if (c->W > 0 && (m == LTX_VIDEO || !v1))
            x->features[m] = take(x, T * c->W, sizeof(float), &rc, err);
        if (c->L > 0 && portion_has(&w->portion, portion_block(&w->portion, m, 0)))
            x->register_qkvg[m] = take(x, row * c->R, mid, &rc, err);
        if (c->L > 0)
            qkvg = qkvg > row ? qkvg : row;
        W = W > (size_t)c->W ? W : (size_t)c->W;
    }
    wide = rows * (qkvg > 4 * W ? qkvg : 4 * W) * mid;
    normed = (size_t)w->projection.together * w->D;
    normed = T * (normed > W ? normed : W) * act;
    if (x->part.n_ranks > 1)
        sums = sums > pieces ? sums : pieces;
    x->token_qkvg = take(x, T, qkvg * mid > sums ? qkvg * mid : sums, &rc, err);
    x->sums = v1 ? x->features[LTX_VIDEO] : x->token_qkvg;
    x->first = take(x, 2 * (size_t)x->max_prompts, sizeof(int32_t), &rc, err);
    x->h = take(x, rows * W, sizeof(float), &rc, err);
    x->wide = take(x, 1, wide > normed ? wide : normed, &rc, err);
    x->normed = x->wide;
    x->x = take(x, rows * (x->ops->matmul_gelu != NULL ? W : 4 * W), act, &rc, err);
    if (x->part.n_ranks > 1) {
        rows = (size_t)x->max_prompts * x->part.n_ranks * x->part.rows.each;
        x->part.kv = take(x, rows * 2 * W, mid, &rc, err);
        if (rc == OK) /* the last rank's piece may end before an equal one would */
            rc = x->ops->clear(x->device, x->part.kv, rows * 2 * W * mid, err);
    }
    return rc;
}

/* Some rows of all that is resident, or all of it where that is the rank's part. */
static int find_states(struct ltx *x, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_projection *p = &w->projection;
    struct share_range columns = x->part.columns.range;
    const struct row_range rows = {columns.begin, columns.end - columns.begin};
    int rc;

    x->part.states = p->states;
    if (x->part.n_ranks == 1 || w->portion.kind != PORTION_ALL)
        return OK;
    x->part.states = NULL;
    if (rows.n == 0)
        return OK;
    if ((x->part.views = calloc((size_t)p->n_products, sizeof(*x->part.views))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %d states", w->S);
    for (int i = 0; i < p->n_products; i++) {
        int n = w->S - i * p->together < p->together ? w->S - i * p->together : p->together;
        if ((rc = x->ops->matrix_view(x->device, &x->part.views[i], p->states[i], &rows, 1, 0,
                                      n * w->D, err)) != OK)
            return rc;
    }
    x->part.states = x->part.views;
    return OK;
}

int ltx_create(struct ltx **out, const struct ltx_weights *weights, struct device *device, int rank,
               int n_ranks, enum dtype act, int max_batch_tokens, struct error *err)
{
    struct ltx *x;
    int rc;

    *out = NULL;
    if ((x = calloc(1, sizeof(*x))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory");
    x->weights = weights;
    x->ops = weights->ops;
    x->device = device;
    if (weights->portion.kind == PORTION_LAYER) { /* what a rank has of a pass it has whole */
        rank = 0;
        n_ranks = 1;
    }
    x->part.rank = rank;
    x->part.n_ranks = n_ranks;
    x->part.columns = share_columns(weights->projection.width, rank, n_ranks);
    x->part.rows = share_rows(LTX_ROWS, rank, n_ranks);
    x->act = act;
    x->max_batch_tokens = max_batch_tokens;
    x->max_prompts = max_batch_tokens / LTX_ROWS;
    if (x->max_prompts < 1)
        x->max_prompts = 1;
    if (x->max_prompts > LTX_MAX_PROMPTS)
        x->max_prompts = LTX_MAX_PROMPTS;
    if ((rc = take_memory(x, err)) != OK || (rc = find_states(x, err)) != OK)
        goto out;
    *out = x;
    x = NULL;
out:
    ltx_free(x);
    return rc;
}

void ltx_free(struct ltx *x)
{
    if (x == NULL)
        return;
    void *taken[] = {x->begin, x->scratch, x->token_qkvg, x->first,
                     x->h,     x->wide,    x->x,          x->part.kv};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        x->ops->release(x->device, taken[i]);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        x->ops->release(x->device, x->features[m]);
        x->ops->release(x->device, x->register_qkvg[m]);
        free(x->host_first[m]);
    }
    for (int i = 0; x->part.views != NULL && i < x->weights->projection.n_products; i++)
        x->ops->matrix_free(x->device, x->part.views[i]);
    free(x->part.views);
    free(x->host_begin);
    free(x);
}

/* ---- the extractor ---- */

int ltx_begin(struct ltx *x, const int32_t *begin, int B, const bool *wanted, bool sharded,
              struct error *err)
{
    if (begin[B] > x->max_batch_tokens)
        return error_set(err, ERR_SIZE, "ltx: %d tokens in a batch, room for %d", (int)begin[B],
                         x->max_batch_tokens);
    x->B = B;
    x->T = begin[B];
    x->n_added = 0;
    x->sharded = sharded && x->part.n_ranks > 1;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        x->wanted[m] = wanted[m];
    for (int b = 0; b <= B; b++)
        x->host_begin[b] = begin[b];
    return x->ops->upload(x->device, x->begin, x->host_begin, ((size_t)B + 1) * sizeof(int32_t),
                          err);
}

/* Which columns rank r has, and where their sums are once all ranks' are there. */
static struct share_range sums_of(const struct ltx *x, int r, const float **sums)
{
    struct share_range all = {0, x->weights->projection.width};

    *sums = x->sums;
    if (!x->sharded)
        return all;
    *sums = (const float *)x->token_qkvg + (size_t)r * x->T * x->part.columns.each;
    return share_columns(all.end, r, x->part.n_ranks).range;
}

/* The sums of all states are there: features of a modality, whose columns begin at `first`. */
static int scale_sums(struct ltx *x, int m, int first, struct error *err)
{
    const struct ltx_projection *p = &x->weights->projection;
    bool v1 = x->weights->config.extractor == LTX_EXTRACTOR_V1;
    int W = x->weights->config.connectors[m].W, rc;

    for (int r = 0; r < (x->sharded ? x->part.n_ranks : 1); r++) {
        const float *sums;
        struct share_range there = sums_of(x, r, &sums);
        int begin = there.begin > first ? there.begin : first;
        int end = there.end < first + W ? there.end : first + W;
        if (begin < end &&
            (rc = x->ops->scale_columns(
                 x->device, x->features[m] + (begin - first), W, sums + (begin - there.begin),
                 there.end - there.begin, v1 ? 1.0f : p->scale[m],
                 v1 ? NULL : p->bias[m] + (begin - first), x->T, end - begin, err)) != OK)
            return rc;
    }
    return OK;
}

/* Of states that are dealt out by layer: what each rank has added up of its own becomes the sum of
 * all, on every rank. */
static int sum_states(struct ltx *x, struct error *err)
{
    const struct ltx_projection *p = &x->weights->projection;
    size_t n = (size_t)x->T * p->width;
    int rc;

    if (x->weights->portion.kind != PORTION_LAYER)
        return OK;
    if (p->states == NULL && (rc = x->ops->clear(x->device, x->sums, n * sizeof(float), err)) != OK)
        return rc;
    return x->ops->all_reduce(x->device, x->sums, n, err);
}

/* Features of the modalities that are wanted. Those of V1 are the sums, for both. */
static int finish_features(struct ltx *x, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    bool v1 = w->config.extractor == LTX_EXTRACTOR_V1;
    size_t piece = (size_t)x->T * x->part.columns.each;
    float *sums = x->token_qkvg;
    int first = 0, rc;

    if ((rc = sum_states(x, err)) != OK)
        return rc;
    if (x->sharded && (rc = x->ops->all_gather(x->device, sums, sums + x->part.rank * piece,
                                               piece * sizeof(float), err)) != OK)
        return rc;
    if (v1)
        return x->sharded ? scale_sums(x, LTX_VIDEO, 0, err) : OK;
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        if (x->wanted[m] && (rc = scale_sums(x, m, first, err)) != OK)
            return rc;
        first += w->config.connectors[m].W;
    }
    return OK;
}

int ltx_add_state(struct ltx *x, const float *h, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_projection *p = &w->projection;
    struct matrix **states = x->sharded ? x->part.states : p->states;
    bool v1 = w->config.extractor == LTX_EXTRACTOR_V1;
    float *sums = x->sums;
    int number = x->n_added++, s = number - p->s.begin, n_states = p->s.end - p->s.begin;
    int place, n, rc;

    if (x->sharded)
        sums = (float *)x->token_qkvg + (size_t)x->part.rank * x->T * x->part.columns.each;
    /* states of one product lie side by side, D columns each */
    place = s % p->together;
    n = n_states - (s - place) < p->together ? n_states - (s - place) : p->together;
    if (states != NULL && h != NULL) {
        void *to = (char *)x->normed + (size_t)place * w->D * dtype_info(x->act)->bytes;
        rc = v1 ? x->ops->range_norm(x->device, x->normed, h, x->begin, x->scratch, x->B, x->T,
                                     w->D, err)
                : x->ops->rmsnorm(x->device, to, x->act, n * w->D, h, NULL, x->T, w->D, EPS, err);
        /* what was there before the first of them is gone */
        if (rc == OK && place + 1 == n)
            rc = x->ops->linear(x->device, sums, x->normed, states[s / p->together], NULL,
                                s >= p->together, x->T, err);
        if (rc != OK)
            return rc;
    }
    return number + 1 == w->S ? finish_features(x, err) : OK;
}

const float *ltx_features(const struct ltx *x, enum ltx_modality modality)
{
    bool shared = x->weights->config.extractor == LTX_EXTRACTOR_V1;

    return x->features[shared ? LTX_VIDEO : modality];
}

/* ---- the connectors ---- */

/* gelu(in(x)) of R rows, F numbers each; *out is where it lies, act. In one step it cannot take the
 * place of x, which it reads. */
static int feed_forward_in(struct ltx *x, const struct ltx_block *b, int R, int F, void **out,
                           struct error *err)
{
    const struct ops *ops = x->ops;
    struct device *d = x->device;
    int rc;

    if (ops->matmul_gelu != NULL) {
        *out = x->wide;
        return ops->matmul_gelu(d, x->wide, x->x, b->ff_in.w, b->ff_in.bias, R, err);
    }
    *out = x->x;
    if ((rc = ops->matmul(d, x->wide, x->x, b->ff_in.w, b->ff_in.bias, R, err)) != OK)
        return rc;
    return ops->gelu(d, x->x, x->wide, R, F, err);
}

/* norm, then q, k, v and gate of the connector's first block, of any rows. `normed` has room for
 * them. */
static int first_qkvg(struct ltx *x, enum ltx_modality modality, void *qkvg, void *normed,
                      const float *rows, int n, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_connector_weights *c = &w->connectors[modality];
    const struct ltx_linear *first = &c->blocks[0].qkvg;
    int W = w->config.connectors[modality].W, rc;

    if ((rc = x->ops->rmsnorm(x->device, normed, x->act, W, rows, NULL, n, W, EPS, err)) != OK)
        return rc;
    return x->ops->matmul(x->device, qkvg, normed, first->w, first->bias, n, err);
}

/* What the first block makes of the pack's tokens, and of registers if that is not there yet. No
 * part of a run: how many tokens there are would decide it. */
static int fill_qkvg(struct ltx *x, enum ltx_modality modality, struct error *err)
{
    const float *registers = x->weights->connectors[modality].registers;
    int R = x->weights->config.connectors[modality].R, rc;

    if (x->register_qkvg[modality] == NULL)
        return OK;
    if (!x->has_register_qkvg[modality] &&
        (rc = first_qkvg(x, modality, x->register_qkvg[modality], x->x, registers, R, err)) != OK)
        return rc;
    x->has_register_qkvg[modality] = true;
    return first_qkvg(x, modality, x->token_qkvg, x->normed, ltx_features(x, modality), x->T, err);
}

/* Bytes of a number that a product leaves for other ops. */
static size_t mid_bytes(const struct ltx *x)
{
    return dtype_info(x->ops->mid_is_act ? x->act : DTYPE_F32)->bytes;
}

/* Number i of `wide`'s first row. */
static void *mid_at(const struct ltx *x, size_t i)
{
    return (char *)x->wide + i * mid_bytes(x);
}

/* Which rows of each prompt this pass is about. */
static struct share_range rows_of(const struct ltx *x)
{
    struct share_range all = {0, LTX_ROWS};

    return x->sharded ? x->part.rows.range : all;
}

/* Keys and values of all rows of n prompts, of which each rank has some in `wide`. */
static int gather_kv(struct ltx *x, int n, int W, size_t stride, struct error *err)
{
    struct share_range rows = rows_of(x);
    size_t row = 2 * (size_t)W * mid_bytes(x), piece = row * x->part.rows.each;
    int n_rows = rows.end - rows.begin, rc;

    for (int i = 0; i < n; i++) {
        char *all = (char *)x->part.kv + (size_t)i * x->part.n_ranks * piece;
        char *own = all + x->part.rank * piece;
        if ((rc = x->ops->copy_rows(x->device, own, row, mid_at(x, i * n_rows * stride + W),
                                    stride * mid_bytes(x), row, n_rows, err)) != OK ||
            (rc = x->ops->all_gather(x->device, all, own, piece, err)) != OK)
            return rc;
    }
    return OK;
}

/* From q, k, v and gates of n prompts in `wide` to gate * attention(q, k, v) in x. */
static int attend(struct ltx *x, int n, int W, int H, int E, int stride, struct error *err)
{
    struct share_range rows = rows_of(x);
    int n_rows = rows.end - rows.begin, R = n * n_rows, kv_stride = stride, kv_rows = LTX_ROWS, rc;
    const void *gates = x->weights->config.gated ? mid_at(x, 3 * (size_t)W) : NULL;
    const void *kv = mid_at(x, (size_t)W);

    if (x->sharded) {
        if ((rc = gather_kv(x, n, W, (size_t)stride, err)) != OK)
            return rc;
        kv = x->part.kv;
        kv_stride = 2 * W;
        kv_rows = x->part.n_ranks * x->part.rows.each;
    }
    return x->ops->full_attention(x->device, x->x, x->wide, gates, stride, kv, kv_stride, R, n_rows,
                                  LTX_ROWS, kv_rows, H, E, (float)(1.0 / sqrt(E)), err);
}

/* From a block's q, k, v and gate in `wide`, of n prompts, to the sum that the next one reads. */
static int forward_block(struct ltx *x, enum ltx_modality modality, const struct ltx_block *b,
                         int n, struct error *err)
{
    const struct ltx_config *all = &x->weights->config;
    const struct ltx_connector_config *config = &all->connectors[modality];
    const struct ltx_connector_weights *c = &x->weights->connectors[modality];
    const struct ops *ops = x->ops;
    struct device *d = x->device;
    struct share_range rows = rows_of(x);
    size_t angles = (size_t)rows.begin * (config->W / 2);
    int W = config->W, H = config->H, E = config->E, stride = qkvg_width(x, modality);
    int n_rows = rows.end - rows.begin, R = n * n_rows, rc;
    void *inner;

    /* attention: h += out(gate * attention(q, k, v)) */
    if ((rc = ops->wide_qk_norm_rope(d, x->wide, b->q_norm, b->k_norm, c->cos + angles,
                                     c->sin + angles, R, n_rows, H, E, stride,
                                     all->rope == LTX_ROPE_INTERLEAVED, EPS, err)) != OK ||
        (rc = attend(x, n, W, H, E, stride, err)) != OK ||
        (rc = ops->linear(d, x->h, x->x, b->out.w, b->out.bias, true, R, err)) != OK)
        return rc;
    /* feed-forward: h += out(gelu(in(norm(h)))) */
    if ((rc = ops->rmsnorm(d, x->x, x->act, W, x->h, NULL, R, W, EPS, err)) != OK ||
        (rc = feed_forward_in(x, b, R, 4 * W, &inner, err)) != OK ||
        (rc = ops->linear(d, x->h, inner, b->ff_out.w, b->ff_out.bias, true, R, err)) != OK)
        return rc;
    atomic_fetch_add_explicit(&x->steps, 1, memory_order_relaxed);
    return OK;
}

/* Where block i of a connector is another rank's than the one before it, h goes from there to all.
 */
static int pass_on(struct ltx *x, enum ltx_modality modality, int i, size_t numbers,
                   struct error *err)
{
    const struct portion *p = &x->weights->portion;
    int block = portion_block(p, modality, i), from = portion_owner(p, block - 1);

    if (p->kind != PORTION_LAYER || i == 0 || from == portion_owner(p, block))
        return OK;
    return x->ops->broadcast(x->device, x->h, numbers * sizeof(float), from, err);
}

/* Whether this rank begins with a connector's sequences, and whether it ends with them. */
static bool begins(const struct ltx *x, enum ltx_modality modality)
{
    const struct portion *p = &x->weights->portion;

    return p->kind != PORTION_LAYER || portion_connector_first(p, modality) == p->rank;
}

static bool ends(const struct ltx *x, enum ltx_modality modality)
{
    const struct portion *p = &x->weights->portion;

    return p->kind != PORTION_LAYER || portion_connector_last(p, modality) == p->rank;
}

/* Blocks of a connector that this rank computes. */
static uint64_t own_blocks(const struct ltx *x, enum ltx_modality modality)
{
    const struct portion *p = &x->weights->portion;
    uint64_t n = 0;

    for (int i = 0; i < x->weights->config.connectors[modality].L; i++)
        n += portion_has(p, portion_block(p, modality, i));
    return n;
}

/* From the features of n prompts to their embeddings in h, once first is there. */
static int forward_blocks(struct ltx *x, enum ltx_modality modality, int n, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_connector_config *config = &w->config.connectors[modality];
    const struct ltx_connector_weights *c = &w->connectors[modality];
    const struct ops *ops = x->ops;
    struct device *d = x->device;
    enum dtype mid = ops->mid_is_act ? x->act : DTYPE_F32;
    const int32_t *count = x->first + n;
    struct share_range rows = rows_of(x);
    int n_rows = rows.end - rows.begin, R = n * n_rows, W = config->W, rc;

    if (begins(x, modality) &&
        (rc = ops->fill_rows(d, x->h, ltx_features(x, modality), c->registers, DTYPE_F32, x->first,
                             count, n, rows.begin, n_rows, config->R, W, err)) != OK)
        return rc;
    for (int i = 0; i < config->L; i++) {
        const struct ltx_block *b = &c->blocks[i];
        if ((rc = pass_on(x, modality, i, (size_t)R * W, err)) != OK)
            return rc;
        if (!portion_has(&w->portion, portion_block(&w->portion, modality, i)))
            continue;
        if (i == 0)
            rc = ops->fill_rows(d, x->wide, x->token_qkvg, x->register_qkvg[modality], mid,
                                x->first, count, n, rows.begin, n_rows, config->R,
                                qkvg_width(x, modality), err);
        else if ((rc = ops->rmsnorm(d, x->x, x->act, W, x->h, NULL, R, W, EPS, err)) == OK)
            rc = ops->matmul(d, x->wide, x->x, b->qkvg.w, b->qkvg.bias, R, err);
        if (rc != OK || (rc = forward_block(x, modality, b, n, err)) != OK)
            return rc;
    }
    return ends(x, modality) ? ops->rmsnorm(d, x->h, DTYPE_F32, W, x->h, NULL, R, W, EPS, err) : OK;
}

/* Up to max_prompts prompts, before which `done` have gone through; their embeddings are left in h.
 */
static int forward(struct ltx *x, enum ltx_modality modality, const int *prompts, int done, int n,
                   struct error *err)
{
    int32_t *host_first = x->host_first[modality] + 2 * (size_t)done, *host_count = host_first + n;
    size_t bytes = 2 * (size_t)n * sizeof(int32_t);
    bool is_run = x->ops->record != NULL, known = false;
    uint64_t key =
        (uint64_t)n << 2 | (unsigned)x->sharded << 1 | modality; /* a decoder's are hashes */
    int rc;

    for (int i = 0; i < n; i++) {
        host_first[i] = x->host_begin[prompts[i]];
        host_count[i] = x->host_begin[prompts[i] + 1] - x->host_begin[prompts[i]];
    }
    if ((rc = x->ops->upload(x->device, x->first, host_first, bytes, err)) != OK ||
        (is_run && (rc = x->ops->record(x->device, key, &known, err)) != OK))
        return rc;
    if (known)
        atomic_fetch_add_explicit(&x->steps, own_blocks(x, modality), memory_order_relaxed);
    else if ((rc = forward_blocks(x, modality, n, err)) != OK)
        return rc;
    return is_run ? x->ops->replay(x->device, key, err) : OK;
}

int ltx_embed(struct ltx *x, enum ltx_modality modality, const int *prompts, int n,
              ltx_sink_fn *sink, void *sink_arg, struct error *err)
{
    struct share_range rows = rows_of(x);
    int n_rows = rows.end - rows.begin, rc;
    size_t block = (size_t)n_rows * x->weights->config.connectors[modality].W;

    if (n > 0 && (rc = fill_qkvg(x, modality, err)) != OK)
        return rc;
    for (int done = 0; done < n; done += x->max_prompts) {
        int now = n - done < x->max_prompts ? n - done : x->max_prompts;
        if ((rc = forward(x, modality, prompts + done, done, now, err)) != OK)
            return rc;
        for (int i = 0; i < now && ends(x, modality); i++)
            if ((rc = sink(sink_arg, prompts[done + i], x->h + (size_t)i * block, rows.begin,
                           n_rows, err)) != OK)
                return rc;
    }
    return OK;
}

uint64_t ltx_steps(const struct ltx *x)
{
    return atomic_load_explicit(&x->steps, memory_order_relaxed);
}
