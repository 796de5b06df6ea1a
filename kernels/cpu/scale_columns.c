/* scale_columns.c - the loop nest of scale_columns; a task is a row. */
#include "kernels/cpu/device.h"

struct scale_args {
    float *y;
    const float *x, *bias;
    int y_stride, x_stride, N;
    float scale;
};

static void scale_row(void *arg, int t, int thread)
{
    const struct scale_args *a = arg;
    float *y = a->y + (size_t)t * a->y_stride;
    const float *x = a->x + (size_t)t * a->x_stride;

    (void)thread;
    for (int n = 0; n < a->N; n++)
        y[n] = a->bias != NULL ? x[n] * a->scale + a->bias[n] : x[n] * a->scale;
}

int loops_scale_columns(struct device *d, float *y, int y_stride, const float *x, int x_stride,
                        float scale, const float *bias, int T, int N, struct error *err)
{
    struct scale_args args = {y, x, bias, y_stride, x_stride, N, scale};

    (void)err;
    pool_run(d->pool, scale_row, &args, T);
    return OK;
}
