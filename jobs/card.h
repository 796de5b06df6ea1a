/* card.h - what an engine says of the model it serves, kept in Q for the service.
 *
 * The service knows models from cards alone and needs no file. A card outlives its engines, so that
 * the queue takes work while there are none (scale to zero); an admin removes it. The tokenizer
 * lies beside the cards in its compact form, by digest. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct redis;

enum { CARD_ID_SIZE = 64, CARD_DIGEST_SIZE = 65, CARD_MAX = 64 };

struct model_card {
    char id[CARD_ID_SIZE];            /* what requests name: [A-Za-z0-9._-]+ */
    char weights[CARD_DIGEST_SIZE];   /* SHA-256 in hex */
    char tokenizer[CARD_DIGEST_SIZE]; /* SHA-256 of the compact form */
    char architecture[24];            /* "gemma3" */
    char engine_version[24];
    int n_states, width; /* L + 1 hidden states of D numbers a token */
    int max_tokens;      /* of a prompt */
    int vocabulary;
    bool has_hidden_states; /* output levels it serves */
    int64_t registered_ms;  /* Unix time */
};

/* Stores the tokenizer where its digest is missing, then the card, over an older card of the same
 * id and weights. ERR_INPUT: an id that is no plain name. */
int card_register(struct redis *q, const struct model_card *card, const void *tokenizer,
                  size_t tokenizer_size, struct error *err);
/* The newest `cap` cards, newest registration first. One that cannot be read (another version's,
 * say) is left out and logged: the others must be served all the same. */
int card_list(struct redis *q, struct model_card *out, size_t cap, size_t *n, struct error *err);
int card_remove(struct redis *q, const char *id, const char *weights, struct error *err);
/* The tokenizer's compact form; ERR_FORMAT when it is not there or has another digest. */
int card_tokenizer(struct redis *q, const struct model_card *card, struct buf *out,
                   struct error *err);
