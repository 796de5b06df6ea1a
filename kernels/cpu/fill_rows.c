/* fill_rows.c - the loop nest of fill_rows; a task is a row, which is copied whole. */
#include <string.h>

#include "kernels/cpu/device.h"

struct fill_args {
    float *h;
    const float *x, *registers;
    const int32_t *first, *count;
    int P, R, W;
};

static void fill_row(void *arg, int index, int thread)
{
    const struct fill_args *a = arg;
    int b = index / a->P, p = index % a->P;
    const float *from = p < a->count[b] ? a->x + (size_t)(a->first[b] + p) * a->W
                                        : a->registers + (size_t)(p % a->R) * a->W;

    (void)thread;
    memcpy(a->h + (size_t)index * a->W, from, (size_t)a->W * sizeof(float));
}

int cpu_fill_rows(struct device *d, float *h, const float *x, const float *registers,
                  const int32_t *first, const int32_t *count, int B, int P, int R, int W,
                  struct error *err)
{
    struct fill_args args = {h, x, registers, first, count, P, R, W};

    (void)err;
    pool_run(d->pool, fill_row, &args, B * P);
    return OK;
}
