/* hand.h - the jobs an engine has in hand: those of its last claim, until each has its outcome.
 *
 * Two threads meet here. The loop takes a claim, works it off and lets it go; the keeper copies
 * what is still open, renews it in Q and notes the answers. A job's own fields belong to the loop
 * and never change while it is in hand; only `over` and the answer are shared, behind a lock. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/payload.h"
#include "jobs/queue.h"

enum { HAND_MAX = QUEUE_CLAIM_MAX };

struct held {
    struct claimed_job job;
    struct payload payload; /* of a job that was parsed */
    bool parsed;
    /* private, as they are shared: */
    bool over;
    enum lease_answer answer;
};

struct hand;

int hand_create(struct hand **out, struct error *err);
void hand_free(struct hand *h); /* NULL is fine */

/* ---- the loop's side ---- */

/* Takes the jobs' payloads over. The hand must be empty. */
void hand_take(struct hand *h, const struct claimed_job *jobs, size_t n);
/* Frees them, whatever became of them. */
void hand_let_go(struct hand *h);
size_t hand_n(const struct hand *h);
struct held *hand_at(struct hand *h, size_t i);

/* What the latest renewal said of a job. */
enum lease_answer hand_answer(struct hand *h, const struct held *held);
/* An outcome was written, or tried to: its lease is renewed no more. */
void hand_end(struct hand *h, struct held *held);

/* ---- from any thread ---- */

/* The jobs without an outcome, without their payloads; returns their number. */
size_t hand_copy_open(struct hand *h, struct claimed_job out[HAND_MAX]);
/* When the leases in hand began or were renewed, as clock_now_ns(). */
int64_t hand_renewed_ns(struct hand *h);
/* What Q said when these were renewed. One that was let go meanwhile is passed over. */
void hand_note_answers(struct hand *h, const struct claimed_job *jobs,
                       const enum lease_answer *answers, size_t n);
