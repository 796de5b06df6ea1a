/* rmsnorm.c - the loop nests of rmsnorm and add_rmsnorm; a task is a row. */
#include <math.h>

#include "kernels/cpu/device.h"

struct rmsnorm_args {
    void *y; /* NULL: add to h */
    enum dtype y_type;
    float *h;
    const float *x, *w;
    int stride, D;
    float eps, scale;
};

static void rmsnorm_row(void *arg, int t, int thread)
{
    const struct rmsnorm_args *a = arg;
    const float *x = a->x + (size_t)t * a->D;
    float sum = 0.0f, factor;

    (void)thread;
    for (int d = 0; d < a->D; d++)
        sum += x[d] * x[d];
    factor = 1.0f / sqrtf(sum / (float)a->D + a->eps);
    for (int d = 0; d < a->D; d++) {
        size_t i = (size_t)t * a->stride + d;
        float value = x[d] * factor;
        if (a->w != NULL)
            value *= a->w[d];
        if (a->y == NULL)
            a->h[i] = (a->h[i] + value) * a->scale;
        else
            store_act(a->y, a->y_type, i, value);
    }
}

int loops_rmsnorm(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                  const float *w, int T, int D, float eps, struct error *err)
{
    struct rmsnorm_args args = {
        .y = y, .y_type = y_type, .x = x, .w = w, .stride = stride, .D = D, .eps = eps};

    (void)err;
    pool_run(d->pool, rmsnorm_row, &args, T);
    return OK;
}

int loops_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale,
                      int T, int D, float eps, struct error *err)
{
    struct rmsnorm_args args = {
        .h = h, .x = x, .w = w, .stride = D, .D = D, .eps = eps, .scale = scale};

    (void)err;
    pool_run(d->pool, rmsnorm_row, &args, T);
    return OK;
}
