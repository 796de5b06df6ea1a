/* rank.h - one device with a model on it: what computes.
 *
 * rank.c opens and closes it, pass.c runs prompts through it. A rank belongs
 * to its thread (engine/group/team.h), but for rank_steps(). */
#pragma once
#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/ltx/ltx.h"
#include "engine/model/gemma.h"
#include "engine/placement.h"
#include "engine/residence.h"
#include "engine/source.h"
#include "kernels/ops.h"

/* What products that compute in `compute` read. */
static inline enum dtype rank_act(enum dtype compute)
{
    return compute == DTYPE_F8_E4M3 ? DTYPE_BF16 : compute;
}

/* Rows of any product of a pass, at most: its tokens, or rows of its connectors. */
static inline int rank_max_rows(int max_batch_tokens)
{
    return max_batch_tokens > ENGINE_ROWS ? max_batch_tokens : ENGINE_ROWS;
}

/* A part of a result on its way out of a device: a prompt's rows of a state, its features or its
 * embeddings, in float32 at most. */
static inline size_t rank_part_bytes(int width, int video_width, int audio_width)
{
    int W = video_width > audio_width ? video_width : audio_width;

    return (size_t)ENGINE_ROWS * (size_t)(W > width ? W : width) * sizeof(float);
}

/* What others may read of a rank at any time. */
struct rank_trace {
    _Atomic(const char *) doing; /* a constant word or two */
    _Atomic uint64_t loaded;     /* rises while it loads */
};

struct rank_options {
    const struct source *source; /* borrowed, as all here, until rank_close() */
    struct home *home;           /* its weights; where nothing is there yet it loads them, and its
                                    device is the home's from then on */
    const struct ops *ops;
    enum dtype compute; /* as engine_options has it */
    int gpu;            /* CUDA: which */
    int n_threads;      /* of its device */
    bool sleeps;        /* as residence_create() has it */
    bool is_saved;      /* it is from this rank's weights that the copy is made */
    int max_batch_tokens;
    struct group *group;             /* NULL: it is alone */
    enum engine_residency residency; /* of the weights that it loads, as shard_by */
    enum engine_shard_by shard_by;
    struct rank_trace *trace;
    engine_progress_fn *progress; /* of its loading, or NULL */
    void *progress_arg;
};

enum { RANK_SHAPES = 512 };

struct rank {
    struct rank_options options;
    const struct ops *ops;
    struct device *device;
    int number, n_ranks; /* in its group; 0 of 1: it is alone */
    enum dtype act;      /* of what products read */
    const struct engine_info *info;
    const struct replica *replica;
    struct gemma *gemma;
    struct ltx *ltx; /* NULL: no LTX checkpoint */
    /* one pass, sized for max_batch_tokens */
    int32_t *ids, *positions, *begin;
    int *embedded;            /* the prompts of the pass that want embeddings */
    void *leaving[OPS_MARKS]; /* device: parts of tensors on their way out, where it is not the host
                               */
    int32_t *has_nan, *nans;  /* device, host: [prompt][tensor], whether results hold a NaN */
    bool is_warming;          /* passes are not recorded */
    struct {
        int size, n_prompts;
        unsigned extent;
    } shapes[RANK_SHAPES]; /* of sharded passes that were rehearsed (kernels/ops.h) */
    int n_shapes;
    struct placement placement;
};

/* Prompts of a call that a rank takes, in one pass or several. */
struct rank_batch {
    const struct engine_prompt *prompts; /* [n_prompts] of the whole call, checked */
    struct engine_result *results;       /* [n_prompts] with room for their tensors; NULL: what is
                                            computed stays on the device */
    int n_prompts;
    const int *which; /* [n] those that are taken, rising */
    int n;
    bool sharded; /* by all ranks of the group together, which run the same batch */

    /* all ranks of the group then get all tensors (placement.h); all of them run it, even those
     * that take no prompts */
    bool placed;
    const int *rank_of; /* [n_prompts] which rank has a prompt and hands out its result */
    bool all_download;  /* every rank hands out all results */
};

/* On the thread that it belongs to from then on. Errors as engine_open(); on failure *out is NULL.
 */
int rank_open(struct rank **out, const struct rank_options *options, struct error *err);
void rank_close(struct rank *r); /* NULL is fine */

/* Returns when all is computed, and results are in the host's memory. ERR_FORMAT: a result has a
 * NaN; the rank has then done its part all the same, so that the others do not wait. Any other
 * failure in a batch that ranks run together is ERR_GPU, and ends the group; the error keeps its
 * own code. */
int rank_run(struct rank *r, const struct rank_batch *batch, struct error *err);

/* What it does from now on, for whoever asks when it failed. */
static inline void rank_note(struct rank *r, const char *doing)
{
    atomic_store_explicit(&r->options.trace->doing, doing, memory_order_relaxed);
}

/* Layers and connector blocks so far; from any thread. */
uint64_t rank_steps(const struct rank *r);

/* An engine_progress_fn of `arg`, a struct rank_options: notes a sign of life in its trace, and
 * tells its `progress`. */
void rank_note_load(void *arg, uint64_t bytes_done, uint64_t bytes_total);
