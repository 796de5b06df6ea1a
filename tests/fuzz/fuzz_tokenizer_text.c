/* fuzz_tokenizer_text.c - any bytes as a text, with the tiny vocabulary of the golden tests.
 *
 * The ids must spell the text, and must be those of the plainest possible encoder: look at every
 * pair, join the first one of lowest rank, begin again. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/lexicon.h"
#include "tokenizer/utf8.h"

#define MAX_PLAIN 1024 /* bytes; the plain encoder takes the square of it */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition)
        abort();
}

static size_t plain_stretch(const struct tokenizer *t, const char *text, size_t len, int32_t *ids)
{
    size_t n = 0;

    for (size_t at = 0, bytes; at < len; at += bytes) {
        uint32_t c = 0;
        int32_t id;

        bytes = utf8_decode(text + at, len - at, &c);
        id = lexicon_char(t, c == ' ' ? META_CHAR : c);
        if (id >= 0)
            ids[n++] = id;
        for (size_t i = 0; i < bytes && id < 0; i++)
            ids[n++] = t->bytes[(unsigned char)text[at + i]];
    }
    for (;;) {
        const struct pair *best = NULL;
        size_t where = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            const struct pair *p = lexicon_pair(t, ids[i], ids[i + 1]);

            if (p != NULL && (best == NULL || p->rank < best->rank)) {
                best = p;
                where = i;
            }
        }
        if (best == NULL)
            return n;
        ids[where] = (int32_t)best->product;
        n--;
        memmove(ids + where + 1, ids + where + 2, (n - where - 1) * sizeof(*ids));
    }
}

/* The longest added token at `text`, by trying all. */
static size_t plain_added(const struct tokenizer *t, const char *text, size_t len, int32_t *id)
{
    size_t longest = 0;

    for (size_t i = 0; i < t->n_added; i++) {
        size_t n = lexicon_piece_len(t, t->added[i]);

        if (n > longest && n <= len && memcmp(lexicon_piece(t, t->added[i]), text, n) == 0) {
            longest = n;
            *id = t->added[i];
        }
    }
    return longest;
}

static size_t plain_encode(const struct tokenizer *t, const char *text, size_t len, int32_t *ids)
{
    size_t from = 0, n = 0;

    for (size_t at = 0; at < len;) {
        int32_t id = 0;
        size_t token = plain_added(t, text + at, len - at, &id);

        if (token == 0) {
            at++;
            continue;
        }
        n += plain_stretch(t, text + from, at - from, ids + n);
        ids[n++] = id;
        from = at += token;
    }
    return n + plain_stretch(t, text + from, len - from, ids + n);
}

/* The pieces of `list` are the text, but for U+2581, which may have been a space. */
static void require_spelling(const struct tokenizer *t, const struct token_list *list,
                             const char *text, size_t len)
{
    size_t at = 0;

    for (size_t i = 0; i < list->n; i++) {
        size_t n;
        const char *piece = tokenizer_piece(t, list->ids[i], &n);

        require(piece != NULL);
        if (at < len && t->bytes[(unsigned char)text[at]] == list->ids[i] &&
            (len - at < n || memcmp(piece, text + at, n) != 0)) {
            at++;
            continue;
        }
        while (n > 0) {
            size_t meta = n >= 3 && memcmp(piece, META, 3) == 0 ? 3 : 0;

            require(at < len);
            if (meta > 0 && text[at] == ' ') {
                piece += meta;
                n -= meta;
            } else {
                require(text[at] == *piece);
                piece++;
                n--;
            }
            at++;
        }
    }
    require(at == len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t; /* loaded once; never freed, as the fuzzer never ends */
    const char *text = (const char *)data;
    int32_t plain[MAX_PLAIN];
    struct token_list list;
    struct error err = {0};
    size_t n;

    if (t == NULL)
        require(tokenizer_load(&t, PE_TESTS_DIR "/golden/gemma3-tiny/tokenizer.json", &err) == OK);
    if (tokenizer_encode_raw(t, text, size, &list, &err) != OK) {
        require(utf8_valid_len(text, size) < size);
        return 0;
    }
    require_spelling(t, &list, text, size);
    if (size <= MAX_PLAIN) {
        n = plain_encode(t, text, size, plain);
        require(n == list.n && (n == 0 || memcmp(plain, list.ids, n * sizeof(*plain)) == 0));
    }
    token_list_free(&list);
    require(tokenizer_encode(t, text, size, 8, &list, &err) == OK);
    require(list.n <= 8 && list.n >= 1 && list.ids[0] == tokenizer_bos(t));
    token_list_free(&list);
    return 0;
}
