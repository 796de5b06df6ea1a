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
    M_HALVED,
    M_REDELIVERED,
    M_QUEUE_ERRORS,
    M_CACHE_ERRORS,
    M_IN_HAND,
    M_WAIT,
    M_ENCODE,
    M_STORE,
    N_METRICS
};

struct vitals {
    struct metric metrics[N_METRICS];
    _Atomic uint64_t advances;       /* the loop's own steps, beside the engine's */
    _Atomic int64_t last_contact_ns; /* when Q answered last */
    _Atomic int64_t last_proof_ns;   /* when a forward pass was tried last, and how it went */
    _Atomic bool proof_failed, queue_is_away, cache_is_away;
};

void vitals_init(struct vitals *v);
/* The loop took a step: it does not hang. */
void vitals_advance(struct vitals *v);
/* A forward pass came to its end. */
void vitals_note_proof(struct vitals *v, bool good);
/* Notes whether Q answered. A failure is counted, and logged; that Q is away, once. Returns rc. */
int vitals_note_queue(struct vitals *v, int rc, const struct error *err);
