/* ltx.h - LTX's extractor and connectors: hidden states in, features and embeddings out.
 *
 *     ltx_begin(ltx, pack, which, &err);            which modalities are wanted
 *     for each hidden state, 0 .. L in order:
 *         ltx_add_state(ltx, h, &err);
 *     ... ltx_features(ltx, LTX_VIDEO) ...          what the connectors read, real tokens only
 *     ltx_embed(ltx, LTX_VIDEO, prompts, n, sink, arg, &err);
 *
 * Features are a running sum: a few states at a time are normed and multiplied by their own slices
 * of the projection, so no [tokens, states * width] tensor ever exists. engine/MODEL.md
 * describes the network. An ltx belongs to the thread that owns its device. */
#pragma once
#include "engine/ltx/ltx_weights.h"

enum { LTX_MAX_PROMPTS = 4 }; /* through a connector at once: their rows fill any device */

struct ltx;

/* `weights` and the device, whose memory may be another's where both are the host's, are borrowed
 * until ltx_free(). `rank` of `n_ranks` is the device's in its group; 0 of 1: it is alone. Room for
 * packs of up to max_batch_tokens is taken here; nothing is allocated later. Prompts go through a
 * connector a few at a time: as many as their LTX_ROWS rows fit in max_batch_tokens, at least 1 and
 * at most 4. Matmuls compute in `act`, the device's compute type. */
int ltx_create(struct ltx **out, const struct ltx_weights *weights, struct device *device, int rank,
               int n_ranks, enum dtype act, int max_batch_tokens, struct error *err);
void ltx_free(struct ltx *x); /* NULL is fine */

/* What an earlier pass uploaded must be over (ops->sync, or a download since).
 * Prompts packed end to end: prompt b is tokens begin[b] .. begin[b + 1] - 1 (host, [B + 1]).
 * wanted[m]: features of that modality are made; the model must have it.
 * sharded: every rank of the group makes the same calls, has all features, and makes some rows of
 * the embeddings; of weights that are dealt out by layer all rows, or none. Weights of which a rank
 * has a share can do no other. */
int ltx_begin(struct ltx *x, const int32_t *begin, int B, const bool *wanted, bool sharded,
              struct error *err);
/* The next hidden state of all tokens, float32 [T, D] on the device; NULL where another rank has it
 * (ltx_weights.h: by layer). */
int ltx_add_state(struct ltx *x, const float *h, struct error *err);

/* float32 [T, width] on the device, once all states have been added; valid until ltx_begin(). */
const float *ltx_features(const struct ltx *x, enum ltx_modality modality);

/* Receives embeddings of prompt `b` of the pack, rows first .. first + n - 1 of LTX_ROWS, float32
 * [n, width] on the device, valid for the call. */
typedef int ltx_sink_fn(void *arg, int b, const float *rows, int first, int n, struct error *err);

/* Runs the connector on the features of `n` prompts of the pack (rising). */
int ltx_embed(struct ltx *x, enum ltx_modality modality, const int *prompts, int n,
              ltx_sink_fn *sink, void *sink_arg, struct error *err);

/* Connector blocks computed so far, counted once for all prompts at a time; from any thread. */
uint64_t ltx_steps(const struct ltx *x);
