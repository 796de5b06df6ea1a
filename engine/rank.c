#include "engine/rank.h"

#include <stdlib.h>

#include "engine/residency.h"
#include "kernels/group.h"

static int open_device(struct rank *r, struct error *err)
{
    const struct rank_options *o = &r->options;
    struct device_options options = {
        .act = r->act,
        .float8 = o->compute == DTYPE_F8_E4M3,
        .max_rows = rank_max_rows(o->max_batch_tokens),
        .n_threads = o->n_threads,
        .gpu = o->gpu,
        .sleeps = o->sleeps && o->home->device == NULL,
        .like = o->home->device,
    };
    int rc;

    rank_note(r, "open");
    if ((rc = r->ops->open(&r->device, &options, err)) != OK || o->group == NULL)
        return rc;
    rank_note(r, "join");
    return r->ops->join(r->device, o->group, err);
}

void rank_note_load(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    const struct rank_options *o = arg;

    atomic_fetch_add(&o->trace->loaded, 1);
    if (o->progress != NULL)
        o->progress(o->progress_arg, bytes_done, bytes_total);
}

static int find_weights(struct rank *r, struct error *err)
{
    const struct rank_options *o = &r->options;
    struct replica_options options = {
        .source = o->source,
        .ops = r->ops,
        .device = r->device,
        .act = r->act,
        .progress = rank_note_load,
        .progress_arg = &r->options,
    };
    int rc;

    rank_note(r, "load");
    r->replica = &o->home->replica;
    if ((rc = residency_choose(r, &options.portion, err)) != OK || o->home->device != NULL)
        return rc;
    o->home->device = r->device;
    return replica_load(&o->home->replica, &options, err);
}

/* What results pass through on their way out: a prompt's part of a state, its features or its
 * embeddings, in float32 at most. */
static int take_result_memory(struct rank *r, struct error *err)
{
    size_t flags = (size_t)r->options.max_batch_tokens * ENGINE_MAX_TENSORS * sizeof(int32_t);
    size_t part;
    void *memory = NULL;
    int rc;

    if ((r->nans = malloc(flags)) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %zu bytes", flags);
    if ((rc = r->ops->alloc(r->device, &memory, flags, err)) != OK)
        return rc;
    r->has_nan = memory;
    if (r->ops->is_host)
        return OK;
    part = rank_part_bytes(r->info->width, r->info->video_width, r->info->audio_width);
    for (int i = 0; i < OPS_MARKS; i++)
        if ((rc = r->ops->alloc(r->device, &r->leaving[i], part, err)) != OK)
            return rc;
    return OK;
}

int rank_open(struct rank **out, const struct rank_options *options, struct error *err)
{
    size_t T = (size_t)options->max_batch_tokens;
    const struct replica *replica;
    struct rank *r;
    int rc;

    *out = NULL;
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory");
    r->options = *options;
    r->ops = options->ops;
    r->number = options->group != NULL ? group_rank(options->group) : 0;
    r->n_ranks = options->group != NULL ? group_n_ranks(options->group) : 1;
    r->act = rank_act(options->compute);
    r->info = &options->source->info;
    if ((r->ids = calloc(T, sizeof(int32_t))) == NULL ||
        (r->positions = calloc(T, sizeof(int32_t))) == NULL ||
        (r->begin = calloc(T + 1, sizeof(int32_t))) == NULL ||
        (r->embedded = calloc(T, sizeof(int))) == NULL) {
        rc = error_set(err, ERR_MEM, "engine: no memory for %zu tokens", T);
        goto out;
    }
    if ((rc = open_device(r, err)) != OK || (rc = find_weights(r, err)) != OK)
        goto out;
    replica = r->replica;
    rank_note(r, "make room");
    if ((rc = gemma_create(&r->gemma, &options->source->config, replica->weights, r->device,
                           r->number, r->n_ranks, r->act, ENGINE_MAX_TOKENS,
                           options->max_batch_tokens, err)) != OK ||
        (replica->ltx_weights != NULL &&
         (rc = ltx_create(&r->ltx, replica->ltx_weights, r->device, r->number, r->n_ranks, r->act,
                          options->max_batch_tokens, err)) != OK) ||
        (rc = take_result_memory(r, err)) != OK)
        goto out;
    *out = r;
    r = NULL;
out:
    rank_close(r);
    return rc;
}

void rank_close(struct rank *r)
{
    if (r == NULL)
        return;
    ltx_free(r->ltx);
    gemma_free(r->gemma);
    placement_free(r);
    if (r->device != NULL) {
        for (int i = 0; i < OPS_MARKS; i++)
            r->ops->release(r->device, r->leaving[i]);
        r->ops->release(r->device, r->has_nan);
        if (r->device != r->options.home->device)
            r->ops->close(r->device);
        else if (r->options.group != NULL)
            r->ops->join(r->device, NULL, NULL); /* the weights may stay for others */
    }
    free(r->ids);
    free(r->positions);
    free(r->begin);
    free(r->embedded);
    free(r->nans);
    free(r);
}

uint64_t rank_steps(const struct rank *r)
{
    return gemma_steps(r->gemma) + (r->ltx != NULL ? ltx_steps(r->ltx) : 0);
}
