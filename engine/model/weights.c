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
    const struct portion *portion;
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

enum { MAX_PARTS = 3 };

/* Tensors of K columns whose rows make one matrix, and what of them is in it. */
struct stack {
    int n, K;
    const char *names[MAX_PARTS];
    int rows[MAX_PARTS];              /* as the file has them */
    struct share_range of[MAX_PARTS]; /* those of each that are wanted */
    struct share_range columns;       /* likewise, of all */
    const struct column_cuts *cuts;   /* as matrix_load has them */
};

static int size_of(struct share_range r)
{
    return r.end - r.begin;
}

static int wanted_rows(const struct stack *s)
{
    int N = 0;

    for (int i = 0; i < s->n; i++)
        N += size_of(s->of[i]);
    return N;
}

/* Numbers of mean 0 and mean square 1 / K. */
static int random_matrix(struct loader *l, struct matrix **out, const struct stack *s,
                         struct error *err)
{
    struct weights *w = l->w;
    int rc;

    if ((rc = random_matrix_create(w->ops, w->device, out, wanted_rows(s), size_of(s->columns),
                                   sqrtf(3.0f / (float)s->K), ++l->n_random, s->cuts, err)) == OK)
        w->bytes += w->ops->matrix_bytes(*out);
    return rc;
}

/* Tensor i of the stack, as a part of the matrix; *bytes of the file are read for it. */
static int find_part(const struct loader *l, struct matrix_part *out, struct tensor *tensor,
                     uint64_t *bytes, const char *layer, const struct stack *s, int i,
                     struct error *err)
{
    size_t shape[2] = {(size_t)s->rows[i], (size_t)s->K}, row_bytes, first, end;
    const struct dtype_info *type;
    char name[128];
    int rc;

    snprintf(name, sizeof(name), "%s.%s.weight", layer, s->names[i]);
    if ((rc = model_file_tensor(l->file, tensor, name, 2, shape, err)) != OK)
        return rc;
    type = dtype_info(tensor->type);
    row_bytes = tensor->bytes / (size_t)s->rows[i];
    first = (size_t)s->columns.begin / type->block;
    end = ((size_t)s->columns.end + type->block - 1) / type->block;
    *bytes = (uint64_t)size_of(s->of[i]) * (end - first) * type->bytes;
    *out = (struct matrix_part){
        .data = (const char *)tensor->data + (size_t)s->of[i].begin * row_bytes,
        .type = tensor->type,
        .rows = size_of(s->of[i]),
        .stored_columns = s->K,
        .first_column = s->columns.begin,
    };
    return OK;
}

/* One resident matrix; none where nothing of it is wanted. */
static int load_matrix(struct loader *l, struct matrix **out, const char *layer,
                       const struct stack *s, struct error *err)
{
    struct matrix_part parts[MAX_PARTS];
    struct tensor first = {0}; /* which messages name */
    struct weights *w = l->w;
    struct error why = {0};
    uint64_t bytes = 0;
    int rc;

    if (wanted_rows(s) == 0 || size_of(s->columns) == 0)
        return OK;
    if (l->file == NULL)
        return random_matrix(l, out, s, err);
    for (int i = 0; i < s->n; i++) {
        struct tensor tensor;
        uint64_t here;
        if ((rc = find_part(l, &parts[i], &tensor, &here, layer, s, i, err)) != OK)
            return rc;
        if (i == 0)
            first = tensor;
        if (i == 0 || parts[i].data != parts[i - 1].data) /* what is there twice is read once */
            bytes += here;
    }
    if (l->only_counting) {
        l->bytes_total += bytes;
        return OK;
    }
    if ((rc = w->ops->matrix_load(w->device, out, parts, s->n, size_of(s->columns), s->cuts,
                                  &why)) != OK)
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

/* Of a layer's matrices what the rank computes with. */
static int load_matrices(struct loader *l, struct layer_weights *layer,
                         const struct gemma_config *c, int index, const char *prefix,
                         struct error *err)
{
    const struct gemma_attention *a = gemma_attention_of(c, index);
    int n_parts, part = portion_part(l->portion, &n_parts), E = a->E, rc;
    struct share_heads heads = share_heads(c->H, a->K, part, n_parts);
    struct share_range q = {heads.q.begin * E, heads.q.end * E};
    struct share_range kv = {heads.kv.begin * E, heads.kv.end * E};
    struct share_range inner = share_feed_forward(c->F, part, n_parts), all = {0, c->D};
    struct column_cuts out_cuts, down_cuts;
    /* where v is k, its rows are there twice: a hundredth of such a layer, for one layout of qkv */
    const struct stack qkv = {
        .n = 3,
        .K = c->D,
        .names = {"self_attn.q_proj", "self_attn.k_proj",
                  a->k_is_v ? "self_attn.k_proj" : "self_attn.v_proj"},
        .rows = {c->H * E, a->K * E, a->K * E},
        .of = {q, kv, kv},
        .columns = all,
    };
    const struct stack out = {
        .n = 1,
        .K = c->H * E,
        .names = {"self_attn.o_proj"},
        .rows = {c->D},
        .of = {all},
        .columns = q,
        .cuts = &out_cuts,
    };
    const struct stack gate_up = {
        .n = 2,
        .K = c->D,
        .names = {"mlp.gate_proj", "mlp.up_proj"},
        .rows = {c->F, c->F},
        .of = {inner, inner},
        .columns = all,
    };
    const struct stack down = {
        .n = 1,
        .K = c->F,
        .names = {"mlp.down_proj"},
        .rows = {c->D},
        .of = {all},
        .columns = inner,
        .cuts = &down_cuts,
    };

    gemma_share_cuts(&out_cuts, &down_cuts, c, c->is_global[index],
                     l->portion->kind == PORTION_ALL ? l->portion->n_ranks : 1);
    if ((rc = load_matrix(l, &layer->qkv, prefix, &qkv, err)) != OK ||
        (rc = load_matrix(l, &layer->attention_out, prefix, &out, err)) != OK ||
        (rc = load_matrix(l, &layer->gate_up, prefix, &gate_up, err)) != OK)
        return rc;
    return load_matrix(l, &layer->down, prefix, &down, err);
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
    char prefix[32];
    int rc;

    if (!portion_has(l->portion, index + 1))
        return OK;
    snprintf(prefix, sizeof(prefix), "layers.%d", index);
    layer->is_global = c->is_global[index];
    for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++) {
        char name[96];
        snprintf(name, sizeof(name), "%s.%s.weight", prefix, norms[i].name);
        if ((rc = load_norm(l, norms[i].factor, name, norms[i].n, err)) != OK)
            return rc;
    }
    if ((rc = load_scalar(l, &layer->scalar, prefix, c->has_layer_scalars, err)) != OK)
        return rc;
    return load_matrices(l, layer, c, index, prefix, err);
}

int weights_embedding(struct tensor *out, const struct model_file *file, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    size_t shape[2] = {(size_t)c->V, (size_t)c->D};

    return model_file_tensor(file, out, "embed_tokens.weight", 2, shape, err);
}

/* Whose rows of the embedding table are in the portion. */
static struct share_range ids_of(const struct portion *p, int V)
{
    int n_parts, part = portion_part(p, &n_parts);

    return portion_has(p, 0) ? share_rows(V, part, n_parts).range : (struct share_range){0};
}

/* The portion's rows; `bytes` of the file are read for them. */
static int load_table(struct loader *l, const void *rows, enum dtype type, uint64_t bytes,
                      const struct gemma_config *c, struct error *err)
{
    struct weights *w = l->w;
    struct error why = {0};

    if (size_of(w->ids) == 0)
        return OK;
    if (w->ops->table_load(w->device, &w->embed, rows, type, size_of(w->ids), c->D, &why) != OK)
        return error_set(err, why.code, "the embedding table: %s", why.text);
    w->bytes += w->ops->table_bytes(w->embed);
    advance(l, bytes);
    return OK;
}

static int load_all(struct loader *l, const struct gemma_config *c, struct error *err)
{
    int rc;

    if (portion_has(l->portion, c->L) &&
        (rc = load_norm(l, &l->w->final_norm, "norm.weight", c->D, err)) != OK)
        return rc;
    for (int i = 0; i < c->L; i++)
        if ((rc = load_layer(l, &l->w->layers[i], c, i, err)) != OK)
            return rc;
    return OK;
}

/* What the portion takes in the file, without the embedding table. */
static int count_bytes(const struct model_file *file, const struct portion *portion,
                       uint64_t *bytes, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    struct weights nothing = {.layers = calloc((size_t)c->L, sizeof(*nothing.layers))};
    struct loader l = {.file = file, .w = &nothing, .portion = portion, .only_counting = true};
    int rc;

    if (nothing.layers == NULL)
        return error_set(err, ERR_MEM, "weights: no memory for %d layers", c->L);
    rc = load_all(&l, c, err);
    *bytes = l.bytes_total;
    free(nothing.layers);
    return rc;
}

int weights_check(const struct model_file *file, uint64_t *bytes, struct error *err)
{
    const struct portion all = portion_all(1);
    struct tensor embed;
    int rc;

    *bytes = 0;
    if ((rc = weights_embedding(&embed, file, err)) != OK)
        return rc;
    return count_bytes(file, &all, bytes, err);
}

static int weights_create(struct weights **out, const struct gemma_config *c,
                          const struct portion *portion, const struct ops *ops,
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
    w->portion = *portion;
    w->n_layers = c->L;
    w->ids = ids_of(portion, c->V);
    *out = w;
    return OK;
}

int weights_load(struct weights **out, const struct model_file *file, const struct portion *portion,
                 const struct ops *ops, struct device *device, weights_progress_fn *progress,
                 void *progress_arg, struct error *err)
{
    const struct gemma_config *c = model_file_config(file);
    struct loader l = {
        .file = file, .portion = portion, .progress = progress, .progress_arg = progress_arg};
    size_t row_bytes;
    uint64_t table_bytes;
    struct tensor embed;
    int rc;

    *out = NULL;
    /* a file that lacks its last tensor is refused before any work */
    if ((rc = weights_check(file, &l.bytes_total, err)) != OK ||
        (rc = count_bytes(file, portion, &l.bytes_total, err)) != OK ||
        (rc = weights_embedding(&embed, file, err)) != OK ||
        (rc = weights_create(&l.w, c, portion, ops, device, err)) != OK)
        return rc;
    row_bytes = embed.bytes / (size_t)c->V;
    table_bytes = ops->is_host ? 0 : (uint64_t)size_of(l.w->ids) * row_bytes; /* it stays there */
    l.bytes_total += table_bytes;
    if ((rc = load_table(&l, (const char *)embed.data + (size_t)l.w->ids.begin * row_bytes,
                         embed.type, table_bytes, c, err)) != OK ||
        (rc = load_all(&l, c, err)) != OK)
        goto out;
    *out = l.w;
    l.w = NULL;
out:
    weights_free(l.w);
    return rc;
}

int weights_outline(struct weights **out, const struct gemma_config *c,
                    const struct portion *portion, const struct ops *ops, struct device *device,
                    struct error *err)
{
    struct loader l = {.portion = portion};
    int rc;

    if ((rc = weights_create(out, c, portion, ops, device, err)) != OK)
        return rc;
    l.w = *out;
    if ((rc = load_all(&l, c, err)) == OK)
        return OK;
    weights_free(*out);
    *out = NULL;
    return rc;
}

/* Of the portion's rows alone: number i of the whole table, wherever they begin. */
static int random_table(struct loader *l, const struct gemma_config *c, struct error *err)
{
    struct weights *w = l->w;
    size_t first = (size_t)w->ids.begin * c->D, n = (size_t)size_of(w->ids) * c->D;

    if (n > 0 && (w->own_table = malloc(n * sizeof(*w->own_table))) == NULL)
        return error_set(err, ERR_MEM, "weights: no memory for an embedding table");
    for (size_t i = 0; i < n; i++)
        w->own_table[i] = bf16_from_float(random_number(0, first + i) / sqrtf((float)c->D));
    return load_table(l, w->own_table, DTYPE_BF16, 0, c, err);
}

int weights_random(struct weights **out, const struct gemma_config *c,
                   const struct portion *portion, const struct ops *ops, struct device *device,
                   struct error *err)
{
    struct loader l = {.portion = portion};
    int rc;

    *out = NULL;
    if ((rc = weights_create(&l.w, c, portion, ops, device, err)) != OK)
        return rc;
    if ((rc = random_table(&l, c, err)) != OK || (rc = load_all(&l, c, err)) != OK)
        goto out;
    *out = l.w;
    l.w = NULL;
out:
    weights_free(l.w);
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
