/* float8.c - what the three products of this backend share in float8: a product's rows are rounded
 * to E4M3 values, kept as bf16, in place for them that the device holds; then the product runs as
 * in bf16, and its sums are multiplied by both scales. A task is a row. */
#include "kernels/float8.h"

#include <stdlib.h>

#include "base/size.h"
#include "kernels/cpu/device.h"

int cpu_float8_widen(struct device *d, int K, struct error *err)
{
    size_t n, bytes;
    bf16 *rows;

    if (K <= d->rounded_width)
        return OK;
    if (!size_mul(&n, (size_t)d->max_rows, (size_t)K) || !size_mul(&bytes, n, sizeof(*rows)) ||
        (rows = realloc(d->rounded, bytes)) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for %d rows of %d numbers", d->max_rows, K);
    d->rounded = rows;
    d->rounded_width = K;
    return OK;
}

int cpu_float8_reserve(struct device *d, struct matrix *m, struct error *err)
{
    m->type = d->act;
    if (!d->float8 || !float8_serves(m->N, m->K))
        return OK;
    m->type = DTYPE_F8_E4M3;
    if ((m->scales = calloc((size_t)m->N, sizeof(*m->scales))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for the scales of %d rows", m->N);
    return cpu_float8_widen(d, m->K, err);
}

void cpu_round_weights(float *rows, const struct matrix *m, int row, int n_rows)
{
    int K = m->K;

    if (m->type == DTYPE_F32)
        return;
    for (size_t i = 0; i < (size_t)n_rows * K; i++)
        rows[i] = bf16_to_float(bf16_from_float(rows[i]));
    for (int i = 0; i < n_rows && m->scales != NULL; i++)
        m->scales[row + i] = float8_round_row(rows + (size_t)i * K, K);
}

struct rows_args {
    struct device *d;
    const bf16 *x;
    int K;
};

static void round_one(void *arg, int t, int thread)
{
    const struct rows_args *a = arg;
    const bf16 *from = a->x + (size_t)t * a->K;
    bf16 *to = a->d->rounded + (size_t)t * a->K;
    float largest = 0.0f, inverse;

    (void)thread;
    for (int k = 0; k < a->K; k++) {
        float size = fabsf(bf16_to_float(from[k]));
        largest = size > largest ? size : largest;
    }
    a->d->row_scales[t] = float8_scale(largest);
    inverse = 1.0f / a->d->row_scales[t];
    for (int k = 0; k < a->K; k++)
        to[k] = bf16_from_float(float8_round(bf16_to_float(from[k]) * inverse));
}

int cpu_float8_rows(struct device *d, const void **x, const struct matrix *w, int T,
                    struct error *err)
{
    struct rows_args args = {d, *x, w->K};

    if (w->scales == NULL)
        return OK;
    if (T > d->max_rows)
        return error_set(err, ERR_SIZE, "cpu: a product of %d rows in float8, room for %d", T,
                         d->max_rows);
    pool_run(d->pool, round_one, &args, T);
    *x = d->rounded;
    return OK;
}
