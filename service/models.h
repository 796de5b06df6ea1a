/* models.h - the models served now, as their cards in Q say, and how much work each one has.
 *
 * A thread reads the cards again and again and builds each tokenizer once; every few seconds it
 * measures their queues too. What it found stays when Q is away. A model is never changed: a new
 * card makes a new one, and who holds the old one keeps it. Any thread may look models up. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/card.h"
#include "jobs/queue.h"
#include "service/problem.h"
#include "tokenizer/tokenizer.h"

struct models;

struct model {
    struct model_card card;
    const struct tokenizer *tokenizer;
    char base[QUEUE_BASE_SIZE]; /* of its queue */
};

/* Told from the models' thread what there is, after each reading. */
typedef void models_seen_fn(void *arg, const struct model *const *models, size_t n);

struct models_options {
    const char *queue_url; /* borrowed */
    int timeout_ms, refresh_ms, measure_ms;
    models_seen_fn *seen; /* or NULL */
    void *seen_arg;
};

/* Reads the cards once before it returns; that Q is away is no failure. */
int models_start(struct models **out, const struct models_options *options, struct error *err);
void models_stop(struct models *m); /* NULL is fine */

/* The newest of that name; NULL names the only one. The caller holds it: model_release(). */
bool models_find(struct models *m, const char *name, const struct model **out, struct problem *p);
/* All, held; newest first. Returns how many. */
size_t models_list(struct models *m, const struct model *out[CARD_MAX]);
void model_hold(const struct model *model);
void model_release(const struct model *model); /* NULL is fine */

/* A model's queue as it was last measured, with engines or without. */
struct model_depth {
    char id[CARD_ID_SIZE], weights[CARD_DIGEST_SIZE], compute[CARD_WORD_SIZE];
    struct queue_depth depth;
};
/* Of all models; from any thread. Returns how many. */
size_t models_depths(struct models *m, struct model_depth out[CARD_MAX]);

/* Nanoseconds (clock.h) of the last time that Q answered; 0: never. */
int64_t models_last_seen_ns(const struct models *m);
