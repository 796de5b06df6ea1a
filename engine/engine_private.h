/* engine_private.h - what an engine holds. For the files of engine/ that are engine.h together:
 * opening.c makes it and takes it apart, warming.c readies it, engine.c runs prompts through it,
 * work.c says what there is to do. */
#pragma once
#include "engine/engine.h"
#include "engine/files/gemma_config.h"
#include "engine/files/model_file.h"
#include "engine/ltx/ltx.h"
#include "engine/model/gemma.h"
#include "kernels/ops.h"

/* What products that compute in `compute` read. */
static inline enum dtype engine_act(enum dtype compute)
{
    return compute == DTYPE_F8_E4M3 ? DTYPE_BF16 : compute;
}

/* Rows of any product of a pass, at most: its tokens, or rows of its connectors. */
static inline int engine_max_rows(int max_batch_tokens)
{
    return max_batch_tokens > ENGINE_ROWS ? max_batch_tokens : ENGINE_ROWS;
}

/* A part of a result on its way out of a device: a prompt's rows of a state, its features or its
 * embeddings, in float32 at most. */
static inline size_t engine_part_bytes(int width, int video_width, int audio_width)
{
    int W = video_width > audio_width ? video_width : audio_width;

    return (size_t)ENGINE_ROWS * (size_t)(W > width ? W : width) * sizeof(float);
}

struct engine {
    const struct ops *ops;
    struct device *device;
    struct model_file *file; /* NULL: random weights */
    struct gemma_config config;
    bool has_ltx;
    struct ltx_config ltx_config; /* where it has */
    struct weights *weights;
    struct gemma *gemma;
    struct ltx_checkpoint *checkpoint; /* this and what follows: NULL without one */
    struct ltx_weights *ltx_weights;
    struct ltx *ltx;
    struct engine_info info;
    char random_digest[ENGINE_DIGEST_SIZE]; /* of random weights */
    int max_batch_tokens, n_threads;
    enum dtype compute; /* of products */
    enum dtype act;     /* of what they read: compute, or BF16 in float8 */
    /* one pass, sized for max_batch_tokens */
    int32_t *ids, *positions, *begin;
    int *embedded;            /* the prompts of the pass that want embeddings */
    void *leaving[OPS_MARKS]; /* device: parts of tensors on their way out, where it is not the host
                               */
    int32_t *has_nan, *nans;  /* device, host: [prompt][tensor], whether results hold a NaN */
    bool is_warming;          /* passes are not recorded */
    /* why results have NaN among their numbers, where they do; looked for once */
    bool looked_for_damage;
    char damage[192];
};
