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

enum {
    CARD_ID_SIZE = 64,
    CARD_DIGEST_SIZE = 65,
    CARD_WORD_SIZE = 24,
    CARD_VERSION_SIZE = 104,
    CARD_MAX = 64,
    CARD_LIVE_MS = 150000 /* an engine registers again every 60 s */
};

/* id, weights and compute together name a card, and a queue. */
struct model_card {
    char id[CARD_ID_SIZE];             /* what requests name: [A-Za-z0-9._-]+ */
    char weights[CARD_DIGEST_SIZE];    /* SHA-256 in hex */
    char compute[CARD_WORD_SIZE];      /* what products compute in: "float32", "bfloat16" */
    char tokenizer[CARD_DIGEST_SIZE];  /* SHA-256 of the compact form */
    char architecture[CARD_WORD_SIZE]; /* "gemma3" */
    char engine_version[CARD_WORD_SIZE];
    int n_states, width; /* L + 1 hidden states of D numbers a token */
    int max_tokens;      /* of a prompt */
    int vocabulary;
    char gemma_version[CARD_VERSION_SIZE]; /* "" where the model names none */
    /* output levels it serves: */
    bool has_hidden_states;
    int extractor;                       /* LTX's: 1 or 2; 0: neither features nor embeddings */
    int rows;                            /* of embeddings */
    int video_width, audio_width;        /* of both; audio 0: a video-only model */
    char ltx_version[CARD_VERSION_SIZE]; /* "" where the checkpoint names none */
    bool is_asleep; /* the engine that registered it last: its weights are not on its GPUs */
    /* set by card_list() alone, by Q's clock (Unix time) */
    int64_t registered_ms; /* the first time, since Q has the card */
    int64_t seen_ms;       /* the last time */
    bool is_live;          /* seen in the last CARD_LIVE_MS */
};

/* Stores the card, over an older one of the same name, and the tokenizer where its digest is
 * missing. Again and again: that keeps it live and brings back what Q lost. With a NULL tokenizer
 * ERR_FORMAT ("its tokenizer is missing") when Q has none of that digest: then call again with it.
 * ERR_INPUT: names that are not plain, a tokenizer of another digest; ERR_FORMAT: a card that
 * nobody could read. */
int card_register(struct redis *q, const struct model_card *card, const void *tokenizer,
                  size_t tokenizer_size, struct error *err);
/* The first `cap` cards: the live ones, newest registration first; then the others, last seen
 * first. So an old engine that comes back does not make its weights the newest, and where only old
 * weights are served they come first. One that cannot be read (another version's, say) is left out:
 * the others must be served all the same. `left_out` receives why, a sentence for each as far as
 * there is room, or "". */
int card_list(struct redis *q, struct model_card *out, size_t cap, size_t *n, char *left_out,
              size_t left_out_cap, struct error *err);
/* *removed false: there was none. A live engine brings its card back. */
int card_remove(struct redis *q, const char *id, const char *weights, const char *compute,
                bool *removed, struct error *err);
/* The tokenizer's compact form; ERR_FORMAT when it is not there or has another digest. */
int card_tokenizer(struct redis *q, const struct model_card *card, struct buf *out,
                   struct error *err);
