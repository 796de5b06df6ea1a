/* warming.c - what the first pass of its kind costs, paid before anyone waits for it.
 *
 * A backend may choose how to compute a shape by trying ways to do it, load code when it is first
 * used, and record what comes again (kernels/ops.h). So a pass of each size for which it makes
 * plans is run here, to embeddings, as the connectors' first block has a product of tokens too; and
 * then 1, 2, .. prompts, on whose number alone depend the shapes of all else there: twice, as the
 * second time is the one that is recorded. Passes over the tokens are not recorded: what they are
 * told apart by would fit no request but by chance. All ranks do so at once; where there are
 * several, then the same together, as their shares have shapes of their own; together alone, where
 * a share is all they have. */
#include "base/clock.h"
#include "engine/engine_private.h"

/* One pass of n prompts and T tokens in all. */
static int warm_pass(struct rank *r, int n, int T, bool sharded, struct error *err)
{
    int last = r->info->n_layers, rc;
    struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32};
    struct engine_prompt prompts[ENGINE_MAX_BATCH_TOKENS / ENGINE_MAX_TOKENS];
    int which[ENGINE_MAX_BATCH_TOKENS / ENGINE_MAX_TOKENS];
    struct rank_batch batch = {.prompts = prompts, .which = which, .n = n, .sharded = sharded};
    int32_t ids[ENGINE_MAX_TOKENS];

    if (r->info->extractor == 0)
        request = (struct engine_request){.layers = &last, .n_layers = 1, .dtype = DTYPE_F32};
    for (int t = 0; t < ENGINE_MAX_TOKENS; t++)
        ids[t] = (2 + 7919 * t) % r->info->vocabulary;
    for (int b = 0; b < n; b++) { /* as even as it goes */
        prompts[b] = (struct engine_prompt){ids, T / n + (b < T % n), &request};
        which[b] = b;
    }
    r->is_warming = true;
    rc = rank_run(r, &batch, err);
    r->is_warming = false;
    return rc;
}

static int warm_all(struct rank *r, bool sharded, struct error *err)
{
    int n_prompts = r->info->extractor == 0 ? 0 : LTX_MAX_PROMPTS, rc;
    int most = r->options.max_batch_tokens;
    int longest = most < ENGINE_MAX_TOKENS ? most : ENGINE_MAX_TOKENS;

    for (int T = 1; T <= most; T++) {
        T = r->ops->plan_size(T) < most ? r->ops->plan_size(T) : most;
        if ((rc = warm_pass(r, (T + longest - 1) / longest, T, sharded, err)) != OK)
            return rc;
    }
    for (int n = 1; n <= n_prompts && n <= most; n++)
        for (int time = 0; time < 2; time++)
            if ((rc = warm_pass(r, n, n, sharded, err)) != OK)
                return rc;
    return OK;
}

static int warm_alone(void *arg, int rank, struct error *err)
{
    const struct engine *e = arg;

    return warm_all(e->ranks[rank], false, err);
}

static int warm_together(void *arg, int rank, struct error *err)
{
    const struct engine *e = arg;

    return warm_all(e->ranks[rank], true, err);
}

int engine_warm(struct engine *e, double *seconds, struct error *err)
{
    struct team_watch watch = engine_watch_opening(e);
    int64_t start_ns;
    int rc;

    *seconds = 0.0;
    if (e->ranks[0]->ops->plan_size == NULL)
        return engine_find_routes(e, err);
    if ((rc = engine_wake(e, NULL, err)) != OK)
        return rc;
    start_ns = clock_now_ns();
    rc = e->info.residency == ENGINE_RESIDENCY_SHARDED
             ? OK
             : engine_run(e, TEAM_ALL, warm_alone, e, &watch, false, err);
    if (rc == OK && e->n_ranks > 1)
        rc = engine_run(e, TEAM_ALL, warm_together, e, &watch, true, err);
    if (rc == OK)
        *seconds = clock_ms_since(start_ns) / 1e3;
    return rc == OK ? engine_find_routes(e, err) : rc;
}
