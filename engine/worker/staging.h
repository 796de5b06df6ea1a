/* staging.h - the first step: claims jobs, checks them, looks for their results, stages the rest.
 *
 * Belongs to one thread, with connections of its own to Q and C. Payloads are hostile: each job is
 * checked by itself. What is in the cache already is completed at once. Nothing is claimed while C
 * does not answer, and nothing beside a solo job, which may be what kills engines. */
#pragma once
#include "base/error.h"
#include "engine/worker/work.h"

struct staging;

/* `work` is borrowed until the close. */
int staging_open(struct staging **out, const struct work *work, struct error *err);
/* Until the belt is drained, or the engine failed. Errors of Redis end nothing: it backs off. */
void staging_run(struct staging *s);
void staging_close(struct staging *s); /* NULL is fine */
