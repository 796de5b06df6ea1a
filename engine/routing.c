/* routing.c - the times that a choice of strategy rests on, measured once and kept. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_private.h"

enum { BUDGET_MS = 10000 };

/* A batch as requests have them: to embeddings, or without LTX to the last state. */
static int run_measured(void *arg, enum strategy strategy, int n_prompts, int n_tokens, double *ms,
                        struct error *err)
{
    struct engine *e = arg;
    int last = e->info.n_layers, rc;
    struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_BF16};
    struct engine_prompt *prompts = calloc((size_t)n_prompts, sizeof(*prompts));
    struct engine_route route = {0};
    int32_t ids[ENGINE_MAX_TOKENS];
    int64_t start_ns;

    if (prompts == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for %d prompts", n_prompts);
    if (e->info.extractor == 0)
        request = (struct engine_request){.layers = &last, .n_layers = 1, .dtype = DTYPE_BF16};
    for (int t = 0; t < n_tokens; t++)
        ids[t] = (2 + 7919 * t) % e->info.vocabulary;
    for (int i = 0; i < n_prompts; i++)
        prompts[i] = (struct engine_prompt){ids, n_tokens, &request};
    start_ns = clock_now_ns();
    rc = engine_run_batch(e, prompts, n_prompts, NULL, strategy, &route, err);
    *ms = clock_ms_since(start_ns);
    free(prompts);
    return rc;
}

int engine_find_routes(struct engine *e, struct error *err)
{
    struct error why = {0};
    int rc;

    if (e->n_local < e->n_ranks) /* processes follow the rule: their times would differ */
        return OK;
    if (e->routes != NULL && router_load(e->router, e->routes))
        return OK;
    if ((rc = router_measure(e->router, run_measured, e, BUDGET_MS, err)) != OK)
        return rc;
    if (e->routes != NULL && router_save(e->router, e->routes, &why) != OK)
        log_warn("routes_not_kept", "text=\"%s\"", why.text);
    return OK;
}
