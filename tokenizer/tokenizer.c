/* tokenizer.c - see tokenizer.h.
 *
 * A text is walked once: an added token becomes its id, and each stretch between two of them goes
 * to bpe.c on its own. No id takes less than a byte of text, so one array of as many ids as there
 * are bytes holds any result. The tables come from from_json.c, from_vocab.c or compact.c. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/compact.h"
#include "tokenizer/lexicon.h"
#include "tokenizer/utf8.h"

int tokenizer_load(struct tokenizer **out, const char *path, struct error *err)
{
    struct file_map map = {0};
    int rc;

    *out = NULL;
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    rc = compact_begins(map.data, map.size)
             ? tokenizer_from_compact(out, map.data, map.size, path, err)
             : tokenizer_from_json(out, map.data, map.size, path, err);
    file_map_close(&map);
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->text);
    free(t->text_at);
    free(t->pairs);
    free(t->pair_at);
    free(t->chars);
    free(t->added);
    free(t);
}

size_t tokenizer_n_ids(const struct tokenizer *t)
{
    return t->n_ids;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if (id < 0 || (size_t)id >= t->n_ids || lexicon_piece_len(t, id) == 0)
        return NULL;
    *len = lexicon_piece_len(t, id);
    return lexicon_piece(t, id);
}

/* str.isspace() of Python 3: white space or a paragraph, segment or blank bidirectional class. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Bytes of the last character of `len` > 0; 0 when it is not UTF-8. */
static size_t last_char(const char *text, size_t len, uint32_t *c)
{
    for (size_t n = 1; n <= UTF8_MAX && n <= len; n++)
        if (((unsigned char)text[len - n] & 0xc0) != 0x80)
            return utf8_decode(text + len - n, n, c) == n ? n : 0;
    return 0;
}

void tokenizer_strip(const char **text, size_t *len)
{
    size_t n;
    uint32_t c;

    while (*len > 0 && (n = utf8_decode(*text, *len, &c)) > 0 && is_space(c)) {
        *text += n;
        *len -= n;
    }
    while (*len > 0 && (n = last_char(*text, *len, &c)) > 0 && is_space(c))
        *len -= n;
}

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

static int check_text(const char *text, size_t len, struct error *err)
{
    size_t valid;

    if (len > BPE_MAX_TEXT)
        return error_set(err, ERR_SIZE, "tokenizer: a text of %zu bytes, at most %zu", len,
                         BPE_MAX_TEXT);
    valid = utf8_valid_len(text, len);
    if (valid < len)
        return error_set(err, ERR_INPUT, "tokenizer: the text is not UTF-8 at byte %zu (0x%02X)",
                         valid, (unsigned char)text[valid]);
    return OK;
}

/* The ids of a checked text behind those that `ids` has; there is room for `len` more. */
static int encode_text(const struct tokenizer *t, const char *text, size_t len, int32_t *ids,
                       size_t *n_ids, struct error *err)
{
    struct bpe work = {0};
    size_t from = 0, at = 0, n;
    int rc = OK;

    while (at <= len) {
        int32_t id = 0;
        size_t token = at < len ? lexicon_added(t, text + at, len - at, &id) : 0;

        if (at < len && token == 0) {
            at++;
            continue;
        }
        if ((rc = bpe_encode(&work, t, text + from, at - from, ids + *n_ids, &n, err)) != OK)
            break;
        *n_ids += n;
        if (at == len)
            break;
        ids[(*n_ids)++] = id;
        from = at += token;
    }
    bpe_free(&work);
    return rc;
}

/* With `with_bos`, ids[0] is <bos> whatever the text. */
static int encode(const struct tokenizer *t, const char *text, size_t len, bool with_bos,
                  struct token_list *out, struct error *err)
{
    int32_t *ids;
    size_t n = with_bos;
    int rc;

    if (len == 0)
        text = ""; /* NULL is a fine empty text, but no pointer to add to */
    if ((ids = malloc((len + 1) * sizeof(*ids))) == NULL)
        return error_set(err, ERR_MEM, "tokenizer: no memory for a text of %zu bytes", len);
    ids[0] = t->bos;
    if ((rc = encode_text(t, text, len, ids, &n, err)) != OK) {
        free(ids);
        return rc;
    }
    if (with_bos && !t->bos_always && n > 1 && ids[1] == t->bos)
        memmove(ids, ids + 1, --n * sizeof(*ids)); /* the text brought its own */
    out->ids = ids;
    out->n = out->n_uncut = n;
    return OK;
}

/* The array was as large as any text of that length could need. */
static void shrink(struct token_list *list)
{
    int32_t *ids = realloc(list->ids, (list->n + 1) * sizeof(*ids));

    if (ids != NULL)
        list->ids = ids;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, size_t limit,
                     struct token_list *out, struct error *err)
{
    int rc;

    *out = (struct token_list){0};
    if ((rc = check_text(text, len, err)) != OK)
        return rc;
    tokenizer_strip(&text, &len);
    if ((rc = encode(t, text, len, true, out, err)) != OK)
        return rc;
    if (limit > 0 && out->n > limit)
        out->n = limit;
    shrink(out);
    return OK;
}

int tokenizer_encode_raw(const struct tokenizer *t, const char *text, size_t len,
                         struct token_list *out, struct error *err)
{
    int rc;

    *out = (struct token_list){0};
    if ((rc = check_text(text, len, err)) != OK ||
        (rc = encode(t, text, len, false, out, err)) != OK)
        return rc;
    shrink(out);
    return OK;
}
