#include "engine/model/gemma_share.h"

#include <stdlib.h>

#include "engine/files/gemma_config.h"

static int size_of(struct share_range r)
{
    return r.end - r.begin;
}

/* A cut where no matrix ends, and that is not there yet. */
static void add_cut(struct column_cuts *cuts, int at, int K)
{
    if (at > 0 && at < K && (cuts->n == 0 || cuts->at[cuts->n - 1] < at))
        cuts->at[cuts->n++] = at;
}

void gemma_share_cuts(struct column_cuts *attention_out, struct column_cuts *down,
                      const struct gemma_config *config, bool is_global, int n_ranks)
{
    const struct gemma_attention *a = is_global ? &config->global : &config->sliding;

    *attention_out = *down = (struct column_cuts){0};
    for (int r = 0; r < n_ranks - 1; r++) {
        struct share_range heads = share_heads(config->H, a->K, r, n_ranks).q;
        struct share_range inner = share_feed_forward(config->F, r, n_ranks);
        if (size_of(heads) > 0)
            add_cut(attention_out, heads.end * a->E, config->H * a->E);
        if (size_of(inner) > 0)
            add_cut(down, inner.end, config->F);
    }
}

/* Of a layer's attention: rows of q, of k and of v, and the columns that its result meets. */
static int view_attention(struct layer_weights *out, const struct gemma_config *c,
                          const struct gemma_attention *a, const struct share_heads *heads,
                          const struct layer_weights *whole, const struct ops *ops,
                          struct device *device, struct error *err)
{
    int n_q = size_of(heads->q) * a->E, n_kv = size_of(heads->kv) * a->E, rc;
    int k = c->H * a->E, v = k + a->K * a->E;
    const struct row_range qkv[] = {{heads->q.begin * a->E, n_q},
                                    {k + heads->kv.begin * a->E, n_kv},
                                    {v + heads->kv.begin * a->E, n_kv}};
    const struct row_range all = {0, c->D};

    out->qkv = out->attention_out = NULL;
    if (n_q == 0)
        return OK;
    if ((rc = ops->matrix_view(device, &out->qkv, whole->qkv, qkv, 3, 0, c->D, err)) != OK)
        return rc;
    return ops->matrix_view(device, &out->attention_out, whole->attention_out, &all, 1,
                            heads->q.begin * a->E, n_q, err);
}

/* Of its feed-forward: rows of gate and of up, and columns of down. */
static int view_feed_forward(struct layer_weights *out, const struct gemma_config *c,
                             struct share_range inner, const struct layer_weights *whole,
                             const struct ops *ops, struct device *device, struct error *err)
{
    const struct row_range gate_up[] = {{inner.begin, size_of(inner)},
                                        {c->F + inner.begin, size_of(inner)}};
    const struct row_range all = {0, c->D};
    int rc;

    out->gate_up = out->down = NULL;
    if (size_of(inner) == 0)
        return OK;
    if ((rc = ops->matrix_view(device, &out->gate_up, whole->gate_up, gate_up, 2, 0, c->D, err)) !=
        OK)
        return rc;
    return ops->matrix_view(device, &out->down, whole->down, &all, 1, inner.begin, size_of(inner),
                            err);
}

static int view_layers(struct gemma_share *out, const struct gemma_config *config,
                       const struct weights *weights, struct device *device, struct error *err)
{
    int rc;

    if ((out->layers = calloc((size_t)config->L, sizeof(*out->layers))) == NULL)
        return error_set(err, ERR_MEM, "gemma: no memory for %d layers", config->L);
    for (int i = 0; i < config->L; i++) {
        struct layer_weights *layer = &out->layers[i];
        const struct layer_weights *whole = &weights->layers[i];
        const struct gemma_attention *a = gemma_attention_of(config, i);
        const struct share_heads *heads = whole->is_global ? &out->global : &out->sliding;
        *layer = *whole;
        layer->qkv = layer->attention_out = layer->gate_up = layer->down = NULL;
        out->n_views = i + 1;
        if ((rc = view_attention(layer, config, a, heads, whole, weights->ops, device, err)) !=
                OK ||
            (rc = view_feed_forward(layer, config, out->inner, whole, weights->ops, device, err)) !=
                OK)
            return rc;
    }
    return OK;
}

int gemma_share_create(struct gemma_share *out, const struct gemma_config *config,
                       const struct weights *weights, struct device *device, int rank, int n_ranks,
                       struct error *err)
{
    bool all = weights->portion.kind == PORTION_ALL;

    if (!all)
        rank = portion_part(&weights->portion, &n_ranks);
    *out = (struct gemma_share){
        .is_whole = n_ranks == 1,
        .global = share_heads(config->H, config->global.K, rank, n_ranks),
        .sliding = share_heads(config->H, config->sliding.K, rank, n_ranks),
        .inner = share_feed_forward(config->F, rank, n_ranks),
        .layers = weights->layers,
    };
    return all && n_ranks > 1 ? view_layers(out, config, weights, device, err) : OK;
}

void gemma_share_free(struct gemma_share *s, const struct ops *ops, struct device *device)
{
    for (int i = 0; i < s->n_views; i++) {
        ops->matrix_free(device, s->layers[i].qkv);
        ops->matrix_free(device, s->layers[i].attention_out);
        ops->matrix_free(device, s->layers[i].gate_up);
        ops->matrix_free(device, s->layers[i].down);
    }
    if (s->n_views > 0)
        free(s->layers);
    *s = (struct gemma_share){0};
}
