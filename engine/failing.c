/* failing.c - the ranks run something, and one of them fails: whose fault that is, and who is told.
 *
 * When one fails all others end with errors, too, often before it: they waited for it. So blame
 * does not go by who was first: the group's first reason counts, and what that rank itself
 * returned. */
#include "engine/engine_private.h"

/* A rank that failed; its own error, as far as it is known. */
struct fault {
    int rank; /* of all of the group */
    bool is_local;
    struct error err;
};

static struct fault find_fault(struct engine *e, const struct error *why)
{
    struct fault f = {.rank = e->first_rank + team_failed_rank(e->team)};
    int failed;

    for (int r = 0; r < e->n_local; r++) {
        struct group *g = atomic_load(&e->groups[r]);
        if (g != NULL && (failed = group_failed_rank(g)) >= 0)
            f.rank = failed;
    }
    f.is_local = f.rank >= e->first_rank && f.rank < e->first_rank + e->n_local;
    /* one that has not returned hangs, and others say so */
    if (!f.is_local || !team_failure(e->team, f.rank - e->first_rank, &f.err))
        error_set(&f.err, f.is_local ? ERR_TIME : ERR_GPU, "%s", why->text);
    return f;
}

static void tell(struct engine *e, const struct fault *f, bool together)
{
    const struct rank_trace *trace = &e->traces[f->is_local ? f->rank - e->first_rank : 0];
    /* who waited too long may have waited for another */
    bool blames = f->err.code == ERR_GPU || (f->err.code == ERR_TIME && !together);
    struct engine_failure failure = {
        .rank = f->rank,
        .device = f->is_local ? e->devices[f->rank - e->first_rank] : NULL,
        .operation = f->is_local ? atomic_load(&trace->doing) : "of another process",
        .text = f->err.text,
        .blames_gpu = f->is_local && !e->ops->is_host && blames,
    };

    if (e->failed != NULL && !e->has_failed)
        e->failed(e->failed_arg, &failure);
    e->has_failed = true;
}

/* As the error of the call. */
static int hand_on(const struct engine *e, const struct fault *f, struct error *err)
{
    return e->n_ranks == 1 ? error_set(err, f->err.code, "%s", f->err.text)
                           : error_set(err, f->err.code, "rank %d: %s", f->rank, f->err.text);
}

static int explain(struct engine *e, int rc, const struct error *why, bool together,
                   struct error *err)
{
    struct fault f;

    if (rc != ERR_GPU)
        return rc == OK ? OK : error_set(err, (enum err_code)rc, "%s", why->text);
    f = find_fault(e, why);
    tell(e, &f, together);
    f.err.code = ERR_GPU;
    return hand_on(e, &f, err);
}

int engine_run(struct engine *e, int ranks, team_fn *fn, void *arg, const struct team_watch *watch,
               bool together, struct error *err)
{
    struct error why = {0};
    int rc = team_run(e->team, ranks, fn, arg, watch, &why);

    return explain(e, rc, &why, together, err);
}

int engine_explain(struct engine *e, int rc, const struct error *why, const char *doing,
                   struct error *err)
{
    for (int r = 0; r < e->n_local; r++)
        atomic_store(&e->traces[r].doing, doing);
    return explain(e, rc, why, false, err);
}

int engine_run_opening(struct engine *e, int ranks, team_fn *fn, void *arg,
                       const struct team_watch *watch, struct error *err)
{
    struct error why = {0};
    struct fault f;
    int rc = team_run(e->team, ranks, fn, arg, watch, &why);

    if (rc == OK)
        return OK;
    f = find_fault(e, &why);
    if (f.err.code == ERR_TIME)
        f.err.code = ERR_GPU;
    if (f.err.code == ERR_GPU || f.err.code == ERR_MEM)
        tell(e, &f, true);
    return hand_on(e, &f, err);
}
