/* matmul.c - the loop nest of matmul and linear, and weights as plain rows. A task is a row of y.
 */
#include <limits.h>

#include "kernels/cpu/device.h"

struct load_args {
    struct matrix *m;
    const struct matrix_part *parts;
    int n_parts;
};

static void load_row(void *arg, int n, int thread)
{
    const struct load_args *a = arg;
    int K = a->m->K;
    float *row = (float *)a->m->data + (size_t)n * K;

    (void)thread;
    matrix_parts_decode(row, a->parts, a->n_parts, K, n, 1);
    cpu_round_weights(row, a->m, n, 1); /* kept as floats of those values: simple, and exact */
}

int loops_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                      int n_parts, int K, const struct column_cuts *cuts, struct error *err)
{
    struct load_args args = {.parts = parts, .n_parts = n_parts};
    struct matrix *m;
    int rc;

    (void)cuts; /* rows as they are can be cut anywhere */
    *out = NULL;
    if ((rc = cpu_matrix_create(d, &m, parts, n_parts, K, INT_MAX, err)) != OK)
        return rc;
    m->bytes = (size_t)m->N * K * sizeof(float);
    if ((rc = cpu_alloc(d, &m->data, m->bytes, err)) != OK)
        goto out;
    args.m = m;
    pool_run(d->pool, load_row, &args, m->N);
    *out = m;
    m = NULL;
out:
    cpu_matrix_free(d, m);
    return rc;
}

struct matmul_args {
    const struct device *d;
    float *y;
    const void *x;
    const struct matrix *w;
    const float *bias; /* or NULL */
    bool add;
};

static float product(const struct matmul_args *a, int t, int row)
{
    const float *w = (const float *)a->w->data + (size_t)row * a->w->columns + a->w->k_begin;
    float sum = 0.0f;

    for (int k = 0; k < a->w->K; k++) {
        size_t i = (size_t)t * a->w->K + k;
        float x = a->w->type == DTYPE_F32 ? ((const float *)a->x)[i]
                                          : bf16_to_float(((const bf16 *)a->x)[i]);
        sum += x * w[k];
    }
    scale_sums(&sum, a->d, a->w, t, row, 1);
    return sum;
}

static void matmul_row(void *arg, int t, int thread)
{
    const struct matmul_args *a = arg;

    (void)thread;
    for (int p = 0; p < a->w->n_pieces; p++)
        for (int i = 0; i < a->w->pieces[p].n; i++) {
            int n = a->w->pieces[p].column + i;
            float sum = product(a, t, a->w->pieces[p].row + i);
            store_row(&a->y[(size_t)t * a->w->N + n], &sum, a->bias != NULL ? &a->bias[n] : NULL,
                      a->add, 1);
        }
}

int loops_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                 const float *bias, bool add, int T, struct error *err)
{
    struct matmul_args args = {d, y, x, w, bias, add};
    int rc;

    if ((rc = cpu_float8_rows(d, &args.x, w, T, err)) != OK)
        return rc;
    pool_run(d->pool, matmul_row, &args, T);
    return OK;
}

int loops_matmul(struct device *d, void *y, const void *x, const struct matrix *w, const void *bias,
                 int T, struct error *err)
{
    return loops_linear(d, y, x, w, bias, false, T, err);
}
