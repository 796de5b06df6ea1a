/* queue_events.h - what queues say of jobs that are over, read over one connection.
 *
 * Events are hints; the job is the truth (queue_status()). A reader keeps its own place in each
 * queue's stream, and says when it may have missed something. After an error the places stay: call
 * again, and it connects by itself. A struct queue_events belongs to one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "jobs/job.h"

struct queue_events;

struct queue_event {
    char id[JOB_ID_SIZE];
    enum job_state state;
    int waited_ms; /* from when it was enqueued to its last claim; -1: never claimed */
    int took_ms;   /* from its last claim to its end; -1: never claimed */
};

/* Nothing is connected yet, and nothing followed. */
int queue_events_open(struct queue_events **out, const char *url, int timeout_ms,
                      struct error *err);
void queue_events_close(struct queue_events *e); /* NULL is fine */

/* From now on these queues' events (bases as from queue_base(), all different, n at most CARD_MAX),
 * and no others.
 * One that is new begins at what is newest and sets *fresh: what happened before is known only to
 * the jobs. After an error it follows what it did. */
int queue_events_follow(struct queue_events *e, const char *const *bases, size_t n, bool *fresh,
                        struct error *err);

/* Waits up to block_ms for events; *n may be 0. cap: at least as many as queues are followed.
 * *missed is set when a stream was cut past our place or lost its end: ask for the states of all
 * jobs waited for. With nothing to follow it waits block_ms. */
int queue_events_read(struct queue_events *e, int block_ms, struct queue_event *events, size_t cap,
                      size_t *n, bool *missed, struct error *err);
