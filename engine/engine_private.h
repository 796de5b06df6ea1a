/* engine_private.h - what an engine holds. For the files of engine/ that are engine.h together:
 * opening.c makes it and takes it apart, engine.c runs batches, agreement.c lets processes agree on
 * them, routing.c has the times to choose by, warming.c readies it, work.c says what there is to
 * do, failing.c which rank failed. */
#pragma once
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/group/router.h"
#include "engine/group/team.h"
#include "engine/rank.h"
#include "engine/residence.h"
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
    enum engine_residency residency; /* as it was asked for */
    enum engine_shard_by shard_by;
    int n_threads, max_batch_tokens, deadline_ms;
    struct router *router;
    char *routes; /* where its table is kept; NULL: nowhere */
    struct engine_route last;

    struct residence *residence; /* its weights */
    _Atomic bool is_asleep;

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

/* engine_open() on a table of ops; NULL: this build has no such. */
int engine_open_on(struct engine **out, const struct engine_options *options, const struct ops *ops,
                   struct error *err);

/* A batch of prompts that have been checked, by that strategy; results NULL: what is computed stays
 * on the devices. */
int engine_run_batch(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                     struct engine_result *results, enum strategy strategy,
                     struct engine_route *route, struct error *err);

/* All processes of the group have that batch, and take the first one's strategy. */
int engine_agree(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                 bool has_results, enum strategy *strategy, struct error *err);

/* The router's table, from where it is kept or measured now; nothing where it needs none. */
int engine_find_routes(struct engine *e, struct error *err);

/* team_run(), and whoever wants to know is told of a failure that ends the engine (ERR_GPU).
 * `together`: ranks wait for each other, so that of one that waited too long it cannot be said that
 * its device is at fault. */
int engine_run(struct engine *e, int ranks, team_fn *fn, void *arg, const struct team_watch *watch,
               bool together, struct error *err);
/* The same while the engine opens, where every failure ends it: what comes back, and is told, is
 * that of the rank which failed by itself. */
int engine_run_opening(struct engine *e, int ranks, team_fn *fn, void *arg,
                       const struct team_watch *watch, struct error *err);

/* The same for what somebody else ran on the engine's team, and what it was: a constant word. */
int engine_explain(struct engine *e, int rc, const struct error *why, const char *doing,
                   struct error *err);

/* engine_run() of what may take any time, each rank by itself. */
int engine_on(struct engine *e, int ranks, team_fn *fn, void *arg, struct error *err);

/* A rank that takes no step for the deadline hangs; engine_watch_opening(): none while it opens or
 * is warmed, for ten times as long. */
struct team_watch engine_watch(struct engine *e);
struct team_watch engine_watch_opening(struct engine *e);
