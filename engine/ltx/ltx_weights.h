/* ltx_weights.h - the weights of LTX's extractor and connectors, resident on one device.
 *
 * The projection's columns are repacked here, from the file's order (number d of state s is column
 * d * S + s) to one matrix for a few states, so that these can be added to the features as they
 * come. Used by the thread that owns the device. */
#pragma once
#include "engine/files/ltx_checkpoint.h"
#include "engine/group/portion.h"
#include "kernels/ops.h"

/* A product with its bias, NULL where there is none. */
struct ltx_linear {
    struct matrix *w; /* [N, K] */
    void *bias;       /* device, [N], of the type that its product wants (kernels/ops.h) */
};

struct ltx_block {
    struct ltx_linear qkvg;   /* q, k, v and, where gated, the gate's logits: [3W (+ H), W] */
    struct ltx_linear out;    /* [W, W] */
    struct ltx_linear ff_in;  /* [4W, W] */
    struct ltx_linear ff_out; /* [W, 4W] */
    float *q_norm, *k_norm;   /* device, [W] */
};

/* Of PORTION_LAYER the blocks of other ranks are zeros; registers are there where the first block
 * is, cos and sin where any is. Of PORTION_TENSOR all is there: ranks share the rows that go
 * through.
 */
struct ltx_connector_weights {
    struct ltx_block *blocks; /* [L] */
    float *registers;         /* device, [R, W] */
    float *cos, *sin;         /* device, [LTX_ROWS, W/2] */
};

/* Both modalities' in one: their products read the same rows. What is V2's alone comes after all
 * states: features are the sums times `scale`, plus `bias`. */
struct ltx_projection {
    int width;                     /* of the sums: video's, then, in V2, audio's */
    struct share_range columns;    /* of the sums: all, or those of a PORTION_TENSOR */
    struct share_range s;          /* states: all S, or those of a PORTION_LAYER */
    int together;                  /* states that one product takes; the last may have fewer */
    int n_products;                /* as many as take all states of `s` */
    struct matrix **states;        /* [n_products], each [columns, n * D] of n states; NULL: there
                                      are no columns, or no states */
    float *bias[LTX_N_MODALITIES]; /* V2: device, [W] */
    float scale[LTX_N_MODALITIES]; /* V2: sqrt(W / D) */
};

struct ltx_weights {
    const struct ops *ops;
    struct device *device;
    struct portion portion;
    struct ltx_config config;
    int S, D;
    struct ltx_projection projection; /* V1: its sums are the features of both */
    struct ltx_connector_weights connectors[LTX_N_MODALITIES];
    size_t bytes; /* resident */
};

typedef void ltx_progress_fn(void *arg, uint64_t bytes_done);

/* Finds and checks every tensor that ltx_weights_load() would read, for a Gemma of S hidden states
 * of width D; of ltx_checkpoint_open_connectors(), those of the connectors. *tensors [*n] belongs
 * to the caller (free); the views are valid until the checkpoint is closed. ERR_FORMAT: one is
 * missing, has another shape (made for another Gemma, for example), or is there and contradicts the
 * config. */
int ltx_weights_find(const struct ltx_checkpoint *checkpoint, int S, int D, struct tensor **tensors,
                     size_t *n, struct error *err);

/* What ltx_weights_load() reads of the checkpoint's files for a portion, in bytes. */
int ltx_weights_bytes(const struct ltx_checkpoint *checkpoint, int S, int D,
                      const struct portion *portion, uint64_t *bytes, struct error *err);

/* `act` is the device's compute type. The checkpoint may be closed afterwards. On failure *out is
 * NULL. ERR_FORMAT: as above, or a weight is no finite number; ERR_MEM; ERR_GPU. */
int ltx_weights_load(struct ltx_weights **out, const struct ltx_checkpoint *checkpoint, int S,
                     int D, const struct portion *portion, const struct ops *ops,
                     struct device *device, enum dtype act, ltx_progress_fn *progress,
                     void *progress_arg, struct error *err);
/* The same with random numbers, of a size that keeps a product's results about as large as its
 * input: for measuring. */
int ltx_weights_random(struct ltx_weights **out, const struct ltx_config *config, int S, int D,
                       const struct portion *portion, const struct ops *ops, struct device *device,
                       enum dtype act, struct error *err);
void ltx_weights_free(struct ltx_weights *w); /* NULL and half-built are fine */
