/* qk_norm_rope.c - the loop nest of qk_norm_rope; a task is a token. */
#include <math.h>

#include "kernels/cpu/device.h"

struct qk_args {
    float *qkv;
    const float *q_w, *k_w, *cos, *sin;
    const int32_t *positions;
    int H, K, E;
    float eps;
    bool norm_v;
};

/* 1 / sqrt(mean(head^2) + eps) */
static float norm_factor(const float *head, int E, float eps)
{
    float sum = 0.0f;

    for (int e = 0; e < E; e++)
        sum += head[e] * head[e];
    return 1.0f / sqrtf(sum / (float)E + eps);
}

static void norm_and_rotate(float *head, const float *w, const float *cos, const float *sin, int E,
                            float eps)
{
    float factor = norm_factor(head, E, eps);
    int half = E / 2;

    for (int e = 0; e < half; e++) {
        float low = head[e] * factor * w[e];
        float high = head[e + half] * factor * w[e + half];
        head[e] = low * cos[e] - high * sin[e];
        head[e + half] = high * cos[e] + low * sin[e];
    }
}

static void qk_token(void *arg, int t, int thread)
{
    const struct qk_args *a = arg;
    float *row = a->qkv + (size_t)t * (a->H + 2 * a->K) * a->E;
    size_t angle = (size_t)a->positions[t] * (a->E / 2);

    (void)thread;
    for (int h = 0; h < a->H + a->K; h++)
        norm_and_rotate(row + (size_t)h * a->E, h < a->H ? a->q_w : a->k_w, a->cos + angle,
                        a->sin + angle, a->E, a->eps);
    for (int h = a->H + a->K; a->norm_v && h < a->H + 2 * a->K; h++) {
        float *head = row + (size_t)h * a->E, factor = norm_factor(head, a->E, a->eps);
        for (int e = 0; e < a->E; e++)
            head[e] *= factor;
    }
}

int loops_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                       const float *cos, const float *sin, const int32_t *positions, int T, int H,
                       int K, int E, float eps, bool norm_v, struct error *err)
{
    struct qk_args args = {qkv, q_w, k_w, cos, sin, positions, H, K, E, eps, norm_v};

    (void)err;
    pool_run(d->pool, qk_token, &args, T);
    return OK;
}
