/* team.h - the threads of the ranks in this process, one each, and how work reaches them.
 *
 * All work of a rank is done by its thread: one call hands a function to all of them, or some, and
 * waits. What ends without all of them having returned leaves the team broken: a thread that hangs
 * cannot be stopped, so the process is to exit, and nothing that its ranks use may be freed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/group.h"

struct team;

enum { TEAM_ALL = -1 };

/* A rank's part of some work. */
typedef int team_fn(void *arg, int rank, struct error *err);

/* How a hang is told from slow work, and what is done when a rank fails, so that none waits for it.
 * All are called from the thread in team_run(). */
struct team_watch {
    uint64_t (*steps)(void *arg, int rank); /* rises while the rank works */
    bool (*waits)(void *arg, int rank);     /* for other ranks: it is not the one that hangs */
    void (*give_up)(void *arg, int rank, const char *why);
    void *arg;
    int deadline_ms; /* a rank that takes no step for so long hangs; 0: it may take any time */
};

/* n: 1 .. GROUP_MAX_RANKS. ERR_MEM: no threads. */
int team_start(struct team **out, int n, struct error *err);

/* Joins the threads; of a broken team none is stopped, nor freed. NULL is fine. */
void team_stop(struct team *t);

/* Runs fn on the ranks whose bit is set in `ranks` (TEAM_ALL: on all), one call at a time, and
 * returns when all have returned; the failure that came first counts, ERR_GPU before others. watch:
 * NULL: nothing is watched, and a failure of one leaves the others to end by themselves. ERR_GPU:
 * also a rank that hangs, or one that did not end within 2 s after another had failed with ERR_GPU;
 * the team is then broken. */
int team_run(struct team *t, int ranks, team_fn *fn, void *arg, const struct team_watch *watch,
             struct error *err);

bool team_is_broken(const struct team *t);

/* Of the team_run() that was last, if it failed: which rank's failure counted, and what a rank
 * failed with; false: it did not fail, or it has not returned. */
int team_failed_rank(const struct team *t);
bool team_failure(struct team *t, int rank, struct error *out);
