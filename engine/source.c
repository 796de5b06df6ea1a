#include "engine/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/files/digest.h"
#include "engine/ltx/ltx_weights.h"
#include "engine/model/gemma.h"
#include "engine/random_model.h"

static void fill_info(struct engine_info *info, const struct gemma_config *config,
                      const char *format)
{
    *info = (struct engine_info){.architecture = gemma_kind_name(config->kind),
                                 .n_layers = config->L,
                                 .width = config->D,
                                 .vocabulary = config->V,
                                 .max_tokens = ENGINE_MAX_TOKENS};
    snprintf(info->format, sizeof(info->format), "%s", format);
    snprintf(info->gemma_version, sizeof(info->gemma_version), "%s", config->version);
}

int engine_read_info(struct engine_info *out, const char *model, struct error *err)
{
    struct model_file *file;
    int rc;

    *out = (struct engine_info){0};
    if ((rc = model_file_open(&file, model, err)) != OK)
        return rc;
    fill_info(out, model_file_config(file), model_file_format(file));
    model_file_close(file);
    return OK;
}

static void add_ltx_config(struct engine_info *info, const struct ltx_config *config)
{
    info->extractor = (int)config->extractor;
    info->video_width = config->connectors[LTX_VIDEO].W;
    info->audio_width = config->connectors[LTX_AUDIO].W;
}

/* Opens the checkpoint and checks it against the Gemma that `info` describes. */
static int open_checkpoint(struct ltx_checkpoint **out, struct engine_info *info,
                           const char *const ltx[ENGINE_MAX_LTX], struct error *err)
{
    const char *gemma_version = info->gemma_version[0] != '\0' ? info->gemma_version : NULL;
    struct ltx_checkpoint *c;
    struct tensor *tensors;
    const char *paths[ENGINE_MAX_LTX];
    size_t n;
    int n_paths = 0, rc;

    *out = NULL;
    for (int i = 0; i < ENGINE_MAX_LTX; i++)
        if (ltx[i] != NULL)
            paths[n_paths++] = ltx[i];
    if (n_paths == 0)
        return OK;
    if ((rc = ltx_checkpoint_open(&c, paths, n_paths, err)) != OK)
        return rc;
    if ((rc = ltx_checkpoint_check_gemma(c, info->architecture, gemma_version, err)) != OK ||
        (rc = ltx_weights_find(c, info->n_layers + 1, info->width, &tensors, &n, err)) != OK) {
        ltx_checkpoint_close(c);
        return rc;
    }
    free(tensors);
    if (ltx_checkpoint_model_version(c) != NULL)
        snprintf(info->ltx_version, sizeof(info->ltx_version), "%s",
                 ltx_checkpoint_model_version(c));
    add_ltx_config(info, ltx_checkpoint_config(c));
    *out = c;
    return OK;
}

int engine_add_ltx_info(struct engine_info *info, const char *const ltx[ENGINE_MAX_LTX],
                        struct error *err)
{
    struct ltx_checkpoint *c;
    int rc;

    if ((rc = open_checkpoint(&c, info, ltx, err)) == OK)
        ltx_checkpoint_close(c);
    return rc;
}

/* Random weights follow from the names of their architectures, which so stand for them. */
static int digest_names(struct source *s, const struct engine_options *options, struct error *err)
{
    const char *ltx = options->ltx[0] != NULL ? options->ltx[0] : "";
    char names[256];
    int n = snprintf(names, sizeof(names), "%s\n%s\n", options->model, ltx);

    if (n >= (int)sizeof(names)) /* no architecture is called that */
        return error_set(err, ERR_INPUT, "engine: %.100s: too long a name", options->model);
    return digest_bytes(s->random_digest, names, (size_t)n, err);
}

/* Architectures that are named instead of files. */
static int open_random_model(struct source *s, const struct engine_options *options,
                             struct error *err)
{
    int rc;

    if ((rc = random_model_gemma(&s->config, options->model, err)) != OK)
        return rc;
    fill_info(&s->info, &s->config, "random weights");
    s->info.is_random = true;
    if ((rc = digest_names(s, options, err)) != OK)
        return rc;
    s->has_ltx = options->ltx[0] != NULL;
    if (!s->has_ltx)
        return OK;
    if (!random_model_is(options->ltx[0]) || options->ltx[1] != NULL)
        return error_set(err, ERR_INPUT, "a random model goes with one random LTX checkpoint");
    if ((rc = random_model_ltx(&s->ltx_config, options->ltx[0], err)) == OK)
        add_ltx_config(&s->info, &s->ltx_config);
    return rc;
}

static int open_files(struct source *s, const struct engine_options *options, struct error *err)
{
    int rc;

    if ((rc = model_file_open(&s->file, options->model, err)) != OK)
        return rc;
    s->config = *model_file_config(s->file);
    fill_info(&s->info, &s->config, model_file_format(s->file));
    if ((rc = open_checkpoint(&s->checkpoint, &s->info, options->ltx, err)) != OK)
        return rc;
    s->has_ltx = s->checkpoint != NULL;
    if (!s->has_ltx)
        return OK;
    s->ltx_config = *ltx_checkpoint_config(s->checkpoint);
    if (ltx_checkpoint_random(s->checkpoint) != NULL)
        log_warn("ltx_random",
                 "file=%s text=\"weights are random (%s): features and embeddings mean nothing\"",
                 tensor_file_name(ltx_checkpoint_path_at(s->checkpoint, 0)),
                 ltx_checkpoint_random(s->checkpoint));
    return OK;
}

int source_open(struct source *out, const struct engine_options *options, struct error *err)
{
    int rc;

    *out = (struct source){0};
    rc = random_model_is(options->model) ? open_random_model(out, options, err)
                                         : open_files(out, options, err);
    return rc == OK ? gemma_check(&out->config, err) : rc;
}

void source_close(struct source *s)
{
    ltx_checkpoint_close(s->checkpoint);
    model_file_close(s->file);
}

static bool is_same_file(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns;
}

static bool is_same_model(const struct model_file *a, const struct model_file *b)
{
    if (model_file_n_sources(a) != model_file_n_sources(b))
        return false;
    for (size_t i = 0; i < model_file_n_sources(a); i++) {
        struct file_identity x, y;
        char path[PATH_MAX];
        if (model_file_source_at(a, i, path, sizeof(path), &x, NULL) != OK ||
            model_file_source_at(b, i, path, sizeof(path), &y, NULL) != OK || !is_same_file(&x, &y))
            return false;
    }
    return true;
}

static bool is_same_checkpoint(const struct ltx_checkpoint *a, const struct ltx_checkpoint *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    if (ltx_checkpoint_n_files(a) != ltx_checkpoint_n_files(b))
        return false;
    for (int i = 0; i < ltx_checkpoint_n_files(a); i++)
        if (!is_same_file(ltx_checkpoint_identity_at(a, i), ltx_checkpoint_identity_at(b, i)))
            return false;
    return true;
}

bool source_is_same(const struct source *a, const struct source *b)
{
    if (a->file == NULL || b->file == NULL)
        return a->file == b->file && strcmp(a->random_digest, b->random_digest) == 0;
    return is_same_model(a->file, b->file) && is_same_checkpoint(a->checkpoint, b->checkpoint) &&
           strcmp(gemma_config_text(&a->config).text, gemma_config_text(&b->config).text) == 0;
}

int source_digest(const struct source *s, int n_threads, char digest[ENGINE_DIGEST_SIZE],
                  struct error *err)
{
    struct digest_addition ltx = {.checkpoint = s->checkpoint};
    struct tensor *tensors;
    int rc;

    if (s->file == NULL) {
        memcpy(digest, s->random_digest, ENGINE_DIGEST_SIZE);
        return OK;
    }
    if (s->checkpoint == NULL)
        return model_file_cached_digest(s->file, NULL, n_threads, digest, err);
    if ((rc = ltx_weights_find(s->checkpoint, s->info.n_layers + 1, s->info.width, &tensors, &ltx.n,
                               err)) != OK)
        return rc;
    ltx.tensors = tensors;
    rc = model_file_cached_digest(s->file, &ltx, n_threads, digest, err);
    free(tensors);
    return rc;
}

int source_table_type(const struct source *s, enum dtype *out, struct error *err)
{
    struct tensor embed = {.type = DTYPE_BF16}; /* as random weights have it */
    int rc;

    if (s->file != NULL && (rc = weights_embedding(&embed, s->file, err)) != OK)
        return rc;
    *out = embed.type;
    return OK;
}

/* An LTX checkpoint's few tensors were all looked at while they were loaded. */
const char *source_damage(struct source *s)
{
    if (s->looked_for_damage)
        return s->damage;
    s->looked_for_damage = true;
    snprintf(s->damage, sizeof(s->damage), "the weights are too large, or damaged");
    for (size_t i = 0; s->file != NULL && i < model_file_n_tensors(s->file); i++) {
        const struct tensor *t = model_file_tensor_at(s->file, i);
        bool plain = t->type == DTYPE_F32 || t->type == DTYPE_F16 || t->type == DTYPE_BF16;
        if (!plain || tensor_is_finite(t))
            continue;
        snprintf(s->damage, sizeof(s->damage), "%.60s: %.90s holds a NaN or an infinity", t->file,
                 t->name);
        break;
    }
    return s->damage;
}
