/* waiters.h - who waits for which job.
 *
 * A waiter is inserted before its job is submitted, so no end of a job falls between. Events wake
 * waiters; as events are only hints, the states of all jobs waited for are also asked for every few
 * seconds, and at once when events were lost. The job's hash is the truth: a waiter hears of a
 * failure only after the hash says so, and of a success only with the result in hand, opened once
 * for all who wait for it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/queue.h"
#include "service/fetch.h"
#include "service/io.h"

struct waiters;

struct waiter {
    char id[JOB_ID_SIZE];
    const char *base;    /* of its model's queue; lives as long as the waiter */
    int64_t deadline_ns; /* clock.h; 0: none */
    /* From a task, once, the waiter being out of the table: the job is over. `result` (borrowed) is
     * NULL for a JOB_DONE whose result is gone, and for all other states. */
    void (*over)(struct waiter *w, struct io *io, const struct job_status *status,
                 struct result *result);
    /* From the table's thread, once, the waiter being out of the table: it has waited enough. */
    void (*late)(struct waiter *w);
    /* private: */
    bool listed, submitted, stirred;
    struct waiter *next;
};

int waiters_start(struct waiters **out, struct io_pool *pool, struct fetch *fetch,
                  struct error *err);
void waiters_stop(struct waiters *t); /* its thread: before the pool stops */
void waiters_free(struct waiters *t); /* after the pool stopped: its tasks use the table */

/* `w` must stay until it was removed or told. */
void waiters_add(struct waiters *t, struct waiter *w);
/* Its job was submitted: from now on what its hash says counts. */
void waiters_submitted(struct waiters *t, struct waiter *w);
/* True: it was still in the table and will not be told. */
bool waiters_remove(struct waiters *t, struct waiter *w);

/* An event said that a job changed. */
void waiters_stir(struct waiters *t, const char *id, enum job_state state);
/* Asks for the states of all jobs of `base` (NULL: of all) that are waited for. */
void waiters_recheck(struct waiters *t, const char *base);
/* No waiter waits longer than until then (clock.h): for draining. */
void waiters_limit(struct waiters *t, int64_t deadline_ns);
