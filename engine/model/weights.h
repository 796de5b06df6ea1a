/* weights.h - a Gemma's weights, resident on one device.
 *
 * Reads the tensors of a model file once, stacks what one matmul can read (q, k and v; gate and
 * up), and settles what files of one meaning write differently: every norm factor held here is the
 * whole factor, whether the file has it or 1 less; a layer always has value rows, which may be the
 * key's again; and a scalar, which may be 1. Used by the thread that owns the device. */
#pragma once
#include "engine/files/model_file.h"
#include "engine/group/portion.h"
#include "kernels/ops.h"

/* Of PORTION_TENSOR matrices have the rows or columns of the rank's own heads and inner numbers
 * alone, NULL where there are none; of PORTION_LAYER the layers of other ranks are zeros. */
struct layer_weights {
    bool is_global; /* sees all earlier tokens; the others a window. K and E are its kind's */
    float scalar;   /* what the layer's result is multiplied by */
    /* norm factors, float32 on the device */
    float *input_norm, *post_attention_norm, *pre_ff_norm, *post_ff_norm; /* [D] */
    float *q_norm, *k_norm;                                               /* [E] */
    struct matrix *qkv;                                                   /* [(H + 2K) * E, D] */
    struct matrix *attention_out;                                         /* [D, H * E] */
    struct matrix *gate_up;                                               /* [2F, D] */
    struct matrix *down;                                                  /* [D, F] */
};

struct weights {
    const struct ops *ops;
    struct device *device;
    struct portion portion;
    int n_layers;
    struct table *embed;          /* [rows of `ids`, D], borrowed from the model file, or of
                                     own_table; NULL: there are none */
    struct share_range ids;       /* whose rows it has: all V, or the rank's */
    bf16 *own_table;              /* where the weights are random */
    struct layer_weights *layers; /* [n_layers] */
    float *final_norm;            /* [D]; NULL: another rank's */
    size_t bytes;                 /* resident, a table that stays in the file not counted */
};

typedef void weights_progress_fn(void *arg, uint64_t bytes_done, uint64_t bytes_total);

/* `file` must outlive the result: the embedding table stays in it. What is not in the portion is
 * not read, but all of the file's tensors are looked for. Of PORTION_ALL matrices can be viewed as
 * n_ranks share them (gemma_share.h). On failure *out is NULL.
 * ERR_FORMAT: a tensor is missing or has another shape; ERR_MEM; ERR_GPU. */
int weights_load(struct weights **out, const struct model_file *file, const struct portion *portion,
                 const struct ops *ops, struct device *device, weights_progress_fn *progress,
                 void *progress_arg, struct error *err);
/* The same with random numbers, of a size that keeps a product's results about as large as its
 * input: for measuring. */
int weights_random(struct weights **out, const struct gemma_config *config,
                   const struct portion *portion, const struct ops *ops, struct device *device,
                   struct error *err);
/* The same without an embedding table: over ops that only count, what weights take. */
int weights_outline(struct weights **out, const struct gemma_config *config,
                    const struct portion *portion, const struct ops *ops, struct device *device,
                    struct error *err);
/* The embedding table as the file has it. ERR_FORMAT as below. */
int weights_embedding(struct tensor *out, const struct model_file *file, struct error *err);
/* Finds and checks every tensor that weights_load() would read of all; *bytes is what they take in
 * the file, without the embedding table. ERR_FORMAT as there. */
int weights_check(const struct model_file *file, uint64_t *bytes, struct error *err);
void weights_free(struct weights *w); /* NULL and half-built are fine */
