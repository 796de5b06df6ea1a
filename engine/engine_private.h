/* engine_private.h - what an engine holds. For the files of engine/ that are engine.h together:
 * opening.c makes it and takes it apart, engine.c runs batches, warming.c readies it, work.c says
 * what there is to do, failing.c which rank failed. */
#pragma once
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/group/router.h"
#include "engine/group/team.h"
#include "engine/rank.h"
#include "engine/replica.h"
#include "engine/source.h"
#include "kernels/group.h"

enum { OPENING_DEADLINES = 10 };

struct engine {
    struct source source;
    struct engine_info info;
    const struct ops *ops;
    enum dtype compute;
    int n_ranks, n_local, first_rank; /* of the group; of them in this process, and from which on */
    enum engine_place place;
    int n_threads, max_batch_tokens, deadline_ms;
    struct router *router;
    struct engine_route last;

    /* host ranks read one copy of the weights, on a device that only loaded them; else zeros */
    struct device *loader;
    struct replica shared;

    struct team *team;
    char group_id[GROUP_ID_SIZE];
    /* [n_local], each made and ended by its thread */
    struct group *_Atomic groups[ENGINE_MAX_RANKS];
    struct rank *_Atomic ranks[ENGINE_MAX_RANKS];
    /* likewise: which device, its name, and what it does */
    int gpus[ENGINE_MAX_RANKS];
    char devices[ENGINE_MAX_RANKS][OPS_DEVICE_NAME];
    struct rank_trace traces[ENGINE_MAX_RANKS];

    engine_failed_fn *failed; /* told once */
    void *failed_arg;
    bool has_failed;

    /* a batch on its way to the ranks: room for as many prompts as one had */
    int *items, *rank_of;
    double *costs;
    int room;
};

/* team_run(), and whoever wants to know is told of a failure that ends the engine (ERR_GPU).
 * `together`: ranks wait for each other, so that of one that waited too long it cannot be said that
 * its device is at fault. */
int engine_run(struct engine *e, int ranks, team_fn *fn, void *arg, const struct team_watch *watch,
               bool together, struct error *err);
/* The same while the engine opens, where every failure ends it: what comes back, and is told, is
 * that of the rank which failed by itself. */
int engine_run_opening(struct engine *e, int ranks, team_fn *fn, void *arg,
                       const struct team_watch *watch, struct error *err);

/* Runs fn on the first rank's thread; arg is the function's. */
int engine_on_first(struct engine *e, team_fn *fn, void *arg, struct error *err);

/* A rank that takes no step for the deadline hangs; engine_watch_opening(): none while it opens or
 * is warmed, for ten times as long. */
struct team_watch engine_watch(struct engine *e);
struct team_watch engine_watch_opening(struct engine *e);
