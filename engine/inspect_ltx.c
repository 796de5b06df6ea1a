#include "engine/inspect_ltx.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/ltx_checkpoint.h"
#include "engine/ltx/ltx_weights.h"

#define PROJECTION "text_embedding_projection."

static bool has_prefix(const struct safetensors *file, const char *prefix)
{
    for (size_t i = 0; i < safetensors_n_tensors(file); i++)
        if (strncmp(safetensors_tensor_at(file, i)->name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

static bool has_connectors(const struct safetensors *file)
{
    return has_prefix(file, ltx_connector_prefix(LTX_VIDEO)) ||
           has_prefix(file, ltx_connector_prefix(LTX_AUDIO));
}

bool inspect_ltx_is_one(const struct safetensors *file)
{
    return has_prefix(file, PROJECTION) || has_connectors(file);
}

/* A projection's matrix, [width, hidden states * their width]; or NULL. */
static const struct tensor *projection(const struct safetensors *file, const char *layer)
{
    char name[80];
    const struct tensor *t;

    snprintf(name, sizeof(name), PROJECTION "%s.weight", layer);
    t = safetensors_find(file, name);
    return t != NULL && t->n_dims == 2 ? t : NULL;
}

/* What one token's hidden states must come to, end to end; 0: no projection says. */
static size_t projection_columns(const struct safetensors *file)
{
    const struct tensor *t = projection(file, "aggregate_embed");

    if (t == NULL)
        t = projection(file, "video_aggregate_embed");
    return t != NULL && t->shape[1] <= INT_MAX ? t->shape[1] : 0;
}

static int append_columns(struct buf *out, size_t columns, struct error *err)
{
    if (columns == 0)
        return OK;
    return buf_printf(out, err, ", whose hidden states have %zu numbers a token%s", columns,
                      columns == 49 * 3840 ? " (49 of 3840: a Gemma 12B)" : "");
}

static int append_connector(struct buf *out, const struct ltx_config *c, enum ltx_modality m,
                            struct error *err)
{
    const struct ltx_connector_config *k = &c->connectors[m];

    if (m == LTX_AUDIO && !c->has_audio)
        return buf_printf(out, err, "audio       none: a video-only checkpoint\n");
    return buf_printf(out, err, "%-11s %d wide: %d heads of %d, %d block%s, %d registers\n",
                      ltx_modality_name(m), k->W, k->H, k->E, k->L, k->L == 1 ? "" : "s", k->R);
}

static int append_config(struct buf *out, const struct ltx_config *c, struct error *err)
{
    int rc;

    if ((rc = buf_printf(out, err, "extractor   v%d, as LTX-%s\n", (int)c->extractor,
                         c->extractor == LTX_EXTRACTOR_V1 ? "2.0" : "2.3 and 2.5")) != OK ||
        (rc = append_connector(out, c, LTX_VIDEO, err)) != OK ||
        (rc = append_connector(out, c, LTX_AUDIO, err)) != OK)
        return rc;
    return buf_printf(out, err, "connectors  %s gate, %s rope of %s, positions / %g%s\n",
                      c->gated ? "with" : "without",
                      c->rope == LTX_ROPE_SPLIT ? "split" : "interleaved",
                      c->rope_float64 ? "float64" : "float32", c->max_pos,
                      c->ff_bias ? "" : ", feed-forward without bias");
}

/* The Gemma that it was made for. */
static int append_gemma(struct buf *out, const struct ltx_checkpoint *c, size_t columns,
                        struct error *err)
{
    const char *version = ltx_checkpoint_model_version(c);
    const char *gemma = ltx_checkpoint_gemma_version(c);
    struct error why = {0};
    int rc;

    if (gemma == NULL && ltx_checkpoint_check_gemma(c, "gemma3", NULL, &why) != OK)
        return buf_printf(out, err, "gemma       lacking: %s\n", why.text);
    if ((rc = buf_printf(out, err, "gemma       wants %s%s", gemma != NULL ? "gemma_version " : "",
                         gemma != NULL ? gemma : "a Gemma 3")) != OK ||
        (rc = append_columns(out, columns, err)) != OK)
        return rc;
    return buf_printf(out, err, "\nversion     %s\n", version != NULL ? version : "not given");
}

/* Whether all that the config asks for is there, and how much of the file it is. */
static int append_weights(struct buf *out, const struct ltx_checkpoint *c, size_t columns,
                          double file_bytes, struct error *err)
{
    struct error why = {0};
    struct tensor *tensors;
    double bytes = 0.0;
    size_t n;

    /* only the product of states and width matters for what is looked up */
    if (ltx_weights_find(c, 1, columns > 0 ? (int)columns : 1, &tensors, &n, &why) != OK)
        return buf_printf(out, err, "weights     lacking: %s\n", why.text);
    for (size_t i = 0; i < n; i++)
        bytes += (double)tensors[i].bytes;
    free(tensors);
    return buf_printf(out, err, "weights     %s: %.1f MB of the file's %.1f MB are read\n",
                      ltx_checkpoint_has_projection(c) ? "complete" : "complete connectors",
                      bytes / 1e6, file_bytes / 1e6);
}

static int append_connectors(struct buf *out, const char *path, const struct safetensors *file,
                             struct error *err)
{
    size_t columns = projection_columns(file);
    struct ltx_checkpoint *c;
    struct error why = {0};
    int rc;

    if (ltx_checkpoint_open_connectors(&c, path, &why) != OK)
        return buf_printf(out, err, "connectors  cannot be used: %s\n", why.text);
    if ((rc = append_config(out, ltx_checkpoint_config(c), err)) != OK ||
        (rc = append_gemma(out, c, columns, err)) != OK ||
        (rc = append_weights(out, c, columns, (double)safetensors_identity(file)->size, err)) != OK)
        goto out;
    if (ltx_checkpoint_random(c) != NULL &&
        (rc = buf_printf(out, err, "            RANDOM (%s): what they encode means nothing\n",
                         ltx_checkpoint_random(c))) != OK)
        goto out;
    if (!ltx_checkpoint_has_projection(c))
        rc = buf_printf(out, err,
                        "lacking     the projection: give the file with " PROJECTION
                        "* too (--ltx twice)\n");
out:
    ltx_checkpoint_close(c);
    return rc;
}

/* A projection alone: the config that goes with it is in the connectors' file. */
static int append_projection(struct buf *out, const struct safetensors *file, struct error *err)
{
    const struct tensor *one = projection(file, "aggregate_embed");
    const struct tensor *video = projection(file, "video_aggregate_embed");
    const struct tensor *audio = projection(file, "audio_aggregate_embed");
    int rc;

    if (one != NULL)
        rc = buf_printf(out, err, "projection  v1, as LTX-2.0: %zu wide", one->shape[0]);
    else if (video != NULL)
        rc = buf_printf(out, err, "projection  v2, as LTX-2.3 and 2.5: video %zu wide, audio %zu",
                        video->shape[0], audio != NULL ? audio->shape[0] : (size_t)0);
    else
        rc = buf_printf(out, err,
                        "projection  lacking: neither aggregate_embed.weight nor "
                        "video_aggregate_embed.weight");
    if (rc != OK ||
        ((one != NULL || video != NULL) && (rc = buf_printf(out, err, "; for a Gemma")) != OK) ||
        (rc = append_columns(out, projection_columns(file), err)) != OK)
        return rc;
    return buf_printf(out, err,
                      "\nlacking     the connectors: give the file with %s* too (--ltx twice)\n",
                      ltx_connector_prefix(LTX_VIDEO));
}

int inspect_ltx(struct buf *out, const char *path, const struct safetensors *file,
                struct error *err)
{
    if (has_connectors(file))
        return append_connectors(out, path, file, err);
    return has_prefix(file, PROJECTION) ? append_projection(out, file, err) : OK;
}
