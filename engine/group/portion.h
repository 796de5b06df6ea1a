/* portion.h - which of a model's weights a rank has in its memory.
 *
 * All of them; or of every layer the part that it computes when all ranks share a pass (share.h);
 * or some layers, whole, by a device map. The map is over a model's pieces in the order in which a
 * pass goes through them: the embedding table, Gemma's layers, the blocks of video's connector,
 * those of audio's. Hidden state s comes out of piece s, and its slice of LTX's projection goes
 * with it. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/group/share.h"
#include "kernels/group.h"

enum { PORTION_CONNECTORS = 2 };

enum portion_kind {
    PORTION_ALL,
    PORTION_TENSOR, /* of each layer a part */
    PORTION_LAYER   /* some layers */
};

struct portion {
    enum portion_kind kind;
    int rank, n_ranks; /* of the group that computes together */
    /* of PORTION_LAYER */
    int n_layers, n_blocks[PORTION_CONNECTORS];
    int begin[GROUP_MAX_RANKS + 1]; /* rank r has pieces begin[r] .. begin[r + 1] - 1 */
};

/* All, which is what a rank of one has in any case, or its part of each layer. */
struct portion portion_all(int n_ranks);
struct portion portion_by_tensor(int rank, int n_ranks);

/* Balanced by bytes [1 + n_layers + both n_blocks], which each piece takes. */
struct portion portion_by_layer(int rank, int n_ranks, const uint64_t *bytes, int n_layers,
                                const int n_blocks[PORTION_CONNECTORS]);

/* Block i of a connector as a piece. */
int portion_block(const struct portion *p, int connector, int i);

/* Who has a piece, of PORTION_LAYER, and whether this rank does, of any. */
int portion_owner(const struct portion *p, int piece);
bool portion_has(const struct portion *p, int piece);

/* Of PORTION_LAYER: who begins with a connector's sequence, and who ends with its embeddings. One
 * without blocks is the first rank's. */
int portion_connector_first(const struct portion *p, int connector);
int portion_connector_last(const struct portion *p, int connector);

/* The hidden states that this rank makes of S: all, unless they are dealt out by layer. */
struct share_range portion_states(const struct portion *p, int S);

/* The part of this rank in what all share: rank and n_ranks for share.h, 0 of 1 where it has what
 * it has whole. */
int portion_part(const struct portion *p, int *n_parts);
