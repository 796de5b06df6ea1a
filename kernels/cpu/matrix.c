/* matrix.c - what the three products of this backend share of a weight matrix: its rows as pieces,
 * none of which lies in more than one panel, and views. A view is the matrix's data and other
 * pieces: of a panel that it has only in part a product computes all and stores what is wanted. */
#include <stdlib.h>

#include "kernels/cpu/device.h"

static int add_pieces(struct matrix *m, const struct row_range *ranges, int n_ranges,
                      struct error *err)
{
    size_t most = 0;
    int column = 0;

    for (int i = 0; i < n_ranges; i++)
        most += (size_t)(ranges[i].n / m->panel) + 2;
    if ((m->pieces = calloc(most, sizeof(*m->pieces))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for a matrix");
    for (int i = 0; i < n_ranges; i++)
        for (int done = 0; done < ranges[i].n;) {
            int row = ranges[i].begin + done, left = ranges[i].n - done;
            int here = m->panel - row % m->panel, n = left < here ? left : here;
            m->pieces[m->n_pieces++] = (struct piece){row, n, column};
            column += n;
            done += n;
        }
    return OK;
}

int cpu_matrix_create(struct device *d, struct matrix **out, const struct matrix_part *parts,
                      int n_parts, int K, int panel, struct error *err)
{
    struct matrix *m;
    int rc;

    *out = NULL;
    if ((m = calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for a matrix");
    m->K = m->columns = K;
    m->panel = panel;
    if ((rc = matrix_parts_rows(&m->N, parts, n_parts, K, err)) != OK ||
        (rc = cpu_float8_reserve(d, m, err)) != OK)
        goto out;
    m->rows = m->N;
    if ((rc = add_pieces(m, &(struct row_range){0, m->N}, 1, err)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    cpu_matrix_free(d, m);
    return rc;
}

void cpu_matrix_free(struct device *d, struct matrix *m)
{
    if (m == NULL)
        return;
    if (!m->is_view) {
        cpu_release(d, m->data);
        free(m->scales);
    }
    free(m->pieces);
    free(m);
}

size_t cpu_matrix_bytes(const struct matrix *m)
{
    return m->bytes;
}

int cpu_matrix_view(struct device *d, struct matrix **out, const struct matrix *m,
                    const struct row_range *ranges, int n_ranges, int k_begin, int K,
                    struct error *err)
{
    struct matrix *view;
    int N = 0, rc;

    *out = NULL;
    if (m->is_view)
        return error_set(err, ERR_INPUT, "cpu: a view of a view");
    for (int i = 0; i < n_ranges; i++) {
        if (ranges[i].begin < 0 || ranges[i].n < 0 || ranges[i].begin > m->N - ranges[i].n)
            return error_set(err, ERR_INPUT,
                             "cpu: a view of %d rows from row %d on of a matrix of %d", ranges[i].n,
                             ranges[i].begin, m->N);
        N += ranges[i].n;
    }
    if (k_begin < 0 || K < 0 || k_begin > m->K - K)
        return error_set(err, ERR_INPUT,
                         "cpu: a view of %d columns from column %d on of a matrix of %d", K,
                         k_begin, m->K);
    if (N == 0 || K == 0)
        return error_set(err, ERR_INPUT, "cpu: a view of a matrix without %s",
                         N == 0 ? "rows" : "columns");
    if ((view = malloc(sizeof(*view))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for a matrix");
    *view = *m;
    view->is_view = true;
    view->bytes = 0;
    view->N = N;
    view->K = K;
    view->k_begin = k_begin;
    view->pieces = NULL;
    view->n_pieces = 0;
    if ((rc = add_pieces(view, ranges, n_ranges, err)) != OK) {
        cpu_matrix_free(d, view);
        return rc;
    }
    *out = view;
    return OK;
}
