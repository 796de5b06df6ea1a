/* spread.c - see spread.h. `items` is first all prompts by cost and then, rank by rank, the answer:
 * nothing is allocated. */
#include "engine/group/spread.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/* Whether prompt a is dealt before b: the dearer one, of equals the earlier one. */
static bool is_before(const double *cost, int a, int b)
{
    return cost[a] > cost[b] || (cost[a] == cost[b] && a < b);
}

/* Lets items[at] sink in a heap of n whose parents are dealt after their children. */
static void sink(int *items, const double *cost, int at, int n)
{
    int item = items[at];

    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(cost, items[child], items[child + 1]))
            child++;
        if (!is_before(cost, item, items[child]))
            break;
        items[at] = items[child];
    }
    items[at] = item;
}

/* By heap: qsort() cannot be told the costs. */
static void sort_by_cost(int *items, const double *cost, int n)
{
    for (int i = 0; i < n; i++)
        items[i] = i;
    for (int i = n / 2; i-- > 0;)
        sink(items, cost, i, n);
    for (int i = n; i-- > 1;) {
        int last = items[0];

        items[0] = items[i];
        items[i] = last;
        sink(items, cost, 0, i);
    }
}

static int least_loaded(const double *load, int n_ranks)
{
    int least = 0;

    for (int r = 1; r < n_ranks; r++)
        if (load[r] < load[least])
            least = r;
    return least;
}

void spread_prompts(struct spread *out, const double *cost, int n, int n_ranks)
{
    int count[GROUP_MAX_RANKS] = {0}, next[GROUP_MAX_RANKS];

    assert(n >= 0 && n_ranks >= 1 && n_ranks <= GROUP_MAX_RANKS);
    for (int r = 0; r < GROUP_MAX_RANKS; r++)
        out->cost[r] = 0.0;
    sort_by_cost(out->items, cost, n);
    for (int i = 0; i < n; i++) {
        int prompt = out->items[i], r = least_loaded(out->cost, n_ranks);

        assert(cost[prompt] > 0.0 && isfinite(cost[prompt]));
        out->rank_of[prompt] = r;
        out->cost[r] += cost[prompt];
        count[r]++;
    }
    out->begin[0] = 0;
    for (int r = 0; r < GROUP_MAX_RANKS; r++) {
        next[r] = out->begin[r];
        out->begin[r + 1] = out->begin[r] + count[r];
    }
    for (int prompt = 0; prompt < n; prompt++)
        out->items[next[out->rank_of[prompt]]++] = prompt;
}
