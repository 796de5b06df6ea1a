/* work.c - what a pass has to do at the least, and what the device could do at its best: the floor
 * that measured times are held against; and what memory all that took. */
#include "engine/engine_private.h"

struct engine_work engine_work(const struct engine *e, const int *n_tokens, int n_prompts)
{
    const struct gemma_config *c = &e->source.config;
    const struct ltx_weights *ltx = e->ranks[0]->replica->ltx_weights;
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
    if (ltx != NULL) {
        double projection = (double)ltx->projection.width * c->D * (c->L + 1.0);
        work.extractor.bytes = projection * size;
        work.extractor.operations = 2.0 * projection * T;
    }
    for (int m = 0; ltx != NULL && m < LTX_N_MODALITIES; m++) {
        const struct ltx_connector_config *k = &ltx->config.connectors[m];
        double W = k->W, rows = (double)ENGINE_ROWS * n_prompts;
        double block = 12.0 * W * W + (ltx->config.gated ? W * k->H : 0.0);
        work.connectors.bytes += k->L * block * size;
        work.connectors.operations += k->L * rows * (2.0 * block + 4.0 * W * ENGINE_ROWS);
        if (k->L > 0) /* q, k, v and gate of registers are there already (engine/ltx/ltx.c) */
            work.connectors.operations -= 2.0 * (rows - T) * (block - 9.0 * W * W);
    }
    return work;
}

/* What is asked of the first rank's device. */
struct question {
    struct engine *e;
    double bytes_per_s, operations_per_s;
    struct device_memory memory;
};

static int measure_device(void *arg, int rank, struct error *err)
{
    struct question *q = arg;
    struct rank *r = q->e->ranks[rank];

    if (r->ops->measure == NULL)
        return OK;
    return r->ops->measure(r->device, &q->bytes_per_s, &q->operations_per_s, err);
}

static int measure_memory(void *arg, int rank, struct error *err)
{
    struct question *q = arg;
    struct rank *r = q->e->ranks[rank];

    return r->ops->memory(r->device, &q->memory, err);
}

int engine_measure(struct engine *e, double *bytes_per_s, double *operations_per_s,
                   struct error *err)
{
    struct question q = {.e = e};
    int rc = engine_on(e, 1, measure_device, &q, err);

    *bytes_per_s = q.bytes_per_s;
    *operations_per_s = q.operations_per_s;
    return rc;
}

int engine_memory(struct engine *e, uint64_t *peak_bytes, uint64_t *total_bytes, struct error *err)
{
    struct question q = {.e = e};
    int rc = engine_on(e, 1, measure_memory, &q, err);

    *peak_bytes = q.memory.peak;
    *total_bytes = q.memory.total;
    return rc;
}
