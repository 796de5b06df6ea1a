/* weights.c - see weights.h.
 *
 * A matrix goes from the mapped file to its resident layout in one step, in parallel inside
 * ops->matrix_load, so that loading needs no second copy of the model in memory. */
#include "engine/model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/files/gemma_config.h"
#include "engine/model/gemma_share.h"
#include "kernels/random_matrix.h"
#include "kernels/random_number.h"

struct loader {
    const struct model_file *file; /* NULL: the weights are random numbers */
    struct weights *w;
    weights_progress_fn *progress;
    void *progress_arg;
    int n_ranks;        /* which will share passes: matrices can be cut for them */
    bool only_counting; /* finds and checks every tensor, and adds up their bytes */
    uint64_t bytes_done, bytes_total;
    uint64_t n_random; /* tensors made so far */
};

static void advance(struct loader *l, uint64_t bytes)
{
    l->bytes_done += bytes;
    if (l->progress != NULL)
        l->progress(l->progress_arg, l->bytes_done, l->bytes_total);
}

/* `n` factors about 1. */
static void random_norm(struct loader *l, float *factors, int n)
{
    l->n_random++;
    for (int i = 0; i < n; i++)
        factors[i] = 1.0f + 0.1f * random_number(l->n_random, (uint64_t)i);
}

/* A norm factor of `n` numbers. What a file stores is the factor or 1 less than it, and the file
 * knows which (model_file_norms_lack_one). This is the only place that adds the 1. */
static int load_norm(struct loader *l, float **out, const char *name, int n, struct error *err)
{
    size_t shape[1] = {(size_t)n};
    struct weights *w = l->w;
    struct tensor tensor = {0};
    float *host = NULL;
    void *memory;
    int rc;

    if (l->file != NULL && (rc = model_file_tensor(l->file, &tensor, name, 1, shape, err)) != OK)
        return rc;
    if (l->only_counting) {
        l->bytes_total += tensor.bytes;
        return OK;
    }
    if ((host = malloc((size_t)n * sizeof(float))) == NULL)
        return error_set(err, ERR_MEM, "weights: no memory for %s", name);
    if (l->file == NULL)
        random_norm(l, host, n);
    else
        dtype_decode(host, tensor.data, tensor.type, (size_t)n);
    if (l->file != NULL && model_file_norms_lack_one(l->file))
        for (int i = 0; i < n; i++)
            host[i] += 1.0f;
    if ((rc = w->ops->alloc(w->device, &memory, (size_t)n * sizeof(float), err)) != OK)
        goto out;
    *out = memory;
    w->bytes += (size_t)n * sizeof(float);
    rc = w->ops->upload(w->device, memory, host, (size_t)n * sizeof(float), err);
    if (rc == OK) /* `host` is freed below */
        rc = w->ops->sync(w->device, err);
    advance(l, tensor.bytes);
out:
    free(host);
    return rc;
}

/* Numbers of mean 0 and mean square 1 / K. */
static int random_matrix(struct loader *l, struct matrix **out, int n_parts, const int *rows, int K,
                         const struct column_cuts *cuts, struct error *err)
{
    struct weights *w = l->w;
    int N = 0, rc;

    for (int i = 0; i < n_parts; i++)
        N += rows[i];
    if ((rc = random_matrix_create(w->ops, w->device, out, N, K, sqrtf(3.0f / (float)K),
                                   ++l->n_random, cuts, err)) == OK)
        w->bytes += w->ops->matrix_bytes(*out);
    return rc;
}

/* One resident matrix from up to three tensors of K columns; names[i] has rows[i] rows. */
static int load_matrix(struct loader *l, struct matrix **out, const char *layer, int n_parts,
                       const char *const *names, const int *rows, int K,
                       const struct column_cuts *cuts, struct error *err)
{
    struct matrix_part parts[3];
    struct tensor first = {0}; /* which messages name */
    struct weights *w = l->w;
    struct error why = {0};
    uint64_t bytes = 0;
    int rc;

    if (l->file == NULL)
        return random_matrix(l, out, n_parts, rows, K, cuts, err);
    for (int i = 0; i < n_parts; i++) {
        size_t shape[2] = {(size_t)rows[i], (size_t)K};
        struct tensor tensor;
        char name[128];
        snprintf(name, sizeof(name), "%s.%s.weight", layer, names[i]);
        if ((rc = model_file_tensor(l->file, &tensor, name, 2, shape, err)) != OK)
            return rc;
        if (i == 0)
            first = tensor;
        if (i == 0 || tensor.data != parts[i - 1].data) /* what is there twice is read once */
            bytes += tensor.bytes;
        parts[i] = (struct matrix_part){.data = tensor.data, .type = tensor.type, .rows = rows[i]};
    }
    if (l->only_counting) {
        l->bytes_total += bytes;
        return OK;
    }
    if ((rc = w->ops->matrix_load(w->device, out, parts, n_parts, K, cuts, &why)) != OK)
        return error_set(err, why.code, "%s: %s: %s", first.file, first.name, why.text);
    w->bytes += w->ops->matrix_bytes(*out);
    advance(l, bytes);
    return OK;
}

/* layer_scalar of one layer; 1 in models without. */
static int load_scalar(struct loader *l, float *out, const char *layer, bool is_there,
                       struct error *err)
{
    const size_t shape[1] = {1};
    struct tensor tensor;
    char name[64];
    int rc;

    *out = 1.0f;
    if (!is_there || l->file == NULL)
        return OK;
    snprintf(name, sizeof(name), "%s.layer_scalar", layer);
    if ((rc = model_file_tensor(l->file, &tensor, name, 1, shape, err)) != OK)
        return rc;
    dtype_decode(out, tensor.data, tensor.type, 1);
    return OK;
}

static int load_layer(struct loader *l, struct layer_weights *layer, const struct gemma_config *c,
                      int index, struct error *err)
{
    const struct gemma_attention *a = gemma_attention_of(c, index);
    const struct {
        const char *name;
        float **factor;
        int n;
    } norms[] = {
        {"input_layernorm", &layer->input_norm, c->D},
        {"post_attention_layernorm", &layer->post_attention_norm, c->D},
        {"pre_feedforward_layernorm", &layer->pre_ff_norm, c->D},
        {"post_feedforward_layernorm", &layer->post_ff_norm, c->D},
        {"self_attn.q_norm", &layer->q_norm, a->E},
        {"self_attn.k_norm", &layer->k_norm, a->E},
    };
    /* where v is k, its rows are there twice: a hundredth of such a layer, for one layout of qkv */
    const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj",
                               a->k_is_v ? "self_attn.k_proj" : "self_attn.v_proj"};
    static const char *const out[] = {"self_attn.o_proj"};
    static const char *const gate_up[] = {"mlp.gate_proj", "mlp.up_proj"};
    static const char *const down[] = {"mlp.down_proj"};
    const int qkv_rows[] = {c->H * a->E, a->K * a->E, a->K * a->E};
    const int gate_up_rows[] = {c->F, c->F};
    struct column_cuts out_cuts, down_cuts;
    char prefix[32];
    int rc;

    gemma_share_cuts(&out_cuts, &down_cuts, c, c->is_global[index], l->n_ranks);
    snprintf(prefix, sizeof(prefix), "layers.%d", index);
    layer->is_global = c->is_global[index];
    for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++) {
        char name[96];
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, norms[i].name);
        if ((rc = load_norm(l, norms[i].factor, name, norms[i].n, err)) != OK)
            return rc;
    }
    if ((rc = load_scalar(l, &layer->scalar, prefix, c->has_layer_scalars, err)) != OK ||
        (rc = load_matrix(l, &layer->qkv, prefix, 3, qkv, qkv_rows, c->D, NULL, err)) != OK ||
        (rc = load_matrix(l, &layer->attention_out, prefix, 1, out, &c->D, c->H * a->E, &out_cuts,
                          err)) != OK ||
        (rc = load_matrix(l, &layer->gate_up, prefix, 2, gate_up, gate_up_rows, c->D, NULL, err)) !=
            OK ||
        (rc = load_matrix(l, &layer->down, prefix, 1, down, &c->D, c->F, &down_cuts, err)) != OK)
        return rc;
    return OK;
}

int weights_embedding(struct tensor *out, const struct model_file *file, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    size_t shape[2] = {(size_t)c->V, (size_t)c->D};

    return model_file_tensor(file, out, "embed_tokens.weight", 2, shape, err);
}

/* `bytes` of the file are read for it. */
static int load_table(struct loader *l, const void *data, enum dtype type, uint64_t bytes,
                      const struct gemma_config *c, struct error *err)
{
    struct weights *w = l->w;
    struct error why = {0};

    if (w->ops->table_load(w->device, &w->embed, data, type, c->V, c->D, &why) != OK)
        return error_set(err, why.code, "the embedding table: %s", why.text);
    w->bytes += w->ops->table_bytes(w->embed);
    advance(l, bytes);
    return OK;
}

static int load_all(struct loader *l, const struct gemma_config *c, struct error *err)
{
    int rc;

    if ((rc = load_norm(l, &l->w->final_norm, "norm.weight", c->D, err)) != OK)
        return rc;
    for (int i = 0; i < c->L; i++)
        if ((rc = load_layer(l, &l->w->layers[i], c, i, err)) != OK)
            return rc;
    return OK;
}

int weights_check(const struct model_file *file, uint64_t *bytes, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    struct weights nothing = {.layers = calloc((size_t)c->L, sizeof(*nothing.layers))};
    struct loader l = {.file = file, .w = &nothing, .n_ranks = 1, .only_counting = true};
    struct tensor embed;
    int rc;

    if (nothing.layers == NULL)
        return error_set(err, ERR_MEM, "weights: no memory for %d layers", c->L);
    if ((rc = weights_embedding(&embed, file, err)) == OK)
        rc = load_all(&l, c, err);
    *bytes = l.bytes_total;
    free(nothing.layers);
    return rc;
}

static int weights_create(struct weights **out, const struct gemma_config *c, const struct ops *ops,
                          struct device *device, struct error *err)
{
    struct weights *w = calloc(1, sizeof(*w));

    *out = NULL;
    if (w == NULL || (w->layers = calloc((size_t)c->L, sizeof(*w->layers))) == NULL) {
        free(w);
        return error_set(err, ERR_MEM, "weights: no memory for %d layers", c->L);
    }
    w->ops = ops;
    w->device = device;
    w->n_layers = c->L;
    *out = w;
    return OK;
}

int weights_load(struct weights **out, const struct model_file *file, const struct ops *ops,
                 struct device *device, int n_ranks, weights_progress_fn *progress,
                 void *progress_arg, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    struct loader l = {
        .file = file, .n_ranks = n_ranks, .progress = progress, .progress_arg = progress_arg};
    struct tensor embed;
    int rc;

    *out = NULL;
    /* a file that lacks its last tensor is refused before any work */
    if ((rc = weights_check(file, &l.bytes_total, err)) != OK ||
        (rc = weights_embedding(&embed, file, err)) != OK ||
        (rc = weights_create(&l.w, c, ops, device, err)) != OK)
        return rc;
    if (!ops->is_host) /* there it stays in the file */
        l.bytes_total += embed.bytes;
    if ((rc = load_table(&l, embed.data, embed.type, ops->is_host ? 0 : embed.bytes, c, err)) !=
            OK ||
        (rc = load_all(&l, c, err)) != OK)
        goto out;
    *out = l.w;
    l.w = NULL;
out:
    weights_free(l.w);
    return rc;
}

int weights_outline(struct weights **out, const struct gemma_config *c, const struct ops *ops,
                    struct device *device, struct error *err)
{
    struct loader l = {.n_ranks = 1};
    int rc;

    if ((rc = weights_create(out, c, ops, device, err)) != OK)
        return rc;
    l.w = *out;
    if ((rc = load_all(&l, c, err)) == OK)
        return OK;
    weights_free(*out);
    *out = NULL;
    return rc;
}

int weights_random(struct weights **out, const struct gemma_config *c, const struct ops *ops,
                   struct device *device, int n_ranks, struct error *err)
{
    size_t n = (size_t)c->V * c->D;
    struct loader l = {.n_ranks = n_ranks};
    struct weights *w;
    int rc;

    *out = NULL;
    if ((rc = weights_create(&w, c, ops, device, err)) != OK)
        return rc;
    l.w = w;
    if ((w->own_table = malloc(n * sizeof(*w->own_table))) == NULL) {
        rc = error_set(err, ERR_MEM, "weights: no memory for an embedding table");
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        w->own_table[i] = bf16_from_float(random_number(0, i) / sqrtf((float)c->D));
    if ((rc = load_table(&l, w->own_table, DTYPE_BF16, 0, c, err)) != OK ||
        (rc = load_all(&l, c, err)) != OK)
        goto out;
    *out = w;
    w = NULL;
out:
    weights_free(w);
    return rc;
}

void weights_free(struct weights *w)
{
    if (w == NULL)
        return;
    for (int i = 0; i < w->n_layers; i++) {
        struct layer_weights *layer = &w->layers[i];
        float *norms[] = {layer->input_norm,  layer->post_attention_norm,
                          layer->pre_ff_norm, layer->post_ff_norm,
                          layer->q_norm,      layer->k_norm};
        for (size_t n = 0; n < sizeof(norms) / sizeof(norms[0]); n++)
            w->ops->release(w->device, norms[n]);
        w->ops->matrix_free(w->device, layer->qkv);
        w->ops->matrix_free(w->device, layer->attention_out);
        w->ops->matrix_free(w->device, layer->gate_up);
        w->ops->matrix_free(w->device, layer->down);
    }
    w->ops->release(w->device, w->final_norm);
    w->ops->table_free(w->device, w->embed);
    free(w->own_table);
    free(w->layers);
    free(w);
}
