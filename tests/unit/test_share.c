/* test_share.c - what a rank computes: every number once, as evenly as it goes, for any size. */
#include "engine/group/share.h"

#include "tests/check.h"

enum { MAX_RANKS = 8 };

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- heads ---- */

static void check_heads(int H, int K, int n)
{
    int G = H / K, next = 0, most = 0;

    for (int r = 0; r < n; r++) {
        struct share_heads s = share_heads(H, K, r, n);
        int h = s.q.end - s.q.begin, k = s.kv.end - s.kv.begin;

        CHECK_INT(s.q.begin, next);
        CHECK(h >= 0);
        next = s.q.end;
        most = h > most ? h : most;
        CHECK((h == 0) == (k == 0));
        CHECK(h > 0 || G < ceil_div(n, K)); /* none only where a group has too few for its ranks */
        if (h == 0)
            continue;
        CHECK(s.kv.begin >= 0 && s.kv.end <= K);
        CHECK_INT(h % k, 0);
        for (int i = 0; i < h; i++) /* the same key head as in the whole model */
            CHECK_INT(s.kv.begin + i / (h / k), (s.q.begin + i) / G);
    }
    CHECK_INT(next, H);
    if (n <= K)
        CHECK_INT(most, ceil_div(K, n) * G);
    else
        CHECK_INT(most, ceil_div(G, n / K));
}

static void every_head_is_somewhere_once(void)
{
    for (int n = 1; n <= MAX_RANKS; n++)
        for (int K = 1; K <= 16; K++)
            for (int G = 1; G <= 16; G++)
                check_heads(K * G, K, n);
}

static void check_one(int H, int K, int r, int n, struct share_heads want)
{
    struct share_heads s = share_heads(H, K, r, n);

    CHECK_INT(s.q.begin, want.q.begin);
    CHECK_INT(s.q.end, want.q.end);
    CHECK_INT(s.kv.begin, want.kv.begin);
    CHECK_INT(s.kv.end, want.kv.end);
}

static void heads_of_real_models(void)
{
    check_one(16, 8, 1, 2, (struct share_heads){{8, 16}, {4, 8}}); /* Gemma 3 12B */
    check_one(16, 8, 0, 3, (struct share_heads){{0, 6}, {0, 3}});
    check_one(16, 8, 2, 3, (struct share_heads){{12, 16}, {6, 8}});
    check_one(16, 8, 7, 8, (struct share_heads){{14, 16}, {7, 8}});
    check_one(4, 1, 1, 2, (struct share_heads){{2, 4}, {0, 1}}); /* 270M */
    check_one(4, 1, 0, 3, (struct share_heads){{0, 2}, {0, 1}});
    check_one(4, 1, 3, 8, (struct share_heads){{3, 4}, {0, 1}});
    check_one(4, 1, 4, 8, (struct share_heads){{4, 4}, {0, 0}});
    check_one(4, 2, 1, 3, (struct share_heads){{1, 2}, {0, 1}}); /* gemma3-tiny */
    check_one(4, 2, 2, 3, (struct share_heads){{2, 4}, {1, 2}});
    check_one(4, 2, 5, 8, (struct share_heads){{3, 4}, {1, 2}});
    check_one(4, 2, 7, 8, (struct share_heads){{4, 4}, {1, 1}});
}

/* ---- feed-forward ---- */

static void check_feed_forward(int F, int n)
{
    int next = 0, least = F, most = 0, block = 1;

    if (F % SHARE_BLOCK == 0 && F >= SHARE_BLOCK * n)
        block = SHARE_BLOCK;
    else if (F >= SHARE_SMALL_BLOCK * n)
        block = SHARE_SMALL_BLOCK;
    for (int r = 0; r < n; r++) {
        struct share_range s = share_feed_forward(F, r, n);
        int size = s.end - s.begin;

        CHECK_INT(s.begin, next);
        CHECK(s.begin % block == 0 || s.begin == F);
        next = s.end;
        least = size < least ? size : least;
        most = size > most ? size : most;
    }
    CHECK_INT(next, F);
    CHECK_INT(most, ceil_div(ceil_div(F, block), n) * block > F
                        ? F
                        : ceil_div(ceil_div(F, block), n) * block);
    CHECK(most - least < 2 * block);
    CHECK(least > 0 || F < n);
}

static void every_number_of_the_feed_forward_is_somewhere_once(void)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        for (int F = 1; F <= 3000; F++)
            check_feed_forward(F, n);
        for (int F = 4096; F <= 21504; F += 512)
            check_feed_forward(F, n);
    }
}

static void feed_forwards_of_real_models(void)
{
    CHECK_INT(share_feed_forward(15360, 1, 7).begin, 35 * 64); /* Gemma 3 12B */
    CHECK_INT(share_feed_forward(15360, 3, 4).begin, 3 * 3840);
    CHECK_INT(share_feed_forward(2048, 1, 3).begin, 11 * 64); /* 270M */
    CHECK_INT(share_feed_forward(320, 1, 3).begin, 2 * 64);   /* gemma3-tiny */
    CHECK_INT(share_feed_forward(320, 1, 8).begin, 3 * 16);
    CHECK_INT(share_feed_forward(320, 7, 8).begin, 18 * 16);
}

/* ---- equal pieces ---- */

static void check_pieces(int total, int unit, struct share_piece (*share)(int, int, int), int n)
{
    int next = 0;

    for (int r = 0; r < n; r++) {
        struct share_piece s = share(total, r, n);

        CHECK_INT(s.each % unit, 0);
        CHECK(s.each * n >= total && s.each < ceil_div(total, n) + unit);
        CHECK_INT(s.range.begin, next);
        CHECK(s.range.begin == r * s.each || s.range.begin == s.range.end);
        CHECK(s.range.end == total || s.range.end - s.range.begin == s.each);
        next = s.range.end;
    }
    CHECK_INT(next, total);
}

static void pieces_are_equal_but_the_last(void)
{
    for (int n = 1; n <= MAX_RANKS; n++)
        for (int total = 1; total <= 6200; total++) {
            check_pieces(total, 1, share_rows, n);
            check_pieces(total, SHARE_BLOCK, share_columns, n);
        }
}

static void pieces_of_real_models(void)
{
    CHECK_INT(share_rows(1024, 7, 8).range.begin, 896);
    CHECK_INT(share_rows(1024, 0, 3).each, 342);
    CHECK_INT(share_rows(1024, 2, 3).range.end, 1024);
    CHECK_INT(share_columns(6144, 1, 8).range.begin, 768); /* LTX-2.3, both modalities */
    CHECK_INT(share_columns(4096, 2, 3).range.begin, 2816);
    CHECK_INT(share_columns(192, 3, 8).range.begin, 192); /* ltx-tiny-v2: three ranks have some */
    CHECK_INT(share_columns(192, 3, 8).range.end, 192);
}

/* ---- layers ---- */

/* The smallest largest piece, by trying every last cut. */
static uint64_t best_largest(const uint64_t *bytes, int L, int n)
{
    uint64_t best = UINT64_MAX, last = 0;

    if (n == 1) {
        for (int i = 0; i < L; i++)
            last += bytes[i];
        return last;
    }
    for (int i = L; i >= 0; i--) { /* layers i .. L - 1 are the last piece */
        uint64_t first = best_largest(bytes, i, n - 1);
        uint64_t largest = first > last ? first : last;

        best = largest < best ? largest : best;
        if (i > 0)
            last += bytes[i - 1];
    }
    return best;
}

static uint64_t check_layers(const uint64_t *bytes, int L, int n)
{
    int begin[MAX_RANKS + 1];
    uint64_t largest = 0;

    share_layers(begin, bytes, L, n);
    CHECK_INT(begin[0], 0);
    CHECK_INT(begin[n], L);
    for (int r = 0; r < n; r++) {
        uint64_t sum = 0;

        CHECK(begin[r] <= begin[r + 1]);
        CHECK(L < n || begin[r] < begin[r + 1]);
        for (int i = begin[r]; i < begin[r + 1]; i++)
            sum += bytes[i];
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

static void no_cut_of_layers_is_better(void)
{
    uint64_t bytes[12];
    unsigned seed = 7;

    for (int round = 0; round < 40; round++)
        for (int L = 0; L <= 12; L++) {
            for (int i = 0; i < L; i++) {
                seed = seed * 1664525u + 1013904223u;
                bytes[i] = (seed >> 8) % (round % 2 == 0 ? 10 : 1000000); /* zeros, too */
            }
            for (int n = 1; n <= 4; n++)
                CHECK_INT(check_layers(bytes, L, n), best_largest(bytes, L, n));
        }
}

static void layers_of_real_models(void)
{
    uint64_t bytes[48];

    for (int i = 0; i < 48; i++)
        bytes[i] = 448266240; /* Gemma 3 12B in bf16: a layer's */
    for (int n = 1; n <= MAX_RANKS; n++)
        CHECK_INT(check_layers(bytes, 48, n), 448266240LL * ceil_div(48, n));
    bytes[0] += 2013265920; /* the embedding table is with the first */
    CHECK_INT(check_layers(bytes, 48, 2), 448266240LL * 22 + 2013265920);
}

int main(void)
{
    RUN(every_head_is_somewhere_once);
    RUN(heads_of_real_models);
    RUN(every_number_of_the_feed_forward_is_somewhere_once);
    RUN(feed_forwards_of_real_models);
    RUN(pieces_are_equal_but_the_last);
    RUN(pieces_of_real_models);
    RUN(no_cut_of_layers_is_better);
    RUN(layers_of_real_models);
    return check_result();
}
