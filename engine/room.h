/* room.h - what a model takes of a device's memory, before any of it is loaded, and whether that
 * fits. Pure but for the time it takes; any thread. */
#pragma once
#include "engine/files/gemma_config.h"
#include "engine/files/ltx_checkpoint.h"
#include "engine/group/portion.h"
#include "kernels/ops.h"

/* In bytes. */
struct room {
    uint64_t weights, activations;
};

/* What a portion of a model of that architecture takes on a device of `like`, computing in
 * `compute` (as engine_options has it) as that rank of portion->n_ranks, with passes of up to
 * max_batch_tokens. `ltx`: NULL without an LTX checkpoint; `table` is the embedding table's type in
 * the file. ERR_MEM: of the host. */
int room_count(struct room *out, const struct gemma_config *gemma, const struct ltx_config *ltx,
               enum dtype table, const struct portion *portion, int rank, const struct ops *like,
               enum dtype compute, int max_batch_tokens, struct error *err);

/* Rows of an embedding table on a device that is no host. */
uint64_t room_table_bytes(const struct gemma_config *gemma, int n_rows, enum dtype type);

/* With what kernels and libraries take, whatever the model. */
uint64_t room_total(const struct room *room);

/* Whether `what` ("the model") fits. Says what would fit instead, of what `count` (room_count() of
 * one model) tells about smaller batches, down to min_batch_tokens, about bfloat16, and where
 * nothing else would do about float8. ERR_MEM: it does not fit; the sentence has the needed, the
 * free, and what would do. */
typedef int room_count_fn(void *arg, struct room *out, enum dtype compute, int max_batch_tokens,
                          struct error *err);
int room_check(const char *what, const struct device_memory *memory, enum dtype compute,
               int max_batch_tokens, int min_batch_tokens, room_count_fn *count, void *arg,
               struct error *err);
