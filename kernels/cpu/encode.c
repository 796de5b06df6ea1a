/* encode.c - numbers as results have them; a task is CHUNK numbers. */
#include <stdatomic.h>

#include "kernels/cpu/device.h"

enum { CHUNK = 1 << 14 };

struct encode_args {
    char *y;
    enum dtype type;
    const float *x;
    size_t n;
    _Atomic bool has_nan;
};

static void encode_chunk(void *arg, int task, int thread)
{
    struct encode_args *a = arg;
    size_t first = (size_t)task * CHUNK, n = a->n - first < CHUNK ? a->n - first : CHUNK;

    (void)thread;
    if (!dtype_encode(a->y + first * dtype_info(a->type)->bytes, a->x + first, a->type, n))
        atomic_store_explicit(&a->has_nan, true, memory_order_relaxed);
}

int cpu_encode(struct device *d, void *y, enum dtype type, const float *x, size_t n,
               int32_t *has_nan, struct error *err)
{
    struct encode_args args = {.y = y, .type = type, .x = x, .n = n};

    (void)err;
    pool_run(d->pool, encode_chunk, &args, (int)((n + CHUNK - 1) / CHUNK));
    if (atomic_load_explicit(&args.has_nan, memory_order_relaxed))
        *has_nan = 1;
    return OK;
}
