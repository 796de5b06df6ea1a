/* bpe.h - joins the characters of a text to pieces, the pair of lowest rank first, ties leftmost.
 *
 * Only for tokenizer.c. The workspace is grown as texts need it and serves one call at a time. */
#pragma once
#include "tokenizer/lexicon.h"

struct bpe_symbol;
struct bpe {
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t cap; /* symbols there is room for */
    size_t n_heap;
};

#define BPE_MAX_TEXT ((size_t)INT32_MAX / 2) /* bytes; positions are kept in 32 bits */

/* Writes the ids of `len` bytes of valid UTF-8, at most BPE_MAX_TEXT, in which no added token is
 * looked for: never more than `len` ids. How many goes to *n. ERR_MEM. */
int bpe_encode(struct bpe *work, const struct tokenizer *t, const char *text, size_t len,
               int32_t *ids, size_t *n, struct error *err);
void bpe_free(struct bpe *work); /* a zeroed one is fine */
