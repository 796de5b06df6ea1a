/* matmul.c - the loop nest of matmul and linear, and weights as plain rows. A task is a row of y.
 */
#include <stdlib.h>

#include "base/size.h"
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
    if ((m = calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for a matrix");
    m->K = K;
    if ((rc = matrix_parts_rows(&m->N, parts, n_parts, K, err)) != OK ||
        (rc = cpu_float8_reserve(d, m, err)) != OK)
        goto out;
    m->bytes = (size_t)m->N * K * sizeof(float);
    if ((rc = cpu_alloc(d, &m->data, m->bytes, err)) != OK)
        goto out;
    args.m = m;
    pool_run(d->pool, load_row, &args, m->N);
    *out = m;
    m = NULL;
out:
    loops_matrix_free(d, m);
    return rc;
}

void loops_matrix_free(struct device *d, struct matrix *m)
{
    if (m == NULL)
        return;
    cpu_release(d, m->data);
    free(m->scales);
    free(m);
}

struct matmul_args {
    const struct device *d;
    float *y;
    const void *x;
    const struct matrix *w;
    const float *bias; /* or NULL */
    bool add;
};

static void matmul_row(void *arg, int t, int thread)
{
    const struct matmul_args *a = arg;
    int N = a->w->N, K = a->w->K;
    const float *w = a->w->data;

    (void)thread;
    for (int n = 0; n < N; n++) {
        float sum = 0.0f;
        for (int k = 0; k < K; k++) {
            size_t i = (size_t)t * K + k;
            float x = a->w->type == DTYPE_F32 ? ((const float *)a->x)[i]
                                              : bf16_to_float(((const bf16 *)a->x)[i]);
            sum += x * w[(size_t)n * K + k];
        }
        scale_sums(&sum, a->d, a->w, t, n, 1);
        store_row(&a->y[(size_t)t * N + n], &sum, a->bias != NULL ? &a->bias[n] : NULL, a->add, 1);
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
