/* embed.cu - one block a token, threads along its row; grid T, block 256; memory-bound.
 *
 * The table lies on the GPU in the file's type where that is a plain float, else as float32: a
 * quantised table is decoded once, at load. */
#include <stdlib.h>

#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };

template <typename T>
static __global__ void embed_kernel(float *h, const T *table, const int32_t *ids, int D,
                                    float scale)
{
    int32_t id;

    wait_for_inputs();
    id = ids[blockIdx.x];
    for (int i = threadIdx.x; i < D; i += BLOCK)
        h[(size_t)blockIdx.x * D + i] = id < 0 ? 0.0f : to_float(table[(size_t)id * D + i]) * scale;
}

int cuda_embed(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
               float scale, struct error *err)
{
    if (T == 0)
        return OK;
    if (table->type == DTYPE_F32)
        return launch(d, "embed", err, embed_kernel<float>, T, BLOCK, 0, h,
                      (const float *)table->data, ids, table->D, scale);
    if (table->type == DTYPE_F16)
        return launch(d, "embed", err, embed_kernel<__half>, T, BLOCK, 0, h,
                      (const __half *)table->data, ids, table->D, scale);
    return launch(d, "embed", err, embed_kernel<__nv_bfloat16>, T, BLOCK, 0, h,
                  (const __nv_bfloat16 *)table->data, ids, table->D, scale);
}

int cuda_table_load(struct device *d, struct table **out, const void *data, enum dtype type, int V,
                    int D, struct error *err)
{
    bool plain = type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
    struct matrix_part part = {data, type, V, 0, 0};
    struct table *t;
    int n, rc;

    *out = NULL;
    if ((rc = matrix_parts_rows(&n, &part, 1, D, err)) != OK)
        return rc;
    if ((t = (struct table *)calloc(1, sizeof(*t))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the embedding table");
    t->type = plain ? type : DTYPE_F32;
    t->D = D;
    t->bytes = (size_t)V * D * dtype_info(t->type)->bytes;
    if ((rc = cuda_weights_alloc(d, &t->data, t->bytes, err)) != OK ||
        (rc = cuda_load_rows(d, t->data, t->type, &part, 1, D, V, err)) != OK)
        goto out;
    *out = t;
    t = NULL;
out:
    cuda_table_free(d, t);
    return rc;
}

size_t cuda_table_bytes(const struct table *t)
{
    return t->bytes;
}

void cuda_table_free(struct device *d, struct table *t)
{
    if (t == NULL)
        return;
    cuda_weights_free(d, t->data);
    free(t);
}
