#include "engine/group/portion.h"

#include <assert.h>

struct portion portion_all(int n_ranks)
{
    return (struct portion){.kind = PORTION_ALL, .n_ranks = n_ranks};
}

struct portion portion_by_tensor(int rank, int n_ranks)
{
    if (n_ranks == 1)
        return portion_all(1);
    return (struct portion){.kind = PORTION_TENSOR, .rank = rank, .n_ranks = n_ranks};
}

struct portion portion_by_layer(int rank, int n_ranks, const uint64_t *bytes, int n_layers,
                                const int n_blocks[PORTION_CONNECTORS])
{
    struct portion p = {
        .kind = PORTION_LAYER, .rank = rank, .n_ranks = n_ranks, .n_layers = n_layers};
    int n = 1 + n_layers;

    assert(n_ranks <= GROUP_MAX_RANKS);
    if (n_ranks == 1)
        return portion_all(1);
    for (int c = 0; c < PORTION_CONNECTORS; c++) {
        p.n_blocks[c] = n_blocks[c];
        n += n_blocks[c];
    }
    share_layers(p.begin, bytes, n, n_ranks);
    return p;
}

int portion_block(const struct portion *p, int connector, int i)
{
    int piece = 1 + p->n_layers + i;

    for (int c = 0; c < connector; c++)
        piece += p->n_blocks[c];
    return piece;
}

int portion_owner(const struct portion *p, int piece)
{
    int rank = 0;

    while (rank < p->n_ranks - 1 && piece >= p->begin[rank + 1])
        rank++;
    return rank;
}

bool portion_has(const struct portion *p, int piece)
{
    return p->kind != PORTION_LAYER || portion_owner(p, piece) == p->rank;
}

int portion_connector_first(const struct portion *p, int connector)
{
    return p->n_blocks[connector] > 0 ? portion_owner(p, portion_block(p, connector, 0)) : 0;
}

int portion_connector_last(const struct portion *p, int connector)
{
    int n = p->n_blocks[connector];

    return n > 0 ? portion_owner(p, portion_block(p, connector, n - 1)) : 0;
}

struct share_range portion_states(const struct portion *p, int S)
{
    struct share_range states = {0, S};

    if (p->kind != PORTION_LAYER)
        return states;
    states.begin = p->begin[p->rank] < S ? p->begin[p->rank] : S;
    states.end = p->begin[p->rank + 1] < S ? p->begin[p->rank + 1] : S;
    return states;
}

int portion_part(const struct portion *p, int *n_parts)
{
    *n_parts = p->kind == PORTION_TENSOR ? p->n_ranks : 1;
    return p->kind == PORTION_TENSOR ? p->rank : 0;
}
