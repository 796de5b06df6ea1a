/* builder.c - see builder.h.
 *
 * Pieces are found by a hash table with open addressing, the only place where text is looked up:
 * once loaded, a tokenizer compares ids alone. The hash is a polynomial, so that the hash of two
 * pieces joined follows from theirs, and those of all prefixes and suffixes of a piece take one
 * multiplication each; a merge costs no pass over its text but the final comparison. Whoever
 * chooses the vocabulary could make it collide; that costs time at load and nothing else. */
#include "tokenizer/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/utf8.h"

#define HASH_BASE  0x9e3779b97f4a7c15u
#define FIRST_SIZE 4096 /* entries of each table at the start; powers of two from there */

struct piece {
    uint64_t hash;
    uint32_t at;  /* into `text` */
    uint16_t len; /* 0: a hole */
    uint16_t may;
};

struct slot {
    uint32_t tag; /* upper half of the mixed hash: most misses end here */
    uint32_t id;  /* + 1; 0: empty */
};

struct merge {
    uint32_t left, right, product;
};

struct builder {
    const char *name;
    struct buf text;
    struct piece *pieces; /* by id */
    size_t pieces_cap, n_ids, n_pieces;
    struct slot *slots;
    size_t n_slots; /* a power of two, at least twice n_pieces */
    struct merge *merges;
    size_t merges_cap, n_merges;
    uint64_t power[LEXICON_MAX_PIECE + 1]; /* HASH_BASE to the n */
};

int builder_new(struct builder **out, const char *name, struct error *err)
{
    struct builder *b = calloc(1, sizeof(*b));

    *out = NULL;
    if (b == NULL)
        goto no_memory;
    b->name = name;
    b->text.max = LEXICON_MAX_TEXT;
    b->n_slots = FIRST_SIZE;
    if ((b->slots = calloc(b->n_slots, sizeof(*b->slots))) == NULL)
        goto no_memory;
    b->power[0] = 1;
    for (int i = 1; i <= LEXICON_MAX_PIECE; i++)
        b->power[i] = b->power[i - 1] * HASH_BASE;
    *out = b;
    return OK;
no_memory:
    builder_free(b);
    return error_set(err, ERR_MEM, "%s: no memory for the vocabulary", name);
}

void builder_free(struct builder *b)
{
    if (b == NULL)
        return;
    buf_free(&b->text);
    free(b->pieces);
    free(b->slots);
    free(b->merges);
    free(b);
}

static uint64_t hash_text(const char *text, size_t len)
{
    uint64_t h = 0;

    for (size_t i = 0; i < len; i++)
        h = h * HASH_BASE + (unsigned char)text[i] + 1;
    return h;
}

/* The polynomial's low bits depend on little of the text; the table wants all bits of all. */
static uint64_t hash_mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

static const char *piece_text(const struct builder *b, uint32_t id)
{
    return b->text.data + b->pieces[id].at;
}

/* The id of the text that is `a` and then `c`, whose hash is `hash`; -1: none. */
static int32_t find_hashed(const struct builder *b, uint64_t hash, const char *a, size_t a_len,
                           const char *c, size_t c_len)
{
    uint64_t mixed = hash_mix(hash);
    uint32_t tag = (uint32_t)(mixed >> 32);

    for (size_t i = mixed & (b->n_slots - 1); b->slots[i].id != 0; i = (i + 1) & (b->n_slots - 1)) {
        const struct piece *p;
        const char *text;

        if (b->slots[i].tag != tag)
            continue;
        p = &b->pieces[b->slots[i].id - 1];
        text = b->text.data + p->at;
        if (p->len == a_len + c_len && memcmp(text, a, a_len) == 0 &&
            memcmp(text + a_len, c, c_len) == 0)
            return (int32_t)(b->slots[i].id - 1);
    }
    return -1;
}

int32_t builder_find(const struct builder *b, const char *text, size_t len)
{
    if (len > LEXICON_MAX_PIECE)
        return -1;
    return find_hashed(b, hash_text(text, len), text, len, "", 0);
}

unsigned builder_may(const struct builder *b, int32_t id)
{
    return b->pieces[id].may;
}

void builder_allow(struct builder *b, int32_t id, unsigned may)
{
    b->pieces[id].may |= (uint16_t)may;
}

static void slot_put(struct slot *slots, size_t n_slots, uint64_t hash, uint32_t id)
{
    uint64_t mixed = hash_mix(hash);
    size_t i = mixed & (n_slots - 1);

    while (slots[i].id != 0)
        i = (i + 1) & (n_slots - 1);
    slots[i] = (struct slot){(uint32_t)(mixed >> 32), id + 1};
}

/* Room for one more piece, and for `id` in the table by id. */
static int make_room(struct builder *b, size_t id, struct error *err)
{
    if (id >= b->pieces_cap) {
        size_t cap = b->pieces_cap == 0 ? FIRST_SIZE : b->pieces_cap;
        struct piece *pieces;

        while (cap <= id)
            cap *= 2;
        if ((pieces = realloc(b->pieces, cap * sizeof(*pieces))) == NULL)
            return error_set(err, ERR_MEM, "%s: no memory for %zu pieces", b->name, cap);
        memset(pieces + b->pieces_cap, 0, (cap - b->pieces_cap) * sizeof(*pieces));
        b->pieces = pieces;
        b->pieces_cap = cap;
    }
    if (b->n_slots < 2 * (b->n_pieces + 1)) {
        size_t n_slots = 2 * b->n_slots;
        struct slot *slots = calloc(n_slots, sizeof(*slots));

        if (slots == NULL)
            return error_set(err, ERR_MEM, "%s: no memory for %zu pieces", b->name, b->n_pieces);
        for (uint32_t i = 0; i < b->n_ids; i++)
            if (b->pieces[i].len > 0)
                slot_put(slots, n_slots, b->pieces[i].hash, i);
        free(b->slots);
        b->slots = slots;
        b->n_slots = n_slots;
    }
    return OK;
}

int builder_add(struct builder *b, int64_t id, const char *text, size_t len, unsigned may,
                struct error *err)
{
    char shown[LEXICON_SHOWN];
    uint64_t hash;
    size_t at;
    int32_t twin;
    int rc;

    if (id < 0 || (uint64_t)id >= LEXICON_MAX_IDS)
        return error_set(err, ERR_FORMAT, "%s: piece \"%s\" has id %lld, ids are 0 to %zu", b->name,
                         lexicon_show(shown, text, len), (long long)id, LEXICON_MAX_IDS - 1);
    if (len == 0 || len > LEXICON_MAX_PIECE)
        return error_set(err, ERR_FORMAT, "%s: piece %lld has %zu bytes, pieces have 1 to %d",
                         b->name, (long long)id, len, LEXICON_MAX_PIECE);
    if (utf8_valid_len(text, len) < len)
        return error_set(err, ERR_FORMAT, "%s: piece %lld \"%s\" is not UTF-8", b->name,
                         (long long)id, lexicon_show(shown, text, len));
    hash = hash_text(text, len);
    if ((twin = find_hashed(b, hash, text, len, "", 0)) >= 0)
        return error_set(err, ERR_FORMAT, "%s: ids %lld and %d are both the piece \"%s\"", b->name,
                         (long long)twin, (int)id, lexicon_show(shown, text, len));
    if ((rc = make_room(b, (size_t)id, err)) != OK)
        return rc;
    if (b->pieces[id].len > 0)
        return error_set(err, ERR_FORMAT, "%s: id %lld is given twice, the second time to \"%s\"",
                         b->name, (long long)id, lexicon_show(shown, text, len));
    at = b->text.len;
    if ((rc = buf_append(&b->text, text, len, err)) != OK)
        return rc;
    b->pieces[id] = (struct piece){hash, (uint32_t)at, (uint16_t)len, (uint16_t)may};
    slot_put(b->slots, b->n_slots, hash, (uint32_t)id);
    b->n_pieces++;
    if ((size_t)id >= b->n_ids)
        b->n_ids = (size_t)id + 1;
    return OK;
}

static int merge_put(struct builder *b, int32_t left, int32_t right, int32_t product,
                     struct error *err)
{
    if (b->n_merges == LEXICON_MAX_PAIRS)
        return error_set(err, ERR_FORMAT, "%s: more than %zu merges", b->name, LEXICON_MAX_PAIRS);
    if (b->n_merges == b->merges_cap) {
        size_t cap = b->merges_cap == 0 ? FIRST_SIZE : 2 * b->merges_cap;
        struct merge *merges = realloc(b->merges, cap * sizeof(*merges));

        if (merges == NULL)
            return error_set(err, ERR_MEM, "%s: no memory for %zu merges", b->name, cap);
        b->merges = merges;
        b->merges_cap = cap;
    }
    b->merges[b->n_merges++] = (struct merge){(uint32_t)left, (uint32_t)right, (uint32_t)product};
    return OK;
}

int builder_pair(struct builder *b, int32_t left, int32_t right, struct error *err)
{
    const struct piece *l = &b->pieces[left], *r = &b->pieces[right];
    char shown[2][LEXICON_SHOWN];
    int32_t product = -1;

    if (l->len + r->len <= LEXICON_MAX_PIECE)
        product = find_hashed(b, l->hash * b->power[r->len] + r->hash, b->text.data + l->at, l->len,
                              b->text.data + r->at, r->len);
    if (product < 0 || !(b->pieces[product].may & PIECE_JOINS))
        return error_set(err, ERR_FORMAT, "%s: the vocabulary lacks what \"%s\" and \"%s\" join to",
                         b->name, lexicon_show(shown[0], b->text.data + l->at, l->len),
                         lexicon_show(shown[1], b->text.data + r->at, r->len));
    return merge_put(b, left, right, product, err);
}

int builder_pair_splits(struct builder *b, int32_t id, struct error *err)
{
    const struct piece *p = &b->pieces[id];
    const char *text = b->text.data + p->at;
    uint64_t suffix[LEXICON_MAX_PIECE + 1], prefix = 0;
    int rc;

    suffix[p->len] = 0;
    for (size_t i = p->len; i-- > 0;)
        suffix[i] = suffix[i + 1] + ((unsigned char)text[i] + 1u) * b->power[p->len - 1 - i];
    for (size_t cut = 1; cut < p->len; cut++) {
        int32_t left, right;

        prefix = prefix * HASH_BASE + (unsigned char)text[cut - 1] + 1;
        if (((unsigned char)text[cut] & 0xc0) == 0x80)
            continue; /* inside a character */
        left = find_hashed(b, prefix, text, cut, "", 0);
        if (left < 0 || !(b->pieces[left].may & PIECE_JOINS))
            continue;
        right = find_hashed(b, suffix[cut], text + cut, p->len - cut, "", 0);
        if (right < 0 || !(b->pieces[right].may & PIECE_JOINS))
            continue;
        if ((rc = merge_put(b, left, right, id, err)) != OK)
            return rc;
    }
    return OK;
}

static int compare_chars(const void *a, const void *b)
{
    const struct character *x = a, *y = b;

    return (x->codepoint > y->codepoint) - (x->codepoint < y->codepoint);
}

/* The pieces' texts in the order of ids, their single characters and the 256 bytes. */
static int finish_pieces(struct builder *b, struct tokenizer *t, struct error *err)
{
    size_t at = 0;

    for (size_t i = 0; i < b->n_ids; i++) {
        const struct piece *p = &b->pieces[i];
        uint32_t c;

        t->text_at[i] = (uint32_t)at;
        if (p->len == 0)
            continue;
        memcpy(t->text + at, b->text.data + p->at, p->len);
        if ((p->may & PIECE_JOINS) && utf8_decode(t->text + at, p->len, &c) == p->len)
            t->chars[t->n_chars++] = (struct character){c, (int32_t)i};
        at += p->len;
    }
    t->text_at[b->n_ids] = (uint32_t)at;
    qsort(t->chars, t->n_chars, sizeof(*t->chars), compare_chars);
    if (lexicon_char(t, META_CHAR) < 0)
        return error_set(err, ERR_FORMAT, "%s: the vocabulary lacks U+2581, the piece for a space",
                         b->name);
    for (unsigned i = 0; i < 256; i++) {
        char text[8];

        snprintf(text, sizeof(text), "<0x%02X>", i);
        if ((t->bytes[i] = builder_find(b, text, 6)) < 0)
            return error_set(err, ERR_FORMAT,
                             "%s: the vocabulary lacks %s; all 256 byte tokens are needed", b->name,
                             text);
    }
    return OK;
}

/* From the order of ranks to rows of one left id each, ascending by right id: two counting sorts,
 * by right id and then, keeping that order, by left id. */
static int finish_pairs(struct builder *b, struct tokenizer *t, struct error *err)
{
    uint32_t *count = NULL, *by_right = NULL;
    char shown[2][LEXICON_SHOWN];
    int rc = OK;

    count = calloc(b->n_ids + 1, sizeof(*count));
    by_right = malloc((b->n_merges + 1) * sizeof(*by_right));
    if (count == NULL || by_right == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory to sort %zu merges", b->name, b->n_merges);
        goto out;
    }
    for (size_t i = 0; i < b->n_merges; i++) {
        count[b->merges[i].right + 1]++;
        t->pair_at[b->merges[i].left + 1]++;
    }
    for (size_t i = 0; i < b->n_ids; i++) {
        count[i + 1] += count[i];
        t->pair_at[i + 1] += t->pair_at[i];
    }
    for (size_t i = 0; i < b->n_merges; i++)
        by_right[count[b->merges[i].right]++] = (uint32_t)i;
    memcpy(count, t->pair_at, b->n_ids * sizeof(*count));
    for (size_t i = 0; i < b->n_merges; i++) {
        const struct merge *m = &b->merges[by_right[i]];
        uint32_t to = count[m->left]++;

        t->pairs[to] = (struct pair){m->right, by_right[i], m->product};
        if (to > t->pair_at[m->left] && t->pairs[to - 1].right == m->right) {
            rc = error_set(
                err, ERR_FORMAT, "%s: the merge of \"%s\" and \"%s\" is given twice", b->name,
                lexicon_show(shown[0], piece_text(b, m->left), b->pieces[m->left].len),
                lexicon_show(shown[1], piece_text(b, m->right), b->pieces[m->right].len));
            goto out;
        }
    }
    t->n_pairs = b->n_merges;
out:
    free(by_right);
    free(count);
    return rc;
}

/* Heap sort: qsort() has no way to hand the texts to the comparison. */
static bool added_before(const struct tokenizer *t, int32_t a, int32_t b)
{
    return lexicon_compare(lexicon_piece(t, a), lexicon_piece_len(t, a), lexicon_piece(t, b),
                           lexicon_piece_len(t, b)) < 0;
}

static void added_sift(struct tokenizer *t, size_t root, size_t n)
{
    int32_t id = t->added[root];
    size_t child;

    while ((child = 2 * root + 1) < n) {
        if (child + 1 < n && added_before(t, t->added[child], t->added[child + 1]))
            child++;
        if (!added_before(t, id, t->added[child]))
            break;
        t->added[root] = t->added[child];
        root = child;
    }
    t->added[root] = id;
}

static void finish_added(const struct builder *b, struct tokenizer *t)
{
    for (size_t i = 0; i < b->n_ids; i++)
        if (b->pieces[i].may & PIECE_ADDED)
            t->added[t->n_added++] = (int32_t)i;
    for (size_t i = t->n_added / 2; i-- > 0;)
        added_sift(t, i, t->n_added);
    for (size_t n = t->n_added; n-- > 1;) {
        int32_t last = t->added[0];

        t->added[0] = t->added[n];
        t->added[n] = last;
        added_sift(t, 0, n);
    }
}

int builder_finish(struct builder *b, int32_t bos, bool bos_always, struct tokenizer **out,
                   struct error *err)
{
    struct tokenizer *t = NULL;
    int rc;

    *out = NULL;
    if (bos < 0 || (size_t)bos >= b->n_ids || b->pieces[bos].len == 0)
        return error_set(err, ERR_FORMAT, "%s: the vocabulary lacks <bos> (id %d)", b->name,
                         (int)bos);
    if ((t = calloc(1, sizeof(*t))) == NULL)
        goto no_memory;
    t->n_ids = b->n_ids;
    t->bos = bos;
    t->bos_always = bos_always;
    t->text = malloc(b->text.len);
    t->text_at = malloc((b->n_ids + 1) * sizeof(*t->text_at));
    t->pairs = malloc((b->n_merges + 1) * sizeof(*t->pairs)); /* + 1: malloc(0) may be NULL */
    t->pair_at = calloc(b->n_ids + 1, sizeof(*t->pair_at));
    t->chars = malloc(b->n_pieces * sizeof(*t->chars));
    t->added = malloc(b->n_pieces * sizeof(*t->added));
    if (t->text == NULL || t->text_at == NULL || t->pairs == NULL || t->pair_at == NULL ||
        t->chars == NULL || t->added == NULL)
        goto no_memory;
    if ((rc = finish_pieces(b, t, err)) != OK || (rc = finish_pairs(b, t, err)) != OK)
        goto out;
    finish_added(b, t);
    lexicon_index(t);
    *out = t;
    t = NULL; /* handed over */
    goto out;
no_memory:
    rc = error_set(err, ERR_MEM, "%s: no memory for %zu pieces", b->name, b->n_pieces);
out:
    tokenizer_free(t);
    return rc;
}
