#include "engine/worker/proof.h"

#include <math.h>

static int check_numbers(const struct engine_result *r, struct error *err)
{
    for (int i = 0; i < r->n_tensors; i++) {
        const struct engine_tensor *t = &r->tensors[i];
        for (size_t k = 0; t->dtype == DTYPE_F32 && k < t->bytes / sizeof(float); k++)
            if (isnan(((const float *)t->data)[k]))
                return error_set(err, ERR_GPU, "engine: a forward pass of <bos> gives no numbers");
    }
    return OK;
}

int proof_run(struct engine *engine, bool whole, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    const int last[] = {info->n_layers};
    static const int32_t bos[] = {2};
    struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {bos, 1, &request};
    struct engine_result result;
    int rc;

    if (info->extractor > 0) {
        request.level = whole ? ENGINE_EMBEDDINGS : ENGINE_FEATURES;
    } else {
        request.layers = last;
        request.n_layers = 1;
    }
    if ((rc = engine_encode(engine, &prompt, 1, &result, err)) != OK)
        return rc;
    rc = check_numbers(&result, err);
    engine_result_free(&result);
    return rc;
}
