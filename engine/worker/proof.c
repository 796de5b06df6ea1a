#include "engine/worker/proof.h"

int proof_run(struct engine *engine, bool whole, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    const int last[] = {info->n_layers};
    static const int32_t bos[] = {2};
    struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {bos, 1, &request};
    struct engine_result result;
    struct error why = {0};
    int rc;

    if (info->extractor > 0) {
        request.level = whole ? ENGINE_EMBEDDINGS : ENGINE_FEATURES;
    } else {
        request.layers = last;
        request.n_layers = 1;
    }
    rc = engine_encode(engine, &prompt, 1, &result, &why);
    engine_result_free(&result);
    if (rc == ERR_FORMAT)
        return error_set(err, ERR_GPU, "engine: a forward pass of <bos> gives no numbers: %s",
                         why.text);
    return rc == OK ? OK : error_set(err, why.code, "%s", why.text);
}
