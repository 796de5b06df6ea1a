/* wide_qk_norm_rope.c - the loop nest of wide_qk_norm_rope; a task is a row. */
#include <math.h>

#include "kernels/cpu/device.h"

struct wide_args {
    float *qkv;
    const float *q_w, *k_w, *cos, *sin;
    int P, H, E, stride;
    bool interleaved;
    float eps;
};

static void norm_and_rotate(const struct wide_args *a, float *x, const float *w, const float *cos,
                            const float *sin)
{
    int E = a->E, W = a->H * E;
    float sum = 0.0f, factor;

    for (int d = 0; d < W; d++)
        sum += x[d] * x[d];
    factor = 1.0f / sqrtf(sum / (float)W + a->eps);
    for (int i = 0; i < W / 2; i++) {
        int first = a->interleaved ? 2 * i : i / (E / 2) * E + i % (E / 2);
        int second = a->interleaved ? first + 1 : first + E / 2;
        float low = x[first] * factor * w[first];
        float high = x[second] * factor * w[second];
        x[first] = low * cos[i] - high * sin[i];
        x[second] = high * cos[i] + low * sin[i];
    }
}

static void wide_row(void *arg, int t, int thread)
{
    const struct wide_args *a = arg;
    int W = a->H * a->E;
    float *row = a->qkv + (size_t)t * a->stride;
    size_t angle = (size_t)(t % a->P) * (W / 2);

    (void)thread;
    norm_and_rotate(a, row, a->q_w, a->cos + angle, a->sin + angle);
    norm_and_rotate(a, row + W, a->k_w, a->cos + angle, a->sin + angle);
}

int loops_wide_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                            const float *cos, const float *sin, int T, int P, int H, int E,
                            int stride, bool interleaved, float eps, struct error *err)
{
    struct wide_args args = {qkv, q_w, k_w, cos, sin, P, H, E, stride, interleaved, eps};

    (void)err;
    pool_run(d->pool, wide_row, &args, T);
    return OK;
}
