/* belt.h - what the three steps of a worker pass on, and where they wait for each other.
 *
 *     staging ──[ staged ]──> encoding ──[ encoded ]──> storing
 *
 * One batch lies staged at most. An encoded one keeps its place until it is stored, so that results
 * of two batches at most are in memory: the one that is stored and the next. Each side belongs to
 * the thread of its step; nothing but these waits happens under the belt's lock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/worker/batch.h"

struct belt;

int belt_create(struct belt **out, struct error *err);
void belt_free(struct belt *b); /* NULL is fine */

/* No more is staged; what is on the belt is finished. From any thread. */
void belt_drain(struct belt *b);

/* ---- the staging step's side ---- */

enum belt_room {
    BELT_FREE, /* the engine waits for work */
    BELT_SOON, /* it will within BELT_AHEAD_MS, as far as is known */
    BELT_OVER  /* nothing is to be staged any more */
};

enum { BELT_AHEAD_MS = 5 };

/* Waits until a batch may be claimed and staged. That is not while the engine has much left to do:
 * a job that waits in the queue can be started by any engine that gets free, and together with
 * others that come meanwhile; one that is staged waits for this engine. Claiming takes a
 * millisecond or two, so a few before the end are soon enough to keep the engine busy. Where the
 * end is not known, or has passed, it is waited for. `look_ns`: before that, a clock_now_ns(), the
 * answer is not BELT_SOON. `alone`: until nothing at all is on the belt; also without it while a
 * solo batch is on it. */
enum belt_room belt_wait_for_room(struct belt *b, bool alone, int64_t look_ns);
/* Whether nothing is on the belt and the engine waits. */
bool belt_is_empty(struct belt *b);
/* Copies it; only after there was room. */
void belt_stage(struct belt *b, const struct batch *batch);
/* Ends the side. */
void belt_end_staging(struct belt *b);

/* ---- the encoding step's side ---- */

/* Waits for a batch; false: there will be none. */
bool belt_take_staged(struct belt *b, struct batch *out);
/* When the batch that was taken is expected to be computed; without it that is not known. */
void belt_expect_end(struct belt *b, int64_t end_ns);
/* Waits until the one before is stored, and copies. `batch` may be a part of what was taken. */
void belt_hand_over(struct belt *b, const struct batch *batch);
/* Ends the side: staging is told to end, storing finishes what was handed over. */
void belt_end_encoding(struct belt *b);

/* ---- the storing step's side ---- */

/* Waits for what was encoded; its place is kept until belt_stored(). NULL: there will be none. */
struct batch *belt_take_encoded(struct belt *b);
void belt_stored(struct belt *b);
/* When there will be none: waits for the end of staging. True: a batch was staged that nobody
 * encodes any more, as the engine failed; it is to be given back. */
bool belt_take_left(struct belt *b, struct batch *out);
