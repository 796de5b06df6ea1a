/* test_spread.c - prompts to ranks: every one once, the longest first, the same every time. */
#include "engine/group/spread.h"

#include "tests/check.h"

enum { MAX_PROMPTS = 300 };

static int items[MAX_PROMPTS], rank_of[MAX_PROMPTS];
static double cost[MAX_PROMPTS];
static struct spread s = {.items = items, .rank_of = rank_of};

static void pseudo_random_costs(int n, unsigned seed, int kinds)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        cost[i] = 1 + (seed >> 8) % (unsigned)kinds;
    }
}

static void a_pair_is_one_prompt_a_rank(void)
{
    cost[0] = 1024 + 61;
    cost[1] = 1024 + 30;
    spread_prompts(&s, cost, 2, 2);
    CHECK_INT(s.begin[1], 1);
    CHECK_INT(s.begin[2], 2);
    CHECK_INT(items[0], 0);
    CHECK_INT(items[1], 1);
    CHECK_INT(rank_of[0], 0);
    CHECK_INT(rank_of[1], 1);
    CHECK(s.cost[0] == 1085 && s.cost[1] == 1054);
}

static void the_longest_go_first(void)
{
    const double costs[] = {2, 3, 7, 5, 4, 6}; /* 7 | 6 | 5+2 | 4+3 */
    const int owner[] = {2, 3, 0, 2, 3, 1};

    spread_prompts(&s, costs, 6, 4);
    for (int i = 0; i < 6; i++)
        CHECK_INT(rank_of[i], owner[i]);
    CHECK_INT(items[s.begin[2]], 0); /* in the order of the request, not of the deal */
    CHECK_INT(items[s.begin[2] + 1], 3);
}

static void equals_go_in_order(void)
{
    for (int i = 0; i < 7; i++)
        cost[i] = 9;
    spread_prompts(&s, cost, 7, 3);
    for (int i = 0; i < 7; i++)
        CHECK_INT(rank_of[i], i % 3);
}

static void ranks_without_work_stay_out(void)
{
    for (int n = 0; n < 8; n++) {
        pseudo_random_costs(n, 5, 100);
        spread_prompts(&s, cost, n, 8);
        for (int r = 0; r < 8; r++)
            CHECK_INT(s.begin[r + 1] - s.begin[r], r < n);
    }
}

/* Every prompt once, in order, with its rank; and no rank above the mean by more than a prompt. */
static void check_spread(int n, int n_ranks)
{
    double sum = 0, largest = 0;
    int seen[MAX_PROMPTS] = {0};

    for (int i = 0; i < n; i++) {
        sum += cost[i];
        largest = cost[i] > largest ? cost[i] : largest;
    }
    CHECK_INT(s.begin[0], 0);
    CHECK_INT(s.begin[n_ranks], n);
    CHECK_INT(s.begin[GROUP_MAX_RANKS], n);
    for (int r = 0; r < n_ranks; r++) {
        double has = 0;

        for (int i = s.begin[r]; i < s.begin[r + 1]; i++) {
            CHECK(i == s.begin[r] || items[i] > items[i - 1]);
            CHECK_INT(rank_of[items[i]], r);
            seen[items[i]]++;
            has += cost[items[i]];
        }
        CHECK(has == s.cost[r]);
        CHECK(has <= sum / n_ranks + largest * (n_ranks - 1) / n_ranks + 1e-9);
    }
    for (int i = 0; i < n; i++)
        CHECK_INT(seen[i], 1);
}

static void any_number_goes_to_any_number(void)
{
    for (int n_ranks = 1; n_ranks <= GROUP_MAX_RANKS; n_ranks++)
        for (int n = 0; n <= MAX_PROMPTS; n = n < 40 ? n + 1 : n + 37)
            for (int kinds = 1; kinds <= 1000; kinds *= 10) { /* from all alike to all unlike */
                pseudo_random_costs(n, (unsigned)(n * 31 + n_ranks), kinds);
                spread_prompts(&s, cost, n, n_ranks);
                check_spread(n, n_ranks);
            }
}

/* Of all ways to deal nine prompts to three ranks the best, by trying them. */
static double best_of_all(int n)
{
    double best = 1e9;
    int ways = 1;

    for (int i = 0; i < n; i++)
        ways *= 3;
    for (int way = 0; way < ways; way++) {
        double load[3] = {0}, most = 0;

        for (int i = 0, rest = way; i < n; i++, rest /= 3)
            load[rest % 3] += cost[i];
        for (int r = 0; r < 3; r++)
            most = load[r] > most ? load[r] : most;
        best = most < best ? most : best;
    }
    return best;
}

static void the_busiest_is_near_the_best(void)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        double most = 0;

        pseudo_random_costs(9, seed, 1000);
        spread_prompts(&s, cost, 9, 3);
        for (int r = 0; r < 3; r++)
            most = s.cost[r] > most ? s.cost[r] : most;
        CHECK(most <= best_of_all(9) * (4.0 / 3 - 1.0 / 9) + 1e-9); /* Graham's bound */
    }
}

int main(void)
{
    RUN(a_pair_is_one_prompt_a_rank);
    RUN(the_longest_go_first);
    RUN(equals_go_in_order);
    RUN(ranks_without_work_stay_out);
    RUN(any_number_goes_to_any_number);
    RUN(the_busiest_is_near_the_best);
    return check_result();
}
