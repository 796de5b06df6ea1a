/* batch.h - what passes from step to step of the worker: jobs in hand, and what became of them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/worker/hand.h"
#include "jobs/queue.h"

enum { BATCH_MAX = QUEUE_CLAIM_MAX };

/* Plain data; a job without an outcome belongs to whoever has its batch. */
struct batch {
    struct held *jobs[BATCH_MAX];
    size_t n, n_tokens;
    bool solo;  /* its one job may be what kills engines: nothing else is in hand beside it */
    bool probe; /* of no jobs: a forward pass that proves the device */
    bool sleep; /* of no jobs: the engine goes to sleep */

    /* after encoding */
    const char *failure; /* why there are no results, a code for the queue; NULL: there are */
    bool cache_is_away;  /* not encoded, as its results could not be stored: to be given back */
    struct engine_result results[BATCH_MAX];
    double encode_ms;
};
