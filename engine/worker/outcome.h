/* outcome.h - what becomes of a job: each of these ends jobs in hand and tells Q, fenced by the
 * claim's token.
 *
 * Belongs to one step's thread, whose connection to Q it uses. An outcome that Q could not be told
 * ends the job in hand all the same: its lease runs out, and it is delivered again. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/worker/hand.h"
#include "engine/worker/vitals.h"
#include "jobs/queue.h"

/* Plain data: fill in what is above `private`. */
struct outcomes {
    struct queue *queue;
    struct hand *hand;
    struct vitals *vitals;
    enum step step;
    /* private: jobs whose results are in the cache, not completed yet: Q writes to its disk once
     * for all */
    struct {
        struct held *jobs[QUEUE_CLAIM_MAX];
        int metrics[QUEUE_CLAIM_MAX];
        size_t n;
        int64_t since_ns; /* when the first of them began to be stored */
    } stored;
};

/* Whether the job is still wanted and still ours; if not, ends it. */
bool outcome_is_wanted(struct outcomes *o, struct held *h);
/* `code` is for the waiting client; it never holds any text of the prompt. */
void outcome_fail(struct outcomes *o, struct held *h, bool permanent, const char *code);
/* Back to the queue, the attempt not counted. */
void outcome_release(struct outcomes *o, struct held *h);
/* A result is in the cache since it began to be stored at since_ns; counts as `metric`. Its job is
 * completed within some milliseconds, together with others, by a later call, at the latest by
 * outcome_complete(). At most QUEUE_CLAIM_MAX before that one. */
void outcome_add_stored(struct outcomes *o, struct held *h, int metric, int64_t since_ns);
void outcome_complete(struct outcomes *o);
