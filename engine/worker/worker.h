/* worker.h - an engine at work: claims jobs of its model, encodes them, stores results, completes.
 *
 * A batch passes three steps, each with a thread and connections of its own: it is staged
 * (staging.h), encoded by the thread that owns the engine (encoding.h) and stored (storing.h),
 * while the steps beside it are at the next and the last one; belt.h says what they pass on and how
 * much that is at most. The keeper (keeper.h) renews the leases of all that is in hand (hand.h).
 * Every outcome reaches Redis fenced by the claim's token (outcome.h); a job may be delivered
 * twice, and an encode that is repeated is harmless. A result is stored before its job is
 * completed. Errors of Redis end nothing: leases that could not be renewed pass to others. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/worker/registration.h"

struct worker;

struct worker_options {
    const char *queue_url, *cache_urls;
    const char *owner;   /* this engine's name: unlike every other live one's */
    bool owner_is_fixed; /* given by --name: takes back what it held before it died */
    int redis_timeout_ms;
    int lease_ms;          /* of a claim, and of a fixed name; renewed at a third of it */
    int64_t budget_tokens; /* of a batch */
    int max_jobs;          /* of a batch */
    int64_t result_ttl_ms;
    int register_every_ms;  /* the model's card */
    int probe_every_ms;     /* a forward pass of one token, while there is no work */
    int64_t sleep_after_ms; /* without work the engine sleeps after so long; 0: it never does */
    int hang_ms;            /* a step that does not advance for so long: all is given up */
};

/* Takes over until worker_stop(): the engine, which was proven just now, and the registration,
 * which was published. Borrowed texts live as long as the worker. ERR_BUSY: a fixed name that
 * another live engine has. */
int worker_start(struct worker **out, struct engine *engine, struct registration *registration,
                 const struct worker_options *options, struct error *err);

/* No more claims: what is in hand is finished. From any thread. */
void worker_drain(struct worker *w);

/* Waits up to timeout_ms for all steps to end; true when they have. *rc is then OK, or why they
 * ended by themselves: the engine is not to be used again. */
bool worker_wait(struct worker *w, int timeout_ms, int *rc, struct error *err);
/* Whether the work ended by itself or hangs: then the process should exit, non-zero. */
bool worker_has_failed(struct worker *w);

/* Gives back what is still in hand, when a drain took too long. */
int worker_release(struct worker *w, struct error *err);
/* Joins the threads; the steps must have ended. NULL is fine. */
void worker_stop(struct worker *w);

/* For the admin listener; from any thread. */
bool worker_is_live(struct worker *w, char *why, size_t cap);
bool worker_is_ready(struct worker *w, char *why, size_t cap);
int worker_metrics(struct worker *w, struct buf *out, struct error *err);
