/* test_portion.c - every piece of a model is one rank's, and ranks agree on whose. */
#include "engine/group/portion.h"

#include "tests/check.h"

enum { L = 7, MAX = 40 };

static uint64_t bytes[MAX];

static void check_map(int n_ranks, const int n_blocks[PORTION_CONNECTORS])
{
    int n = 1 + L + n_blocks[0] + n_blocks[1];
    int states = 0;

    for (int rank = 0; rank < n_ranks; rank++) {
        struct portion p = portion_by_layer(rank, n_ranks, bytes, L, n_blocks);
        struct share_range own = portion_states(&p, L + 1);
        int last = 0;

        CHECK_INT(p.kind, n_ranks == 1 ? PORTION_ALL : PORTION_LAYER);
        for (int piece = 0; piece < n; piece++) {
            int owner = portion_owner(&p, piece);
            CHECK(owner >= last && owner < n_ranks); /* in order */
            last = owner;
            if (n_ranks > 1)
                CHECK_INT(portion_has(&p, piece), owner == rank);
            else
                CHECK(portion_has(&p, piece));
            if (piece <= L)
                CHECK_INT(portion_has(&p, piece), piece >= own.begin && piece < own.end);
        }
        CHECK_INT(own.begin, states);
        states = own.end;
        for (int c = 0; c < PORTION_CONNECTORS && n_ranks > 1; c++) {
            int first = portion_connector_first(&p, c), end = portion_connector_last(&p, c);
            CHECK_INT(portion_block(&p, c, 0), 1 + L + (c == 1 ? n_blocks[0] : 0));
            CHECK(first <= end);
            if (n_blocks[c] == 0)
                CHECK_INT(first + end, 0);
            else
                CHECK_INT(first, portion_owner(&p, portion_block(&p, c, 0)));
        }
    }
    CHECK_INT(states, L + 1);
}

static void every_piece_is_somewhere_once(void)
{
    static const int shapes[][PORTION_CONNECTORS] = {{0, 0}, {2, 2}, {8, 0}, {0, 1}, {12, 12}};

    for (int heavy = 0; heavy < 3; heavy++) { /* nothing; the table; blocks */
        for (int i = 0; i < MAX; i++)
            bytes[i] = (heavy == 1 && i == 0) || (heavy == 2 && i > L) ? 900 : 7;
        for (int n_ranks = 1; n_ranks <= GROUP_MAX_RANKS; n_ranks++)
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
                check_map(n_ranks, shapes[i]);
    }
}

/* A table as large as four layers, and blocks of two. */
static void bytes_are_balanced(void)
{
    static const uint64_t sizes[] = {40, 10, 10, 10, 10, 10, 10, 10, 20, 20, 20, 20};
    static const int n_blocks[] = {2, 2};
    struct portion p = portion_by_layer(1, 4, sizes, L, n_blocks);
    uint64_t most = 0;

    for (int r = 0; r < 4; r++) {
        uint64_t sum = 0;
        for (int i = p.begin[r]; i < p.begin[r + 1]; i++)
            sum += sizes[i];
        most = sum > most ? sum : most;
    }
    CHECK_INT(most, 50); /* 190 in all: 50, 50, 50, 40 */
}

static void ranks_beyond_the_pieces_have_none(void)
{
    static const int none[] = {0, 0};
    static const uint64_t two[] = {5, 5, 5};
    struct portion p = portion_by_layer(7, 8, two, 2, none);
    struct share_range states = portion_states(&p, 3);

    CHECK_INT(states.begin, states.end);
    CHECK(!portion_has(&p, 0) && !portion_has(&p, 1) && !portion_has(&p, 2));
    CHECK_INT(portion_owner(&p, 2), 2);
}

static void others_have_it_all(void)
{
    struct portion all = portion_all(4), part = portion_by_tensor(2, 4);
    int n;

    CHECK(portion_has(&all, 0) && portion_has(&part, 5));
    CHECK_INT(portion_part(&all, &n), 0);
    CHECK_INT(n, 1);
    CHECK_INT(portion_part(&part, &n), 2);
    CHECK_INT(n, 4);
    CHECK_INT(portion_states(&part, 8).end, 8);
    CHECK_INT(portion_by_tensor(0, 1).kind, PORTION_ALL);
}

int main(void)
{
    RUN(every_piece_is_somewhere_once);
    RUN(bytes_are_balanced);
    RUN(ranks_beyond_the_pieces_have_none);
    RUN(others_have_it_all);
    return check_result();
}
