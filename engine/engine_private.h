/* engine_private.h - what an engine holds. For the files of engine/ that are engine.h together:
 * opening.c makes it and takes it apart, engine.c runs batches, warming.c readies it, work.c says
 * what there is to do. */
#pragma once
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/group/router.h"
#include "engine/group/team.h"
#include "engine/rank.h"
#include "engine/residence.h"
#include "engine/source.h"
#include "kernels/group.h"

struct engine {
    struct source source;
    struct engine_info info;
    const struct ops *ops;
    enum dtype compute;
    int n_ranks, n_local, first_rank; /* of the group; of them in this process, and from which on */
    enum engine_place place;
    enum engine_residency residency; /* as it was asked for */
    enum engine_shard_by shard_by;
    int n_threads, max_batch_tokens, deadline_ms;
    struct router *router;
    struct engine_route last;

    struct residence *residence; /* its weights */
    _Atomic bool is_asleep;

    struct team *team;
    char group_id[GROUP_ID_SIZE];
    /* [n_local], each made and ended by its thread */
    struct group *groups[ENGINE_MAX_RANKS];
    struct rank *ranks[ENGINE_MAX_RANKS];

    /* a batch on its way to the ranks: room for as many prompts as one had */
    int *items, *rank_of;
    double *costs;
    int room;
};

/* engine_open() on a table of ops; NULL: this build has no such. */
int engine_open_on(struct engine **out, const struct engine_options *options, const struct ops *ops,
                   struct error *err);

/* Runs fn on all ranks' threads, or on the first's; arg is the function's. */
int engine_on_all(struct engine *e, team_fn *fn, void *arg, struct error *err);
int engine_on_first(struct engine *e, team_fn *fn, void *arg, struct error *err);

/* The same, watched: a rank that takes no step for the deadline hangs. */
struct team_watch engine_watch(struct engine *e);
