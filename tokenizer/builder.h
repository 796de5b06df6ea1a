/* builder.h - from a vocabulary, piece by piece, to a tokenizer's tables.
 *
 * Only for from_json.c and from_vocab.c: pieces first (in any order), then the pairs, the one that
 * goes first in joining first, then builder_finish(). Failures are ERR_FORMAT unless stated and
 * name the piece. One thread. */
#pragma once
#include "tokenizer/lexicon.h"

struct builder;

/* `name` is borrowed and stands for the vocabulary in messages. */
int builder_new(struct builder **out, const char *name, struct error *err);
void builder_free(struct builder *b); /* NULL is fine */

/* What a piece may do. */
enum {
    PIECE_JOINS = 1, /* is reached by joining, and if it is one character begins it */
    PIECE_ADDED = 2, /* is found in the raw text */
};

/* A new piece: neither its id nor its text may be there yet. Copies the text. */
int builder_add(struct builder *b, int64_t id, const char *text, size_t len, unsigned may,
                struct error *err);
/* Lets a piece that is there do more. */
void builder_allow(struct builder *b, int32_t id, unsigned may);

int32_t builder_find(const struct builder *b, const char *text, size_t len); /* -1: none */
unsigned builder_may(const struct builder *b, int32_t id);

/* `left` and `right` join to the piece of both texts. ERR_FORMAT when there is none. */
int builder_pair(struct builder *b, int32_t left, int32_t right, struct error *err);
/* The same for all places where `id`, a piece that joins, can be cut into two pieces that join,
 * the shortest left part first. */
int builder_pair_splits(struct builder *b, int32_t id, struct error *err);

/* Sorts it all into *out, which is the caller's (tokenizer_free). `b` is only good for freeing
 * afterwards. Refuses a vocabulary without the 256 byte pieces, U+2581 or the piece `bos`. */
int builder_finish(struct builder *b, int32_t bos, bool bos_always, struct tokenizer **out,
                   struct error *err);
