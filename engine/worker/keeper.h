/* keeper.h - what an engine does beside its work, on a thread of its own: renews the leases of the
 * jobs in hand and a fixed name, registers the model again, and sweeps the queue.
 *
 * Leases are renewed only while every step of the work advances or rests (vitals.h; the engine's
 * own engine_steps() count, too): an engine of which one step hangs must lose its jobs, so that
 * another gets them. */
#pragma once
#include <stdbool.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/worker/hand.h"
#include "engine/worker/registration.h"
#include "engine/worker/vitals.h"

struct keeper;

struct keeper_options {
    const char *queue_url, *base; /* of the queue */
    const char *owner;            /* this engine's name */
    bool owner_is_fixed;
    int redis_timeout_ms;
    int lease_ms; /* renewed at a third of it */
    int hang_ms;  /* a step that does not advance for so long hangs */
    int register_every_ms;
    struct registration *registration; /* published already; the keeper's until the stop */
    /* only engine_steps() is asked of it */
    const struct engine *engine;
    struct hand *hand;
    struct vitals *vitals;
};

/* All that the options name is borrowed until the stop. Takes a fixed name first, waiting for what
 * is left of its former self's lock. ERR_BUSY: another live engine has it. */
int keeper_start(struct keeper **out, const struct keeper_options *options, struct error *err);
/* Joins its thread and lets a fixed name go; NULL is fine. */
void keeper_stop(struct keeper *k);

/* The work does not advance, or the name went to another engine: this process is to end. */
bool keeper_gave_up(struct keeper *k);
/* Milliseconds since its last round; it may wait for Redis, but not for long. */
double keeper_tick_ms(struct keeper *k);
