/* lexicon.h - what a tokenizer is: tables, and the three questions that encoding asks of them.
 *
 * Only for the files of this folder. builder.c makes the tables from a vocabulary and compact.c
 * from the compact form; after that they never change. Whatever the source, joining is one table:
 * the pairs, grouped by their left id, each with the rank that says which pair goes first. An id
 * may be a hole (no piece has it); its text is empty and nothing refers to it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/tokenizer.h"

/* Gemma has 262145 ids and 514906 pairs; its longest piece takes 93 bytes. */
#define LEXICON_MAX_IDS   ((size_t)1 << 20)
#define LEXICON_MAX_PAIRS ((size_t)1 << 23)
#define LEXICON_MAX_PIECE 1024
#define LEXICON_MAX_TEXT  ((size_t)1 << 28) /* bytes of all pieces */

#define META      "\xe2\x96\x81" /* U+2581, which stands for a space inside pieces */
#define META_CHAR 0x2581

struct pair {
    uint32_t right, rank, product;
};

struct character {
    uint32_t codepoint;
    int32_t id;
};

struct tokenizer {
    size_t n_ids;
    char *text;        /* all pieces, end to end */
    uint32_t *text_at; /* [n_ids + 1]: piece i lies between text_at[i] and text_at[i + 1] */

    size_t n_pairs;
    struct pair *pairs; /* grouped by left id, ascending by right id; ranks 0 .. n_pairs - 1 */
    uint32_t *pair_at;  /* [n_ids + 1]: those of left id i, likewise */

    size_t n_chars;
    struct character *chars; /* ascending; pieces of one character that joining may begin with */
    int32_t ascii[128];      /* the same for ASCII, -1: none; ' ' has the id of U+2581 */
    int32_t bytes[256];      /* the ids of <0x00> .. <0xFF> */

    size_t n_added;
    int32_t *added;         /* added tokens, ascending by their bytes */
    uint32_t added_at[257]; /* those that begin with byte b lie between added_at[b] and [b + 1] */

    int32_t bos;
    bool bos_always; /* <bos> goes first even when the text itself begins with it */
};

/* Fills what follows from the other tables: ascii and added_at. */
void lexicon_index(struct tokenizer *t);

static inline size_t lexicon_piece_len(const struct tokenizer *t, int32_t id)
{
    return t->text_at[id + 1] - t->text_at[id];
}

static inline const char *lexicon_piece(const struct tokenizer *t, int32_t id)
{
    return t->text + t->text_at[id];
}

/* The pair of two ids that may be joined, or NULL. */
static inline const struct pair *lexicon_pair(const struct tokenizer *t, int32_t left,
                                              int32_t right)
{
    const struct pair *p = t->pairs + t->pair_at[left];
    size_t n = t->pair_at[left + 1] - t->pair_at[left];

    while (n > 1) { /* branch-free halving: the entry sought stays within [p, p + n) */
        size_t half = n / 2;

        p += p[half].right <= (uint32_t)right ? half : 0;
        n -= half;
    }
    return n == 1 && p->right == (uint32_t)right ? p : NULL;
}

/* The id of a character, or -1. */
int32_t lexicon_char(const struct tokenizer *t, uint32_t codepoint);

/* Bytes of the longest added token that `text` begins with and its id; 0 when there is none. */
size_t lexicon_added(const struct tokenizer *t, const char *text, size_t len, int32_t *id);

/* Which comes first, byte by byte, a prefix before what it begins: the order of `added`. */
int lexicon_compare(const char *a, size_t a_len, const char *b, size_t b_len);

/* A piece for an error message: printable ASCII, shortened. */
#define LEXICON_SHOWN 48
const char *lexicon_show(char out[LEXICON_SHOWN], const char *text, size_t len);
