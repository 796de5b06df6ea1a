/* spread.h - replicated: which rank takes which prompts of a batch.
 *
 * The longest first, each to the rank with the least so far, so the busiest rank has at most 4/3 of
 * what the best of all ways would give it. What a prompt costs is the caller's to say: for
 * embeddings that is more than its tokens, as the connectors take 1024 rows of any prompt. The same
 * costs give the same spread, on every rank. Pure; any thread. */
#pragma once
#include "kernels/group.h"

/* Rank r has the prompts items[begin[r]] .. items[begin[r + 1] - 1], in the order of the request.
 * With fewer prompts than ranks the last ranks have none. */
struct spread {
    int begin[GROUP_MAX_RANKS + 1]; /* as many as ranks, and one; later ones are as the last */
    double cost[GROUP_MAX_RANKS];   /* of all that a rank has */
    int *items;                     /* [n] the caller's memory */
    int *rank_of;                   /* [n] the caller's memory: who has each prompt */
};

/* cost [n]: above 0, finite. n may be 0. n_ranks is 1 .. GROUP_MAX_RANKS. `out` comes with its
 * `items` and `rank_of`. */
void spread_prompts(struct spread *out, const double *cost, int n, int n_ranks);
