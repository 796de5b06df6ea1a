/* opening.c - a model's files become an engine, and an engine goes away.
 *
 * What can be said from headers alone is said before anything large is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "engine/engine_private.h"
#include "engine/files/digest.h"
#include "engine/random_model.h"
#include "engine/room.h"

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

/* Both loads as one, to whoever wants to be told. */
struct progress {
    const struct engine_options *options;
    uint64_t before, ltx_bytes, total; /* bytes */
};

static void tell(const struct progress *p, uint64_t bytes_done)
{
    if (p->options->progress != NULL)
        p->options->progress(p->options->progress_arg, bytes_done, p->total);
}

static void gemma_progress(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    struct progress *p = arg;

    p->before = bytes_done;
    p->total = bytes_total + p->ltx_bytes;
    tell(p, bytes_done);
}

static void ltx_progress(void *arg, uint64_t bytes_done)
{
    const struct progress *p = arg;

    tell(p, p->before + bytes_done);
}

/* What loading alone needs is given back, and what was uploaded has been read. */
static int end_loading(struct engine *e, struct error *err)
{
    int rc;

    if (e->ops->loading_end != NULL && (rc = e->ops->loading_end(e->device, err)) != OK)
        return rc;
    return e->ops->sync(e->device, err);
}

/* How many bytes and how long is told in engine_info. */
static int load_weights(struct engine *e, const struct engine_options *options, struct error *err)
{
    struct progress p = {.options = options};
    int64_t start_ns = clock_now_ns();
    int S = e->info.n_layers + 1, D = e->info.width, rc;
    struct tensor *tensors;
    size_t n;

    if (e->checkpoint != NULL) {
        if ((rc = ltx_weights_find(e->checkpoint, S, D, &tensors, &n, err)) != OK)
            return rc;
        for (size_t i = 0; i < n; i++)
            p.ltx_bytes += tensors[i].bytes;
        free(tensors);
    }
    if ((rc = weights_load(&e->weights, e->file, e->ops, e->device, gemma_progress, &p, err)) !=
            OK ||
        (e->checkpoint != NULL &&
         (rc = ltx_weights_load(&e->ltx_weights, e->checkpoint, S, D, e->ops, e->device, e->act,
                                ltx_progress, &p, err)) != OK) ||
        (rc = end_loading(e, err)) != OK)
        return rc;
    e->info.loaded_bytes = p.total;
    e->info.load_s = clock_ms_since(start_ns) / 1e3;
    return OK;
}

/* Random weights follow from the names of their architectures, which so stand for them. */
static int digest_names(struct engine *e, const struct engine_options *options, struct error *err)
{
    const char *ltx = options->ltx[0] != NULL ? options->ltx[0] : "";
    char names[256];
    int n = snprintf(names, sizeof(names), "%s\n%s\n", options->model, ltx);

    if (n >= (int)sizeof(names)) /* no architecture is called that */
        return error_set(err, ERR_INPUT, "engine: %.100s: too long a name", options->model);
    return digest_bytes(e->random_digest, names, (size_t)n, err);
}

/* Architectures that are named instead of files. */
static int open_random_model(struct engine *e, const struct engine_options *options,
                             struct error *err)
{
    int rc;

    if ((rc = random_model_gemma(&e->config, options->model, err)) != OK)
        return rc;
    fill_info(&e->info, &e->config, "random weights");
    e->info.is_random = true;
    if ((rc = digest_names(e, options, err)) != OK)
        return rc;
    e->has_ltx = options->ltx[0] != NULL;
    if (!e->has_ltx)
        return OK;
    if (!random_model_is(options->ltx[0]) || options->ltx[1] != NULL)
        return error_set(err, ERR_INPUT, "a random model goes with one random LTX checkpoint");
    if ((rc = random_model_ltx(&e->ltx_config, options->ltx[0], err)) == OK)
        add_ltx_config(&e->info, &e->ltx_config);
    return rc;
}

static int make_random_weights(struct engine *e, struct error *err)
{
    int rc;

    if ((rc = weights_random(&e->weights, &e->config, e->ops, e->device, err)) != OK ||
        (e->has_ltx &&
         (rc = ltx_weights_random(&e->ltx_weights, &e->ltx_config, e->config.L + 1, e->config.D,
                                  e->ops, e->device, e->act, err)) != OK))
        return rc;
    return end_loading(e, err);
}

static int open_model(struct engine *e, const struct engine_options *options, struct error *err)
{
    int rc;

    if ((rc = model_file_open(&e->file, options->model, err)) != OK)
        return rc;
    e->config = *model_file_config(e->file);
    fill_info(&e->info, &e->config, model_file_format(e->file));
    if ((rc = open_checkpoint(&e->checkpoint, &e->info, options->ltx, err)) != OK)
        return rc;
    e->has_ltx = e->checkpoint != NULL;
    if (!e->has_ltx)
        return OK;
    e->ltx_config = *ltx_checkpoint_config(e->checkpoint);
    if (ltx_checkpoint_random(e->checkpoint) != NULL)
        log_warn("ltx_random",
                 "file=%s text=\"weights are random (%s): features and embeddings mean nothing\"",
                 tensor_file_name(ltx_checkpoint_path_at(e->checkpoint, 0)),
                 ltx_checkpoint_random(e->checkpoint));
    return OK;
}

static int count_room(void *arg, struct room *out, enum dtype compute, int max_batch_tokens,
                      struct error *err)
{
    const struct engine *e = arg;
    struct tensor embed = {.type = DTYPE_BF16}; /* as random weights have it */
    int rc;

    if (e->file != NULL && (rc = weights_embedding(&embed, e->file, err)) != OK)
        return rc;
    return room_count(out, &e->config, e->has_ltx ? &e->ltx_config : NULL, embed.type, e->ops,
                      compute, max_batch_tokens, err);
}

/* A GPU that is too small says so now, not after minutes of loading. What a CPU's memory lacks, the
 * system finds elsewhere, or nobody can tell. */
static int check_room(struct engine *e, struct error *err)
{
    int fewest = e->max_batch_tokens < ENGINE_MAX_TOKENS ? e->max_batch_tokens : ENGINE_MAX_TOKENS;
    struct device_memory memory;
    int rc;

    if (e->ops->is_host)
        return OK;
    if ((rc = e->ops->memory(e->device, &memory, err)) != OK)
        return rc;
    return room_check(&memory, e->compute, e->max_batch_tokens, fewest, count_room, e, err);
}

/* What results pass through on their way out: a prompt's part of a state, its features or its
 * embeddings, in float32 at most. */
static int take_result_memory(struct engine *e, struct error *err)
{
    size_t flags = (size_t)e->max_batch_tokens * ENGINE_MAX_TENSORS * sizeof(int32_t);
    size_t part;
    void *memory = NULL;
    int rc;

    if ((e->nans = malloc(flags)) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %zu bytes", flags);
    if ((rc = e->ops->alloc(e->device, &memory, flags, err)) != OK)
        return rc;
    e->has_nan = memory;
    if (e->ops->is_host)
        return OK;
    part = engine_part_bytes(e->info.width, e->info.video_width, e->info.audio_width);
    for (int i = 0; i < OPS_MARKS; i++)
        if ((rc = e->ops->alloc(e->device, &e->leaving[i], part, err)) != OK)
            return rc;
    return OK;
}

int engine_open(struct engine **out, const struct engine_options *options, struct error *err)
{
    struct device_options device_options = {0};
    bool random = random_model_is(options->model);
    struct engine *e;
    size_t T;
    int rc;

    *out = NULL;
    if (options->max_batch_tokens < 0 || options->max_batch_tokens > ENGINE_MAX_BATCH_TOKENS)
        return error_set(err, ERR_INPUT, "engine: a batch of %d tokens, at most %d",
                         options->max_batch_tokens, ENGINE_MAX_BATCH_TOKENS);
    if ((e = calloc(1, sizeof(*e))) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory");
    e->max_batch_tokens = options->max_batch_tokens;
    if (e->max_batch_tokens == 0)
        e->max_batch_tokens = ENGINE_MAX_TOKENS;
    e->n_threads = options->n_threads > 0 ? options->n_threads : cores_available();
    e->compute = options->compute;
    e->act = engine_act(e->compute);
    T = (size_t)e->max_batch_tokens;
    if ((e->ids = calloc(T, sizeof(int32_t))) == NULL ||
        (e->positions = calloc(T, sizeof(int32_t))) == NULL ||
        (e->begin = calloc(T + 1, sizeof(int32_t))) == NULL ||
        (e->embedded = calloc(T, sizeof(int))) == NULL) {
        rc = error_set(err, ERR_MEM, "engine: no memory for %zu tokens", T);
        goto out;
    }
    device_options.act = e->act;
    device_options.float8 = e->compute == DTYPE_F8_E4M3;
    device_options.max_rows = engine_max_rows(e->max_batch_tokens);
    device_options.n_threads = e->n_threads;
    e->ops = options->backend == ENGINE_LOOPS  ? ops_loops()
             : options->backend == ENGINE_CUDA ? ops_cuda()
                                               : ops_cpu();
    if (e->ops == NULL) {
        rc = error_set(err, ERR_INPUT, "engine: this build has no CUDA backend");
        goto out;
    }
    rc = random ? open_random_model(e, options, err) : open_model(e, options, err);
    if (rc != OK || (rc = gemma_check(&e->config, err)) != OK ||
        (rc = e->ops->open(&e->device, &device_options, err)) != OK ||
        (rc = check_room(e, err)) != OK ||
        (rc = random ? make_random_weights(e, err) : load_weights(e, options, err)) != OK ||
        (rc = gemma_create(&e->gemma, &e->config, e->weights, e->act, ENGINE_MAX_TOKENS,
                           e->max_batch_tokens, err)) != OK ||
        (rc = take_result_memory(e, err)) != OK)
        goto out;
    if (e->ltx_weights != NULL &&
        (rc = ltx_create(&e->ltx, e->ltx_weights, e->act, e->max_batch_tokens, err)) != OK)
        goto out;
    if (e->max_batch_tokens < e->info.max_tokens)
        e->info.max_tokens = e->max_batch_tokens;
    e->info.backend = e->ops->name;
    e->info.weights_bytes = e->weights->bytes;
    if (e->ltx_weights != NULL)
        e->info.weights_bytes += e->ltx_weights->bytes;
    *out = e;
    e = NULL;
out:
    engine_close(e);
    return rc;
}

void engine_close(struct engine *e)
{
    if (e == NULL)
        return;
    ltx_free(e->ltx);
    ltx_weights_free(e->ltx_weights);
    gemma_free(e->gemma);
    weights_free(e->weights);
    if (e->device != NULL) {
        for (int i = 0; i < OPS_MARKS; i++)
            e->ops->release(e->device, e->leaving[i]);
        e->ops->release(e->device, e->has_nan);
        e->ops->close(e->device);
    }
    ltx_checkpoint_close(e->checkpoint);
    model_file_close(e->file);
    free(e->ids);
    free(e->positions);
    free(e->begin);
    free(e->embedded);
    free(e->nans);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

int engine_weights_digest(const struct engine *e, char digest[ENGINE_DIGEST_SIZE],
                          struct error *err)
{
    struct digest_addition ltx = {.checkpoint = e->checkpoint};
    struct tensor *tensors;
    int rc;

    if (e->file == NULL) {
        memcpy(digest, e->random_digest, ENGINE_DIGEST_SIZE);
        return OK;
    }
    if (e->checkpoint == NULL)
        return model_file_cached_digest(e->file, NULL, e->n_threads, digest, err);
    if ((rc = ltx_weights_find(e->checkpoint, e->info.n_layers + 1, e->info.width, &tensors, &ltx.n,
                               err)) != OK)
        return rc;
    ltx.tensors = tensors;
    rc = model_file_cached_digest(e->file, &ltx, e->n_threads, digest, err);
    free(tensors);
    return rc;
}
