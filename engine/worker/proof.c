#include "engine/worker/proof.h"

#include <math.h>

int proof_run(struct engine *engine, struct error *err)
{
    const int last[] = {engine_info(engine)->n_layers};
    static const int32_t bos[] = {2};
    struct engine_request request = {.layers = last, .n_layers = 1, .dtype = DTYPE_F32};
    struct engine_prompt prompt = {bos, 1, &request};
    struct engine_result result;
    int rc;

    if ((rc = engine_encode(engine, &prompt, 1, &result, err)) != OK)
        return rc;
    for (size_t i = 0; i < result.tensors[0].shape[2] && rc == OK; i++)
        if (isnan(((const float *)result.tensors[0].data)[i]))
            rc = error_set(err, ERR_GPU, "engine: a forward pass of <bos> gives no numbers");
    engine_result_free(&result);
    return rc;
}
