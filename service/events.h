/* events.h - reads what the queues say of their jobs and wakes who waits.
 *
 * One thread reads the events of all models over one connection, as long as the process lives:
 * Redis away is waited out. */
#pragma once
#include <stddef.h>

#include "base/error.h"
#include "service/models.h"
#include "service/waiters.h"

struct events;

int events_start(struct events **out, const char *queue_url, int timeout_ms,
                 struct waiters *waiters, struct error *err);
void events_stop(struct events *e); /* its thread; what it is told to follow then is ignored */
void events_free(struct events *e); /* NULL is fine */

/* Reads the queues of these models from now on, and of no others. A models_seen_fn. */
void events_follow(void *events, const struct model *const *models, size_t n);
