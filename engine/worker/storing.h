/* storing.h - the third step: stores what was encoded, then completes its jobs, in that order: a
 * crash between the two costs one look-up, never a result. While it does, the engine computes on.
 *
 * Belongs to one thread, with a connection of its own to Q and several to C; large results are
 * stored by threads that it starts for that, one on each. */
#pragma once
#include "base/error.h"
#include "engine/worker/work.h"

struct storing;

int storing_open(struct storing **out, const struct work *work, struct error *err);
/* Until encoding has ended and all that was encoded is stored. What the engine, failed, left staged
 * is given back. */
void storing_run(struct storing *s);
void storing_close(struct storing *s); /* NULL is fine */
