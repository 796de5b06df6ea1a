/* share.c - see share.h. */
#include "engine/group/share.h"

#include <assert.h>
#include <stdbool.h>

static int min(int a, int b)
{
    return a < b ? a : b;
}

/* Part `i` of n things dealt to `parts`: sizes differ by one at most, the larger come first. */
static struct share_range deal(int n, int i, int parts)
{
    int each = n / parts, more = n % parts;
    int begin = i * each + min(i, more);

    return (struct share_range){begin, begin + each + (i < more)};
}

struct share_heads share_heads(int H, int K, int rank, int n_ranks)
{
    int G = H / K;
    struct share_heads s;

    assert(H > 0 && K > 0 && H % K == 0 && rank >= 0 && rank < n_ranks);
    if (n_ranks <= K) {
        s.kv = deal(K, rank, n_ranks);
        s.q = (struct share_range){s.kv.begin * G, s.kv.end * G};
        return s;
    }
    for (int g = 0;; g++) { /* the group that this rank is dealt to */
        struct share_range ranks = deal(n_ranks, g, K);

        if (rank >= ranks.end)
            continue;
        s.q = deal(G, rank - ranks.begin, ranks.end - ranks.begin);
        s.q.begin += g * G;
        s.q.end += g * G;
        s.kv = (struct share_range){g, g + (s.q.end > s.q.begin)};
        return s;
    }
}

struct share_range share_feed_forward(int F, int rank, int n_ranks)
{
    int block = 1;
    struct share_range s;

    assert(F > 0 && rank >= 0 && rank < n_ranks);
    if (F % SHARE_BLOCK == 0 && F / SHARE_BLOCK >= n_ranks)
        block = SHARE_BLOCK;
    else if (F / SHARE_SMALL_BLOCK >= n_ranks)
        block = SHARE_SMALL_BLOCK;
    s = deal((F + block - 1) / block, rank, n_ranks);
    return (struct share_range){min(s.begin * block, F), min(s.end * block, F)};
}

/* Pieces of a multiple of `unit`. */
static struct share_piece piece(int n, int unit, int rank, int n_ranks)
{
    int each = (n + n_ranks - 1) / n_ranks;

    assert(n > 0 && rank >= 0 && rank < n_ranks);
    each = (each + unit - 1) / unit * unit;
    return (struct share_piece){{min(rank * each, n), min((rank + 1) * each, n)}, each};
}

struct share_piece share_rows(int P, int rank, int n_ranks)
{
    return piece(P, 1, rank, n_ranks);
}

struct share_piece share_columns(int W, int rank, int n_ranks)
{
    return piece(W, SHARE_BLOCK, rank, n_ranks);
}

/* Cuts L layers so that no piece is above `most` bytes; false when n_ranks pieces are too few. A
 * piece ends early where the layers left are only as many as the ranks left. */
static bool cut_layers(int *begin, const uint64_t *bytes, int L, int n_ranks, uint64_t most)
{
    int i = 0;

    for (int r = 0; r < n_ranks; r++) {
        uint64_t piece_bytes = 0;

        begin[r] = i;
        while (i < L && bytes[i] <= most - piece_bytes &&
               (i == begin[r] || L - i > n_ranks - 1 - r))
            piece_bytes += bytes[i++];
    }
    begin[n_ranks] = i;
    return i == L;
}

void share_layers(int *begin, const uint64_t *bytes, int L, int n_ranks)
{
    uint64_t low = 0, high = 0; /* the largest piece is at least, at most */

    assert(L >= 0 && n_ranks >= 1);
    for (int i = 0; i < L; i++)
        high += bytes[i];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (cut_layers(begin, bytes, L, n_ranks, middle))
            high = middle;
        else
            low = middle + 1;
    }
    (void)cut_layers(begin, bytes, L, n_ranks, low);
}
