/* engine.c - see engine.h.
 *
 * Prompts are taken in order into passes of up to max_batch_tokens; a prompt is never cut. Each
 * pass hands its hidden states over as float32, and they are written in the wanted type straight
 * into the results. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cores.h"
#include "base/size.h"
#include "engine/files/digest.h"
#include "engine/files/gemma_config.h"
#include "engine/files/model_file.h"
#include "engine/model/gemma.h"
#include "kernels/ops.h"

struct engine {
    const struct ops *ops;
    struct device *device;
    struct model_file *file;
    struct weights *weights;
    struct gemma *gemma;
    struct engine_info info;
    int max_batch_tokens, n_threads;
    /* one pass, sized for max_batch_tokens */
    int32_t *ids, *positions, *begin;
};

static void fill_info(struct engine_info *info, const struct model_file *file)
{
    const struct gemma_config *config = model_file_config(file);

    *info = (struct engine_info){.architecture = gemma_kind_name(config->kind),
                                 .n_layers = config->L,
                                 .width = config->D,
                                 .vocabulary = config->V,
                                 .max_tokens = ENGINE_MAX_TOKENS};
    snprintf(info->format, sizeof(info->format), "%s", model_file_format(file));
}

int engine_read_info(struct engine_info *out, const char *model, struct error *err)
{
    struct model_file *file;
    int rc;

    *out = (struct engine_info){0};
    if ((rc = model_file_open(&file, model, err)) != OK)
        return rc;
    fill_info(out, file);
    model_file_close(file);
    return OK;
}

int engine_open(struct engine **out, const struct engine_options *options, struct error *err)
{
    struct device_options device_options = {.act = options->compute};
    const struct gemma_config *config;
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
    T = (size_t)e->max_batch_tokens;
    if ((e->ids = calloc(T, sizeof(int32_t))) == NULL ||
        (e->positions = calloc(T, sizeof(int32_t))) == NULL ||
        (e->begin = calloc(T + 1, sizeof(int32_t))) == NULL) {
        rc = error_set(err, ERR_MEM, "engine: no memory for %zu tokens", T);
        goto out;
    }
    device_options.n_threads = e->n_threads;
    e->ops = options->backend == ENGINE_LOOPS  ? ops_loops()
             : options->backend == ENGINE_CUDA ? ops_cuda()
                                               : ops_cpu();
    if (e->ops == NULL) {
        rc = error_set(err, ERR_INPUT, "engine: this build has no CUDA backend");
        goto out;
    }
    if ((rc = model_file_open(&e->file, options->model, err)) != OK ||
        (rc = e->ops->open(&e->device, &device_options, err)) != OK)
        goto out;
    config = model_file_config(e->file);
    if ((rc = gemma_check(config, err)) != OK ||
        (rc = weights_load(&e->weights, e->file, e->ops, e->device, options->progress,
                           options->progress_arg, err)) != OK ||
        (rc = gemma_create(&e->gemma, config, e->weights, options->compute, ENGINE_MAX_TOKENS,
                           e->max_batch_tokens, err)) != OK)
        goto out;
    fill_info(&e->info, e->file);
    if (e->max_batch_tokens < e->info.max_tokens)
        e->info.max_tokens = e->max_batch_tokens;
    e->info.backend = e->ops->name;
    e->info.weights_bytes = e->weights->bytes;
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
    gemma_free(e->gemma);
    weights_free(e->weights);
    if (e->device != NULL)
        e->ops->close(e->device);
    model_file_close(e->file);
    free(e->ids);
    free(e->positions);
    free(e->begin);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

int engine_check_request(const struct engine_info *info, const struct engine_request *request,
                         struct error *err)
{
    bool seen[ENGINE_MAX_LAYERS + 1] = {false};

    if (request->dtype != DTYPE_F32 && request->dtype != DTYPE_F16 && request->dtype != DTYPE_BF16)
        return error_set(err, ERR_INPUT, "engine: results can be F32, F16 or BF16, not %s",
                         dtype_info(request->dtype)->name);
    for (int i = 0; i < request->n_layers; i++) {
        int layer = request->layers[i];
        if (layer < 0 || layer > info->n_layers)
            return error_set(err, ERR_INPUT, "layer %d is out of range: this model has 0 to %d",
                             layer, info->n_layers);
        if (seen[layer])
            return error_set(err, ERR_INPUT, "layer %d is wanted twice", layer);
        seen[layer] = true;
    }
    return OK;
}

int engine_check_prompt(const struct engine_info *info, const struct engine_prompt *prompt,
                        struct error *err)
{
    int rc;

    if (prompt->request == NULL)
        return error_set(err, ERR_INPUT, "it does not say what is wanted of it");
    if ((rc = engine_check_request(info, prompt->request, err)) != OK)
        return rc;
    if (prompt->n < 1 || prompt->n > info->max_tokens)
        return error_set(err, ERR_INPUT, "%d tokens, expected 1 to %d", prompt->n,
                         info->max_tokens);
    for (int t = 0; t < prompt->n; t++)
        if (prompt->ids[t] < 0 || prompt->ids[t] >= info->vocabulary)
            return error_set(err, ERR_INPUT, "token %d is %d, the model's vocabulary has 0 to %d",
                             t, (int)prompt->ids[t], info->vocabulary - 1);
    return OK;
}

/* Room for the wanted states of a prompt of `n_tokens`. */
static int result_create(struct engine_result *r, int n_states, int n_tokens, int width,
                         enum dtype dtype, struct error *err)
{
    *r = (struct engine_result){
        .n_states = n_states, .n_tokens = n_tokens, .width = width, .dtype = dtype};
    if (!size_mul(&r->bytes, (size_t)n_states * n_tokens, (size_t)width) ||
        !size_mul(&r->bytes, r->bytes, dtype_info(dtype)->bytes) ||
        (r->hidden_states = malloc(r->bytes)) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %d states of %d tokens", n_states,
                         n_tokens);
    return OK;
}

/* Where hidden state `state` goes among those wanted; -1: it is not. */
static int place_of(const struct engine_request *request, int state)
{
    for (int i = 0; i < request->n_layers; i++)
        if (request->layers[i] == state)
            return i;
    return request->n_layers == 0 ? state : -1;
}

struct emit_args {
    const struct pack *pack;
    const struct engine_prompt *prompts; /* of the pack, from its first on */
    struct engine_result *results;       /* likewise */
};

static int write_state(void *arg, int state, const float *h, struct error *err)
{
    const struct emit_args *a = arg;

    (void)err;
    for (int b = 0; b < a->pack->B; b++) {
        struct engine_result *r = &a->results[b];
        size_t numbers = (size_t)r->n_tokens * r->width;
        int place = place_of(a->prompts[b].request, state);
        if (place >= 0)
            dtype_encode((char *)r->hidden_states +
                             (size_t)place * numbers * dtype_info(r->dtype)->bytes,
                         h + (size_t)a->pack->begin[b] * r->width, r->dtype, numbers);
    }
    return OK;
}

/* Packs prompts from `first` on; returns how many fit. Token i of a prompt of n sits at position
 * ENGINE_MAX_TOKENS - n + i, where the reference's left padding puts it. */
static int fill_pack(struct engine *e, struct pack *pack, const struct engine_prompt *prompts,
                     int n_prompts, int first)
{
    *pack = (struct pack){.ids = e->ids, .positions = e->positions, .begin = e->begin};
    for (int i = first; i < n_prompts && pack->T + prompts[i].n <= e->max_batch_tokens; i++) {
        for (int t = 0; t < prompts[i].n; t++) {
            e->ids[pack->T + t] = prompts[i].ids[t];
            e->positions[pack->T + t] = ENGINE_MAX_TOKENS - prompts[i].n + t;
        }
        pack->T += prompts[i].n;
        e->begin[++pack->B] = pack->T;
    }
    return pack->B;
}

int engine_encode(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                  struct engine_result *results, struct error *err)
{
    int rc;

    for (int i = 0; i < n_prompts; i++)
        results[i] = (struct engine_result){0};
    if ((rc = e->ops->bind(e->device, err)) != OK)
        return rc;
    for (int i = 0; i < n_prompts; i++) {
        struct error why = {0};
        if ((rc = engine_check_prompt(&e->info, &prompts[i], &why)) != OK)
            return error_set(err, why.code, "prompt %d: %s", i, why.text);
    }
    for (int i = 0; i < n_prompts; i++) {
        const struct engine_request *request = prompts[i].request;
        int n_states = request->n_layers > 0 ? request->n_layers : e->info.n_layers + 1;
        if ((rc = result_create(&results[i], n_states, prompts[i].n, e->info.width, request->dtype,
                                err)) != OK)
            goto out;
    }
    for (int done = 0; done < n_prompts;) {
        bool wanted[ENGINE_MAX_LAYERS + 1] = {false};
        struct pack pack;
        struct emit_args args = {&pack, prompts + done, results + done};
        int n = fill_pack(e, &pack, prompts, n_prompts, done);
        for (int i = done; i < done + n; i++)
            for (int s = 0; s <= e->info.n_layers; s++)
                wanted[s] |= place_of(prompts[i].request, s) >= 0;
        if ((rc = gemma_forward(e->gemma, &pack, wanted, write_state, &args, err)) != OK)
            goto out;
        done += n;
    }
out:
    for (int i = 0; rc != OK && i < n_prompts; i++)
        engine_result_free(&results[i]);
    return rc;
}

uint64_t engine_steps(const struct engine *e)
{
    return gemma_steps(e->gemma);
}

int engine_weights_digest(const struct engine *e, char digest[ENGINE_DIGEST_SIZE],
                          struct error *err)
{
    return model_file_cached_digest(e->file, e->n_threads, digest, err);
}

void engine_result_free(struct engine_result *result)
{
    free(result->hidden_states);
    *result = (struct engine_result){0};
}

int engine_load_tokenizer(struct tokenizer **out, const char *path, struct error *err)
{
    return model_file_load_tokenizer(out, path, err);
}
