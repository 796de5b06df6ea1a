/* range_norm.c - the loop nest of range_norm; a task is a row, twice: first each row's sum, least
 * and largest number, then each row again, under what its prompt's rows have together. The rows'
 * sums are added in their order, so a prompt's numbers do not depend on its neighbours. */
#include <math.h>

#include "kernels/cpu/device.h"

struct range_args {
    void *y;
    const float *x;
    const int32_t *begin;
    float *scratch; /* [T, 3]: sum, least, largest */
    int B, D;
    enum dtype act;
};

static void measure_row(void *arg, int t, int thread)
{
    const struct range_args *a = arg;
    const float *x = a->x + (size_t)t * a->D;
    float *measures = a->scratch + (size_t)t * 3;
    float sum = 0.0f, least = INFINITY, largest = -INFINITY;

    (void)thread;
    for (int d = 0; d < a->D; d++) {
        sum += x[d];
        least = fminf(least, x[d]);
        largest = fmaxf(largest, x[d]);
    }
    measures[0] = sum;
    measures[1] = least;
    measures[2] = largest;
}

static void norm_row(void *arg, int t, int thread)
{
    const struct range_args *a = arg;
    float sum = 0.0f, least = INFINITY, largest = -INFINITY, mean, factor;
    int b = 0;

    (void)thread;
    while (t >= a->begin[b + 1])
        b++;
    for (int i = a->begin[b]; i < a->begin[b + 1]; i++) {
        sum += a->scratch[(size_t)i * 3];
        least = fminf(least, a->scratch[(size_t)i * 3 + 1]);
        largest = fmaxf(largest, a->scratch[(size_t)i * 3 + 2]);
    }
    mean = sum / ((float)(a->begin[b + 1] - a->begin[b]) * (float)a->D + 1e-6f);
    factor = 8.0f / (largest - least + 1e-6f);
    for (size_t i = (size_t)t * a->D; i < (size_t)(t + 1) * a->D; i++)
        store_act(a->y, a->act, i, (a->x[i] - mean) * factor);
}

int loops_range_norm(struct device *d, void *y, const float *x, const int32_t *begin,
                     float *scratch, int B, int T, int D, struct error *err)
{
    struct range_args args = {y, x, begin, scratch, B, D, d->act};

    (void)err;
    pool_run(d->pool, measure_row, &args, T);
    pool_run(d->pool, norm_row, &args, T);
    return OK;
}
