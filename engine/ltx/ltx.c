/* ltx.c - the extractor's and the connectors' forward pass, a list of ops for every backend.
 *
 * As in the decoder, sums and the residual stream are float32 and a matmul reads the device's
 * compute type. The connectors work on LTX_ROWS rows a prompt, whatever its length; their memory is
 * bounded by how many prompts go through at once. */
#include "engine/ltx/ltx.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

static const float EPS = 1e-6f; /* of every norm here */

struct ltx {
    const struct ltx_weights *weights;
    enum dtype act;
    int max_batch_tokens, max_prompts; /* prompts that go through a connector at once */

    /* the pack */
    int B, T, n_added;
    bool wanted[LTX_N_MODALITIES];
    int32_t *host_begin;                   /* host, [max_batch_tokens + 1] */
    int32_t *host_first[LTX_N_MODALITIES]; /* host, [2 * max_batch_tokens]: of each group of prompts
                                              that go through together first tokens, then counts */
    int32_t *begin;                        /* device, [B + 1] */
    float *scratch;                        /* device, [T, 3]; V1 only */
    void *normed; /* device, [T, D of each state in a product, or W] act; lies in `wide` */
    float *sums;  /* device, [T, the projection's width]: of the states so far; V1: the features */
    float *features[LTX_N_MODALITIES]; /* device, [T, W]; V1: the first serves both */

    /* q, k, v and gate of a connector's first block, mid: a row's depend on that row alone, so they
     * are made of registers once, and of tokens before they go to their places among those */
    void *register_qkvg[LTX_N_MODALITIES];    /* device, [R, 3W (+ H)]; NULL: there are no blocks */
    bool has_register_qkvg[LTX_N_MODALITIES]; /* made with the first prompt */
    void *token_qkvg; /* device, [T, 3W (+ H)], W the wider one; in the place of V2's sums, which
                         are features by then */

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
        *rc = x->weights->ops->alloc(x->weights->device, &memory, n * size, err);
    return memory;
}

static int take_memory(struct ltx *x, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    size_t T = (size_t)x->max_batch_tokens, rows = (size_t)x->max_prompts * LTX_ROWS;
    size_t W = 0, wide, normed, qkvg = 0, act = dtype_info(x->act)->bytes;
    size_t mid = w->ops->mid_is_act ? act : sizeof(float);
    bool v1 = w->config.extractor == LTX_EXTRACTOR_V1;
    size_t sums = v1 ? 0 : (size_t)w->projection.width * sizeof(float);
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
        if (c->L > 0) {
            x->register_qkvg[m] = take(x, row * c->R, mid, &rc, err);
            qkvg = qkvg > row ? qkvg : row;
        }
        W = W > (size_t)c->W ? W : (size_t)c->W;
    }
    wide = rows * (qkvg > 4 * W ? qkvg : 4 * W) * mid;
    normed = (size_t)w->projection.together * w->D;
    normed = T * (normed > W ? normed : W) * act;
    x->token_qkvg = take(x, T, qkvg * mid > sums ? qkvg * mid : sums, &rc, err);
    x->sums = v1 ? x->features[LTX_VIDEO] : x->token_qkvg;
    x->first = take(x, 2 * (size_t)x->max_prompts, sizeof(int32_t), &rc, err);
    x->h = take(x, rows * W, sizeof(float), &rc, err);
    x->wide = take(x, 1, wide > normed ? wide : normed, &rc, err);
    x->normed = x->wide;
    x->x = take(x, rows * (w->ops->matmul_gelu != NULL ? W : 4 * W), act, &rc, err);
    return rc;
}

int ltx_create(struct ltx **out, const struct ltx_weights *weights, enum dtype act,
               int max_batch_tokens, struct error *err)
{
    struct ltx *x;
    int rc;

    *out = NULL;
    if ((x = calloc(1, sizeof(*x))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory");
    x->weights = weights;
    x->act = act;
    x->max_batch_tokens = max_batch_tokens;
    x->max_prompts = max_batch_tokens / LTX_ROWS;
    if (x->max_prompts < 1)
        x->max_prompts = 1;
    if (x->max_prompts > LTX_MAX_PROMPTS)
        x->max_prompts = LTX_MAX_PROMPTS;
    if ((rc = take_memory(x, err)) != OK)
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
    void *taken[] = {x->begin, x->scratch, x->token_qkvg, x->first, x->h, x->wide, x->x};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        x->weights->ops->release(x->weights->device, taken[i]);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        x->weights->ops->release(x->weights->device, x->features[m]);
        x->weights->ops->release(x->weights->device, x->register_qkvg[m]);
        free(x->host_first[m]);
    }
    free(x->host_begin);
    free(x);
}

/* ---- the extractor ---- */

int ltx_begin(struct ltx *x, const int32_t *begin, int B, const bool *wanted, struct error *err)
{
    const struct ltx_weights *w = x->weights;

    if (begin[B] > x->max_batch_tokens)
        return error_set(err, ERR_SIZE, "ltx: %d tokens in a batch, room for %d", (int)begin[B],
                         x->max_batch_tokens);
    x->B = B;
    x->T = begin[B];
    x->n_added = 0;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        x->wanted[m] = wanted[m];
    for (int b = 0; b <= B; b++)
        x->host_begin[b] = begin[b];
    return w->ops->upload(w->device, x->begin, x->host_begin, ((size_t)B + 1) * sizeof(int32_t),
                          err);
}

/* The sums of all states are there: features of the modalities that are wanted. V1's are the sums.
 */
static int scale_sums(struct ltx *x, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_projection *p = &w->projection;
    int first = 0, rc;

    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        int W = w->config.connectors[m].W;
        if (x->wanted[m] &&
            (rc = w->ops->scale_columns(w->device, x->features[m], W, x->sums + first, p->width,
                                        p->scale[m], p->bias[m], x->T, W, err)) != OK)
            return rc;
        first += W;
    }
    return OK;
}

int ltx_add_state(struct ltx *x, const float *h, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_projection *p = &w->projection;
    const struct ops *ops = w->ops;
    struct device *d = w->device;
    bool v1 = w->config.extractor == LTX_EXTRACTOR_V1;
    int s = x->n_added++, place, n, rc;

    /* states of one product lie side by side, D columns each */
    place = s % p->together;
    n = w->S - (s - place) < p->together ? w->S - (s - place) : p->together;
    rc = v1 ? ops->range_norm(d, x->normed, h, x->begin, x->scratch, x->B, x->T, w->D, err)
            : ops->rmsnorm(d, (char *)x->normed + (size_t)place * w->D * dtype_info(x->act)->bytes,
                           x->act, n * w->D, h, NULL, x->T, w->D, EPS, err);
    if (rc != OK || place + 1 < n)
        return rc;
    /* what was there before the first of them is gone */
    if ((rc = ops->linear(d, x->sums, x->normed, p->states[s / p->together], NULL, s >= p->together,
                          x->T, err)) != OK)
        return rc;
    return s + 1 == w->S && !v1 ? scale_sums(x, err) : OK;
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
    const struct ops *ops = x->weights->ops;
    struct device *d = x->weights->device;
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

    if ((rc = w->ops->rmsnorm(w->device, normed, x->act, W, rows, NULL, n, W, EPS, err)) != OK)
        return rc;
    return w->ops->matmul(w->device, qkvg, normed, first->w, first->bias, n, err);
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

/* Number i of `wide`'s first row. */
static const void *mid_at(const struct ltx *x, int i)
{
    const struct ops *ops = x->weights->ops;

    return (const char *)x->wide + i * dtype_info(ops->mid_is_act ? x->act : DTYPE_F32)->bytes;
}

/* From a block's q, k, v and gate in `wide` to the sum that the next one reads. */
static int forward_block(struct ltx *x, enum ltx_modality modality, const struct ltx_block *b,
                         int R, struct error *err)
{
    const struct ltx_config *all = &x->weights->config;
    const struct ltx_connector_config *config = &all->connectors[modality];
    const struct ltx_connector_weights *c = &x->weights->connectors[modality];
    const struct ops *ops = x->weights->ops;
    struct device *d = x->weights->device;
    int W = config->W, H = config->H, E = config->E, stride = qkvg_width(x, modality), rc;
    float scale = (float)(1.0 / sqrt(E));
    void *inner;

    /* attention: h += out(gate * attention(q, k, v)) */
    if ((rc = ops->wide_qk_norm_rope(d, x->wide, b->q_norm, b->k_norm, c->cos, c->sin, R, LTX_ROWS,
                                     H, E, stride, all->rope == LTX_ROPE_INTERLEAVED, EPS, err)) !=
            OK ||
        (rc = ops->full_attention(d, x->x, x->wide, all->gated ? mid_at(x, 3 * W) : NULL, stride,
                                  mid_at(x, W), stride, R, LTX_ROWS, LTX_ROWS, LTX_ROWS, H, E,
                                  scale, err)) != OK ||
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

/* From the features of n prompts to their embeddings in h, once first is there. */
static int forward_blocks(struct ltx *x, enum ltx_modality modality, int n, struct error *err)
{
    const struct ltx_weights *w = x->weights;
    const struct ltx_connector_config *config = &w->config.connectors[modality];
    const struct ltx_connector_weights *c = &w->connectors[modality];
    const struct ops *ops = w->ops;
    struct device *d = w->device;
    enum dtype mid = ops->mid_is_act ? x->act : DTYPE_F32;
    const int32_t *count = x->first + n;
    int R = n * LTX_ROWS, W = config->W, rc;

    if ((rc = ops->fill_rows(d, x->h, ltx_features(x, modality), c->registers, DTYPE_F32, x->first,
                             count, n, 0, LTX_ROWS, config->R, W, err)) != OK)
        return rc;
    for (int i = 0; i < config->L; i++) {
        const struct ltx_block *b = &c->blocks[i];
        if (i == 0)
            rc =
                ops->fill_rows(d, x->wide, x->token_qkvg, x->register_qkvg[modality], mid, x->first,
                               count, n, 0, LTX_ROWS, config->R, qkvg_width(x, modality), err);
        else if ((rc = ops->rmsnorm(d, x->x, x->act, W, x->h, NULL, R, W, EPS, err)) == OK)
            rc = ops->matmul(d, x->wide, x->x, b->qkvg.w, b->qkvg.bias, R, err);
        if (rc != OK || (rc = forward_block(x, modality, b, R, err)) != OK)
            return rc;
    }
    return ops->rmsnorm(d, x->h, DTYPE_F32, W, x->h, NULL, R, W, EPS, err);
}

/* Up to max_prompts prompts, before which `done` have gone through; their embeddings are left in h.
 */
static int forward(struct ltx *x, enum ltx_modality modality, const int *prompts, int done, int n,
                   struct error *err)
{
    const struct ltx_weights *w = x->weights;
    int32_t *host_first = x->host_first[modality] + 2 * (size_t)done, *host_count = host_first + n;
    size_t bytes = 2 * (size_t)n * sizeof(int32_t);
    bool is_run = w->ops->record != NULL, known = false;
    uint64_t key = (uint64_t)n << 1 | modality; /* a decoder's are hashes */
    int rc;

    for (int i = 0; i < n; i++) {
        host_first[i] = x->host_begin[prompts[i]];
        host_count[i] = x->host_begin[prompts[i] + 1] - x->host_begin[prompts[i]];
    }
    if ((rc = w->ops->upload(w->device, x->first, host_first, bytes, err)) != OK ||
        (is_run && (rc = w->ops->record(w->device, key, &known, err)) != OK))
        return rc;
    if (known)
        atomic_fetch_add_explicit(&x->steps, (uint64_t)w->config.connectors[modality].L,
                                  memory_order_relaxed);
    else if ((rc = forward_blocks(x, modality, n, err)) != OK)
        return rc;
    return is_run ? w->ops->replay(w->device, key, err) : OK;
}

int ltx_embed(struct ltx *x, enum ltx_modality modality, const int *prompts, int n,
              ltx_sink_fn *sink, void *sink_arg, struct error *err)
{
    size_t block = (size_t)LTX_ROWS * x->weights->config.connectors[modality].W;
    int rc;

    if (n > 0 && (rc = fill_qkvg(x, modality, err)) != OK)
        return rc;
    for (int done = 0; done < n; done += x->max_prompts) {
        int now = n - done < x->max_prompts ? n - done : x->max_prompts;
        if ((rc = forward(x, modality, prompts + done, done, now, err)) != OK)
            return rc;
        for (int i = 0; i < now; i++)
            if ((rc = sink(sink_arg, prompts[done + i], x->h + (size_t)i * block, err)) != OK)
                return rc;
    }
    return OK;
}

uint64_t ltx_steps(const struct ltx *x)
{
    return atomic_load_explicit(&x->steps, memory_order_relaxed);
}
