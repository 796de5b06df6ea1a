/* ltx_weights.c - see ltx_weights.h.
 *
 * One walk over all tensors serves both callers: it either lists them or loads them. */
#include "engine/ltx/ltx_weights.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/ltx/connector_rope.h"
#include "kernels/random_matrix.h"
#include "kernels/random_number.h"

enum {
    NAME_CAP = 160,
    MAX_PARTS = 4,
    TOGETHER = 4, /* V2's states in one product */
    REPACK_BYTES = 384 << 20,
    REPACK_NUMBERS = 1 << 14, /* of a state, in one task */
    SLICE_BYTES = 1 << 20     /* of a tensor, likewise */
};

struct loader {
    const struct ltx_checkpoint *checkpoint; /* NULL: the weights are random numbers */
    struct ltx_weights *w;
    enum dtype act;
    ltx_progress_fn *progress;
    void *progress_arg;
    uint64_t bytes_done;
    /* listing: nothing is read */
    bool listing;
    struct tensor *list;
    size_t n_listed, list_cap;
    uint64_t n_random; /* tensors made so far */
};

static int list_tensor(struct loader *l, const struct tensor *t, struct error *err)
{
    if (l->n_listed == l->list_cap) {
        size_t cap = l->list_cap > 0 ? 2 * l->list_cap : 64;
        struct tensor *list = realloc(l->list, cap * sizeof(*list));
        if (list == NULL)
            return error_set(err, ERR_MEM, "ltx: no memory for a list of tensors");
        l->list = list;
        l->list_cap = cap;
    }
    l->list[l->n_listed++] = *t;
    return OK;
}

/* ---- work on the host's side that all of the device's threads share ---- */

struct finite_args {
    const struct tensor *t;
    _Atomic bool bad;
};

static void check_slice(void *arg, int index, int thread)
{
    struct finite_args *a = arg;
    struct tensor slice = *a->t;
    size_t at = (size_t)index * SLICE_BYTES;

    (void)thread;
    slice.data = (const char *)a->t->data + at;
    slice.bytes = a->t->bytes - at < SLICE_BYTES ? a->t->bytes - at : SLICE_BYTES;
    if (!tensor_is_finite(&slice))
        atomic_store(&a->bad, true);
}

static bool is_finite(const struct loader *l, const struct tensor *t)
{
    size_t n = t->bytes / SLICE_BYTES + 1; /* a last slice may have no bytes */
    struct finite_args args = {.t = t};

    if (n > INT_MAX)
        return tensor_is_finite(t);
    l->w->ops->host_run(l->w->device, check_slice, &args, (int)n);
    return !atomic_load(&args.bad);
}

static int check_finite(const struct loader *l, const struct tensor *t, struct error *err)
{
    if (l->listing || is_finite(l, t))
        return OK;
    return error_set(err, ERR_FORMAT, "%s: %s: holds a NaN or an infinity", t->file, t->name);
}

/* The tensor `prefix` + `name`, of the right shape. */
static int find_tensor(struct loader *l, struct tensor *t, const char *prefix, const char *name,
                       int n_dims, const size_t *shape, struct error *err)
{
    char full[NAME_CAP];
    int rc;

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    if ((rc = ltx_checkpoint_tensor(l->checkpoint, t, full, n_dims, shape, err)) != OK)
        return rc;
    return l->listing ? list_tensor(l, t, err) : OK;
}

/* The same, found to be finite. */
static int take_tensor(struct loader *l, struct tensor *t, const char *prefix, const char *name,
                       int n_dims, const size_t *shape, struct error *err)
{
    int rc = find_tensor(l, t, prefix, name, n_dims, shape, err);

    return rc == OK ? check_finite(l, t, err) : rc;
}

static void advance(struct loader *l, uint64_t bytes)
{
    l->bytes_done += bytes;
    if (l->progress != NULL)
        l->progress(l->progress_arg, l->bytes_done);
}

/* n floats of the host's to the device, as numbers of that type (F32 or BF16). */
static int put_as(struct loader *l, void **out, enum dtype type, const float *host, size_t n,
                  struct error *err)
{
    struct ltx_weights *w = l->w;
    size_t bytes = n * dtype_info(type)->bytes;
    void *encoded = malloc(bytes);
    int rc;

    if (encoded == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %zu numbers", n);
    dtype_encode(encoded, host, type, n);
    if ((rc = w->ops->alloc(w->device, out, bytes, err)) != OK)
        goto out;
    w->bytes += bytes;
    if ((rc = w->ops->upload(w->device, *out, encoded, bytes, err)) == OK)
        rc = w->ops->sync(w->device, err); /* the host's goes away */
out:
    free(encoded);
    return rc;
}

static int put(struct loader *l, float **out, const float *host, size_t n, struct error *err)
{
    void *memory = NULL;
    int rc = put_as(l, &memory, DTYPE_F32, host, n, err);

    *out = memory;
    return rc;
}

static int random_floats(struct loader *l, void **out, enum dtype type, size_t n, struct error *err)
{
    float *host = malloc(n * sizeof(float));
    int rc;

    if (host == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %zu numbers", n);
    l->n_random++;
    for (size_t i = 0; i < n; i++)
        host[i] = random_number(l->n_random, i);
    rc = put_as(l, out, type, host, n, err);
    free(host);
    return rc;
}

/* Numbers of mean 0 and mean square 1 / K. */
static int random_matrix(struct loader *l, struct matrix **out, int N, int K, struct error *err)
{
    struct ltx_weights *w = l->w;
    int rc = random_matrix_create(w->ops, w->device, out, N, K, sqrtf(3.0f / (float)K),
                                  ++l->n_random, NULL, err);

    if (rc == OK)
        w->bytes += w->ops->matrix_bytes(*out);
    return rc;
}

/* Tensors of `columns` numbers a row (0: vectors), `rows[i]` rows in tensor i, stacked, of that
 * type (F32 or BF16). */
static int load_numbers(struct loader *l, void **out, enum dtype type, const char *prefix,
                        int n_parts, const char *const *names, const int *rows, int columns,
                        struct error *err)
{
    struct tensor parts[MAX_PARTS];
    size_t n = 0, done = 0, width = columns > 0 ? (size_t)columns : 1;
    uint64_t bytes = 0;
    float *host;
    int rc;

    for (int i = 0; i < n_parts; i++) {
        size_t shape[2] = {(size_t)rows[i], width};
        parts[i] = (struct tensor){0};
        if (l->checkpoint != NULL && (rc = take_tensor(l, &parts[i], prefix, names[i],
                                                       columns > 0 ? 2 : 1, shape, err)) != OK)
            return rc;
        n += (size_t)rows[i] * width;
        bytes += parts[i].bytes;
    }
    if (l->listing) {
        advance(l, bytes);
        return OK;
    }
    if (l->checkpoint == NULL)
        return random_floats(l, out, type, n, err);
    if ((host = malloc(n * sizeof(float))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %s%s", prefix, names[0]);
    for (int i = 0; i < n_parts; i++) {
        dtype_decode(host + done, parts[i].data, parts[i].type, (size_t)rows[i] * width);
        done += (size_t)rows[i] * width;
    }
    rc = put_as(l, out, type, host, n, err);
    free(host);
    advance(l, bytes);
    return rc;
}

static int load_floats(struct loader *l, float **out, const char *prefix, const char *name,
                       int rows, int columns, struct error *err)
{
    void *memory = NULL;
    int rc = load_numbers(l, &memory, DTYPE_F32, prefix, 1, &name, &rows, columns, err);

    *out = memory;
    return rc;
}

static int load_vector(struct loader *l, float **out, const char *prefix, const char *name, int n,
                       struct error *err)
{
    return load_floats(l, out, prefix, name, n, 0, err);
}

/* One resident product from up to MAX_PARTS layers of K inputs; names[i] has rows[i] outputs. For
 * ops->linear, or for ops->matmul, whose bias is mid. */
static int load_linear(struct loader *l, struct ltx_linear *out, const char *prefix, int n_parts,
                       const char *const *names, const int *rows, int K, bool biased,
                       bool is_matmul, struct error *err)
{
    enum dtype bias_type = is_matmul && !l->listing && l->w->ops->mid_is_act ? l->act : DTYPE_F32;
    char weights[MAX_PARTS][64], biases[MAX_PARTS][64];
    const char *bias_names[MAX_PARTS];
    struct matrix_part parts[MAX_PARTS];
    uint64_t bytes = 0;
    int N = 0, rc;

    for (int i = 0; i < n_parts; i++) {
        size_t shape[2] = {(size_t)rows[i], (size_t)K};
        struct tensor t = {0};
        snprintf(weights[i], sizeof(weights[i]), "%s.weight", names[i]);
        snprintf(biases[i], sizeof(biases[i]), "%s.bias", names[i]);
        bias_names[i] = biases[i];
        if (l->checkpoint != NULL &&
            (rc = take_tensor(l, &t, prefix, weights[i], 2, shape, err)) != OK)
            return rc;
        N += rows[i];
        parts[i] = (struct matrix_part){.data = t.data, .type = t.type, .rows = rows[i]};
        bytes += t.bytes;
    }
    if (l->checkpoint == NULL && (rc = random_matrix(l, &out->w, N, K, err)) != OK)
        return rc;
    if (l->checkpoint != NULL && !l->listing) {
        struct ltx_weights *w = l->w;
        struct error why = {0};
        if ((rc = w->ops->matrix_load(w->device, &out->w, parts, n_parts, K, NULL, &why)) != OK)
            return error_set(err, why.code, "ltx: %s%s: %s", prefix, weights[0], why.text);
        w->bytes += w->ops->matrix_bytes(out->w);
    }
    if (l->checkpoint != NULL)
        advance(l, bytes);
    if (!biased)
        return OK;
    return load_numbers(l, &out->bias, bias_type, prefix, n_parts, bias_names, rows, 0, err);
}

/* ---- the projection ---- */

static int size_of(struct share_range r)
{
    return r.end - r.begin;
}

/* States s .. s + n - 1 of a [rows, D * S] tensor, to matrices [rows, m * D] of m states each end
 * to end at `to`; m is `together`, or what is left of n. */
struct repack {
    char *to;
    const struct tensor *t;
    size_t numbers; /* of a state: rows * D */
    int D, S, s, n, together;
};

static void repack_slice(void *arg, int index, int thread)
{
    const struct repack *r = arg;
    size_t size = dtype_info(r->t->type)->bytes, D = (size_t)r->D;
    size_t begin = (size_t)index * REPACK_NUMBERS, end = begin + REPACK_NUMBERS;

    (void)thread;
    for (size_t i = begin; i < (end < r->numbers ? end : r->numbers); i++) {
        const char *from = (const char *)r->t->data + (i * (size_t)r->S + (size_t)r->s) * size;
        for (int k = 0; k < r->n; k += r->together) {
            size_t m = (size_t)(r->n - k < r->together ? r->n - k : r->together);
            char *to = r->to + ((size_t)k * r->numbers + i / D * m * D + i % D) * size;
            if (size == 2)
                for (size_t j = 0; j < m; j++)
                    memcpy(to + j * D * 2, from + ((size_t)k + j) * 2, 2);
            else
                for (size_t j = 0; j < m; j++)
                    memcpy(to + j * D * 4, from + ((size_t)k + j) * 4, 4);
        }
    }
}

/* The portion's states of tensors whose rows are stacked. Several products at a time, as each walk
 * touches the whole tensor, but not all at once: real ones have 2.3 GB. */
static int load_states(struct loader *l, struct ltx_projection *p, const struct tensor *tensors,
                       int n_tensors, struct error *err)
{
    struct ltx_weights *w = l->w;
    struct matrix_part parts[LTX_N_MODALITIES];
    size_t bytes[LTX_N_MODALITIES], state = 0; /* of one state */
    int S = w->S, D = w->D, n_states = size_of(p->s), group, rc = OK;
    char *packed;

    for (int i = 0; i < n_tensors; i++) {
        bytes[i] = tensors[i].bytes / (size_t)S;
        state += bytes[i];
    }
    group = (int)(REPACK_BYTES / state) < n_states ? (int)(REPACK_BYTES / state) : n_states;
    group = group < p->together ? p->together : group / p->together * p->together;
    if ((packed = malloc((size_t)group * state)) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory to repack %s", tensors[0].name);
    for (int s = 0; s < n_states; s += group) {
        int n = n_states - s < group ? n_states - s : group;
        char *to = packed;
        for (int i = 0; i < n_tensors; i++) {
            const struct tensor *t = &tensors[i];
            struct repack r = {to, t,          t->shape[0] * (size_t)D, D, S, p->s.begin + s,
                               n,  p->together};
            w->ops->host_run(w->device, repack_slice, &r,
                             (int)((r.numbers + REPACK_NUMBERS - 1) / REPACK_NUMBERS));
            parts[i] = (struct matrix_part){.data = to, .type = t->type, .rows = (int)t->shape[0]};
            to += (size_t)n * bytes[i];
        }
        for (int k = 0; k < n; k += p->together) {
            int m = n - k < p->together ? n - k : p->together;
            struct matrix **out = &p->states[(s + k) / p->together];
            struct error why = {0};
            if ((rc = w->ops->matrix_load(w->device, out, parts, n_tensors, m * D, NULL, &why)) !=
                OK) {
                error_set(err, why.code, "%s: %s: %s", tensors[0].file, tensors[0].name, why.text);
                goto out;
            }
            w->bytes += w->ops->matrix_bytes(*out);
            advance(l, (size_t)m * state);
            for (int i = 0; i < n_tensors; i++)
                parts[i].data = (const char *)parts[i].data + (size_t)m * bytes[i];
        }
    }
out:
    free(packed);
    return rc;
}

static int random_states(struct loader *l, struct ltx_projection *p, struct error *err)
{
    int n_states = size_of(p->s), rc = OK;

    for (int s = 0; s < n_states && rc == OK; s += p->together) {
        int n = n_states - s < p->together ? n_states - s : p->together;
        rc = random_matrix(l, &p->states[s / p->together], size_of(p->columns), n * l->w->D, err);
    }
    return rc;
}

/* Of a tensor whose rows are columns `first` and later of the sums, the rows in the portion; false:
 * there are none. */
static bool cut_rows(const struct ltx_projection *p, struct tensor *t, int first)
{
    int n = (int)t->shape[0];
    int begin = p->columns.begin > first ? p->columns.begin - first : 0;
    int end = p->columns.end < first + n ? p->columns.end - first : n;
    size_t row_bytes = t->bytes / t->shape[0];

    if (begin >= end)
        return false;
    t->data = (const char *)t->data + (size_t)begin * row_bytes;
    t->shape[0] = (size_t)(end - begin);
    t->bytes = t->shape[0] * row_bytes;
    return true;
}

/* What the portion has of the projection, of tensors that were found. A state's numbers lie among
 * those of all others, in every row: to read some is to touch all pages. */
static int load_portion(struct loader *l, struct ltx_projection *p, const struct tensor *tensors,
                        int n_tensors, struct error *err)
{
    struct tensor own[LTX_N_MODALITIES];
    uint64_t bytes = 0;
    int n = 0, first = 0, rc;

    for (int i = 0; i < n_tensors; i++) {
        own[n] = tensors[i];
        if (cut_rows(p, &own[n], first)) {
            if ((rc = check_finite(l, &own[n], err)) != OK)
                return rc;
            bytes += own[n].bytes / (size_t)l->w->S * (size_t)size_of(p->s);
            n++;
        }
        first += (int)tensors[i].shape[0];
    }
    if (!l->listing)
        return load_states(l, p, own, n, err);
    advance(l, bytes);
    return OK;
}

/* Says what is wrong when the columns are another Gemma's. */
static int check_columns(const struct loader *l, const char *prefix, const char *name,
                         size_t columns, struct error *err)
{
    const struct ltx_weights *w = l->w;
    char full[NAME_CAP];
    struct tensor t;

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    if (!ltx_checkpoint_find(l->checkpoint, &t, full) || t.n_dims != 2 || t.shape[1] == columns)
        return OK; /* what else may be wrong has its own sentence */
    return error_set(err, ERR_FORMAT,
                     "%s: %s: made for another Gemma: its rows have %zu numbers, but this Gemma "
                     "has %d hidden states of %d, which makes %zu",
                     t.file, t.name, t.shape[1], w->S, w->D, columns);
}

static int load_projection(struct loader *l, struct error *err)
{
    static const char prefix[] = "text_embedding_projection.";
    struct ltx_weights *w = l->w;
    struct ltx_projection *p = &w->projection;
    bool v2 = w->config.extractor == LTX_EXTRACTOR_V2;
    int n_tensors = v2 && w->config.has_audio ? LTX_N_MODALITIES : 1, rc = OK;
    int n_parts, part = portion_part(&w->portion, &n_parts);
    struct tensor tensors[LTX_N_MODALITIES];

    p->width = 0;
    for (int m = 0; m < n_tensors; m++) {
        size_t shape[2] = {(size_t)w->config.connectors[m].W, (size_t)w->S * w->D};
        char weight[64];
        snprintf(weight, sizeof(weight), "%s%saggregate_embed.weight",
                 v2 ? ltx_modality_name((enum ltx_modality)m) : "", v2 ? "_" : "");
        if (l->checkpoint != NULL &&
            ((rc = check_columns(l, prefix, weight, shape[1], err)) != OK ||
             (rc = find_tensor(l, &tensors[m], prefix, weight, 2, shape, err)) != OK))
            return rc;
        p->width += w->config.connectors[m].W;
    }
    p->together = v2 ? TOGETHER : 1;
    p->s = portion_states(&w->portion, w->S);
    p->columns = share_columns(p->width, part, n_parts).range;
    if (size_of(p->s) > 0 && size_of(p->columns) > 0) {
        p->n_products = (size_of(p->s) + p->together - 1) / p->together;
        if (!l->listing && (p->states = calloc((size_t)p->n_products, sizeof(*p->states))) == NULL)
            return error_set(err, ERR_MEM, "ltx: no memory for %d states", w->S);
        rc = l->checkpoint == NULL ? random_states(l, p, err)
                                   : load_portion(l, p, tensors, n_tensors, err);
    }
    if (rc != OK || !v2)
        return rc;
    for (int m = 0; m < n_tensors; m++) {
        int W = w->config.connectors[m].W;
        char bias[64];
        snprintf(bias, sizeof(bias), "%s_aggregate_embed.bias",
                 ltx_modality_name((enum ltx_modality)m));
        p->scale[m] = (float)sqrt((double)W / w->D);
        if ((rc = load_vector(l, &p->bias[m], prefix, bias, W, err)) != OK)
            return rc;
    }
    return OK;
}

/* ---- the connectors ---- */

static int load_block(struct loader *l, struct ltx_block *block, const char *connector, int index,
                      const struct ltx_connector_config *c, struct error *err)
{
    static const char *const qkvg[] = {"attn1.to_q", "attn1.to_k", "attn1.to_v",
                                       "attn1.to_gate_logits"};
    static const char *const out[] = {"attn1.to_out.0"};
    static const char *const ff_in[] = {"ff.net.0.proj"};
    static const char *const ff_out[] = {"ff.net.2"};
    const int qkvg_rows[] = {c->W, c->W, c->W, c->H}, ff_rows = 4 * c->W;
    bool gated = l->w->config.gated, ff_bias = l->w->config.ff_bias;
    char prefix[NAME_CAP], gate[NAME_CAP + 32];
    int rc;

    snprintf(prefix, sizeof(prefix), "%stransformer_1d_blocks.%d.", connector, index);
    snprintf(gate, sizeof(gate), "%sattn1.to_gate_logits.weight", prefix);
    if (!gated && l->checkpoint != NULL && ltx_checkpoint_find(l->checkpoint, NULL, gate))
        return error_set(err, ERR_FORMAT,
                         "ltx: %s is there, but the config's connector_apply_gated_attention is "
                         "not true",
                         gate);
    if ((rc = load_linear(l, &block->qkvg, prefix, gated ? 4 : 3, qkvg, qkvg_rows, c->W, true, true,
                          err)) != OK ||
        (rc = load_vector(l, &block->q_norm, prefix, "attn1.q_norm.weight", c->W, err)) != OK ||
        (rc = load_vector(l, &block->k_norm, prefix, "attn1.k_norm.weight", c->W, err)) != OK ||
        (rc = load_linear(l, &block->out, prefix, 1, out, &c->W, c->W, true, false, err)) != OK ||
        (rc = load_linear(l, &block->ff_in, prefix, 1, ff_in, &ff_rows, c->W, ff_bias, true,
                          err)) != OK ||
        (rc = load_linear(l, &block->ff_out, prefix, 1, ff_out, &c->W, ff_rows, ff_bias, false,
                          err)) != OK)
        return rc;
    return OK;
}

static int build_rope(struct loader *l, struct ltx_connector_weights *out, int W, struct error *err)
{
    size_t n = (size_t)LTX_ROWS * (W / 2);
    float *cos_host = malloc(n * sizeof(float)), *sin_host = malloc(n * sizeof(float));
    int rc;

    if (cos_host == NULL || sin_host == NULL) {
        rc = error_set(err, ERR_MEM, "ltx: no memory for the rotary tables");
        goto out;
    }
    connector_rope_build(cos_host, sin_host, &l->w->config, W, LTX_ROWS, l->act);
    if ((rc = put(l, &out->cos, cos_host, n, err)) == OK)
        rc = put(l, &out->sin, sin_host, n, err);
out:
    free(cos_host);
    free(sin_host);
    return rc;
}

static int load_connector(struct loader *l, enum ltx_modality modality, struct error *err)
{
    const struct ltx_connector_config *c = &l->w->config.connectors[modality];
    struct ltx_connector_weights *out = &l->w->connectors[modality];
    const char *prefix = ltx_connector_prefix(modality);
    const struct portion *p = &l->w->portion;
    bool has_block = false;
    char next[NAME_CAP];
    int rc;

    snprintf(next, sizeof(next), "%stransformer_1d_blocks.%d.attn1.to_q.weight", prefix, c->L);
    if (l->checkpoint != NULL && ltx_checkpoint_find(l->checkpoint, NULL, next))
        return error_set(err, ERR_FORMAT, "ltx: %s is there, but the config has %d blocks", next,
                         c->L);
    if ((out->blocks = calloc((size_t)c->L + 1, sizeof(*out->blocks))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory for %d blocks", c->L);
    if ((p->kind != PORTION_LAYER || portion_connector_first(p, (int)modality) == p->rank) &&
        (rc = load_floats(l, &out->registers, prefix, "learnable_registers", c->R, c->W, err)) !=
            OK)
        return rc;
    for (int i = 0; i < c->L; i++) {
        if (!portion_has(p, portion_block(p, (int)modality, i)))
            continue;
        has_block = true;
        if ((rc = load_block(l, &out->blocks[i], prefix, i, c, err)) != OK)
            return rc;
    }
    return l->listing || !has_block ? OK : build_rope(l, out, c->W, err);
}

static int load_all(struct loader *l, struct error *err)
{
    const struct ltx_config *c = &l->w->config;
    int n_modalities = c->has_audio ? LTX_N_MODALITIES : 1, rc;
    bool only_connectors = l->listing && !ltx_checkpoint_has_projection(l->checkpoint);

    if (!only_connectors && (rc = load_projection(l, err)) != OK)
        return rc;
    for (int m = 0; m < n_modalities; m++)
        if ((rc = load_connector(l, (enum ltx_modality)m, err)) != OK)
            return rc;
    /* one projection for both: it must be as wide as both */
    if (c->has_audio && c->extractor == LTX_EXTRACTOR_V1 &&
        c->connectors[LTX_AUDIO].W != c->connectors[LTX_VIDEO].W)
        return error_set(err, ERR_FORMAT,
                         "ltx: one projection serves both connectors, but video is %d wide and "
                         "audio %d",
                         c->connectors[LTX_VIDEO].W, c->connectors[LTX_AUDIO].W);
    return OK;
}

/* Lists what a portion needs; the list is the loader's. */
static int list_all(struct loader *l, const struct ltx_checkpoint *checkpoint, int S, int D,
                    const struct portion *portion, struct error *err)
{
    struct ltx_weights nothing = {
        .portion = *portion, .config = *ltx_checkpoint_config(checkpoint), .S = S, .D = D};
    int rc;

    *l = (struct loader){.checkpoint = checkpoint, .w = &nothing, .listing = true};
    rc = load_all(l, err);
    l->w = NULL;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        free(nothing.connectors[m].blocks);
    return rc;
}

int ltx_weights_find(const struct ltx_checkpoint *checkpoint, int S, int D, struct tensor **tensors,
                     size_t *n, struct error *err)
{
    const struct portion all = portion_all(1);
    struct loader l;
    int rc = list_all(&l, checkpoint, S, D, &all, err);

    if (rc != OK) {
        free(l.list);
        l = (struct loader){0};
    }
    *tensors = l.list;
    *n = l.n_listed;
    return rc;
}

int ltx_weights_bytes(const struct ltx_checkpoint *checkpoint, int S, int D,
                      const struct portion *portion, uint64_t *bytes, struct error *err)
{
    struct loader l;
    int rc = list_all(&l, checkpoint, S, D, portion, err);

    *bytes = l.bytes_done;
    free(l.list);
    return rc;
}

int ltx_weights_load(struct ltx_weights **out, const struct ltx_checkpoint *checkpoint, int S,
                     int D, const struct portion *portion, const struct ops *ops,
                     struct device *device, enum dtype act, ltx_progress_fn *progress,
                     void *progress_arg, struct error *err)
{
    struct loader l = {
        .checkpoint = checkpoint, .act = act, .progress = progress, .progress_arg = progress_arg};
    struct tensor *tensors;
    size_t n;
    int rc;

    *out = NULL;
    /* a file that lacks its last tensor is refused before any work */
    if ((rc = ltx_weights_find(checkpoint, S, D, &tensors, &n, err)) != OK)
        return rc;
    free(tensors);
    if ((l.w = calloc(1, sizeof(*l.w))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory");
    *l.w = (struct ltx_weights){.ops = ops,
                                .device = device,
                                .portion = *portion,
                                .config = *ltx_checkpoint_config(checkpoint),
                                .S = S,
                                .D = D};
    if ((rc = load_all(&l, err)) != OK)
        goto out;
    *out = l.w;
    l.w = NULL;
out:
    ltx_weights_free(l.w);
    return rc;
}

int ltx_weights_random(struct ltx_weights **out, const struct ltx_config *config, int S, int D,
                       const struct portion *portion, const struct ops *ops, struct device *device,
                       enum dtype act, struct error *err)
{
    struct loader l = {.act = act, .w = calloc(1, sizeof(*l.w))};
    int rc;

    *out = NULL;
    if (l.w == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory");
    *l.w = (struct ltx_weights){
        .ops = ops, .device = device, .portion = *portion, .config = *config, .S = S, .D = D};
    if ((rc = load_all(&l, err)) != OK)
        goto out;
    *out = l.w;
    l.w = NULL;
out:
    ltx_weights_free(l.w);
    return rc;
}

static void linear_free(const struct ltx_weights *w, struct ltx_linear *linear)
{
    w->ops->matrix_free(w->device, linear->w);
    w->ops->release(w->device, linear->bias);
}

static void connector_free(const struct ltx_weights *w, struct ltx_connector_weights *c, int L)
{
    for (int i = 0; c->blocks != NULL && i < L; i++) {
        struct ltx_block *b = &c->blocks[i];
        linear_free(w, &b->qkvg);
        linear_free(w, &b->out);
        linear_free(w, &b->ff_in);
        linear_free(w, &b->ff_out);
        w->ops->release(w->device, b->q_norm);
        w->ops->release(w->device, b->k_norm);
    }
    free(c->blocks);
    w->ops->release(w->device, c->registers);
    w->ops->release(w->device, c->cos);
    w->ops->release(w->device, c->sin);
}

void ltx_weights_free(struct ltx_weights *w)
{
    if (w == NULL)
        return;
    for (int i = 0; w->projection.states != NULL && i < w->projection.n_products; i++)
        w->ops->matrix_free(w->device, w->projection.states[i]);
    free(w->projection.states);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        w->ops->release(w->device, w->projection.bias[m]);
        connector_free(w, &w->connectors[m], w->config.connectors[m].L);
    }
    free(w);
}
