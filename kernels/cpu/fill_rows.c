/* fill_rows.c - the loop nest of fill_rows; a task is a row, which is copied whole. */
#include <string.h>

#include "kernels/cpu/device.h"

struct fill_args {
    char *h;
    const char *x, *registers;
    const int32_t *first, *count;
    int p_begin, P, R;
    size_t row_bytes;
};

static void fill_row(void *arg, int index, int thread)
{
    const struct fill_args *a = arg;
    int b = index / a->P, p = a->p_begin + index % a->P;
    const char *from = p < a->count[b] ? a->x + (size_t)(a->first[b] + p) * a->row_bytes
                                       : a->registers + (size_t)(p % a->R) * a->row_bytes;

    (void)thread;
    memcpy(a->h + (size_t)index * a->row_bytes, from, a->row_bytes);
}

int cpu_fill_rows(struct device *d, void *h, const void *x, const void *registers, enum dtype type,
                  const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R,
                  int W, struct error *err)
{
    struct fill_args args = {
        h, x, registers, first, count, p_begin, P, R, (size_t)W * dtype_info(type)->bytes};

    (void)err;
    pool_run(d->pool, fill_row, &args, B * P);
    return OK;
}
