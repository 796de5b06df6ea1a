/* placement.h - results in the memory of ranks' devices, and how they get to all of them.
 *
 * Where every rank is to have every prompt's tensors, or where ranks are processes of their own and
 * a sharded prompt's rows must come together, tensors are made in the rank's own memory first: what
 * it computed by encoding, the rest by exchange. For the files of engine/ that are engine.h
 * together; a placement belongs to its rank's thread. */
#pragma once
#include "engine/engine.h"
#include "kernels/ops.h"

struct rank;
struct rank_batch;

struct placement {
    void *memory;                  /* device, kept for the next batch that fits */
    size_t room;                   /* bytes of it */
    struct engine_result *results; /* [n] data is the device's; of the last batch placed so */
    int n, n_room;
    int64_t mask[ENGINE_ROWS]; /* what masks are uploaded from */
};

/* Room for the tensors of all prompts of the batch's call. ERR_MEM. */
int placement_begin(struct rank *r, const struct rank_batch *batch, struct error *err);

/* Once a rank has made what it makes: all ranks have all. */
int placement_exchange(struct rank *r, const struct rank_batch *batch, struct error *err);

/* Tensors of the prompts that this rank is to hand out, to the call's results. */
int placement_download(struct rank *r, const struct rank_batch *batch, struct error *err);

void placement_free(struct rank *r);
