/* full_attention.c - the loop nest of full_attention; a task is one head of one row. Two passes
 * over the block's rows, as in attention.c. */
#include <math.h>

#include "kernels/cpu/device.h"

struct full_args {
    void *o;
    const float *q, *g, *kv; /* g: or NULL */
    int q_stride, kv_stride, Q, P, kv_rows, H, E;
    float scale;
    enum dtype act;
};

static float score(const float *q, const float *k, int E, float scale)
{
    float sum = 0.0f;

    for (int e = 0; e < E; e++)
        sum += q[e] * k[e];
    return sum * scale;
}

static void full_head(void *arg, int index, int thread)
{
    const struct full_args *a = arg;
    int t = index / a->H, h = index % a->H, E = a->E;
    size_t stride = (size_t)a->kv_stride;
    const float *q = a->q + (size_t)t * a->q_stride + (size_t)h * E;
    const float *k = a->kv + (size_t)(t / a->Q) * a->kv_rows * stride + (size_t)h * E;
    const float *v = k + (size_t)a->H * E;
    float out[OPS_MAX_HEAD] = {0}, max = -INFINITY, sum = 0.0f, factor;

    (void)thread;
    for (int j = 0; j < a->P; j++)
        max = fmaxf(max, score(q, k + j * stride, E, a->scale));
    for (int j = 0; j < a->P; j++) {
        float p = expf(score(q, k + j * stride, E, a->scale) - max);
        sum += p;
        for (int e = 0; e < E; e++)
            out[e] += p * v[j * stride + e];
    }
    factor = 1.0f / sum;
    if (a->g != NULL)
        factor *= 2.0f / (1.0f + expf(-a->g[(size_t)t * a->q_stride + h]));
    for (int e = 0; e < E; e++)
        store_act(a->o, a->act, ((size_t)t * a->H + h) * E + e, out[e] * factor);
}

int loops_full_attention(struct device *d, void *o, const void *q, const void *g, int q_stride,
                         const void *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H,
                         int E, float scale, struct error *err)
{
    struct full_args args = {.o = o,
                             .q = q,
                             .g = g,
                             .kv = kv,
                             .q_stride = q_stride,
                             .kv_stride = kv_stride,
                             .Q = Q,
                             .P = P,
                             .kv_rows = kv_rows,
                             .H = H,
                             .E = E,
                             .scale = scale,
                             .act = d->act};

    (void)err;
    pool_run(d->pool, full_head, &args, T * H);
    return OK;
}
