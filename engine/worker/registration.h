/* registration.h - what an engine tells Q of the model it serves, at its start and again and again:
 * that keeps its card live, and brings it back where Q lost it.
 *
 * Belongs to one thread at a time. */
#pragma once
#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"
#include "jobs/card.h"

struct registration;

/* Works out the digests of weights and tokenizer and with them the card. Q is not asked yet.
 * `queue_url` is borrowed until the close, the rest only for the call. `tokenizer` is the path of
 * one; NULL: the model's own. */
int registration_open(struct registration **out, const struct engine *engine,
                      const struct engine_settings *settings, const char *tokenizer,
                      const char *queue_url, int timeout_ms, struct error *err);
void registration_close(struct registration *r); /* NULL is fine */

/* Valid until the close. */
const struct model_card *registration_card(const struct registration *r);

/* Registers the card, with its tokenizer where Q has none. */
int registration_publish(struct registration *r, bool is_asleep, struct error *err);
