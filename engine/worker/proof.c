#include "engine/worker/proof.h"

/* So many prompts of <bos> alone. */
static int encode(struct engine *engine, const struct engine_request *request, int n,
                  struct error *err)
{
    static const int32_t bos[] = {2};
    struct engine_prompt prompts[ENGINE_MAX_RANKS] = {0};
    struct engine_result results[ENGINE_MAX_RANKS] = {0};
    int rc;

    for (int i = 0; i < n; i++)
        prompts[i] = (struct engine_prompt){bos, 1, request};
    rc = engine_encode(engine, prompts, n, results, err);
    for (int i = 0; i < n; i++)
        engine_result_free(&results[i]);
    return rc;
}

int proof_run(struct engine *engine, bool whole, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    const int last[] = {info->n_layers};
    struct engine_request request = {.dtype = DTYPE_F32};
    struct error why = {0};
    int rc;

    if (info->extractor > 0) {
        request.level = whole ? ENGINE_EMBEDDINGS : ENGINE_FEATURES;
    } else {
        request.layers = last;
        request.n_layers = 1;
    }
    rc = encode(engine, &request, 1, &why);
    /* where one prompt is one rank's, each gets its own */
    if (rc == OK && info->n_ranks > 1 && engine_last_route(engine)->strategy == ENGINE_REPLICATED)
        rc = encode(engine, &request, info->n_ranks, &why);
    if (rc == ERR_FORMAT)
        return error_set(err, ERR_GPU, "engine: a forward pass of <bos> gives no numbers: %s",
                         why.text);
    return rc == OK ? OK : error_set(err, why.code, "%s", why.text);
}
