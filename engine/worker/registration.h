/* registration.h - what an engine does once before it takes work: proves that it computes, and
 * tells Q what it serves. */
#pragma once
#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"
#include "jobs/card.h"

/* A forward pass of one token: the device works, and all of a pass's memory is there. */
int registration_prove(struct engine *engine, struct error *err);

/* Digests weights and tokenizer, fills *card, and stores card and tokenizer in the queue's Redis.
 */
int registration_publish(struct engine *engine, const struct engine_settings *settings,
                         const char *queue_url, int timeout_ms, struct model_card *card,
                         struct error *err);
