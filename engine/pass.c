/* pass.c - prompts through a rank's model, results out.
 *
 * Prompts are taken in order into passes of up to max_batch_tokens; a prompt is never cut. Each
 * pass hands over its hidden states one by one. They are added to the features where a prompt wants
 * those, written in the wanted type straight into the results of the prompts that want them, and
 * not kept.
 *
 * After a sharded pass all ranks have all hidden states and features, and each has its own rows of
 * the embeddings: those it writes itself, and what all have the first of them writes. Where ranks
 * have whole layers, a state and a prompt's embeddings are on one of them, which writes them. */
#include <string.h>

#include "engine/rank.h"
#include "engine/result.h"
#include "kernels/group.h"

/* Some prompts on their way through the model at once. */
struct pass {
    struct rank *r;
    const struct rank_batch *batch;
    struct pack pack;
    const int *which;                /* [pack.B] those of the batch that are in it */
    bool features[LTX_N_MODALITIES]; /* some prompt wants them, or what comes of them */
    int modality;                    /* whose embeddings are being made */
    /* its own rows; hidden states that it has; features, which every rank of a sharded pass has */
    bool writes, writes_states, writes_features;
    /* what is in r->leaving, and where it goes */
    int n_leaving;
    struct departure {
        void *to;
        size_t bytes;
    } departures[OPS_MARKS];
};

static const struct engine_prompt *prompt_at(const struct pass *p, int b)
{
    return &p->batch->prompts[p->which[b]];
}

/* Of a pass whose results are wanted; the host's, or the device's where they are placed. */
static const struct engine_result *result_at(const struct pass *p, int b)
{
    const struct engine_result *results =
        p->batch->placed ? p->r->placement.results : p->batch->results;

    return &results[p->which[b]];
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

/* Brings what is leaving to the results. */
static int let_go(struct pass *p, struct error *err)
{
    struct rank *r = p->r;
    int rc;

    for (int i = 0; i < p->n_leaving; i++)
        if ((rc = r->ops->download_marked(r->device, i, p->departures[i].to, r->leaving[i],
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
    struct rank *r = p->r;
    const struct engine_tensor *to = &result_at(p, b)->tensors[k];
    size_t size = dtype_info(to->dtype)->bytes;
    char *data = (char *)to->data + at * size;
    int32_t *has_nan = r->has_nan + b * ENGINE_MAX_TENSORS + k;
    int i, rc;

    if (r->ops->is_host || p->batch->placed)
        return r->ops->encode(r->device, data, to->dtype, numbers, n, has_nan, err);
    if (p->n_leaving == OPS_MARKS && (rc = let_go(p, err)) != OK)
        return rc;
    i = p->n_leaving++;
    p->departures[i] = (struct departure){data, n * size};
    if ((rc = r->ops->encode(r->device, r->leaving[i], to->dtype, numbers, n, has_nan, err)) != OK)
        return rc;
    return r->ops->mark(r->device, i, err);
}

/* A NaN is no answer to anything. */
static int check_nans(struct pass *p, struct error *err)
{
    struct rank *r = p->r;
    size_t n = (size_t)p->pack.B * ENGINE_MAX_TENSORS;
    int rc;

    if ((rc = r->ops->download(r->device, r->nans, r->has_nan, n * sizeof(*r->nans), err)) != OK)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (r->nans[i] != 0) {
            int b = (int)(i / ENGINE_MAX_TENSORS);
            return error_set(err, ERR_FORMAT, "prompt %d: a NaN in its %s", p->which[b],
                             result_at(p, b)->tensors[i % ENGINE_MAX_TENSORS].name);
        }
    return OK;
}

/* A prompt's rows of its tensor of that name, from row `first` on. */
static int write_rows(struct pass *p, int b, enum engine_level level, int modality, int first,
                      const float *rows, int n, struct error *err)
{
    const struct engine_result *result = result_at(p, b);
    const char *name = result_tensor_name(level, modality);

    for (int i = 0; i < result->n_tensors; i++)
        if (strcmp(result->tensors[i].name, name) == 0) {
            size_t W = result->tensors[i].shape[1];
            return write_numbers(p, b, i, (size_t)first * W, rows, (size_t)n * W, err);
        }
    return OK;
}

static int on_state(void *arg, int state, const float *h, struct error *err)
{
    struct pass *p = arg;
    size_t D = (size_t)p->r->info->width;
    int rc;

    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_add_state(p->r->ltx, h, err)) != OK)
        return rc;
    for (int b = 0; p->writes_states && h != NULL && b < p->pack.B; b++) {
        size_t numbers = (size_t)prompt_at(p, b)->n * D;
        int place = place_of(prompt_at(p, b)->request, state);
        if (place >= 0 &&
            (rc = write_numbers(p, b, 0, (size_t)place * numbers, h + (size_t)p->pack.begin[b] * D,
                                numbers, err)) != OK)
            return rc;
    }
    return OK;
}

static int on_embeddings(void *arg, int b, const float *rows, int first, int n, struct error *err)
{
    struct pass *p = arg;

    if (!p->writes)
        return OK;
    return write_rows(p, b, ENGINE_EMBEDDINGS, p->modality, first, rows, n, err);
}

/* Features and embeddings of one modality, once all hidden states have been added. */
static int finish_modality(struct pass *p, int m, struct error *err)
{
    struct rank *r = p->r;
    size_t W = (size_t)(m == LTX_VIDEO ? r->info->video_width : r->info->audio_width);
    const float *features = ltx_features(r->ltx, (enum ltx_modality)m);
    int n_embedded = 0, rc;

    rank_note(r, "features");
    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = prompt_at(p, b)->request;
        if (request->level == ENGINE_HIDDEN_STATES || !request_wants(r->info, request, m))
            continue;
        if (request->level == ENGINE_EMBEDDINGS) {
            r->embedded[n_embedded++] = b;
            continue;
        }
        if (p->writes_features &&
            (rc = write_rows(p, b, ENGINE_FEATURES, m, 0, features + (size_t)p->pack.begin[b] * W,
                             prompt_at(p, b)->n, err)) != OK)
            return rc;
    }
    p->modality = m;
    rank_note(r, "connectors");
    return ltx_embed(r->ltx, (enum ltx_modality)m, r->embedded, n_embedded, on_embeddings, p, err);
}

/* Everything that the prompts of a pass want; results may be on their way. */
static int compute(struct pass *p, struct error *err)
{
    struct rank *r = p->r;
    bool wanted[ENGINE_MAX_LAYERS + 1] = {false}, to_host = false;
    size_t flags = (size_t)p->pack.B * ENGINE_MAX_TENSORS * sizeof(*r->nans);
    unsigned run = 1;
    int rc;

    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = prompt_at(p, b)->request;
        bool features = request->level != ENGINE_HIDDEN_STATES;
        to_host |= !features && p->writes; /* the same on all ranks of a sharded pass */
        for (int m = 0; m < LTX_N_MODALITIES; m++)
            p->features[m] |= features && request_wants(r->info, request, m);
        for (int s = 0; s <= r->info->n_layers; s++)
            wanted[s] |= features || place_of(request, s) >= 0;
    }
    memset(r->nans, 0, flags);
    if ((rc = r->ops->upload(r->device, r->has_nan, r->nans, flags, err)) != OK)
        return rc;
    if ((p->features[LTX_VIDEO] || p->features[LTX_AUDIO]) &&
        (rc = ltx_begin(r->ltx, p->pack.begin, p->pack.B, p->features, p->batch->sharded, err)) !=
            OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        run |= (unsigned)p->features[m] << (m + 1);
    rank_note(r, "layers");
    if ((rc = gemma_forward(r->gemma, &p->pack, wanted, p->batch->sharded,
                            to_host || r->is_warming ? 0 : run, on_state, p, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        if (p->features[m] && (rc = finish_modality(p, m, err)) != OK)
            return rc;
    return OK;
}

/* Packs prompts of the batch from its number `first` on; returns how many fit. Token i of a prompt
 * of n sits at position ENGINE_MAX_TOKENS - n + i, where the reference's left padding puts it. */
static int fill_pack(struct rank *r, struct pack *pack, const struct rank_batch *batch, int first)
{
    *pack = (struct pack){.ids = r->ids, .positions = r->positions, .begin = r->begin};
    for (int i = first; i < batch->n; i++) {
        const struct engine_prompt *prompt = &batch->prompts[batch->which[i]];
        if (pack->T + prompt->n > r->options.max_batch_tokens)
            break;
        for (int t = 0; t < prompt->n; t++) {
            r->ids[pack->T + t] = prompt->ids[t];
            r->positions[pack->T + t] = ENGINE_MAX_TOKENS - prompt->n + t;
        }
        pack->T += prompt->n;
        r->begin[++pack->B] = pack->T;
    }
    return pack->B;
}

/* A NaN is noted in *nan, and is no reason to stop. */
static int run_pass(struct pass *p, struct error *nan, struct error *err)
{
    int rc;

    if ((rc = compute(p, err)) != OK)
        return rc;
    rank_note(p->r, "results");
    if ((rc = let_go(p, err)) != OK)
        return rc;
    rc = p->writes ? check_nans(p, err) : OK;
    if (rc != ERR_FORMAT)
        return rc;
    error_set(nan, err->code, "%s", err->text);
    *err = (struct error){0};
    return OK;
}

/* How far a pass goes: a bit for each kind of thing it makes beside hidden states. */
static unsigned extent_of(const struct pass *p)
{
    unsigned extent = 0;

    for (int b = 0; b < p->pack.B; b++) {
        const struct engine_request *request = prompt_at(p, b)->request;
        for (int m = 0; m < LTX_N_MODALITIES; m++)
            if (request->level != ENGINE_HIDDEN_STATES && request_wants(p->r->info, request, m))
                extent |= (request->level == ENGINE_EMBEDDINGS ? 5u : 1u) << m;
    }
    return extent;
}

/* Whether a sharded pass of that shape is the first one, where that matters; none is from now on.
 */
static bool is_new_shape(const struct pass *p)
{
    struct rank *r = p->r;
    unsigned extent = extent_of(p);
    int size, n = p->pack.B < LTX_MAX_PROMPTS ? p->pack.B : LTX_MAX_PROMPTS;

    if (r->ops->rehearse == NULL || r->ops->plan_size == NULL)
        return false;
    size = r->ops->plan_size(p->pack.T);
    for (int i = 0; i < r->n_shapes; i++)
        if (r->shapes[i].size == size && r->shapes[i].n_prompts == n &&
            (r->shapes[i].extent & extent) == extent)
            return false;
    if (r->n_shapes == RANK_SHAPES) /* more than there are: those that come again are rehearsed */
        r->n_shapes = 0;
    r->shapes[r->n_shapes].size = size;
    r->shapes[r->n_shapes].n_prompts = n;
    r->shapes[r->n_shapes++].extent = extent;
    return true;
}

/* The pass without the others, and what it gives is thrown away. */
static int rehearse(const struct pass *pass, struct error *err)
{
    struct pass p = *pass;
    struct rank *r = p.r;
    int rc, synced;

    p.writes = p.writes_states = p.writes_features = false;
    r->ops->rehearse(r->device, true);
    rc = compute(&p, err);
    synced = r->ops->sync(r->device, rc == OK ? err : NULL);
    r->ops->rehearse(r->device, false);
    if (rc != OK || (rc = synced) != OK)
        return rc;
    return group_barrier(r->options.group, err);
}

static int run_passes(struct rank *r, const struct rank_batch *batch, struct error *nan,
                      struct error *err)
{
    int rc;

    for (int done = 0; done < batch->n;) {
        struct pass pass = {.r = r, .batch = batch, .which = batch->which + done};
        int synced;
        pass.writes = batch->results != NULL || batch->placed;
        pass.writes_features = pass.writes && (!batch->sharded || batch->placed || r->number == 0);
        pass.writes_states =
            r->replica->portion.kind == PORTION_LAYER ? pass.writes : pass.writes_features;
        done += fill_pack(r, &pass.pack, batch, done);
        rc = OK;
        if (batch->sharded && is_new_shape(&pass))
            rc = rehearse(&pass, err);
        if (rc == OK)
            rc = run_pass(&pass, nan, err);
        /* in any case: the next one uploads from the same memory; but there is none after a failure
         * of what others take part in, and its end may not come before they know */
        synced = rc == OK || !batch->sharded ? r->ops->sync(r->device, rc == OK ? err : NULL) : rc;
        if (rc != OK || (rc = synced) != OK)
            return rc;
    }
    return OK;
}

int rank_run(struct rank *r, const struct rank_batch *batch, struct error *err)
{
    struct error nan = {0}, why = {0};
    int rc = OK;

    rank_note(r, "begin");
    if (batch->placed)
        rc = placement_begin(r, batch, &why);
    if (rc == OK)
        rc = run_passes(r, batch, &nan, &why);
    if (rc == OK && batch->placed)
        rank_note(r, "exchange");
    if (rc == OK && batch->placed && (rc = placement_exchange(r, batch, &why)) == OK &&
        (rc = placement_download(r, batch, &why)) == OK)
        rc = r->ops->sync(r->device, &why);
    /* the others wait for this rank's part */
    if (rc != OK && (batch->sharded || batch->placed) && r->options.group != NULL) {
        group_abort(r->options.group, why.text);
        rc = ERR_GPU;
    }
    if (rc != OK) {
        error_set(err, why.code, "%s", why.text);
        return rc;
    }
    return nan.code == OK ? OK : error_set(err, nan.code, "%s", nan.text);
}
