/* tokenizer.h - Gemma text to token ids.
 *
 * Reads the vocabulary once and never changes afterwards: share one among any number of threads.
 *
 * The algorithm is Hugging Face's BPE as Gemma's tokenizer.json sets it up: added tokens are found
 * in the raw text (leftmost, longest first); in what lies between them each " " becomes U+2581,
 * characters without a token become their UTF-8 bytes <0xNN>, and the pair of lowest merge rank is
 * joined until none is left, ties leftmost. A vocabulary with scores instead of merges (GGUF,
 * SentencePiece) is the same with another rank: the pair whose joined token scores highest, and of
 * those that join to one token the pair with the shortest left part, as tokenizer.json has it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct tokenizer;

/* A vocabulary with scores, as GGUF files carry it. All of it is borrowed for the call. */
enum tokenizer_piece_kind {
    /* the values of tokenizer.ggml.token_type */
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN = 2,      /* an added token */
    PIECE_CONTROL = 3,      /* an added token, special */
    PIECE_USER_DEFINED = 4, /* an added token, not special; runs of spaces also join */
    PIECE_UNUSED = 5,       /* has an id, but no text becomes it */
    PIECE_BYTE = 6          /* <0xNN> */
};

struct tokenizer_vocab {
    size_t n_pieces;
    const char *const *text; /* [n_pieces], not NUL-terminated */
    const size_t *len;       /* [n_pieces] bytes */
    const float *scores;     /* [n_pieces] */
    const int32_t *kinds;    /* [n_pieces], enum tokenizer_piece_kind */
    int32_t bos_id;
    bool add_bos; /* <bos> goes first even when the text itself begins with it */
};

/* On success *out belongs to the caller (tokenizer_free). On failure *out is NULL. `name` stands
 * for the bytes in messages.
 * ERR_FORMAT: the bytes are no tokenizer we know; the sentence names what differs. */
int tokenizer_from_json(struct tokenizer **out, const void *json, size_t size, const char *name,
                        struct error *err);
int tokenizer_from_vocab(struct tokenizer **out, const struct tokenizer_vocab *vocab,
                         const char *name, struct error *err);
/* The compact form that tokenizer_save() writes: loads in milliseconds, keeps no pointer to
 * `data`. Damage is detected (CRC-32C), and every index is checked. */
int tokenizer_from_compact(struct tokenizer **out, const void *data, size_t size, const char *name,
                           struct error *err);
/* A tokenizer.json or a compact file, told apart by its first bytes. ERR_IO: cannot read it. */
int tokenizer_load(struct tokenizer **out, const char *path, struct error *err);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */

/* Appends the compact form to `out`. The same vocabulary always gives the same bytes. */
int tokenizer_save(const struct tokenizer *t, struct buf *out, struct error *err);

size_t tokenizer_n_ids(const struct tokenizer *t); /* ids are 0 .. n_ids - 1 */
int32_t tokenizer_bos(const struct tokenizer *t);  /* the id of <bos> */
/* The text of one token (▁ as it is, byte tokens as <0xNN>) and its bytes; NULL for no such id. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len);

/* The bytes of `text` without leading and trailing white space, Python's str.strip(). */
void tokenizer_strip(const char **text, size_t *len);

struct token_list {
    int32_t *ids;   /* [n]; free with token_list_free */
    size_t n;       /* at most the limit */
    size_t n_uncut; /* how many there were before the cut */
};
void token_list_free(struct token_list *list);

/* <bos> and the ids of the stripped text, cut to the first `limit` (0: not cut). n < n_uncut says
 * that it was cut. This is what a prompt becomes.
 * ERR_INPUT: not UTF-8; the sentence names the byte. ERR_SIZE: over 1 GiB. ERR_MEM.
 * The memory needed while it runs is about 40 bytes a byte of text. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, size_t limit,
                     struct token_list *out, struct error *err);
/* The same without the strip and without <bos>: for text whose spaces matter. */
int tokenizer_encode_raw(const struct tokenizer *t, const char *text, size_t len,
                         struct token_list *out, struct error *err);
