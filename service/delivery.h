/* delivery.h - a settled ticket becomes an answer: tensors, states of jobs, 202, or a problem.
 *
 * Tensors are sent as they come from the cache; where the next piece is not there yet the exchange
 * is parked until it is. */
#pragma once
#include "service/headers.h"
#include "service/ticket.h"

struct delivery;

/* Takes the ticket and becomes the exchange's data. False: no memory; the ticket is closed. */
bool delivery_begin(struct exchange *x, struct ticket *t, enum answer_format format,
                    int negative_index);
/* On the HTTP thread, after the ticket is settled. */
void delivery_answer(struct delivery *d);
void delivery_free(struct delivery *d); /* NULL is fine */

/* Fills *out from what a cache says of a result. */
struct answer_prompt;
void delivery_describe(struct answer_prompt *out, const struct cache_header *h);
