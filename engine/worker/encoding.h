/* encoding.h - the second step: the thread that owns the engine encodes what was staged.
 *
 * It never waits for Redis: outcomes are the storing step's to write. Out of memory halves what is
 * encoded together, down to single jobs. ERR_GPU ends it: the device is not to be trusted. */
#pragma once
#include "base/error.h"
#include "engine/engine.h"
#include "engine/worker/work.h"

struct encoding;

int encoding_open(struct encoding **out, const struct work *work, struct engine *engine,
                  struct error *err);
/* Until staging has ended and nothing is staged: OK; or ERR_GPU. Jobs that the device may have
 * failed on are let go without an outcome: their leases end, and others get them. */
int encoding_run(struct encoding *e, struct error *err);
void encoding_close(struct encoding *e); /* NULL is fine */
