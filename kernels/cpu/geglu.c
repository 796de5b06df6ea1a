/* geglu.c - the loop nest of geglu; a task is a row. */
#include <math.h>

#include "kernels/cpu/device.h"

struct geglu_args {
    void *y;
    const float *gu;
    int F;
    enum dtype act;
};

static void geglu_row(void *arg, int t, int thread)
{
    const struct geglu_args *a = arg;
    const float *gate = a->gu + (size_t)t * 2 * a->F, *up = gate + a->F;

    (void)thread;
    for (int f = 0; f < a->F; f++) {
        float x = gate[f];
        float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x); /* sqrt(2/pi) */
        float gelu = 0.5f * x * (1.0f + tanhf(inner));
        store_act(a->y, a->act, (size_t)t * a->F + f, gelu * up[f]);
    }
}

int loops_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err)
{
    struct geglu_args args = {y, gu, F, d->act};

    (void)err;
    pool_run(d->pool, geglu_row, &args, T);
    return OK;
}
