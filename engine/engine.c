/* engine.c - see engine.h: prompts through the model, results out. Opened and closed in opening.c.
 *
 * Prompts are taken in order into passes of up to max_batch_tokens; a prompt is never cut. Each
 * pass hands over its hidden states one by one. They are added to the features where a prompt wants
 * those, written in the wanted type straight into the results of the prompts that want them, and
 * not kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/engine_private.h"

static const char *const feature_names[] = {"video_features", "audio_features"};
static const char *const embedding_names[] = {"video", "audio"};

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

/* Some prompts on their way through the model at once. */
struct pass {
    struct engine *e;
    struct pack pack;
    const struct engine_prompt *prompts; /* of the pack, from its first on */
    int first;                           /* number of that one in the call */
    struct engine_result *results;       /* likewise; NULL: they stay on the device */
    bool features[LTX_N_MODALITIES];     /* some prompt wants them, or what comes of them */
    int modality;                        /* whose embeddings are being made */
    /* what is in e->leaving, and where it goes */
    int n_leaving;
    struct departure {
        void *to;
        size_t bytes;
    } departures[OPS_MARKS];
};

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

/* Brings what is leaving to the results. */
static int let_go(struct pass *p, struct error *err)
{
    struct engine *e = p->e;
    int rc;

    for (int i = 0; i < p->n_leaving; i++)
        if ((rc = e->ops->download_marked(e->device, i, p->departures[i].to, e->leaving[i],
                                          p->departures[i].bytes, err)) != OK)
            return rc;
    p->n_leaving = 0;
    return OK;
}

/* Numbers of the device into tensor k of a result, from its number `at` on, by the next let_go();
 * check_nans() looks at what they were. Up to OPS_MARKS parts leave together, by when the device
 * has more to compute. */
static int write_numbers(struct pass *p, int b, int k, size_t at, const float *numbers, size_t n,
                         struct error *err)
{
    struct engine *e = p->e;
    struct engine_tensor *to = &p->results[b].tensors[k];
    size_t size = dtype_info(to->dtype)->bytes;
    char *data = (char *)to->data + at * size;
    int32_t *has_nan = e->has_nan + b * ENGINE_MAX_TENSORS + k;
    int i, rc;

    if (e->ops->is_host)
        return e->ops->encode(e->device, data, to->dtype, numbers, n, has_nan, err);
    if (p->n_leaving == OPS_MARKS && (rc = let_go(p, err)) != OK)
        return rc;
    i = p->n_leaving++;
    p->departures[i] = (struct departure){data, n * size};
    if ((rc = e->ops->encode(e->device, e->leaving[i], to->dtype, numbers, n, has_nan, err)) != OK)
        return rc;
    return e->ops->mark(e->device, i, err);
}

/* A NaN is no answer to anything. */
static int check_nans(struct pass *p, struct error *err)
{
    struct engine *e = p->e;
    size_t n = (size_t)p->pack.B * ENGINE_MAX_TENSORS;
    int rc;

    if ((rc = e->ops->download(e->device, e->nans, e->has_nan, n * sizeof(*e->nans), err)) != OK)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (e->nans[i] != 0) {
            int b = (int)(i / ENGINE_MAX_TENSORS);
            return error_set(err, ERR_FORMAT, "prompt %d: a NaN in its %s: %s", p->first + b,
                             p->results[b].tensors[i % ENGINE_MAX_TENSORS].name, find_damage(e));
        }
    return OK;
}

/* All of a prompt's tensor of that name. */
static int write_rows(struct pass *p, int b, const char *name, const float *rows, struct error *err)
{
    struct engine_result *r = &p->results[b];

    for (int i = 0; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].name, name) == 0)
            return write_numbers(p, b, i, 0, rows, r->tensors[i].shape[0] * r->tensors[i].shape[1],
                                 err);
    return OK;
}

static int on_state(void *arg, int state, const float *h, struct error *err)
{
    struct pass *p = arg;
    size_t D = (size_t)p->e->info.width;
    int rc;

    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_add_state(p->e->ltx, h, err)) != OK)
        return rc;
    for (int b = 0; p->results != NULL && b < p->pack.B; b++) {
        size_t numbers = (size_t)p->prompts[b].n * D;
        int place = place_of(p->prompts[b].request, state);
        if (place >= 0 &&
            (rc = write_numbers(p, b, 0, (size_t)place * numbers, h + (size_t)p->pack.begin[b] * D,
                                numbers, err)) != OK)
            return rc;
    }
    return OK;
}

static int on_embeddings(void *arg, int b, const float *rows, struct error *err)
{
    struct pass *p = arg;

    return p->results == NULL ? OK : write_rows(p, b, embedding_names[p->modality], rows, err);
}

/* Features and embeddings of one modality, once all hidden states have been added. */
static int finish_modality(struct pass *p, int m, struct error *err)
{
    struct engine *e = p->e;
    size_t W = (size_t)(m == LTX_VIDEO ? e->info.video_width : e->info.audio_width);
    const float *features = ltx_features(e->ltx, (enum ltx_modality)m);
    int n_embedded = 0, rc;

    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = p->prompts[b].request;
        if (request->level == ENGINE_HIDDEN_STATES || !wants(&e->info, request, m))
            continue;
        if (request->level == ENGINE_EMBEDDINGS) {
            e->embedded[n_embedded++] = b;
            continue;
        }
        if (p->results != NULL &&
            (rc = write_rows(p, b, feature_names[m], features + (size_t)p->pack.begin[b] * W,
                             err)) != OK)
            return rc;
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
    memset(e->nans, 0, (size_t)p->pack.B * ENGINE_MAX_TENSORS * sizeof(*e->nans));
    if ((rc = e->ops->upload(e->device, e->has_nan, e->nans,
                             (size_t)p->pack.B * ENGINE_MAX_TENSORS * sizeof(*e->nans), err)) != OK)
        return rc;
    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_begin(e->ltx, p->pack.begin, p->pack.B, p->features, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        run |= (unsigned)p->features[m] << (m + 1);
    if ((rc = gemma_forward(e->gemma, &p->pack, wanted, to_host || e->is_warming ? 0 : run,
                            on_state, p, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        if (p->features[m] && (rc = finish_modality(p, m, err)) != OK)
            return rc;
    if (p->results == NULL)
        return OK;
    return (rc = let_go(p, err)) == OK ? check_nans(p, err) : rc;
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
        struct pass pass = {.e = e,
                            .prompts = prompts + done,
                            .first = done,
                            .results = results == NULL ? NULL : results + done};
        int n = fill_pack(e, &pass.pack, prompts, n_prompts, done);
        /* in any case: the next one uploads from the same memory */
        int synced;
        rc = run_pass(&pass, err);
        synced = e->ops->sync(e->device, rc == OK ? err : NULL);
        if (rc != OK || (rc = synced) != OK)
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
    rc = run_passes(e, prompts, n_prompts, results, err);
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

void engine_result_free(struct engine_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        free(result->tensors[i].data);
    *result = (struct engine_result){0};
}
