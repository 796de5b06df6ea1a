/* engine.c - see engine.h.
 *
 * Prompts are taken in order into passes of up to max_batch_tokens; a prompt is never cut. Each
 * pass hands over its hidden states one by one. They are added to the features where a prompt wants
 * those, written in the wanted type straight into the results of the prompts that want them, and
 * not kept. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/files/digest.h"
#include "engine/files/gemma_config.h"
#include "engine/files/model_file.h"
#include "engine/ltx/ltx.h"
#include "engine/model/gemma.h"
#include "engine/random_model.h"
#include "kernels/ops.h"
#include "tokenizer/tokenizer.h"

struct engine {
    const struct ops *ops;
    struct device *device;
    struct model_file *file; /* NULL: random weights */
    struct gemma_config config;
    struct weights *weights;
    struct gemma *gemma;
    struct ltx_checkpoint *checkpoint; /* this and what follows: NULL without one */
    struct ltx_weights *ltx_weights;
    struct ltx *ltx;
    struct engine_info info;
    char random_digest[ENGINE_DIGEST_SIZE]; /* of random weights */
    int max_batch_tokens, n_threads;
    enum dtype compute;
    /* one pass, sized for max_batch_tokens */
    int32_t *ids, *positions, *begin;
    int *embedded;    /* the prompts of the pass that want embeddings */
    float *host_rows; /* what came off a device that is not the host */
    /* why results have NaN among their numbers, where they do; looked for once */
    bool looked_for_damage;
    char damage[192];
};

static const char *const feature_names[] = {"video_features", "audio_features"};
static const char *const embedding_names[] = {"video", "audio"};

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

static void gemma_progress(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    struct progress *p = arg;

    p->before = bytes_done;
    p->total = bytes_total + p->ltx_bytes;
    p->options->progress(p->options->progress_arg, bytes_done, p->total);
}

static void ltx_progress(void *arg, uint64_t bytes_done)
{
    const struct progress *p = arg;

    p->options->progress(p->options->progress_arg, p->before + bytes_done, p->total);
}

static int load_weights(struct engine *e, const struct engine_options *options, struct error *err)
{
    struct progress p = {.options = options};
    bool told = options->progress != NULL;
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
    if ((rc = weights_load(&e->weights, e->file, e->ops, e->device, told ? gemma_progress : NULL,
                           &p, err)) != OK ||
        e->checkpoint == NULL)
        return rc;
    return ltx_weights_load(&e->ltx_weights, e->checkpoint, S, D, e->ops, e->device,
                            options->compute, told ? ltx_progress : NULL, &p, err);
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
static int make_random_weights(struct engine *e, const struct engine_options *options,
                               struct error *err)
{
    struct ltx_config ltx;
    int rc;

    if ((rc = random_model_gemma(&e->config, options->model, err)) != OK ||
        (rc = gemma_check(&e->config, err)) != OK ||
        (rc = weights_random(&e->weights, &e->config, e->ops, e->device, err)) != OK)
        return rc;
    fill_info(&e->info, &e->config, "random weights");
    e->info.is_random = true;
    if ((rc = digest_names(e, options, err)) != OK)
        return rc;
    if (options->ltx[0] == NULL)
        return OK;
    if (!random_model_is(options->ltx[0]) || options->ltx[1] != NULL)
        return error_set(err, ERR_INPUT, "a random model goes with one random LTX checkpoint");
    if ((rc = random_model_ltx(&ltx, options->ltx[0], err)) != OK)
        return rc;
    add_ltx_config(&e->info, &ltx);
    return ltx_weights_random(&e->ltx_weights, &ltx, e->config.L + 1, e->config.D, e->ops,
                              e->device, options->compute, err);
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
    if (e->checkpoint != NULL && ltx_checkpoint_random(e->checkpoint) != NULL)
        log_warn("ltx_random",
                 "file=%s text=\"weights are random (%s): features and embeddings mean nothing\"",
                 tensor_file_name(ltx_checkpoint_path_at(e->checkpoint, 0)),
                 ltx_checkpoint_random(e->checkpoint));
    return OK;
}

/* Room for what comes off the device at once: a state or the features of a pass, or a prompt's
 * embeddings. */
static int take_host_rows(struct engine *e, struct error *err)
{
    size_t W = (size_t)(e->info.video_width > e->info.audio_width ? e->info.video_width
                                                                  : e->info.audio_width);
    size_t T = (size_t)e->max_batch_tokens, numbers = T * e->info.width;

    if (e->ops->is_host)
        return OK;
    if (W * T > numbers)
        numbers = W * T;
    if (W * ENGINE_ROWS > numbers)
        numbers = W * ENGINE_ROWS;
    if ((e->host_rows = malloc(numbers * sizeof(float))) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %zu numbers", numbers);
    return OK;
}

int engine_open(struct engine **out, const struct engine_options *options, struct error *err)
{
    struct device_options device_options = {.act = options->compute};
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
    T = (size_t)e->max_batch_tokens;
    if ((e->ids = calloc(T, sizeof(int32_t))) == NULL ||
        (e->positions = calloc(T, sizeof(int32_t))) == NULL ||
        (e->begin = calloc(T + 1, sizeof(int32_t))) == NULL ||
        (e->embedded = calloc(T, sizeof(int))) == NULL) {
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
    if ((!random && (rc = open_model(e, options, err)) != OK) ||
        (rc = e->ops->open(&e->device, &device_options, err)) != OK)
        goto out;
    if (random)
        rc = make_random_weights(e, options, err);
    else if ((rc = gemma_check(&e->config, err)) == OK)
        rc = load_weights(e, options, err);
    if (rc != OK ||
        (rc = gemma_create(&e->gemma, &e->config, e->weights, options->compute, ENGINE_MAX_TOKENS,
                           e->max_batch_tokens, err)) != OK ||
        (rc = take_host_rows(e, err)) != OK)
        goto out;
    if (e->ltx_weights != NULL && (rc = ltx_create(&e->ltx, e->ltx_weights, options->compute,
                                                   e->max_batch_tokens, err)) != OK)
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
    if (e->device != NULL)
        e->ops->close(e->device);
    ltx_checkpoint_close(e->checkpoint);
    model_file_close(e->file);
    free(e->ids);
    free(e->positions);
    free(e->begin);
    free(e->embedded);
    free(e->host_rows);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

/* Whether the level is there, and all that is wanted of it. */
static int check_level(const struct engine_info *info, const struct engine_request *request,
                       struct error *err)
{
    const char *level = request->level == ENGINE_FEATURES ? "features" : "embeddings";

    if (request->level == ENGINE_HIDDEN_STATES)
        return OK;
    if (request->level != ENGINE_FEATURES && request->level != ENGINE_EMBEDDINGS)
        return error_set(err, ERR_INPUT, "engine: there is no level %d", (int)request->level);
    if (info->extractor == 0)
        return error_set(err, ERR_INPUT,
                         "%s need an LTX checkpoint, and this model has none: it has hidden_states",
                         level);
    if (request->n_layers > 0)
        return error_set(err, ERR_INPUT, "layers are chosen of hidden_states, not of %s", level);
    if ((request->modalities & ~(unsigned)(ENGINE_VIDEO | ENGINE_AUDIO)) != 0)
        return error_set(err, ERR_INPUT, "engine: there are no modalities 0x%x",
                         request->modalities);
    if ((request->modalities & ENGINE_AUDIO) != 0 && info->audio_width == 0)
        return error_set(err, ERR_INPUT, "audio is wanted, and this LTX checkpoint is video-only");
    return OK;
}

int engine_check_request(const struct engine_info *info, const struct engine_request *request,
                         struct error *err)
{
    bool seen[ENGINE_MAX_LAYERS + 1] = {false};
    int rc;

    if ((rc = check_level(info, request, err)) != OK)
        return rc;
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

/* Whether the request wants that modality (0: video), of those the model has. */
static bool wants(const struct engine_info *info, const struct engine_request *request, int m)
{
    bool there = (m == LTX_VIDEO ? info->video_width : info->audio_width) > 0;

    return there && (request->modalities == 0 || (request->modalities >> m & 1) != 0);
}

static int add_tensor(struct engine_result *r, const char *name, enum dtype dtype, int n_dims,
                      const size_t *shape, struct error *err)
{
    struct engine_tensor *t = &r->tensors[r->n_tensors];
    size_t bytes = dtype_info(dtype)->bytes;

    *t = (struct engine_tensor){.name = name, .dtype = dtype, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        if (!size_mul(&bytes, bytes, shape[i]))
            return error_set(err, ERR_MEM, "engine: %s is too large", name);
    }
    if ((t->data = malloc(bytes)) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %zu bytes of %s", bytes, name);
    t->bytes = bytes;
    r->n_tensors++;
    return OK;
}

static int add_hidden_states(struct engine_result *r, const struct engine_info *info,
                             const struct engine_request *request, struct error *err)
{
    int n_states = request->n_layers > 0 ? request->n_layers : info->n_layers + 1;
    size_t shape[3] = {(size_t)n_states, (size_t)r->n_tokens, (size_t)info->width};

    return add_tensor(r, "hidden_states", request->dtype, 3, shape, err);
}

/* Room for what is wanted of a prompt. */
static int result_create(struct engine_result *r, const struct engine_info *info,
                         const struct engine_prompt *prompt, struct error *err)
{
    const struct engine_request *request = prompt->request;
    bool embeddings = request->level == ENGINE_EMBEDDINGS;
    size_t rows = embeddings ? ENGINE_ROWS : (size_t)prompt->n;
    int rc;

    *r = (struct engine_result){.n_tokens = prompt->n};
    if (request->level == ENGINE_HIDDEN_STATES)
        return add_hidden_states(r, info, request, err);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        size_t shape[2] = {rows, (size_t)(m == LTX_VIDEO ? info->video_width : info->audio_width)};
        const char *name = embeddings ? embedding_names[m] : feature_names[m];
        if (wants(info, request, m) &&
            (rc = add_tensor(r, name, request->dtype, 2, shape, err)) != OK)
            return rc;
    }
    if (embeddings) {
        int64_t *mask;
        if ((rc = add_tensor(r, "mask", DTYPE_I64, 1, &rows, err)) != OK)
            return rc;
        mask = r->tensors[r->n_tensors - 1].data;
        for (size_t i = 0; i < rows; i++)
            mask[i] = 1;
    }
    return OK;
}

/* Where hidden state `state` goes among those wanted; -1: it is not. */
static int place_of(const struct engine_request *request, int state)
{
    if (request->level != ENGINE_HIDDEN_STATES)
        return -1;
    for (int i = 0; i < request->n_layers; i++)
        if (request->layers[i] == state)
            return i;
    return request->n_layers == 0 ? state : -1;
}

/* Device memory as the host can read it, until the next call. */
static int fetch(struct engine *e, const float **out, const float *from, size_t n,
                 struct error *err)
{
    *out = from;
    if (e->ops->is_host)
        return OK;
    *out = e->host_rows;
    return e->ops->download(e->device, e->host_rows, from, n * sizeof(float), err);
}

/* Some prompts on their way through the model at once. */
struct pass {
    struct engine *e;
    struct pack pack;
    const struct engine_prompt *prompts; /* of the pack, from its first on */
    struct engine_result *results;       /* likewise; NULL: they stay on the device */
    bool features[LTX_N_MODALITIES];     /* some prompt wants them, or what comes of them */
    int modality;                        /* whose embeddings are being made */
};

/* Writes `n` numbers into a prompt's tensor of that name. */
static void write_rows(struct engine_result *r, const char *name, const float *rows)
{
    for (int i = 0; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].name, name) == 0)
            dtype_encode(r->tensors[i].data, rows, r->tensors[i].dtype,
                         r->tensors[i].shape[0] * r->tensors[i].shape[1]);
}

static int on_state(void *arg, int state, const float *h, struct error *err)
{
    struct pass *p = arg;
    size_t D = (size_t)p->e->info.width;
    const float *rows = NULL;
    int rc;

    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_add_state(p->e->ltx, h, err)) != OK)
        return rc;
    for (int b = 0; p->results != NULL && b < p->pack.B; b++) {
        const struct engine_tensor *states = &p->results[b].tensors[0];
        size_t numbers = (size_t)p->prompts[b].n * D;
        int place = place_of(p->prompts[b].request, state);
        if (place < 0)
            continue;
        if (rows == NULL && (rc = fetch(p->e, &rows, h, (size_t)p->pack.T * D, err)) != OK)
            return rc;
        dtype_encode((char *)states->data +
                         (size_t)place * numbers * dtype_info(states->dtype)->bytes,
                     rows + (size_t)p->pack.begin[b] * D, states->dtype, numbers);
    }
    return OK;
}

static int on_embeddings(void *arg, int b, const float *rows, struct error *err)
{
    struct pass *p = arg;
    const struct engine_info *info = &p->e->info;
    size_t W = (size_t)(p->modality == LTX_VIDEO ? info->video_width : info->audio_width);
    int rc;

    if (p->results == NULL)
        return OK;
    if ((rc = fetch(p->e, &rows, rows, ENGINE_ROWS * W, err)) != OK)
        return rc;
    write_rows(&p->results[b], embedding_names[p->modality], rows);
    return OK;
}

/* Features and embeddings of one modality, once all hidden states have been added. */
static int finish_modality(struct pass *p, int m, struct error *err)
{
    struct engine *e = p->e;
    size_t W = (size_t)(m == LTX_VIDEO ? e->info.video_width : e->info.audio_width);
    const float *features = ltx_features(e->ltx, (enum ltx_modality)m), *rows;
    int n_embedded = 0, rc;

    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = p->prompts[b].request;
        if (request->level == ENGINE_HIDDEN_STATES || !wants(&e->info, request, m))
            continue;
        if (request->level == ENGINE_EMBEDDINGS) {
            e->embedded[n_embedded++] = b;
            continue;
        }
        if (p->results == NULL)
            continue;
        if ((rc = fetch(e, &rows, features + (size_t)p->pack.begin[b] * W,
                        (size_t)p->prompts[b].n * W, err)) != OK)
            return rc;
        write_rows(&p->results[b], feature_names[m], rows);
    }
    p->modality = m;
    return ltx_embed(e->ltx, (enum ltx_modality)m, e->embedded, n_embedded, on_embeddings, p, err);
}

/* Everything that the prompts of a pass want. */
static int run_pass(struct pass *p, struct error *err)
{
    struct engine *e = p->e;
    bool wanted[ENGINE_MAX_LAYERS + 1] = {false}, to_host = false;
    unsigned run = 1;
    int rc;

    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = p->prompts[b].request;
        bool features = request->level != ENGINE_HIDDEN_STATES;
        to_host |= !features && p->results != NULL;
        for (int m = 0; m < LTX_N_MODALITIES; m++)
            p->features[m] |= features && wants(&e->info, request, m);
        for (int s = 0; s <= e->info.n_layers; s++)
            wanted[s] |= features || place_of(request, s) >= 0;
    }
    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_begin(e->ltx, p->pack.begin, p->pack.B, p->features, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        run |= (unsigned)p->features[m] << (m + 1);
    if ((rc = gemma_forward(e->gemma, &p->pack, wanted, to_host ? 0 : run, on_state, p, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        if (p->features[m] && (rc = finish_modality(p, m, err)) != OK)
            return rc;
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

/* The first of the model's tensors that is at fault. Whole files are read for that, so it is done
 * only when results say that something is wrong, and not on the way of each load. An LTX
 * checkpoint's few were all looked at while they were loaded. */
static const char *find_damage(struct engine *e)
{
    if (e->looked_for_damage)
        return e->damage;
    e->looked_for_damage = true;
    snprintf(e->damage, sizeof(e->damage), "the weights are too large, or damaged");
    for (size_t i = 0; e->file != NULL && i < model_file_n_tensors(e->file); i++) {
        const struct tensor *t = model_file_tensor_at(e->file, i);
        bool plain = t->type == DTYPE_F32 || t->type == DTYPE_F16 || t->type == DTYPE_BF16;
        if (!plain || tensor_is_finite(t))
            continue;
        snprintf(e->damage, sizeof(e->damage), "%.60s: %.90s holds a NaN or an infinity", t->file,
                 t->name);
        break;
    }
    return e->damage;
}

/* A NaN is no answer to anything. */
static int check_numbers(struct engine *e, int prompt, const struct engine_result *r,
                         struct error *err)
{
    for (int i = 0; i < r->n_tensors; i++) {
        const struct engine_tensor *t = &r->tensors[i];
        if (t->dtype != DTYPE_I64 &&
            dtype_has_nan(t->data, t->dtype, t->bytes / dtype_info(t->dtype)->bytes))
            return error_set(err, ERR_FORMAT, "prompt %d: a NaN in its %s: %s", prompt, t->name,
                             find_damage(e));
    }
    return OK;
}

static int check_prompts(const struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                         struct error *err)
{
    int rc;

    for (int i = 0; i < n_prompts; i++) {
        struct error why = {0};
        if ((rc = engine_check_prompt(&e->info, &prompts[i], &why)) != OK)
            return error_set(err, why.code, "prompt %d: %s", i, why.text);
    }
    return OK;
}

static int run_passes(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                      struct engine_result *results, struct error *err)
{
    int rc;

    for (int done = 0; done < n_prompts;) {
        struct pass pass = {
            .e = e, .prompts = prompts + done, .results = results == NULL ? NULL : results + done};
        int n = fill_pack(e, &pass.pack, prompts, n_prompts, done);
        if ((rc = run_pass(&pass, err)) != OK ||
            (rc = e->ops->sync(e->device, err)) !=
                OK) /* the next one uploads from the same memory */
            return rc;
        done += n;
    }
    return OK;
}

int engine_encode(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                  struct engine_result *results, struct error *err)
{
    int rc;

    for (int i = 0; i < n_prompts; i++)
        results[i] = (struct engine_result){0};
    if ((rc = e->ops->bind(e->device, err)) != OK ||
        (rc = check_prompts(e, prompts, n_prompts, err)) != OK)
        return rc;
    for (int i = 0; i < n_prompts; i++)
        if ((rc = result_create(&results[i], &e->info, &prompts[i], err)) != OK)
            goto out;
    if ((rc = run_passes(e, prompts, n_prompts, results, err)) != OK)
        goto out;
    for (int i = 0; i < n_prompts; i++)
        if ((rc = check_numbers(e, i, &results[i], err)) != OK)
            goto out;
out:
    for (int i = 0; rc != OK && i < n_prompts; i++)
        engine_result_free(&results[i]);
    return rc;
}

int engine_compute(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                   struct error *err)
{
    int rc;

    if ((rc = e->ops->bind(e->device, err)) != OK ||
        (rc = check_prompts(e, prompts, n_prompts, err)) != OK ||
        (rc = run_passes(e, prompts, n_prompts, NULL, err)) != OK)
        return rc;
    return OK;
}

uint64_t engine_steps(const struct engine *e)
{
    return gemma_steps(e->gemma) + (e->ltx != NULL ? ltx_steps(e->ltx) : 0);
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

struct engine_work engine_work(const struct engine *e, const int *n_tokens, int n_prompts)
{
    const struct gemma_config *c = &e->config;
    double act = (double)dtype_info(e->compute)->bytes, T = 0.0, pairs = 0.0;
    struct engine_work work = {0};

    for (int i = 0; i < n_prompts; i++) {
        T += n_tokens[i];
        pairs += 0.5 * n_tokens[i] * (n_tokens[i] + 1.0);
    }
    for (int i = 0; i < c->L; i++) {
        const struct gemma_attention *a = gemma_attention_of(c, i);
        double heads = (double)c->H * a->E, cached = 2.0 * a->K * a->E;
        double weights = (2.0 * heads + cached) * c->D + 3.0 * c->F * c->D;
        work.gemma.bytes += weights * act;
        work.gemma.operations += 2.0 * weights * T + 4.0 * heads * pairs;
    }
    for (int m = 0; e->ltx_weights != NULL && m < LTX_N_MODALITIES; m++) {
        const struct ltx_connector_config *k = &e->ltx_weights->config.connectors[m];
        double W = k->W, rows = (double)ENGINE_ROWS * n_prompts;
        double projection = (double)e->ltx_weights->projections[m].width * c->D * (c->L + 1.0);
        double block = 12.0 * W * W + (e->ltx_weights->config.gated ? W * k->H : 0.0);
        work.extractor.bytes += projection * act;
        work.extractor.operations += 2.0 * projection * T;
        work.connectors.bytes += k->L * block * act;
        work.connectors.operations += k->L * rows * (2.0 * block + 4.0 * W * ENGINE_ROWS);
    }
    return work;
}

int engine_measure(struct engine *e, double *bytes_per_s, double *operations_per_s,
                   struct error *err)
{
    int rc;

    *bytes_per_s = *operations_per_s = 0.0;
    if (e->ops->measure == NULL)
        return OK;
    if ((rc = e->ops->bind(e->device, err)) != OK)
        return rc;
    return e->ops->measure(e->device, bytes_per_s, operations_per_s, err);
}

void engine_result_free(struct engine_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        free(result->tensors[i].data);
    *result = (struct engine_result){0};
}

int engine_load_tokenizer(struct tokenizer **out, const char *path, struct error *err)
{
    return model_file_load_tokenizer(out, path, err);
}

int engine_save_tokenizer(const struct tokenizer *t, struct buf *out,
                          char digest[ENGINE_DIGEST_SIZE], struct error *err)
{
    int rc = tokenizer_save(t, out, err);

    return rc == OK ? digest_bytes(digest, out->data, out->len, err) : rc;
}
