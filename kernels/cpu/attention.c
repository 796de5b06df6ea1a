/* attention.c - the loop nest of attention; a task is one query head of one token.
 *
 * Two passes over the keys that the token may see: the largest score, then the exponentials and
 * the values they weigh. Scores are computed again in the second pass, so that no scratch space as
 * long as the prompt is needed. */
#include <math.h>

#include "kernels/cpu/device.h"

struct attention_args {
    void *o;
    const float *qkv;
    const int32_t *begin;
    int B, H, K, E, window;
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

static void attention_head(void *arg, int index, int thread)
{
    const struct attention_args *a = arg;
    int t = index / a->H, h = index % a->H, E = a->E, b = 0, first;
    size_t stride = (size_t)(a->H + 2 * a->K) * E;
    const float *q = a->qkv + t * stride + (size_t)h * E;
    const float *k = a->qkv + (size_t)(a->H + h / (a->H / a->K)) * E;
    const float *v = k + (size_t)a->K * E;
    float out[OPS_MAX_HEAD] = {0}, max = -INFINITY, sum = 0.0f;

    (void)thread;
    while (t >= a->begin[b + 1])
        b++;
    first = a->begin[b];
    if (t - first >= a->window)
        first = t - a->window + 1;
    for (int j = first; j <= t; j++)
        max = fmaxf(max, score(q, k + j * stride, E, a->scale));
    for (int j = first; j <= t; j++) {
        float p = expf(score(q, k + j * stride, E, a->scale) - max);
        sum += p;
        for (int e = 0; e < E; e++)
            out[e] += p * v[j * stride + e];
    }
    for (int e = 0; e < E; e++)
        store_act(a->o, a->act, ((size_t)t * a->H + h) * E + e, out[e] / sum);
}

int loops_attention(struct device *d, void *o, const void *qkv, const int32_t *begin, int B, int T,
                    int H, int K, int E, float scale, int window, struct error *err)
{
    struct attention_args args = {o, qkv, begin, B, H, K, E, window, scale, d->act};

    (void)err;
    pool_run(d->pool, attention_head, &args, T * H);
    return OK;
}
