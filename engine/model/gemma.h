/* gemma.h - the Gemma decoder, 3 or 4, as an encoder: packed prompts in, hidden states out.
 *
 * engine/MODEL.md describes the network. Only real tokens are computed: prompts lie end to end,
 * each sees itself alone. A gemma belongs to the thread that owns its device. */
#pragma once
#include "engine/model/weights.h"

struct gemma;
struct gemma_config;

/* Prompts packed end to end; all arrays are the host's. */
struct pack {
    int B, T;
    const int32_t *ids;       /* [T] */
    const int32_t *positions; /* [T], each 0 .. max_tokens - 1 */
    const int32_t *begin;     /* [B + 1]: prompt b is tokens begin[b] .. begin[b + 1] - 1 */
};

/* Receives hidden state `state` (0 .. L), float32 [T, D] on the device, valid for the call; NULL:
 * another rank has it, of weights that are dealt out by layer. States come in rising order. */
typedef int gemma_state_fn(void *arg, int state, const float *h, struct error *err);

/* Whether the kernels can run a model of this shape; ask before loading its weights. */
int gemma_check(const struct gemma_config *config, struct error *err);

/* `weights` and the device, whose memory may be another's where both are the host's, are borrowed
 * until gemma_free(). `rank` of `n_ranks` is the device's in its group; 0 of 1: it is alone. Room
 * for packs of up to max_batch_tokens is taken here; gemma_forward() allocates nothing. Matmuls
 * compute in `act`, the device's compute type. */
int gemma_create(struct gemma **out, const struct gemma_config *config,
                 const struct weights *weights, struct device *device, int rank, int n_ranks,
                 enum dtype act, int max_tokens, int max_batch_tokens, struct error *err);
void gemma_free(struct gemma *g); /* NULL is fine */

/* One pass; sharded: every rank of the group calls it with the same pack, and has all states, or
 * those of its layers. Weights of which a rank has a share can do no other.
 * wanted[s] says which states go to `emit`; layers after the last wanted one are not
 * computed.
 * run: 0, or the caller's word that `emit` only calls ops, the same ones on the same memory
 * whenever T, B, `wanted`, `sharded` and `run` are the same: the whole pass may then be recorded
 * (kernels/ops.h), and `emit` not be called when it is replayed. Below 2^16. */
int gemma_forward(struct gemma *g, const struct pack *pack, const bool *wanted, bool sharded,
                  unsigned run, gemma_state_fn *emit, void *emit_arg, struct error *err);

/* Layers computed so far; from any thread. */
uint64_t gemma_steps(const struct gemma *g);
