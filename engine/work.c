/* work.c - what a pass has to do at the least, and what the device could do at its best: the floor
 * that measured times are held against; and what memory all that took. */
#include "engine/engine_private.h"

struct engine_work engine_work(const struct engine *e, const int *n_tokens, int n_prompts)
{
    const struct gemma_config *c = &e->config;
    double size = (double)dtype_info(e->compute)->bytes, T = 0.0, pairs = 0.0;
    struct engine_work work = {0};

    for (int i = 0; i < n_prompts; i++) {
        T += n_tokens[i];
        pairs += 0.5 * n_tokens[i] * (n_tokens[i] + 1.0);
    }
    for (int i = 0; i < c->L; i++) {
        const struct gemma_attention *a = gemma_attention_of(c, i);
        double heads = (double)c->H * a->E, cached = 2.0 * a->K * a->E;
        double weights = (2.0 * heads + cached) * c->D + 3.0 * c->F * c->D;
        work.gemma.bytes += weights * size;
        work.gemma.operations += 2.0 * weights * T + 4.0 * heads * pairs;
    }
    if (e->ltx_weights != NULL) {
        double projection = (double)e->ltx_weights->projection.width * c->D * (c->L + 1.0);
        work.extractor.bytes = projection * size;
        work.extractor.operations = 2.0 * projection * T;
    }
    for (int m = 0; e->ltx_weights != NULL && m < LTX_N_MODALITIES; m++) {
        const struct ltx_connector_config *k = &e->ltx_weights->config.connectors[m];
        double W = k->W, rows = (double)ENGINE_ROWS * n_prompts;
        double block = 12.0 * W * W + (e->ltx_weights->config.gated ? W * k->H : 0.0);
        work.connectors.bytes += k->L * block * size;
        work.connectors.operations += k->L * rows * (2.0 * block + 4.0 * W * ENGINE_ROWS);
        if (k->L > 0) /* q, k, v and gate of registers are there already (engine/ltx/ltx.c) */
            work.connectors.operations -= 2.0 * (rows - T) * (block - 9.0 * W * W);
    }
    return work;
}

int engine_measure(struct engine *e, double *bytes_per_s, double *operations_per_s,
                   struct error *err)
{
    int rc;

    *bytes_per_s = *operations_per_s = 0.0;
    if (e->ops->measure == NULL)
        return OK;
    if ((rc = e->ops->bind(e->device, err)) != OK)
        return rc;
    return e->ops->measure(e->device, bytes_per_s, operations_per_s, err);
}

int engine_memory(struct engine *e, uint64_t *peak_bytes, uint64_t *total_bytes, struct error *err)
{
    struct device_memory memory;
    int rc;

    *peak_bytes = *total_bytes = 0;
    if ((rc = e->ops->bind(e->device, err)) != OK ||
        (rc = e->ops->memory(e->device, &memory, err)) != OK)
        return rc;
    *peak_bytes = memory.peak;
    *total_bytes = memory.total;
    return OK;
}
