/* gemma_share.h - what one rank computes of every layer when all ranks share a pass: some heads and
 * some of the feed-forward, as views of the weights that are resident anyway, or as all that is
 * resident of them.
 *
 * Attention is cut by query heads with the key/value heads they read, the feed-forward by its inner
 * numbers; both end in sums over what all ranks have. A rank for which there are no heads, or no
 * numbers, adds zeros. */
#pragma once
#include "engine/group/share.h"
#include "engine/model/weights.h"

struct gemma_share {
    bool is_whole; /* of layers, as they are: nothing is added up */
    struct share_heads global, sliding;
    struct share_range inner;     /* of the F numbers inside the feed-forward */
    struct layer_weights *layers; /* [L] the weights' own; or, n_views of them, with views for
                                     matrices, NULL where the rank has nothing of them */
    int n_views;
};

/* Where column cuts of matrices are needed for shares of n_ranks: of attention_out of a layer of
 * that kind, and of down. */
void gemma_share_cuts(struct column_cuts *attention_out, struct column_cuts *down,
                      const struct gemma_config *config, bool is_global, int n_ranks);

/* `weights` is borrowed until the free. Of PORTION_ALL it is what `rank` of n_ranks computes; of
 * other portions, whose ranks they know, what is resident. ERR_MEM. On failure *out is to be freed,
 * too. */
int gemma_share_create(struct gemma_share *out, const struct gemma_config *config,
                       const struct weights *weights, struct device *device, int rank, int n_ranks,
                       struct error *err);
void gemma_share_free(struct gemma_share *s, const struct ops *ops, struct device *device);
