/* inspect.c - what a model directory or file is, as text for a person. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/files/gguf.h"
#include "engine/files/model_file.h"
#include "engine/files/safetensors.h"
#include "engine/inspect_ltx.h"
#include "engine/model/weights.h"
#include "tokenizer/tokenizer.h"

enum { MAX_VALUE = 100 }; /* characters of a metadata value */

/* Where the tensors of any kind of file come from. */
struct listing {
    const struct model_file *model;
    const struct safetensors *safetensors;
    const struct gguf *gguf;
};

static size_t listing_n(const struct listing *l)
{
    if (l->model != NULL)
        return model_file_n_tensors(l->model);
    return l->gguf != NULL ? gguf_n_tensors(l->gguf) : safetensors_n_tensors(l->safetensors);
}

static const struct tensor *listing_at(const struct listing *l, size_t i)
{
    if (l->model != NULL)
        return model_file_tensor_at(l->model, i);
    return l->gguf != NULL ? gguf_tensor_at(l->gguf, i) : safetensors_tensor_at(l->safetensors, i);
}

/* "236 tensors, 252.1 MB: F32 109, Q5_0 81, ..." and, if wanted, a line for each. */
static int append_tensors(struct buf *out, const struct listing *l, bool all, struct error *err)
{
    size_t counts[DTYPE_COUNT] = {0}, n = listing_n(l);
    const char *before = ": ";
    double bytes = 0.0;
    int rc;

    for (size_t i = 0; i < n; i++) {
        counts[listing_at(l, i)->type]++;
        bytes += (double)listing_at(l, i)->bytes;
    }
    if ((rc = buf_printf(out, err, "tensors     %zu, %.1f MB", n, bytes / 1e6)) != OK)
        return rc;
    for (int type = 0; type < DTYPE_COUNT; type++)
        if (counts[type] > 0) {
            if ((rc = buf_printf(out, err, "%s%s %zu", before, dtype_info((enum dtype)type)->name,
                                 counts[type])) != OK)
                return rc;
            before = ", ";
        }
    if ((rc = buf_append(out, "\n", 1, err)) != OK)
        return rc;
    for (size_t i = 0; all && i < n; i++) {
        const struct tensor *t = listing_at(l, i);
        if ((rc =
                 buf_printf(out, err, "  %-60s %-5s %-20s %s\n", t->name, dtype_info(t->type)->name,
                            tensor_shape_text(t->n_dims, t->shape).text, t->file)) != OK)
            return rc;
    }
    return OK;
}

static int append_config(struct buf *out, const struct gemma_config *c, struct error *err)
{
    const struct gemma_attention *g = &c->global, *s = &c->sliding;
    int n_global = 0, rc;

    for (int i = 0; i < c->L; i++)
        n_global += c->is_global[i];
    if ((rc = buf_printf(out, err,
                         "model       Gemma %d: %d layers (%d global), width %d, feed-forward %d\n",
                         c->kind == GEMMA_4 ? 4 : 3, c->L, n_global, c->D, c->F)) != OK ||
        (c->version[0] != '\0' &&
         (rc = buf_printf(out, err, "version     %s\n", c->version)) != OK) ||
        (rc = buf_printf(out, err, "attention   %d query and %d key/value heads of %d, window %d\n",
                         c->H, s->K, s->E, c->sliding_window)) != OK)
        return rc;
    if ((g->K != s->K || g->E != s->E || g->k_is_v) &&
        (rc = buf_printf(out, err, "            global: %d key/value heads of %d%s\n", g->K, g->E,
                         g->k_is_v ? ", values from the keys' weights" : "")) != OK)
        return rc;
    if ((rc = buf_printf(
             out, err, "rope        theta %g (global, positions / %g%s), %g (sliding)\n",
             g->rope.theta, g->rope.factor, g->rope.n_turning < g->E / 2 ? ", part of a head" : "",
             s->rope.theta)) != OK)
        return rc;
    return buf_printf(out, err, "vocabulary  %d rows\n", c->V);
}

static int append_tokenizer(struct buf *out, const struct model_file *m, struct error *err)
{
    struct tokenizer *t = NULL;
    struct error why = {0};
    int rc;

    if (model_file_tokenizer(m, &t, &why) != OK)
        return buf_printf(out, err, "tokenizer   lacking: %s\n", why.text);
    rc = buf_printf(out, err, "tokenizer   %zu ids, <bos> is %d\n", tokenizer_n_ids(t),
                    (int)tokenizer_bos(t));
    tokenizer_free(t);
    return rc;
}

static int append_weights(struct buf *out, const struct model_file *m, struct error *err)
{
    struct error why = {0};
    uint64_t bytes;

    if (weights_check(m, &bytes, &why) != OK)
        return buf_printf(out, err, "weights     lacking: %s\n", why.text);
    return buf_printf(out, err, "weights     complete: %.1f MB beside the embedding table\n",
                      (double)bytes / 1e6);
}

static int append_model(struct buf *out, const struct model_file *m, bool all, struct error *err)
{
    struct listing listing = {.model = m};
    int rc;

    if ((rc = buf_printf(out, err, "format      %s\n", model_file_format(m))) != OK ||
        (rc = append_config(out, model_file_config(m), err)) != OK ||
        (rc = append_tokenizer(out, m, err)) != OK || (rc = append_weights(out, m, err)) != OK)
        return rc;
    return append_tensors(out, &listing, all, err);
}

static int append_safetensors(struct buf *out, const char *path, bool all, struct error *err)
{
    struct error why = {0};
    struct model_file *m = NULL;
    struct safetensors *file;
    struct listing listing = {0};
    int rc;

    if ((rc = safetensors_open(&file, path, err)) != OK)
        return rc;
    listing.safetensors = file;
    if (model_file_open(&m, path, &why) == OK) {
        if ((rc = append_model(out, m, all, err)) == OK)
            rc =
                inspect_ltx(out, path, file, err); /* LTX-2.5 packs the projection with its Gemma */
    } else if (inspect_ltx_is_one(file)) {
        if ((rc = buf_printf(out, err, "format      safetensors, LTX checkpoint\n")) == OK &&
            (rc = inspect_ltx(out, path, file, err)) == OK)
            rc = append_tensors(out, &listing, all, err);
    } else if ((rc = buf_printf(out, err, "format      safetensors; cannot be encoded with: %s\n",
                                why.text)) == OK)
        rc = append_tensors(out, &listing, all, err);
    for (size_t i = 0; rc == OK && i < safetensors_n_metadata(file); i++) {
        const char *key, *value;
        safetensors_metadata_at(file, i, &key, &value);
        if ((rc = buf_printf(out, err, "metadata    ")) == OK &&
            (rc = buf_append_printable(out, key, strlen(key), MAX_VALUE, err)) == OK &&
            (rc = buf_printf(out, err, " = ")) == OK &&
            (rc = buf_append_printable(out, value, strlen(value), MAX_VALUE, err)) == OK)
            rc = buf_printf(out, err, "\n");
    }
    model_file_close(m);
    safetensors_close(file);
    return rc;
}

static int append_gguf(struct buf *out, const char *path, bool all, struct error *err)
{
    struct error why = {0};
    struct model_file *m = NULL;
    struct gguf *file = NULL;
    struct listing listing = {0};
    char value[MAX_VALUE];
    int rc;

    if ((rc = gguf_open(&file, path, err)) != OK)
        return rc;
    if (model_file_open(&m, path, &why) == OK) {
        rc = append_model(out, m, all, err);
    } else {
        listing.gguf = file;
        if ((rc =
                 buf_printf(out, err, "format      gguf v%" PRIu32 "; cannot be encoded with: %s\n",
                            gguf_version(file), why.text)) == OK)
            rc = append_tensors(out, &listing, all, err);
    }
    for (size_t i = 0; rc == OK && i < gguf_n_keys(file); i++) {
        gguf_value_text(file, i, value, sizeof(value));
        rc = buf_printf(out, err, "metadata    %s = %s\n", gguf_key_at(file, i), value);
    }
    model_file_close(m);
    gguf_close(file);
    return rc;
}

int engine_inspect(struct buf *out, const char *path, bool all_tensors, struct error *err)
{
    enum model_file_kind kind;
    struct model_file *m;
    int rc;

    if ((rc = model_file_recognise(&kind, path, err)) != OK)
        return rc;
    switch (kind) {
    case MODEL_FILE_DIRECTORY:
        if ((rc = model_file_open(&m, path, err)) != OK)
            return rc;
        rc = append_model(out, m, all_tensors, err);
        model_file_close(m);
        return rc;
    case MODEL_FILE_GGUF:
        return append_gguf(out, path, all_tensors, err);
    case MODEL_FILE_SAFETENSORS:
        return append_safetensors(out, path, all_tensors, err);
    case MODEL_FILE_OTHER:
        break;
    }
    return error_set(err, ERR_FORMAT, "%s: neither a safetensors nor a GGUF file", path);
}
