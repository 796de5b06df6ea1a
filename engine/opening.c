/* opening.c - a model's files become an engine, and an engine goes away.
 *
 * Each rank opens its device and loads its weights on its own thread, all at once; where all are
 * the host's, the weights are loaded before that, with all threads, once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "engine/engine_private.h"

enum { DEADLINE_MS = 60000 };

/* What all ranks open by. */
struct opening {
    struct engine *e;
    const struct engine_options *options;
};

static int threads_of(const struct engine *e, int rank)
{
    int n = e->n_threads / e->n_local + (rank < e->n_threads % e->n_local);

    return n > 0 ? n : 1;
}

/* Batches that must be replicated leave no choice. */
static enum engine_residency residency_of(const struct engine_options *options)
{
    return options->residency == ENGINE_RESIDENCY_AUTO && options->strategy == ENGINE_REPLICATED
               ? ENGINE_RESIDENCY_REPLICATED
               : options->residency;
}

/* A rank's place in the group, its device, its weights. */
static int open_rank(void *arg, int rank, struct error *err)
{
    const struct opening *o = arg;
    struct engine *e = o->e;
    struct rank_trace *trace = &e->traces[rank];
    struct group *group = NULL;
    struct rank *r = NULL;
    struct rank_options options = {
        .source = &e->source,
        .home = residence_home(e->residence, rank),
        .ops = e->ops,
        .compute = e->compute,
        .gpu = e->gpus[rank],
        .n_threads = threads_of(e, rank),
        .sleeps = residence_sleeps(e->residence),
        .is_saved = residence_sleeps(e->residence) && rank == 0,
        .max_batch_tokens = e->max_batch_tokens,
        .residency = e->residency,
        .shard_by = e->shard_by,
        .progress = rank == 0 ? o->options->progress : NULL,
        .progress_arg = o->options->progress_arg,
        .trace = trace,
    };
    int rc;

    atomic_store(&trace->doing, "meet");
    if (e->n_ranks > 1 &&
        (rc = group_join(&group, e->group_id, e->first_rank + rank, e->n_ranks,
                         OPENING_DEADLINES * e->deadline_ms, e->deadline_ms, err)) != OK)
        return rc;
    atomic_store(&e->groups[rank], group);
    options.group = group;
    if ((rc = rank_open(&r, &options, err)) != OK && group != NULL)
        group_abort(group, err->text); /* the others may wait for it */
    atomic_store(&e->ranks[rank], r);
    return rc;
}

static int close_rank(void *arg, int rank, struct error *err)
{
    struct engine *e = arg;

    (void)err;
    rank_close(e->ranks[rank]);
    group_leave(e->groups[rank]);
    e->ranks[rank] = NULL;
    e->groups[rank] = NULL;
    return OK;
}

/* Ranks of the host read one copy of the weights, unless each is to have a share. */
static bool has_one_home(const struct engine *e)
{
    return e->ops->is_host && e->n_local > 1 && e->residency != ENGINE_RESIDENCY_SHARDED;
}

/* Once for all ranks, with the threads of all, on a device that only loads. */
static int load_for_all(void *arg, int rank, struct error *err)
{
    const struct opening *o = arg;
    const struct engine_options *options = o->options;
    struct engine *e = o->e;
    struct home *home = residence_home(e->residence, 0);
    struct rank_options report = {.trace = &e->traces[rank], /* as if it was the rank's own load */
                                  .progress = options->progress,
                                  .progress_arg = options->progress_arg};
    struct device_options device_options = {.act = rank_act(e->compute),
                                            .float8 = e->compute == DTYPE_F8_E4M3,
                                            .max_rows = 1,
                                            .n_threads = e->n_threads,
                                            .sleeps = options->sleeps};
    struct replica_options replica_options = {
        .source = &e->source,
        .ops = e->ops,
        .act = device_options.act,
        .portion = portion_all(e->n_ranks),
        .progress = rank_note_load,
        .progress_arg = &report,
    };
    int rc;

    if (!has_one_home(e) || e->info.shares_weights)
        return OK;
    atomic_store(&report.trace->doing, "load");
    if ((rc = e->ops->open(&home->device, &device_options, err)) != OK)
        return rc;
    replica_options.device = home->device;
    return replica_load(&home->replica, &replica_options, err);
}

/* Of another engine, where they are the same; else of its own, to be loaded. */
static int find_residence(struct engine *e, const struct engine_options *options, struct error *err)
{
    const struct engine *other = options->share;

    if (other != NULL && other->ops == e->ops && other->compute == e->compute &&
        other->n_ranks == e->n_ranks && other->n_local == e->n_local &&
        other->first_rank == e->first_rank && other->residency == e->residency &&
        other->shard_by == e->shard_by && residence_sleeps(other->residence) == options->sleeps &&
        source_is_same(&e->source, &other->source)) {
        e->residence = residence_share(other->residence);
        e->info.shares_weights = true;
        e->is_asleep = true;
        return engine_wake(e, NULL, err);
    }
    return residence_create(&e->residence, e->ops, has_one_home(e) ? 1 : e->n_local,
                            options->sleeps, err);
}

static int create_router(struct engine *e, enum engine_strategy strategy, const char *routes,
                         struct error *err)
{
    static const enum routing routings[] = {ROUTING_AUTO, ROUTING_SHARDED, ROUTING_REPLICATED,
                                            ROUTING_MEASURED};
    bool shares = e->info.residency == ENGINE_RESIDENCY_SHARDED;
    char weights[ENGINE_DIGEST_SIZE] = "-", backend[64], devices[64];
    bool has_table =
        e->n_ranks > 1 && !shares && (strategy == ENGINE_AUTO || strategy == ENGINE_MEASURED);
    struct router_options options = {
        .routing = shares ? ROUTING_SHARDED : routings[strategy],
        .n_ranks = e->n_ranks,
        .max_tokens = e->info.max_tokens,
        .max_batch_tokens = e->max_batch_tokens,
        .weights = weights,
        .backend = backend,
        .devices = devices,
        .version = PE_VERSION,
    };
    uint64_t peak, total;
    int rc;

    /* what the table belongs to */
    snprintf(backend, sizeof(backend), "%s %s", e->ops->name, dtype_info(e->compute)->name);
    if (has_table && routes != NULL &&
        ((e->routes = strdup(routes)) == NULL ||
         (rc = source_digest(&e->source, e->n_threads, weights, err)) != OK))
        return e->routes == NULL ? error_set(err, ERR_MEM, "engine: no memory") : rc;
    if ((rc = engine_memory(e, &peak, &total, err)) != OK)
        return rc;
    snprintf(devices, sizeof(devices), "%llu MB, %d threads", (unsigned long long)(total >> 20),
             e->n_threads);
    return router_create(&e->router, &options, err);
}

static int check_options(const struct engine_options *options, struct error *err)
{
    if (options->max_batch_tokens < 0 || options->max_batch_tokens > ENGINE_MAX_BATCH_TOKENS)
        return error_set(err, ERR_INPUT, "engine: a batch of %d tokens, at most %d",
                         options->max_batch_tokens, ENGINE_MAX_BATCH_TOKENS);
    if (options->n_ranks < 0 || options->n_ranks > ENGINE_MAX_RANKS)
        return error_set(err, ERR_INPUT, "engine: %d ranks, at most %d", options->n_ranks,
                         ENGINE_MAX_RANKS);
    if (options->residency == ENGINE_RESIDENCY_SHARDED && options->strategy == ENGINE_REPLICATED)
        return error_set(err, ERR_INPUT,
                         "engine: with sharded residency no rank has all of the weights, so a "
                         "batch cannot be replicated: leave the strategy to auto, or the "
                         "residency");
    if (options->group != NULL && options->strategy == ENGINE_MEASURED)
        return error_set(err, ERR_INPUT,
                         "engine: measured times are for ranks of one process: those of several "
                         "would choose apart");
    return OK;
}

static bool is_left_out(const struct engine_options *options, const char *device)
{
    for (int i = 0; i < options->n_left_out; i++)
        if (strcmp(options->left_out[i], device) == 0)
            return true;
    return false;
}

/* The devices that ranks may have, where they can be counted: the visible ones, by number, without
 * those that are left out. */
static int find_devices(struct engine *e, const struct engine_options *options, int *gpus, int *n,
                        int *n_left_out, struct error *err)
{
    int n_visible, rc;

    *n = *n_left_out = 0;
    if ((rc = e->ops->n_devices(&n_visible, err)) != OK)
        return rc;
    for (int gpu = 0; gpu < n_visible && *n < ENGINE_MAX_RANKS; gpu++) {
        char name[OPS_DEVICE_NAME];
        if (options->n_left_out > 0 && e->ops->identify != NULL &&
            e->ops->identify(name, gpu, NULL) == OK && is_left_out(options, name))
            ++*n_left_out;
        else
            gpus[(*n)++] = gpu;
    }
    return OK;
}

/* As many as are wanted, of the devices that there are. */
static int count_ranks(struct engine *e, const struct engine_options *options, struct error *err)
{
    int n, n_left_out, rc;

    e->n_ranks = options->n_ranks > 0 ? options->n_ranks : 1;
    if (e->ops->n_devices == NULL) {
        for (int r = 0; r < e->n_ranks; r++)
            e->gpus[r] = r;
        return OK;
    }
    if ((rc = find_devices(e, options, e->gpus, &n, &n_left_out, err)) != OK)
        return rc;
    if (n == 0)
        return error_set(err, ERR_INPUT, "engine: all %d GPUs are left out", n_left_out);
    if (e->n_ranks > n + n_left_out)
        return error_set(err, ERR_INPUT, "engine: %d ranks are wanted, and there are %d GPUs",
                         e->n_ranks, n + n_left_out);
    if (e->n_ranks > n)
        e->n_ranks = n;
    return OK;
}

/* Which of the group's ranks are here. */
static int name_group(struct engine *e, const struct engine_options *options, struct error *err)
{
    e->n_local = e->n_ranks;
    if (options->group == NULL)
        return group_make_id(e->group_id, err);
    if (options->rank < 0 || options->rank >= e->n_ranks)
        return error_set(err, ERR_INPUT, "engine: rank %d of %d", options->rank, e->n_ranks);
    if (strlen(options->group) >= sizeof(e->group_id))
        return error_set(err, ERR_INPUT, "engine: %.64s: no name of a group", options->group);
    memcpy(e->group_id, options->group, strlen(options->group) + 1);
    e->n_local = 1;
    e->first_rank = options->rank;
    e->gpus[0] = e->gpus[options->rank];
    return OK;
}

/* For messages, and for whoever keeps account of them. One that cannot be asked will fail when it
 * is opened, and say why. */
static void name_devices(struct engine *e)
{
    for (int r = 0; r < e->n_local; r++) {
        char *name = e->devices[r];
        if (e->ops->identify != NULL && e->ops->identify(name, e->gpus[r], NULL) == OK)
            continue;
        if (e->ops->is_host)
            snprintf(name, OPS_DEVICE_NAME, "%s", e->ops->name);
        else
            snprintf(name, OPS_DEVICE_NAME, "%s %d", e->ops->name, e->gpus[r]);
    }
}

static void fill_info(struct engine *e)
{
    bool shares = e->info.shares_weights;

    e->info = e->source.info;
    e->info.shares_weights = shares;
    e->info.backend = e->ops->name;
    e->info.n_ranks = e->n_ranks;
    if (e->max_batch_tokens < e->info.max_tokens)
        e->info.max_tokens = e->max_batch_tokens;
    e->info.residency = e->ranks[0]->replica->portion.kind == PORTION_ALL
                            ? ENGINE_RESIDENCY_REPLICATED
                            : ENGINE_RESIDENCY_SHARDED;
    e->info.shard_by =
        e->ranks[0]->replica->portion.kind == PORTION_LAYER ? ENGINE_BY_LAYER : ENGINE_BY_TENSOR;
    for (int i = 0; i < e->n_local; i++) {
        const struct replica *r = e->ranks[i]->replica;
        if (r->bytes > e->info.weights_bytes)
            e->info.weights_bytes = r->bytes;
        if (r->loaded_bytes > e->info.loaded_bytes)
            e->info.loaded_bytes = r->loaded_bytes;
        if (r->load_s > e->info.load_s)
            e->info.load_s = r->load_s;
    }
    if (e->source.info.is_random) /* they were made, not loaded */
        e->info.load_s = 0.0;
}

_Static_assert((int)ENGINE_GROUP_ID_SIZE == (int)GROUP_ID_SIZE &&
                   (int)ENGINE_MAX_RANKS == (int)GROUP_MAX_RANKS,
               "as the group has them");

int engine_make_group_id(char id[ENGINE_GROUP_ID_SIZE], struct error *err)
{
    return group_make_id(id, err);
}

int engine_open(struct engine **out, const struct engine_options *options, struct error *err)
{
    const struct ops *ops = options->backend == ENGINE_LOOPS  ? ops_loops()
                            : options->backend == ENGINE_CUDA ? ops_cuda()
                                                              : ops_cpu();

    return engine_open_on(out, options, ops, err);
}

int engine_open_on(struct engine **out, const struct engine_options *options, const struct ops *ops,
                   struct error *err)
{
    struct opening opening = {.options = options};
    struct team_watch watch;
    struct engine *e;
    int rc;

    *out = NULL;
    if ((rc = check_options(options, err)) != OK)
        return rc;
    if ((e = calloc(1, sizeof(*e))) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory");
    e->deadline_ms = options->deadline_ms > 0 ? options->deadline_ms : DEADLINE_MS;
    e->max_batch_tokens =
        options->max_batch_tokens > 0 ? options->max_batch_tokens : ENGINE_MAX_TOKENS;
    e->n_threads = options->n_threads > 0 ? options->n_threads : cores_available();
    e->compute = options->compute;
    e->ops = ops;
    e->place = options->place;
    e->failed = options->failed;
    e->failed_arg = options->failed_arg;
    e->residency = residency_of(options);
    e->shard_by = options->shard_by;
    opening.e = e;
    if (e->ops == NULL) {
        rc = error_set(err, ERR_INPUT, "engine: this build has no CUDA backend");
        goto out;
    }
    if ((rc = count_ranks(e, options, err)) != OK ||
        (rc = source_open(&e->source, options, err)) != OK ||
        (rc = name_group(e, options, err)) != OK ||
        (rc = team_start(&e->team, e->n_local, err)) != OK)
        goto out;
    name_devices(e);
    watch = engine_watch_opening(e);
    if ((rc = find_residence(e, options, err)) != OK ||
        (rc = engine_run_opening(e, 1, load_for_all, &opening, &watch, err)) != OK ||
        (rc = engine_run_opening(e, TEAM_ALL, open_rank, &opening, &watch, err)) != OK)
        goto out;
    fill_info(e);
    if ((rc = create_router(e, options->strategy, options->routes, err)) != OK)
        goto out;
    *out = e;
    e = NULL;
out:
    engine_close(e);
    return rc;
}

void engine_close(struct engine *e)
{
    if (e == NULL || (e->team != NULL && team_is_broken(e->team)))
        return; /* a thread that hangs may yet use all of it */
    if (e->has_failed && !e->ops->is_host)
        return; /* nobody knows how long a device that failed takes to be closed */
    /* others that share the weights may be asleep, and wait for this one alone */
    if (e->residence != NULL && residence_is_shared(e->residence))
        engine_sleep(e, NULL);
    if (e->team != NULL)
        team_run(e->team, TEAM_ALL, close_rank, e, NULL, NULL);
    team_stop(e->team);
    residence_leave(e->residence, !e->is_asleep, e->info.shares_weights ? NULL : &e->source);
    if (e->info.shares_weights)
        source_close(&e->source);
    router_free(e->router);
    free(e->routes);
    free(e->items);
    free(e->rank_of);
    free(e->costs);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

int engine_weights_digest(const struct engine *e, char digest[ENGINE_DIGEST_SIZE],
                          struct error *err)
{
    return source_digest(&e->source, e->n_threads, digest, err);
}
