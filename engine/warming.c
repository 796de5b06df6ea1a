/* warming.c - what the first pass of its kind costs, paid before anyone waits for it.
 *
 * A backend may choose how to compute a shape by trying ways to do it, load code when it is first
 * used, and record what comes again (kernels/ops.h). So a pass of each size for which it makes
 * plans is run here, to embeddings, as the connectors' first block has a product of tokens too; and
 * then 1, 2, .. prompts, on whose number alone depend the shapes of all else there: twice, as the
 * second time is the one that is recorded. Passes over the tokens are not recorded: what they are
 * told apart by would fit no request but by chance. */
#include "base/clock.h"
#include "engine/engine_private.h"

/* One pass of n prompts and T tokens in all. */
static int warm_pass(struct engine *e, int n, int T, struct error *err)
{
    int last = e->info.n_layers, rc;
    struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32};
    struct engine_prompt prompts[ENGINE_MAX_BATCH_TOKENS / ENGINE_MAX_TOKENS];
    int32_t ids[ENGINE_MAX_TOKENS];

    if (e->info.extractor == 0)
        request = (struct engine_request){.layers = &last, .n_layers = 1, .dtype = DTYPE_F32};
    for (int t = 0; t < ENGINE_MAX_TOKENS; t++)
        ids[t] = (2 + 7919 * t) % e->info.vocabulary;
    for (int b = 0; b < n; b++) /* as even as it goes */
        prompts[b] = (struct engine_prompt){ids, T / n + (b < T % n), &request};
    e->is_warming = true;
    rc = engine_compute(e, prompts, n, err);
    e->is_warming = false;
    return rc;
}

int engine_warm(struct engine *e, double *seconds, struct error *err)
{
    int n_prompts = e->info.extractor == 0 ? 0 : LTX_MAX_PROMPTS, rc;
    int64_t start_ns = clock_now_ns();

    *seconds = 0.0;
    if (e->ops->plan_size == NULL)
        return OK;
    for (int T = 1; T <= e->max_batch_tokens; T++) {
        T = e->ops->plan_size(T) < e->max_batch_tokens ? e->ops->plan_size(T) : e->max_batch_tokens;
        if ((rc = warm_pass(e, (T + e->info.max_tokens - 1) / e->info.max_tokens, T, err)) != OK)
            return rc;
    }
    for (int n = 1; n <= n_prompts && n <= e->max_batch_tokens; n++)
        for (int time = 0; time < 2; time++)
            if ((rc = warm_pass(e, n, n, err)) != OK)
                return rc;
    *seconds = clock_ms_since(start_ns) / 1e3;
    return OK;
}
