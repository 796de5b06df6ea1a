/* share.h - sharded: what rank r of n computes of each part of the network.
 *
 * Arithmetic over a model's sizes, the same on every rank; any number of ranks goes with any size,
 * and a rank for which nothing is left has an empty range. All ranks' ranges together hold every
 * number once, in the order of the ranks. Pure; any thread. */
#pragma once
#include <stdint.h>

enum {
    SHARE_BLOCK = 64,      /* columns are cut at multiples of it, where there are enough */
    SHARE_SMALL_BLOCK = 16 /* else of this: what an E4M3 matrix and a 16-byte load can be cut at */
};

/* begin .. end - 1 */
struct share_range {
    int begin, end;
};

/* Query heads and the key/value heads they read. With h = q.end - q.begin and k = kv.end - kv.begin
 * local query head i reads local key head i / (h / k), as in the whole model, where it is i / (H /
 * K): a rank has whole groups of H / K query heads, or a part of one. */
struct share_heads {
    struct share_range q, kv;
};

/* H is a multiple of K. Where there are more ranks than key heads, several read the same one: kv
 * ranges then overlap. Ranks beyond a group's heads have none. */
struct share_heads share_heads(int H, int K, int rank, int n_ranks);

/* Of the F numbers inside a feed-forward layer: rows of gate and up, columns of down. */
struct share_range share_feed_forward(int F, int rank, int n_ranks);

/* Equal pieces, as an all-gather wants them: rank r's begins at r * each, unless it is empty, and
 * only the last that is not may be shorter. */
struct share_piece {
    struct share_range range;
    int each;
};

/* Of the P rows of a sequence. */
struct share_piece share_rows(int P, int rank, int n_ranks);
/* Of W columns, which are cut at multiples of SHARE_BLOCK. */
struct share_piece share_columns(int W, int rank, int n_ranks);

/* A device map: rank r has layers begin[r] .. begin[r + 1] - 1 of L, in order. No other way to cut
 * them gives a smaller largest piece; with as many layers as ranks or more, each rank has one.
 * begin [n_ranks + 1]; bytes [L], together below 2^64. */
void share_layers(int *begin, const uint64_t *bytes, int L, int n_ranks);
