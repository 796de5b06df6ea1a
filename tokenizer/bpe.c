/* bpe.c - see bpe.h.
 *
 * The symbols are a doubly linked list in an array, and a heap holds the pairs of neighbours that
 * may be joined, keyed by rank and then by place. Each join removes a symbol and adds at most two
 * pairs, so the whole takes n log n whatever the text: a megabyte of one letter is no attack.
 * Nothing is ever taken out of the middle of the heap; each symbol knows the rank of the pair that
 * it now begins, and an entry of another rank is out of date. (Both parts of a pair only ever grow,
 * so a pair that went out of date never comes back at that place.)
 *
 * Not taken: cutting the text into words first, as tokenizers often do for speed. Gemma has pieces
 * across words, so that would change the ids. */
#include "tokenizer/bpe.h"

#include <stdlib.h>

#include "base/size.h"
#include "tokenizer/utf8.h"

#define NO_PAIR UINT32_MAX
#define NOWHERE UINT32_MAX

struct bpe_symbol {
    int32_t id;
    uint32_t prev, next;
    uint32_t rank; /* of the pair that this symbol and the next one are, or NO_PAIR */
    uint32_t product;
};

void bpe_free(struct bpe *work)
{
    free(work->symbols);
    free(work->heap);
    *work = (struct bpe){0};
}

/* Each symbol begins at most one pair, and each join takes one entry and adds at most two: never
 * more than two entries a symbol. */
static int reserve(struct bpe *work, size_t n, struct error *err)
{
    size_t cap = n < 256 ? 256 : n, symbols_size, heap_size;

    if (n <= work->cap)
        return OK;
    bpe_free(work);
    if (size_mul(&symbols_size, cap, sizeof(*work->symbols)) &&
        size_mul(&heap_size, cap, 2 * sizeof(*work->heap))) {
        work->symbols = malloc(symbols_size);
        work->heap = malloc(heap_size);
    }
    if (work->symbols == NULL || work->heap == NULL)
        return error_set(err, ERR_MEM, "tokenizer: no memory for a text of %zu bytes", n);
    work->cap = cap;
    return OK;
}

static void sift_up(uint64_t *heap, size_t at, uint64_t key)
{
    while (at > 0 && heap[(at - 1) / 2] > key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = key;
}

static void sift_down(uint64_t *heap, size_t n, size_t at, uint64_t key)
{
    size_t child;

    while ((child = 2 * at + 1) < n) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
}

static uint64_t heap_pop(struct bpe *work)
{
    uint64_t top = work->heap[0];

    work->n_heap--;
    if (work->n_heap > 0)
        sift_down(work->heap, work->n_heap, 0, work->heap[work->n_heap]);
    return top;
}

/* Looks up the pair that begins at `at`; true when there is one, and *key is then its entry. */
static bool pair_begins(struct bpe *work, const struct tokenizer *t, uint32_t at, uint64_t *key)
{
    struct bpe_symbol *s = &work->symbols[at];
    const struct pair *p;

    s->rank = NO_PAIR;
    if (s->next == NOWHERE || (p = lexicon_pair(t, s->id, work->symbols[s->next].id)) == NULL)
        return false;
    s->rank = p->rank;
    s->product = p->product;
    *key = (uint64_t)p->rank << 32 | at;
    return true;
}

static size_t put_symbol(struct bpe *work, size_t n, int32_t id)
{
    work->symbols[n].id = id;
    work->symbols[n].prev = (uint32_t)n - 1; /* NOWHERE for the first */
    work->symbols[n].next = (uint32_t)n + 1;
    return n + 1;
}

/* The text as symbols: one a character, or one a byte where no piece is that character. */
static size_t split_text(struct bpe *work, const struct tokenizer *t, const char *text, size_t len)
{
    size_t n = 0, bytes;

    for (size_t at = 0; at < len; at += bytes) {
        uint32_t c = (unsigned char)text[at];
        int32_t id;

        bytes = c < 0x80 ? 1 : utf8_decode(text + at, len - at, &c);
        if (bytes == 0)
            break; /* not reached: the caller has checked the text */
        id = c < 0x80 ? t->ascii[c] : lexicon_char(t, c);
        if (id >= 0) {
            n = put_symbol(work, n, id);
            continue;
        }
        for (size_t i = 0; i < bytes; i++)
            n = put_symbol(work, n, t->bytes[(unsigned char)text[at + i]]);
    }
    if (n > 0)
        work->symbols[n - 1].next = NOWHERE;
    return n;
}

static void join_all(struct bpe *work, const struct tokenizer *t)
{
    struct bpe_symbol *symbols = work->symbols;

    while (work->n_heap > 0) {
        uint64_t top = heap_pop(work), key;
        uint32_t at = (uint32_t)top, gone;

        if (symbols[at].rank != (uint32_t)(top >> 32))
            continue;
        gone = symbols[at].next;
        symbols[at].id = (int32_t)symbols[at].product;
        symbols[at].next = symbols[gone].next;
        symbols[gone].rank = NO_PAIR;
        if (symbols[at].next != NOWHERE)
            symbols[symbols[at].next].prev = at;
        if (pair_begins(work, t, at, &key))
            sift_up(work->heap, work->n_heap++, key);
        if (symbols[at].prev != NOWHERE && pair_begins(work, t, symbols[at].prev, &key))
            sift_up(work->heap, work->n_heap++, key);
    }
}

int bpe_encode(struct bpe *work, const struct tokenizer *t, const char *text, size_t len,
               int32_t *ids, size_t *n, struct error *err)
{
    size_t n_symbols;
    int rc;

    *n = 0;
    if (len == 0)
        return OK;
    /* never more symbols than bytes: U+2581, which a space becomes, always has a piece */
    if ((rc = reserve(work, len, err)) != OK)
        return rc;
    n_symbols = split_text(work, t, text, len);
    work->n_heap = 0;
    for (uint32_t i = 0; i < n_symbols; i++)
        if (pair_begins(work, t, i, &work->heap[work->n_heap]))
            work->n_heap++;
    for (size_t i = work->n_heap / 2; i-- > 0;)
        sift_down(work->heap, work->n_heap, i, work->heap[i]);
    join_all(work, t);
    for (uint32_t i = 0; i != NOWHERE; i = work->symbols[i].next)
        ids[(*n)++] = work->symbols[i].id;
    return OK;
}
