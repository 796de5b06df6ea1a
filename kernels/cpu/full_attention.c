/* full_attention.c - the loop nest of full_attention; a task is one head of one row. Two passes
 * over the block's rows, as in attention.c. */
#include <math.h>

#include "kernels/cpu/device.h"

struct full_args {
    void *o;
    const float *qkvg;
    int P, H, E;
    float scale;
    bool gated;
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
    int t = index / a->H, h = index % a->H, E = a->E, W = a->H * E;
    size_t stride = (size_t)3 * W + (a->gated ? (size_t)a->H : 0);
    const float *q = a->qkvg + t * stride + (size_t)h * E;
    const float *k = a->qkvg + (size_t)(t / a->P * a->P) * stride + W + (size_t)h * E;
    const float *v = k + W;
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
    if (a->gated)
        factor *= 2.0f / (1.0f + expf(-a->qkvg[t * stride + (size_t)3 * W + h]));
    for (int e = 0; e < E; e++)
        store_act(a->o, a->act, ((size_t)t * a->H + h) * E + e, out[e] * factor);
}

int loops_full_attention(struct device *d, void *o, const void *qkvg, int T, int P, int H, int E,
                         float scale, bool gated, struct error *err)
{
    struct full_args args = {o, qkvg, P, H, E, scale, gated, d->act};

    (void)err;
    pool_run(d->pool, full_head, &args, T * H);
    return OK;
}
