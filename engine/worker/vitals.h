/* vitals.h - what a worker's threads note of its health, and what /metrics shows.
 *
 * Plain atomics, written and read by any thread. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/metrics.h"

enum {
    M_DONE,
    M_CACHED,
    M_FAILED,
    M_STALE,
    M_CANCELLED,
    M_RELEASED,
    M_BATCHES,
    M_TOKENS,
    M_AHEAD,
    M_HALVED,
    M_REDELIVERED,
    M_QUEUE_ERRORS,
    M_CACHE_ERRORS,
    M_IN_HAND,
    M_WAIT,
    M_STAGE,
    M_ENCODE,
    M_STORE_BATCH,
    M_STORE,
    M_ASLEEP,
    M_WAKE,
    N_METRICS
};

/* What happens to a batch, each on a thread of its own (belt.h). */
enum step { STEP_STAGE, STEP_ENCODE, STEP_STORE, N_STEPS };

/* Whether a step goes on. */
struct pulse {
    _Atomic uint64_t advances;
    _Atomic bool rests;
};

struct vitals {
    struct metric metrics[N_METRICS];
    struct pulse pulses[N_STEPS];
    _Atomic double tokens_per_s;     /* what is computed and stored, of late; 0: not known yet */
    _Atomic int64_t last_contact_ns; /* when Q answered last */
    _Atomic int64_t last_proof_ns;   /* when a forward pass was tried last, and how it went */
    _Atomic int64_t last_work_ns;    /* when a batch was encoded last, or sleeping failed */
    _Atomic bool is_asleep;          /* the engine */
    _Atomic bool proof_failed, queue_is_away, cache_is_away;
};

void vitals_init(struct vitals *v);
/* All steps rest at first. */
void vitals_advance(struct vitals *v, enum step step); /* it does not hang */
/* It waits for work, for another step or for its next try, or has ended: it need not advance. */
void vitals_rest(struct vitals *v, enum step step);
void vitals_resume(struct vitals *v, enum step step);
void vitals_note_sleep(struct vitals *v, bool is_asleep);
/* A forward pass came to its end. */
void vitals_note_proof(struct vitals *v, bool good);
/* Notes whether Q answered. A failure is counted, and logged; that Q is away, once. Returns rc. */
int vitals_note_queue(struct vitals *v, int rc, const struct error *err);
