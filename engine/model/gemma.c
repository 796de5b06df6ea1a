/* gemma.c - the forward pass.
 *
 * A list of ops over one packed batch, the same for every backend and for Gemma 3 and 4: where they
 * differ, the config and the weights have other numbers. The residual stream h is
 * float32 from the embeddings to the end; each matmul reads an activation in the device's compute
 * type and returns float32. All memory is taken once, for the largest pack.
 *
 * A sharded pass is the same list with fewer heads and a narrower feed-forward on each rank, and
 * two all-reduces a layer: of what attention and feed-forward add to the residual stream, in
 * float32. Norms and the stream itself are on every rank, the same bits. Where ranks have whole
 * layers instead, each computes its own and hands the stream on. */
#include "engine/model/gemma.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/hash.h"
#include "engine/files/gemma_config.h"
#include "engine/model/gemma_share.h"

/* What all global layers, or all sliding ones, attend by. */
struct attention_kind {
    int K, E, window;
    float *cos, *sin; /* device, [max_tokens, E/2] */
};

struct gemma {
    struct gemma_config config;
    const struct weights *weights;
    const struct ops *ops;
    struct device *device;
    struct gemma_share whole, shared; /* what it computes alone, if it can, and in a group */
    int max_tokens, max_batch_tokens;
    enum dtype act;
    struct attention_kind global, sliding;

    int32_t *own_ids; /* host, [max_batch_tokens]: where ranks share the table; else NULL */

    /* activations, on the device; T is at most max_batch_tokens */
    int32_t *ids, *positions, *begin;
    float *h;      /* [T, D] the residual stream */
    float *branch; /* [T, D] what attention or feed-forward adds to it */
    void *qkv;     /* [T, (H + 2K) * E] mid, of the kind that has more */
    void *gate_up; /* [T, 2F] mid */
    void *inner;   /* [T, F] act, where one op makes it of x; else NULL */
    void *x;       /* [T, max(D, H * E, F)] act: what the next matmul reads */

    _Atomic uint64_t steps; /* layers computed */
};

/* Device memory for n things of `size` bytes; NULL, and *rc set, when this or an earlier one
 * failed. */
static void *take(const struct gemma *g, size_t n, size_t size, int *rc, struct error *err)
{
    void *memory = NULL;

    if (*rc == OK)
        *rc = g->ops->alloc(g->device, &memory, n * size, err);
    return memory;
}

/* With cos and sin of every position. The angle is the float32 product of a float32 frequency and
 * the position (transformers, Gemma3RotaryEmbedding), so its rounding is the reference's; cos and
 * sin of that float32 value are taken in double and rounded once. */
static int build_kind(struct gemma *g, struct attention_kind *kind, const struct gemma_attention *a,
                      int window, struct error *err)
{
    const struct ops *ops = g->ops;
    struct device *device = g->device;
    int half = a->E / 2, rc = OK;
    size_t n = (size_t)g->max_tokens * half;
    float *cos_host = malloc(n * sizeof(float)), *sin_host = malloc(n * sizeof(float));

    if (cos_host == NULL || sin_host == NULL) {
        rc = error_set(err, ERR_MEM, "gemma: no memory for the rotary tables");
        goto out;
    }
    *kind = (struct attention_kind){.K = a->K, .E = a->E, .window = window};
    for (int e = 0; e < half; e++) {
        float frequency = (float)pow(a->rope.theta, -2.0 * e / a->E) / (float)a->rope.factor;
        if (e >= a->rope.n_turning)
            frequency = 0.0f;
        for (int p = 0; p < g->max_tokens; p++) {
            float angle = (float)p * frequency;
            cos_host[(size_t)p * half + e] = (float)cos((double)angle);
            sin_host[(size_t)p * half + e] = (float)sin((double)angle);
        }
    }
    kind->cos = take(g, n, sizeof(float), &rc, err);
    kind->sin = take(g, n, sizeof(float), &rc, err);
    if (rc != OK || (rc = ops->upload(device, kind->cos, cos_host, n * sizeof(float), err)) != OK ||
        (rc = ops->upload(device, kind->sin, sin_host, n * sizeof(float), err)) != OK)
        goto out;
    rc = ops->sync(device, err); /* the host tables go away */
out:
    free(cos_host);
    free(sin_host);
    return rc;
}

static size_t max_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int take_activations(struct gemma *g, struct error *err)
{
    const struct gemma_config *c = &g->config;
    size_t T = (size_t)g->max_batch_tokens, D = (size_t)c->D, F = (size_t)c->F;
    size_t heads = max_of((size_t)c->H * c->global.E, (size_t)c->H * c->sliding.E);
    size_t qkv = max_of(((size_t)c->H + 2 * c->global.K) * c->global.E,
                        ((size_t)c->H + 2 * c->sliding.K) * c->sliding.E);
    size_t act = dtype_info(g->act)->bytes, mid = g->ops->mid_is_act ? act : sizeof(float);
    int rc = OK;

    g->ids = take(g, T, sizeof(int32_t), &rc, err);
    g->positions = take(g, T, sizeof(int32_t), &rc, err);
    g->begin = take(g, T + 1, sizeof(int32_t), &rc, err);
    g->h = take(g, T * D, sizeof(float), &rc, err);
    g->branch = take(g, T * D, sizeof(float), &rc, err);
    g->qkv = take(g, T * qkv, mid, &rc, err);
    g->gate_up = take(g, T * 2 * F, mid, &rc, err);
    if (g->ops->matmul_geglu != NULL)
        g->inner = take(g, T * F, act, &rc, err);
    g->x = take(g, T * max_of(D, max_of(heads, F)), act, &rc, err);
    return rc;
}

int gemma_check(const struct gemma_config *config, struct error *err)
{
    int E = config->global.E > config->sliding.E ? config->global.E : config->sliding.E;

    if (E > OPS_MAX_HEAD)
        return error_set(err, ERR_FORMAT, "gemma: heads of %d numbers, at most %d", E,
                         OPS_MAX_HEAD);
    return OK;
}

int gemma_create(struct gemma **out, const struct gemma_config *config,
                 const struct weights *weights, struct device *device, int rank, int n_ranks,
                 enum dtype act, int max_tokens, int max_batch_tokens, struct error *err)
{
    struct gemma *g;
    int rc;

    *out = NULL;
    if ((rc = gemma_check(config, err)) != OK)
        return rc;
    if ((g = calloc(1, sizeof(*g))) == NULL)
        return error_set(err, ERR_MEM, "gemma: no memory");
    g->config = *config;
    g->weights = weights;
    g->ops = weights->ops;
    g->device = device;
    g->act = act;
    g->max_tokens = max_tokens;
    g->max_batch_tokens = max_batch_tokens;
    if (weights->portion.kind == PORTION_TENSOR &&
        (g->own_ids = calloc((size_t)max_batch_tokens, sizeof(*g->own_ids))) == NULL) {
        rc = error_set(err, ERR_MEM, "gemma: no memory for %d ids", max_batch_tokens);
        goto out;
    }
    if ((weights->portion.kind == PORTION_ALL &&
         (rc = gemma_share_create(&g->whole, config, weights, device, 0, 1, err)) != OK) ||
        (rc = gemma_share_create(&g->shared, config, weights, device, rank, n_ranks, err)) != OK ||
        (rc = build_kind(g, &g->global, &config->global, INT_MAX, err)) != OK ||
        (rc = build_kind(g, &g->sliding, &config->sliding, config->sliding_window, err)) != OK ||
        (rc = take_activations(g, err)) != OK)
        goto out;
    *out = g;
    g = NULL;
out:
    gemma_free(g);
    return rc;
}

void gemma_free(struct gemma *g)
{
    if (g == NULL)
        return;
    gemma_share_free(&g->shared, g->ops, g->device);
    void *taken[] = {g->global.cos, g->global.sin, g->sliding.cos, g->sliding.sin,
                     g->ids,        g->positions,  g->begin,       g->h,
                     g->branch,     g->qkv,        g->gate_up,     g->inner,
                     g->x};
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        g->ops->release(g->device, taken[i]);
    free(g->own_ids);
    free(g);
}

/* sqrt(D), rounded to the type the run computes in (transformers, Gemma3TextScaledWordEmbedding) */
static float embedding_scale(const struct gemma *g)
{
    float scale = sqrtf((float)g->config.D);

    return g->act == DTYPE_BF16 ? bf16_to_float(bf16_from_float(scale)) : scale;
}

/* h = (h + norm(branch)) * scale, and x = norm(h) for the next product: next_w NULL: there is none.
 */
static int add_branch(struct gemma *g, const float *w, float scale, const float *next_w, int T,
                      struct error *err)
{
    const struct ops *ops = g->ops;
    struct device *d = g->device;
    float eps = g->config.rms_norm_eps;
    int D = g->config.D, rc;

    if (next_w != NULL && ops->add_rmsnorm_rmsnorm != NULL)
        return ops->add_rmsnorm_rmsnorm(d, g->h, g->x, g->branch, w, scale, next_w, T, D, eps, err);
    if ((rc = ops->add_rmsnorm(d, g->h, g->branch, w, scale, T, D, eps, err)) != OK ||
        next_w == NULL)
        return rc;
    return ops->rmsnorm(d, g->x, g->act, D, g->h, next_w, T, D, eps, err);
}

/* gelu(gate(x)) * up(x), F numbers of it; *out is where it lies, act. In one step it cannot take
 * the place of x, which it reads. */
static int gated(struct gemma *g, const struct matrix *w, int F, void **out, int T,
                 struct error *err)
{
    const struct ops *ops = g->ops;
    struct device *d = g->device;
    int rc;

    if (ops->matmul_geglu != NULL) {
        *out = g->inner;
        return ops->matmul_geglu(d, g->inner, g->x, w, g->gate_up, T, err);
    }
    *out = g->x;
    if ((rc = ops->matmul(d, g->gate_up, g->x, w, NULL, T, err)) != OK)
        return rc;
    return ops->geglu(d, g->x, g->gate_up, T, F, err);
}

/* out(attention(x)) to branch: the part of the heads that this rank has. */
static int attend(struct gemma *g, const struct gemma_share *share, const struct layer_weights *w,
                  int B, int T, struct error *err)
{
    const struct gemma_config *c = &g->config;
    const struct ops *ops = g->ops;
    struct device *d = g->device;
    const struct attention_kind *a = w->is_global ? &g->global : &g->sliding;
    const struct share_heads *heads = w->is_global ? &share->global : &share->sliding;
    int H = heads->q.end - heads->q.begin, K = heads->kv.end - heads->kv.begin, rc;
    float scale = (float)(1.0 / sqrt(c->query_pre_attn_scalar));

    if (H == 0)
        return ops->clear(d, g->branch, (size_t)T * c->D * sizeof(float), err);
    if ((rc = ops->matmul(d, g->qkv, g->x, w->qkv, NULL, T, err)) != OK ||
        (rc = ops->qk_norm_rope(d, g->qkv, w->q_norm, w->k_norm, a->cos, a->sin, g->positions, T, H,
                                K, a->E, c->rms_norm_eps, c->norm_v, err)) != OK ||
        (rc = ops->attention(d, g->x, g->qkv, g->begin, B, T, H, K, a->E, scale, a->window, err)) !=
            OK)
        return rc;
    return ops->linear(d, g->branch, g->x, w->attention_out, NULL, false, T, err);
}

/* down(gelu(gate(x)) * up(x)) to branch: the part of the inner numbers that this rank has. */
static int feed_forward(struct gemma *g, const struct gemma_share *share,
                        const struct layer_weights *w, int T, struct error *err)
{
    const struct ops *ops = g->ops;
    struct device *d = g->device;
    int F = share->inner.end - share->inner.begin, rc;
    void *inner;

    if (F == 0)
        return ops->clear(d, g->branch, (size_t)T * g->config.D * sizeof(float), err);
    if ((rc = gated(g, w->gate_up, F, &inner, T, err)) != OK)
        return rc;
    return ops->linear(d, g->branch, inner, w->down, NULL, false, T, err);
}

/* What the ranks have of branch, added up; one alone has all. */
static int sum_branch(struct gemma *g, const struct gemma_share *share, int T, struct error *err)
{
    return share->is_whole ? OK
                           : g->ops->all_reduce(g->device, g->branch, (size_t)T * g->config.D, err);
}

/* From the normed h in x to that of the layer after it, whose norm is next_norm (NULL: none). */
static int forward_layer(struct gemma *g, const struct gemma_share *share,
                         const struct layer_weights *w, const float *next_norm, int B, int T,
                         struct error *err)
{
    int rc;

    /* h += norm(out(attention(norm(h)))) */
    if ((rc = attend(g, share, w, B, T, err)) != OK || (rc = sum_branch(g, share, T, err)) != OK ||
        (rc = add_branch(g, w->post_attention_norm, 1.0f, w->pre_ff_norm, T, err)) != OK)
        return rc;
    /* h = (h + norm(down(gelu(gate(norm(h))) * up(norm(h))))) * scalar */
    if ((rc = feed_forward(g, share, w, T, err)) != OK || (rc = sum_branch(g, share, T, err)) != OK)
        return rc;
    return add_branch(g, w->post_ff_norm, w->scalar, next_norm, T, err);
}

/* h of the first layer. Where the ranks share the table, each has some of the rows and zeros for
 * the others: their sum is exact. */
static int embed(struct gemma *g, int T, struct error *err)
{
    const struct ops *ops = g->ops;
    size_t n = (size_t)T * g->config.D;
    int rc;

    if (g->weights->embed != NULL)
        rc = ops->embed(g->device, g->h, g->weights->embed, g->ids, T, embedding_scale(g), err);
    else
        rc = ops->clear(g->device, g->h, n * sizeof(float), err);
    if (rc != OK || g->weights->portion.kind != PORTION_TENSOR)
        return rc;
    return ops->all_reduce(g->device, g->h, n, err);
}

/* Where layer s - 1 is another rank's than what comes before it, h goes from there to all. */
static int pass_on(struct gemma *g, int s, int T, struct error *err)
{
    const struct portion *p = &g->weights->portion;
    int from = portion_owner(p, s - 1);

    if (p->kind != PORTION_LAYER || from == portion_owner(p, s))
        return OK;
    return g->ops->broadcast(g->device, g->h, (size_t)T * g->config.D * sizeof(float), from, err);
}

/* From state s - 1 in h, which x is the normed of where this rank has just made it, to state s; it
 * lies at *state. */
static int make_state(struct gemma *g, const struct gemma_share *share, int s, int B, int T,
                      int last, const float **state, struct error *err)
{
    const struct portion *p = &g->weights->portion;
    const struct layer_weights *w = &share->layers[s - 1];
    const float *next_norm = s < last && portion_has(p, s + 1) ? w[1].input_norm : NULL;
    int D = g->config.D, rc;
    float eps = g->config.rms_norm_eps;

    *state = g->h;
    if ((s == 1 || !portion_has(p, s - 1)) &&
        (rc = g->ops->rmsnorm(g->device, g->x, g->act, D, g->h, w->input_norm, T, D, eps, err)) !=
            OK)
        return rc;
    if ((rc = forward_layer(g, share, w, next_norm, B, T, err)) != OK)
        return rc;
    atomic_fetch_add_explicit(&g->steps, 1, memory_order_relaxed);
    if (s < g->config.L)
        return OK;
    *state = g->branch; /* the last state is normed, and only that: nothing reads h */
    return g->ops->rmsnorm(g->device, g->branch, DTYPE_F32, D, g->h, g->weights->final_norm, T, D,
                           eps, err);
}

/* All that a pass does once its ids are there. */
static int forward_states(struct gemma *g, const struct gemma_share *share, int B, int T, int last,
                          const bool *wanted, gemma_state_fn *emit, void *emit_arg,
                          struct error *err)
{
    const struct portion *p = &g->weights->portion;
    int rc;

    for (int s = 0; s <= last; s++) {
        const float *state = NULL;
        if (s > 0 && (rc = pass_on(g, s, T, err)) != OK)
            return rc;
        if (s == 0 && portion_has(p, 0)) {
            state = g->h;
            if ((rc = embed(g, T, err)) != OK)
                return rc;
        }
        if (s > 0 && portion_has(p, s) &&
            (rc = make_state(g, share, s, B, T, last, &state, err)) != OK)
            return rc;
        if (wanted[s] && (rc = emit(emit_arg, s, state, err)) != OK)
            return rc;
    }
    return OK;
}

/* Layers of a pass to state `last` that this rank computes. */
static uint64_t own_layers(const struct gemma *g, int last)
{
    uint64_t n = 0;

    for (int s = 1; s <= last; s++)
        n += portion_has(&g->weights->portion, s);
    return n;
}

/* A pass's ids as the device's rows of the table: -1 where another rank has it. */
static const int32_t *find_ids(struct gemma *g, const struct pack *pack)
{
    struct share_range own = g->weights->ids;

    if (g->own_ids == NULL)
        return pack->ids;
    for (int t = 0; t < pack->T; t++) {
        int32_t id = pack->ids[t];
        g->own_ids[t] = id >= own.begin && id < own.end ? id - own.begin : -1;
    }
    return g->own_ids;
}

/* Of a pass that may be recorded: over all that decides its ops. */
static uint64_t key_of(const struct gemma *g, int B, int T, const bool *wanted, bool sharded,
                       unsigned run)
{
    uint64_t key = HASH_START;

    for (int s = 0; s <= g->config.L; s++)
        key = hash_add(key, wanted[s]);
    key = hash_add(hash_add(key, (uint64_t)T), (uint64_t)B);
    return hash_add(hash_add(key, sharded), run);
}

int gemma_forward(struct gemma *g, const struct pack *pack, const bool *wanted, bool sharded,
                  unsigned run, gemma_state_fn *emit, void *emit_arg, struct error *err)
{
    const struct ops *ops = g->ops;
    struct device *d = g->device;
    size_t T = (size_t)pack->T;
    bool is_run = run != 0 && ops->record != NULL, known = false;
    uint64_t key = key_of(g, pack->B, pack->T, wanted, sharded, run);
    int last = 0, rc;

    if (pack->T > g->max_batch_tokens)
        return error_set(err, ERR_SIZE, "gemma: %d tokens in a batch, room for %d", pack->T,
                         g->max_batch_tokens);
    for (int s = 0; s <= g->config.L; s++)
        if (wanted[s])
            last = s;
    if ((rc = ops->upload(d, g->ids, find_ids(g, pack), T * sizeof(int32_t), err)) != OK ||
        (rc = ops->upload(d, g->positions, pack->positions, T * sizeof(int32_t), err)) != OK ||
        (rc = ops->upload(d, g->begin, pack->begin, ((size_t)pack->B + 1) * sizeof(int32_t),
                          err)) != OK ||
        (is_run && (rc = ops->record(d, key, &known, err)) != OK))
        return rc;
    if (known)
        atomic_fetch_add_explicit(&g->steps, own_layers(g, last), memory_order_relaxed);
    else if ((rc = forward_states(g, sharded ? &g->shared : &g->whole, pack->B, pack->T, last,
                                  wanted, emit, emit_arg, err)) != OK)
        return rc;
    return is_run ? ops->replay(d, key, err) : OK;
}

uint64_t gemma_steps(const struct gemma *g)
{
    return atomic_load_explicit(&g->steps, memory_order_relaxed);
}
