/* engine.c - see engine.h: batches to the ranks. Opened and closed in opening.c.
 *
 * A replicated batch is spread over the ranks, each of which runs its prompts by itself; a sharded
 * one is run by all of them in step. Either way each rank writes straight into the results. */
#include "engine/engine.h"

#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_private.h"
#include "engine/group/spread.h"
#include "engine/result.h"

/* ---- the ranks ---- */

static uint64_t steps_of(void *arg, int rank)
{
    const struct engine *e = arg;

    return rank_steps(e->ranks[rank]);
}

static uint64_t opening_steps_of(void *arg, int rank)
{
    struct engine *e = arg;
    struct rank *r = atomic_load(&e->ranks[rank]);

    return atomic_load(&e->traces[rank].loaded) + (r != NULL ? rank_steps(r) : 0);
}

static bool waits(void *arg, int rank)
{
    struct engine *e = arg;
    struct group *g = atomic_load(&e->groups[rank]);

    return g != NULL && group_is_waiting(g);
}

static void give_up(void *arg, int rank, const char *why)
{
    struct engine *e = arg;
    struct group *g = atomic_load(&e->groups[rank]);

    if (g != NULL)
        group_abort(g, why);
}

struct team_watch engine_watch(struct engine *e)
{
    return (struct team_watch){steps_of, waits, give_up, e, e->deadline_ms};
}

struct team_watch engine_watch_opening(struct engine *e)
{
    return (struct team_watch){opening_steps_of, waits, give_up, e,
                               OPENING_DEADLINES * e->deadline_ms};
}

int engine_on(struct engine *e, int ranks, team_fn *fn, void *arg, struct error *err)
{
    struct team_watch watch = {NULL, NULL, give_up, e, 0};

    return engine_run(e, ranks, fn, arg, &watch, false, err);
}

/* ---- a batch ---- */

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

/* Room to plan a batch of n prompts. */
static int reserve(struct engine *e, int n, struct error *err)
{
    size_t count = (size_t)n;

    if (n <= e->room)
        return OK;
    free(e->items);
    free(e->rank_of);
    free(e->costs);
    e->items = calloc(count, sizeof(*e->items));
    e->rank_of = calloc(count, sizeof(*e->rank_of));
    e->costs = calloc(count, sizeof(*e->costs));
    e->room = e->items != NULL && e->rank_of != NULL && e->costs != NULL ? n : 0;
    return e->room > 0 ? OK : error_set(err, ERR_MEM, "engine: no memory for %d prompts", n);
}

/* About how long a prompt takes beside others, in tokens: what goes through connectors is a whole
 * sequence there, of blocks that are a third of Gemma's layers in arithmetic. */
static double cost_of(const struct engine_prompt *prompt)
{
    return prompt->n + (prompt->request->level == ENGINE_EMBEDDINGS ? ENGINE_ROWS / 3.0 : 0.0);
}

/* What the ranks run by. */
struct work {
    struct engine *e;
    int64_t start_ns;
    struct engine_route *route; /* each rank notes its own part */
    struct rank_batch batch;
    struct spread spread; /* of a batch that is not sharded */
};

static int run_rank(void *arg, int rank, struct error *err)
{
    const struct work *w = arg;
    struct rank_batch batch = w->batch;
    int number = w->e->first_rank + rank, rc;

    if (!batch.sharded) {
        batch.which = w->spread.items + w->spread.begin[number];
        batch.n = w->spread.begin[number + 1] - w->spread.begin[number];
    }
    w->route->ranks[number].n_prompts = batch.n;
    w->route->ranks[number].begin_ms = clock_ms_since(w->start_ns);
    rc = rank_run(w->e->ranks[rank], &batch, err);
    w->route->ranks[number].end_ms = clock_ms_since(w->start_ns);
    return rc;
}

/* The ranks of this process that have something to do. */
static int busy_ranks(const struct work *w)
{
    const int *begin = w->spread.begin + w->e->first_rank;
    int ranks = 0;

    if (w->batch.sharded || w->batch.placed)
        return TEAM_ALL;
    for (int r = 0; r < w->e->n_local; r++)
        if (begin[r] < begin[r + 1])
            ranks |= 1 << r;
    return ranks;
}

static bool is_process_group(const struct engine *e)
{
    return e->n_local < e->n_ranks;
}

/* Who takes which prompts, and who hands out their results. */
static void give_out(struct work *w)
{
    struct engine *e = w->e;
    int n = w->batch.n_prompts;

    w->spread.items = e->items;
    w->spread.rank_of = e->rank_of;
    w->batch.rank_of = e->rank_of;
    if (!w->batch.sharded) {
        for (int i = 0; i < n; i++)
            e->costs[i] = cost_of(&w->batch.prompts[i]);
        spread_prompts(&w->spread, e->costs, n, e->n_ranks);
        return;
    }
    for (int i = 0; i < n; i++) {
        e->items[i] = i;
        e->rank_of[i] = i % e->n_ranks;
    }
    w->batch.which = e->items;
    w->batch.n = n;
}

int engine_run_batch(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                     struct engine_result *results, enum strategy strategy,
                     struct engine_route *route, struct error *err)
{
    struct work w = {.e = e,
                     .start_ns = clock_now_ns(),
                     .route = route,
                     .batch = {.prompts = prompts, .results = results, .n_prompts = n_prompts}};
    struct team_watch watch = engine_watch(e);
    struct error why = {0};
    int rc;

    if ((rc = reserve(e, n_prompts, err)) != OK ||
        (is_process_group(e) &&
         (rc = engine_agree(e, prompts, n_prompts, results != NULL, &strategy, err)) != OK))
        return rc;
    route->strategy = strategy == STRATEGY_SHARDED ? ENGINE_SHARDED : ENGINE_REPLICATED;
    w.batch.sharded = strategy == STRATEGY_SHARDED && e->n_ranks > 1;
    w.batch.placed =
        e->place == ENGINE_PLACE_ALL || (is_process_group(e) && w.batch.sharded && results != NULL);
    w.batch.all_download = is_process_group(e) && e->place == ENGINE_PLACE_ALL;
    give_out(&w);
    rc = engine_run(e, busy_ranks(&w), run_rank, &w, &watch, w.batch.sharded || w.batch.placed,
                    &why);
    if (rc == ERR_FORMAT)
        return error_set(err, ERR_FORMAT, "%s: %s", why.text, source_damage(&e->source));
    return rc == OK ? OK : error_set(err, (enum err_code)rc, "%s", why.text);
}

/* ---- sleeping ---- */

int engine_sleep(struct engine *e, struct error *err)
{
    struct team_watch watch = engine_watch_opening(e);
    struct error why = {0};
    int rc;

    if (!residence_sleeps(e->residence))
        return error_set(err, ERR_INPUT, "engine: it was not opened to sleep");
    if (e->is_asleep)
        return OK;
    rc = residence_sleep(e->residence, e->team, &watch, &why);
    e->is_asleep = rc == OK;
    return engine_explain(e, rc, &why, "sleep", err);
}

int engine_wake(struct engine *e, double *seconds, struct error *err)
{
    struct team_watch watch = engine_watch_opening(e);
    int64_t start_ns = clock_now_ns();
    struct error why = {0};
    int rc;

    if (seconds != NULL)
        *seconds = 0.0;
    if (!e->is_asleep)
        return OK;
    if ((rc = residence_wake(e->residence, e->team, &watch, &why)) != OK)
        return engine_explain(e, rc, &why, "wake", err);
    e->is_asleep = false;
    if (seconds != NULL)
        *seconds = clock_ms_since(start_ns) / 1e3;
    return OK;
}

bool engine_is_asleep(const struct engine *e)
{
    return e->is_asleep;
}

/* ---- a batch, on its way ---- */

/* Chooses how, runs it, and notes how long that took. */
static int route_batch(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                       struct engine_result *results, struct error *err)
{
    struct engine_route last = {0};
    struct route route;
    int64_t start_ns;
    double wake_s;
    int rc;

    if (n_prompts == 0)
        return OK;
    if ((rc = engine_wake(e, &wake_s, err)) != OK || (rc = reserve(e, n_prompts, err)) != OK)
        return rc;
    start_ns = clock_now_ns();
    for (int i = 0; i < n_prompts; i++)
        e->items[i] = prompts[i].n;
    route = router_choose(e->router, e->items, n_prompts);
    if ((rc = engine_run_batch(e, prompts, n_prompts, results, route.strategy, &last, err)) != OK)
        return rc;
    last.reason = route.reason;
    last.predicted_ms = route.predicted_ms;
    last.ms = clock_ms_since(start_ns);
    last.wake_ms = wake_s * 1e3;
    router_note(e->router, &route, last.ms);
    last.ratio = router_ratio(e->router, route.strategy);
    e->last = last;
    return OK;
}

/* Whether this process hands out that prompt's result, after a batch. */
static bool is_ours(const struct engine *e, int prompt)
{
    return !is_process_group(e) || e->place == ENGINE_PLACE_ALL ||
           e->rank_of[prompt] == e->first_rank;
}

int engine_encode(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                  struct engine_result *results, struct error *err)
{
    int rc;

    if (results == NULL && e->place != ENGINE_PLACE_ALL)
        return error_set(err, ERR_INPUT, "engine: nowhere for results");
    for (int i = 0; results != NULL && i < n_prompts; i++)
        results[i] = (struct engine_result){0};
    if ((rc = check_prompts(e, prompts, n_prompts, err)) != OK)
        return rc;
    for (int i = 0; results != NULL && i < n_prompts; i++)
        if ((rc = result_create(&results[i], &e->info, &prompts[i], err)) != OK)
            goto out;
    rc = route_batch(e, prompts, n_prompts, results, err);
out:
    for (int i = 0; results != NULL && i < n_prompts; i++) {
        if (rc != OK && team_is_broken(e->team)) /* a rank that hangs may yet write to it */
            results[i] = (struct engine_result){0};
        if (rc != OK || !is_ours(e, i))
            engine_result_free(&results[i]);
    }
    return rc;
}

int engine_compute(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                   struct error *err)
{
    int rc;

    if ((rc = check_prompts(e, prompts, n_prompts, err)) != OK)
        return rc;
    return route_batch(e, prompts, n_prompts, NULL, err);
}

const struct engine_result *engine_placed(const struct engine *e, int rank)
{
    bool there = rank >= e->first_rank && rank < e->first_rank + e->n_local;

    return there && e->place == ENGINE_PLACE_ALL ? e->ranks[rank - e->first_rank]->placement.results
                                                 : NULL;
}

struct reading {
    struct rank *r;
    const struct engine_tensor *from;
    void *to;
};

static int read_tensor(void *arg, int rank, struct error *err)
{
    const struct reading *reading = arg;

    (void)rank;
    return reading->r->ops->download(reading->r->device, reading->to, reading->from->data,
                                     reading->from->bytes, err);
}

int engine_read_placed(struct engine *e, int rank, int prompt, int tensor, void *to,
                       struct error *err)
{
    const struct engine_result *placed = engine_placed(e, rank);
    struct reading reading = {.to = to};

    if (placed == NULL || prompt < 0 || prompt >= e->ranks[rank - e->first_rank]->placement.n ||
        tensor < 0 || tensor >= placed[prompt].n_tensors)
        return error_set(err, ERR_INPUT, "engine: rank %d has no tensor %d of prompt %d", rank,
                         tensor, prompt);
    reading.r = e->ranks[rank - e->first_rank];
    reading.from = &placed[prompt].tensors[tensor];
    return engine_on(e, 1 << (rank - e->first_rank), read_tensor, &reading, err);
}

const struct engine_route *engine_last_route(const struct engine *e)
{
    return &e->last;
}

uint64_t engine_steps(const struct engine *e)
{
    uint64_t steps = 0;

    for (int r = 0; r < e->n_local; r++)
        steps += rank_steps(e->ranks[r]);
    return steps;
}
