/* hand.h - the jobs an engine has in hand: from their claim until each has its outcome.
 *
 * A job in hand belongs to one of the worker's steps at a time, which passes it on (belt.h) and
 * alone reads and writes its fields; the keeper meanwhile copies what is in hand, renews it in Q
 * and notes the answers. What both touch lies behind a lock. From any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "jobs/payload.h"
#include "jobs/queue.h"

enum {
    HAND_BATCHES = 3, /* one staged, one computed, one stored */
    HAND_MAX = HAND_BATCHES * QUEUE_CLAIM_MAX
};

struct held {
    struct claimed_job job;
    struct payload payload; /* of a job that was parsed */
    bool parsed;
    struct engine_request request; /* of a job that was accepted; its layers are the payload's */
    /* private, as they are shared: */
    bool used;
    enum lease_answer answer;
    int64_t renewed_ns;
};

struct hand;

int hand_create(struct hand **out, struct error *err);
void hand_free(struct hand *h); /* NULL is fine; forgets what is still in it */

/* Takes the jobs' payloads over; out[i] is jobs[i] in hand. No more than HAND_MAX at once. */
void hand_take(struct hand *h, const struct claimed_job *jobs, size_t n, struct held **out);
/* What the latest renewal said of a job. */
enum lease_answer hand_answer(struct hand *h, const struct held *held);
/* An outcome was written, or tried to: its lease is renewed no more, and it is freed. */
void hand_end(struct hand *h, struct held *held);

size_t hand_n(struct hand *h);
/* The jobs in hand, without their payloads; returns their number. */
size_t hand_copy(struct hand *h, struct claimed_job out[HAND_MAX]);
/* Milliseconds since the oldest lease in hand began or was renewed; 0: nothing is in hand. */
double hand_oldest_ms(struct hand *h);
/* What Q said when these were renewed. One that has ended meanwhile is passed over. */
void hand_note_answers(struct hand *h, const struct claimed_job *jobs,
                       const enum lease_answer *answers, size_t n);
