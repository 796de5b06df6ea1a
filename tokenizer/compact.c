/* compact.c - a tokenizer's tables as bytes, for the model card and for starting fast.
 *
 * Little-endian, in this order:
 *     "PE-TOKEN"             8 bytes
 *     version                u32, 1
 *     n_ids, text_size, n_pairs, n_chars, n_added, bos, bos_always        u32 each
 *     bytes of each piece    u16 [n_ids], 0: a hole
 *     the pieces             [text_size]
 *     byte tokens            u24 [256]
 *     characters             u24 [n_chars], ids, ascending by their character
 *     added tokens           u24 [n_added], ids, ascending by their bytes
 *     pairs of each left id  u24 [n_ids]
 *     right, rank, product   u24 [n_pairs][3], each row ascending by right id
 *     CRC-32C of all before  u32
 * Ids and ranks fit three bytes, which keeps Gemma's below 9 MB; a general compressor would halve
 * that and take longer to undo than the rest of loading.
 *
 * The CRC finds damage; it does not make the bytes trustworthy. Everything that encoding relies on
 * (indices in range, orders that are searched, ranks that are all different) is checked again. */
#include "tokenizer/compact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "tokenizer/lexicon.h"
#include "tokenizer/utf8.h"

#define MAGIC       "PE-TOKEN"
#define MAGIC_SIZE  8
#define VERSION     1
#define HEADER_SIZE (MAGIC_SIZE + 8 * 4)
#define CRC_SIZE    4

struct header {
    uint32_t version, n_ids, text_size, n_pairs, n_chars, n_added, bos, bos_always;
};

bool compact_begins(const void *data, size_t size)
{
    return size >= MAGIC_SIZE && memcmp(data, MAGIC, MAGIC_SIZE) == 0;
}

/* The size that a file with this header has; the counts are within their limits. */
static size_t compact_size(const struct header *h)
{
    return HEADER_SIZE + 2 * (size_t)h->n_ids + h->text_size +
           3 * (256 + (size_t)h->n_chars + h->n_added + h->n_ids + 3 * (size_t)h->n_pairs) +
           CRC_SIZE;
}

static uint32_t get(const uint8_t **at, int n_bytes)
{
    uint32_t value = 0;

    for (int i = 0; i < n_bytes; i++)
        value |= (uint32_t)(*at)[i] << 8 * i;
    *at += n_bytes;
    return value;
}

static void put(uint8_t **at, int n_bytes, uint32_t value)
{
    for (int i = 0; i < n_bytes; i++)
        (*at)[i] = (uint8_t)(value >> 8 * i);
    *at += n_bytes;
}

static int damaged(const char *name, const char *what, struct error *err)
{
    return error_set(err, ERR_FORMAT, "%s: damaged compact tokenizer: %s", name, what);
}

static int read_header(struct header *h, const uint8_t *data, size_t size, const char *name,
                       struct error *err)
{
    const uint8_t *at;

    if (!compact_begins(data, size))
        return error_set(err, ERR_FORMAT, "%s: no compact tokenizer: does not begin with %s", name,
                         MAGIC);
    if (size < HEADER_SIZE + CRC_SIZE)
        return damaged(name, "the header is cut short", err);
    at = data + MAGIC_SIZE;
    h->version = get(&at, 4);
    if (h->version != VERSION)
        return error_set(err, ERR_FORMAT, "%s: compact tokenizer of version %u, expected %d", name,
                         h->version, VERSION);
    h->n_ids = get(&at, 4);
    h->text_size = get(&at, 4);
    h->n_pairs = get(&at, 4);
    h->n_chars = get(&at, 4);
    h->n_added = get(&at, 4);
    h->bos = get(&at, 4);
    h->bos_always = get(&at, 4);
    if (h->n_ids > LEXICON_MAX_IDS || h->text_size > LEXICON_MAX_TEXT ||
        h->n_pairs > LEXICON_MAX_PAIRS || h->n_chars > h->n_ids || h->n_added > h->n_ids ||
        h->bos >= h->n_ids || h->bos_always > 1)
        return damaged(name, "a count is out of range", err);
    if (size != compact_size(h))
        return error_set(err, ERR_FORMAT, "%s: damaged compact tokenizer: %zu bytes, expected %zu",
                         name, size, compact_size(h));
    return OK;
}

/* An id that is in range and no hole. */
static bool is_piece(const struct tokenizer *t, uint32_t id)
{
    return id < t->n_ids && t->text_at[id + 1] > t->text_at[id];
}

static int read_pieces(struct tokenizer *t, const struct header *h, const uint8_t **at,
                       const char *name, struct error *err)
{
    size_t total = 0, n;

    for (size_t i = 0; i < t->n_ids; i++) {
        t->text_at[i] = (uint32_t)total;
        n = get(at, 2);
        total += n;
        if (n > LEXICON_MAX_PIECE || total > h->text_size)
            return damaged(name, "a piece is too long", err);
    }
    t->text_at[t->n_ids] = (uint32_t)total;
    if (total != h->text_size)
        return damaged(name, "the pieces do not fill their space", err);
    if (total > 0)
        memcpy(t->text, *at, total);
    *at += total;
    for (size_t i = 0; i < t->n_ids; i++) {
        n = lexicon_piece_len(t, (int32_t)i);
        if (utf8_valid_len(lexicon_piece(t, (int32_t)i), n) != n)
            return damaged(name, "a piece is not UTF-8", err);
    }
    if (!is_piece(t, h->bos))
        return damaged(name, "there is no <bos>", err);
    return OK;
}

static int read_bytes(struct tokenizer *t, const uint8_t **at, const char *name, struct error *err)
{
    for (unsigned b = 0; b < 256; b++) {
        uint32_t id = get(at, 3);
        char text[8];

        snprintf(text, sizeof(text), "<0x%02X>", b);
        if (!is_piece(t, id) || lexicon_piece_len(t, (int32_t)id) != 6 ||
            memcmp(lexicon_piece(t, (int32_t)id), text, 6) != 0)
            return damaged(name, "a byte token is another piece", err);
        t->bytes[b] = (int32_t)id;
    }
    return OK;
}

static int read_chars(struct tokenizer *t, const struct header *h, const uint8_t **at,
                      const char *name, struct error *err)
{
    for (; t->n_chars < h->n_chars; t->n_chars++) {
        uint32_t id = get(at, 3), c;
        size_t n;

        if (!is_piece(t, id))
            return damaged(name, "a character has no piece", err);
        n = lexicon_piece_len(t, (int32_t)id);
        if (utf8_decode(lexicon_piece(t, (int32_t)id), n, &c) != n)
            return damaged(name, "a character is a longer piece", err);
        if (t->n_chars > 0 && t->chars[t->n_chars - 1].codepoint >= c)
            return damaged(name, "the characters are out of order", err);
        t->chars[t->n_chars] = (struct character){c, (int32_t)id};
    }
    if (lexicon_char(t, META_CHAR) < 0)
        return damaged(name, "U+2581 has no piece", err);
    return OK;
}

static int read_added(struct tokenizer *t, const struct header *h, const uint8_t **at,
                      const char *name, struct error *err)
{
    for (; t->n_added < h->n_added; t->n_added++) {
        uint32_t id = get(at, 3);
        int32_t last = t->n_added > 0 ? t->added[t->n_added - 1] : 0;

        if (!is_piece(t, id))
            return damaged(name, "an added token has no piece", err);
        if (t->n_added > 0 &&
            lexicon_compare(lexicon_piece(t, last), lexicon_piece_len(t, last),
                            lexicon_piece(t, (int32_t)id), lexicon_piece_len(t, (int32_t)id)) >= 0)
            return damaged(name, "the added tokens are out of order", err);
        t->added[t->n_added] = (int32_t)id;
    }
    return OK;
}

/* `ranked` has a bit for each rank, all zero. */
static int read_pairs(struct tokenizer *t, const struct header *h, const uint8_t **at,
                      uint8_t *ranked, const char *name, struct error *err)
{
    size_t total = 0;

    for (size_t i = 0; i < t->n_ids; i++) {
        t->pair_at[i] = (uint32_t)total;
        total += get(at, 3);
        if (total > h->n_pairs)
            return damaged(name, "more pairs than it says", err);
    }
    t->pair_at[t->n_ids] = (uint32_t)total;
    if (total != h->n_pairs)
        return damaged(name, "fewer pairs than it says", err);
    for (size_t left = 0; left < t->n_ids; left++) {
        for (size_t i = t->pair_at[left]; i < t->pair_at[left + 1]; i++) {
            struct pair *p = &t->pairs[i];

            p->right = get(at, 3);
            p->rank = get(at, 3);
            p->product = get(at, 3);
            if (!is_piece(t, p->right) || !is_piece(t, p->product))
                return damaged(name, "a pair has no piece", err);
            if (i > t->pair_at[left] && p[-1].right >= p->right)
                return damaged(name, "the pairs are out of order", err);
            if (p->rank >= h->n_pairs || ranked[p->rank / 8] >> p->rank % 8 & 1)
                return damaged(name, "two pairs have one rank", err);
            ranked[p->rank / 8] |= (uint8_t)(1 << p->rank % 8);
        }
    }
    t->n_pairs = h->n_pairs;
    return OK;
}

int tokenizer_from_compact(struct tokenizer **out, const void *data, size_t size, const char *name,
                           struct error *err)
{
    const uint8_t *at = data, *crc;
    struct tokenizer *t = NULL;
    uint8_t *ranked = NULL;
    struct header h = {0};
    int rc;

    *out = NULL;
    if ((rc = read_header(&h, data, size, name, err)) != OK)
        goto out;
    crc = at + size - CRC_SIZE;
    if (crc32c(0, data, size - CRC_SIZE) != get(&crc, 4)) {
        rc = damaged(name, "its checksum is wrong", err);
        goto out;
    }
    if ((t = calloc(1, sizeof(*t))) != NULL) {
        /* + 1: malloc(0) may be NULL */
        t->text = malloc((size_t)h.text_size + 1);
        t->text_at = malloc(((size_t)h.n_ids + 1) * sizeof(*t->text_at));
        t->pairs = malloc(((size_t)h.n_pairs + 1) * sizeof(*t->pairs));
        t->pair_at = malloc(((size_t)h.n_ids + 1) * sizeof(*t->pair_at));
        t->chars = malloc(((size_t)h.n_chars + 1) * sizeof(*t->chars));
        t->added = malloc(((size_t)h.n_added + 1) * sizeof(*t->added));
        ranked = calloc(h.n_pairs / 8 + 1, 1);
    }
    if (t == NULL || t->text == NULL || t->text_at == NULL || t->pairs == NULL ||
        t->pair_at == NULL || t->chars == NULL || t->added == NULL || ranked == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory for %u pieces", name, h.n_ids);
        goto out;
    }
    t->n_ids = h.n_ids;
    t->bos = (int32_t)h.bos;
    t->bos_always = h.bos_always != 0;
    at += HEADER_SIZE;
    if ((rc = read_pieces(t, &h, &at, name, err)) != OK ||
        (rc = read_bytes(t, &at, name, err)) != OK ||
        (rc = read_chars(t, &h, &at, name, err)) != OK ||
        (rc = read_added(t, &h, &at, name, err)) != OK ||
        (rc = read_pairs(t, &h, &at, ranked, name, err)) != OK)
        goto out;
    lexicon_index(t);
    *out = t;
    t = NULL; /* handed over */
out:
    free(ranked);
    tokenizer_free(t);
    return rc;
}

int tokenizer_save(const struct tokenizer *t, struct buf *out, struct error *err)
{
    struct header h = {VERSION,
                       (uint32_t)t->n_ids,
                       t->text_at[t->n_ids],
                       (uint32_t)t->n_pairs,
                       (uint32_t)t->n_chars,
                       (uint32_t)t->n_added,
                       (uint32_t)t->bos,
                       t->bos_always};
    size_t size = compact_size(&h);
    uint8_t *at, *start;
    void *room;
    int rc;

    if ((rc = buf_extend(out, &room, size, err)) != OK)
        return rc;
    at = start = room;
    memcpy(at, MAGIC, MAGIC_SIZE);
    at += MAGIC_SIZE;
    put(&at, 4, h.version);
    put(&at, 4, h.n_ids);
    put(&at, 4, h.text_size);
    put(&at, 4, h.n_pairs);
    put(&at, 4, h.n_chars);
    put(&at, 4, h.n_added);
    put(&at, 4, h.bos);
    put(&at, 4, h.bos_always);
    for (size_t i = 0; i < t->n_ids; i++)
        put(&at, 2, (uint32_t)lexicon_piece_len(t, (int32_t)i));
    memcpy(at, t->text, h.text_size);
    at += h.text_size;
    for (int b = 0; b < 256; b++)
        put(&at, 3, (uint32_t)t->bytes[b]);
    for (size_t i = 0; i < t->n_chars; i++)
        put(&at, 3, (uint32_t)t->chars[i].id);
    for (size_t i = 0; i < t->n_added; i++)
        put(&at, 3, (uint32_t)t->added[i]);
    for (size_t i = 0; i < t->n_ids; i++)
        put(&at, 3, t->pair_at[i + 1] - t->pair_at[i]);
    for (size_t i = 0; i < t->n_pairs; i++) {
        put(&at, 3, t->pairs[i].right);
        put(&at, 3, t->pairs[i].rank);
        put(&at, 3, t->pairs[i].product);
    }
    put(&at, 4, crc32c(0, start, size - CRC_SIZE));
    return OK;
}
