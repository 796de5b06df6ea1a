/* waiters.h - who waits for which job.
 *
 * A waiter is inserted before its job is submitted, so no end of a job falls between. Events wake
 * waiters; as events are only hints, the states of all jobs waited for are also asked for every few
 * seconds, and at once when events were lost. The job's hash is the truth: a waiter hears of a
 * failure only after the hash says so, and of a success only with the result in hand, opened once
 * for all who wait for it. Who wants the job's status hears of all that the hash says. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/queue.h"
#include "jobs/queue_events.h"
#include "service/fetch.h"
#include "service/io.h"

struct waiters;

/* How a job ended. */
struct job_end {
    struct job_status status; /* only its state and error count, unless the waiter wants_status */
    /* Borrowed. NULL: of a JOB_DONE it is gone; other ends have none, and who wants_status gets
     * none. */
    struct result *result;
    int queue_ms, encode_ms; /* in the queue, and with the engine that ended it; -1: not known */
    double fetch_ms;         /* opening the result */
};

struct waiter {
    char id[JOB_ID_SIZE];
    const char *base;    /* of its model's queue; lives as long as the waiter */
    int64_t deadline_ns; /* clock.h; 0: none */
    bool wants_status;   /* and not the result */
    /* From a task, once, the waiter being out of the table: the job is over. */
    void (*over)(struct waiter *w, struct io *io, const struct job_end *end);
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
/* The same for a job that was submitted long ago and may have ended before `w` was added. */
void waiters_submitted_before(struct waiters *t, struct waiter *w);
/* True: it was still in the table and will not be told. */
bool waiters_remove(struct waiters *t, struct waiter *w);

/* An event said that a job changed. */
void waiters_stir(struct waiters *t, const struct queue_event *event);
/* Asks for the states of all jobs that are waited for. */
void waiters_recheck(struct waiters *t);
/* No waiter waits longer than until then (clock.h): for draining. */
void waiters_limit(struct waiters *t, int64_t deadline_ns);
