/* collectives.c - what CPU ranks exchange goes through the slots of the group's shared memory.
 *
 * A slot has two halves, so that a piece is written while slower ranks read the one before: one
 * barrier a piece, and one at the end, after which the slots are free. For a sum each rank adds up
 * all ranks' pieces in the order of ranks, so all have the same bits: 2 to 3 ms for 1024 rows of
 * 3840 numbers of two ranks, where the products before it take seconds. Not taken: each rank adding
 * a share for all, which for two ranks moves as many bytes. */
#include <assert.h>

#include "kernels/cpu/device.h"

enum {
    PIECE = GROUP_SLOT_BYTES / 2,
    CHUNK = 1 << 14 /* numbers that a task adds up */
};

static char *slot_half(struct group *g, int rank, size_t piece)
{
    return (char *)group_slot(g, rank) + piece % 2 * PIECE;
}

static size_t piece_bytes(size_t bytes, size_t piece)
{
    size_t left = bytes - piece * PIECE;

    return left < PIECE ? left : PIECE;
}

int cpu_join(struct device *d, struct group *group, struct error *err)
{
    (void)err;
    d->group = group;
    return OK;
}

struct sum_args {
    struct group *group;
    float *y;
    size_t piece, n; /* numbers of the piece */
};

static void sum_chunk(void *arg, int index, int thread)
{
    const struct sum_args *a = arg;
    size_t first = (size_t)index * CHUNK, n = a->n - first < CHUNK ? a->n - first : CHUNK;
    float *y = a->y + first;

    (void)thread;
    for (int r = 0; r < group_n_ranks(a->group); r++) {
        const float *x = (const float *)(void *)slot_half(a->group, r, a->piece) + first;
        if (r == 0)
            memcpy(y, x, n * sizeof(*y));
        for (size_t i = 0; i < n && r > 0; i++)
            y[i] += x[i];
    }
}

int cpu_all_reduce(struct device *d, float *y, size_t n, struct error *err)
{
    size_t bytes = n * sizeof(*y);
    int rc;

    assert(d->group != NULL);
    if (group_n_ranks(d->group) == 1)
        return OK;
    for (size_t piece = 0; piece * PIECE < bytes; piece++) {
        struct sum_args args = {.group = d->group,
                                .y = y + piece * PIECE / sizeof(*y),
                                .piece = piece,
                                .n = piece_bytes(bytes, piece) / sizeof(*y)};
        memcpy(slot_half(d->group, group_rank(d->group), piece), args.y, args.n * sizeof(*y));
        if ((rc = group_barrier(d->group, err)) != OK)
            return rc;
        pool_run(d->pool, sum_chunk, &args, (int)((args.n + CHUNK - 1) / CHUNK));
    }
    return group_barrier(d->group, err);
}

int cpu_all_gather(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    int rank, n_ranks, rc;

    assert(d->group != NULL);
    rank = group_rank(d->group);
    n_ranks = group_n_ranks(d->group);
    if (bytes > 0 && from != (char *)to + (size_t)rank * bytes)
        memcpy((char *)to + (size_t)rank * bytes, from, bytes);
    if (n_ranks == 1)
        return OK;
    for (size_t piece = 0; piece * PIECE < bytes; piece++) {
        size_t n = piece_bytes(bytes, piece), at = piece * PIECE;
        memcpy(slot_half(d->group, rank, piece), (const char *)from + at, n);
        if ((rc = group_barrier(d->group, err)) != OK)
            return rc;
        for (int r = 0; r < n_ranks; r++)
            if (r != rank)
                memcpy((char *)to + (size_t)r * bytes + at, slot_half(d->group, r, piece), n);
    }
    return group_barrier(d->group, err);
}

int cpu_broadcast(struct device *d, void *data, size_t bytes, int root, struct error *err)
{
    int rank, rc;

    assert(d->group != NULL);
    rank = group_rank(d->group);
    if (group_n_ranks(d->group) == 1)
        return OK;
    for (size_t piece = 0; piece * PIECE < bytes; piece++) {
        size_t n = piece_bytes(bytes, piece);
        char *part = (char *)data + piece * PIECE;
        if (rank == root)
            memcpy(slot_half(d->group, root, piece), part, n);
        if ((rc = group_barrier(d->group, err)) != OK)
            return rc;
        if (rank != root)
            memcpy(part, slot_half(d->group, root, piece), n);
    }
    return group_barrier(d->group, err);
}
