/* group.h - ranks of one host that compute together: they meet in shared memory.
 *
 * A rank is a thread, of one process or of several. Here they find each other, wait for each other,
 * hand each other small things, and learn when one of them failed; what devices exchange goes
 * through the collectives in ops.h. Whatever waits ends: when all are there, when a rank aborts or
 * its process is gone, or after the deadline.
 *
 * A struct group is one rank's; its thread alone calls, but for group_abort and what comes after
 * it, which are any thread's. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct group;

enum {
    GROUP_MAX_RANKS = 8,
    GROUP_ID_SIZE = 33,
    GROUP_SLOT_BYTES = 1 << 20 /* what each rank has for all to read */
};

/* A name that no other group has, for all ranks to join by. ERR_IO: no random numbers. */
int group_make_id(char id[GROUP_ID_SIZE], struct error *err);

/* Returns when all n_ranks have joined; rank is 0 .. n_ranks - 1. A group of one is just itself.
 * join_ms: how long to wait for the others; deadline_ms: the same for every later step.
 * ERR_TIME: somebody did not come; ERR_INPUT: a rank was taken, or they do not agree on n_ranks;
 * ERR_IO: no shared memory. On failure *out is NULL. */
int group_join(struct group **out, const char *id, int rank, int n_ranks, int join_ms,
               int deadline_ms, struct error *err);
/* Waits for nobody. NULL is fine. */
void group_leave(struct group *g);

int group_rank(const struct group *g);
int group_n_ranks(const struct group *g);
int group_deadline_ms(const struct group *g);

/* Returns when all ranks have called it. What a rank wrote before, all read after. ERR_GPU: the
 * group is aborted, a rank's process is gone, or the deadline passed, which aborts it. */
int group_barrier(struct group *g, struct error *err);

/* `bytes` (GROUP_SLOT_BYTES at most) of the root's to all. A barrier, too, and its errors. */
int group_share(struct group *g, void *data, size_t bytes, int root, struct error *err);

/* Rank r's slot, [GROUP_SLOT_BYTES], on a boundary of 64 bytes: that rank writes, the others read,
 * between barriers. */
void *group_slot(struct group *g, int rank);

/* Ends every wait of every rank, now and later. The first reason stays; `why` has no prompt's text.
 */
void group_abort(struct group *g, const char *why);
/* OK while nothing failed; else ERR_GPU, with the rank and the reason. Looks at the other ranks'
 * processes, too. Cheap enough to be asked again and again while something is waited for. */
int group_check(struct group *g, struct error *err);

/* Whose fault it is that the group failed, as far as its ranks can tell; -1: nothing failed. */
int group_failed_rank(const struct group *g);
/* Whether this rank waits for others to come: while it does, it is not the one that hangs. */
bool group_is_waiting(const struct group *g);
