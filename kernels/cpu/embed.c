/* embed.c - rows of the embedding table, decoded from the file's own format as they are needed.
 *
 * The table is by far the largest matrix of a small Gemma and a prompt reads a few rows of it, so
 * it is neither converted nor copied: the rows come straight from the mapped file. */
#include <stdlib.h>

#include "kernels/cpu/device.h"

struct embed_args {
    float *h;
    const struct table *table;
    const int32_t *ids;
    float scale;
};

static void embed_row(void *arg, int t, int thread)
{
    const struct embed_args *a = arg;
    int D = a->table->D;
    float *h = a->h + (size_t)t * D;

    (void)thread;
    if (a->ids[t] < 0) {
        memset(h, 0, (size_t)D * sizeof(*h));
        return;
    }
    dtype_decode(h, (const char *)a->table->data + (size_t)a->ids[t] * a->table->row_bytes,
                 a->table->type, (size_t)D);
    for (int d = 0; d < D; d++)
        h[d] *= a->scale;
}

int cpu_embed(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
              float scale, struct error *err)
{
    struct embed_args args = {h, table, ids, scale};

    (void)err;
    pool_run(d->pool, embed_row, &args, T);
    return OK;
}

int cpu_table_load(struct device *d, struct table **out, const void *data, enum dtype type, int V,
                   int D, struct error *err)
{
    struct table *t;

    (void)d;
    *out = NULL;
    if ((t = calloc(1, sizeof(*t))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for the embedding table");
    *t = (struct table){.data = data, .type = type, .V = V, .D = D};
    if (!dtype_info(type)->is_number || !dtype_bytes(&t->row_bytes, type, (size_t)D)) {
        free(t);
        return error_set(err, ERR_INPUT, "cpu: rows of %d numbers cannot be stored as %s", D,
                         dtype_info(type)->name);
    }
    *out = t;
    return OK;
}

void cpu_table_free(struct device *d, struct table *t)
{
    (void)d;
    free(t);
}

/* It stays where it was. */
size_t cpu_table_bytes(const struct table *t)
{
    (void)t;
    return 0;
}
