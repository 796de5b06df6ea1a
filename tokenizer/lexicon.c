/* lexicon.c - see lexicon.h.
 *
 * Added tokens are found without a trie: their sorted list is one. All that share the bytes read so
 * far are neighbours in it, each further byte narrows that range by binary search, and a token that
 * ends here is the first of its range. There is nothing to build and nothing to check but the
 * order. Most bytes of a prompt begin no added token, and one look into `added_at` says so. */
#include "tokenizer/lexicon.h"

#include <stdio.h>
#include <string.h>

#include "tokenizer/utf8.h"

void lexicon_index(struct tokenizer *t)
{
    size_t next = 0;

    for (int i = 0; i < 128; i++)
        t->ascii[i] = -1;
    for (size_t i = 0; i < t->n_chars && t->chars[i].codepoint < 128; i++)
        t->ascii[t->chars[i].codepoint] = t->chars[i].id;
    t->ascii[' '] = lexicon_char(t, META_CHAR);
    for (int b = 0; b < 256; b++) {
        t->added_at[b] = (uint32_t)next;
        while (next < t->n_added && (unsigned char)*lexicon_piece(t, t->added[next]) == b)
            next++;
    }
    t->added_at[256] = (uint32_t)next;
}

int32_t lexicon_char(const struct tokenizer *t, uint32_t codepoint)
{
    size_t lo = 0, hi = t->n_chars;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (t->chars[mid].codepoint == codepoint)
            return t->chars[mid].id;
        if (t->chars[mid].codepoint < codepoint)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

/* The first of added[lo..hi) whose byte at `depth` is at least `byte`; all are longer than that. */
static size_t added_narrow(const struct tokenizer *t, size_t lo, size_t hi, size_t depth, int byte)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((unsigned char)lexicon_piece(t, t->added[mid])[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t lexicon_added(const struct tokenizer *t, const char *text, size_t len, int32_t *id)
{
    const unsigned char *b = (const unsigned char *)text;
    size_t lo = t->added_at[b[0]], hi = t->added_at[b[0] + 1], longest = 0;

    for (size_t depth = 1; lo < hi; depth++) {
        if (lexicon_piece_len(t, t->added[lo]) == depth) {
            longest = depth;
            *id = t->added[lo++];
        }
        if (depth == len)
            break;
        lo = added_narrow(t, lo, hi, depth, b[depth]);
        hi = added_narrow(t, lo, hi, depth, b[depth] + 1);
    }
    return longest;
}

int lexicon_compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

    if (order != 0)
        return order;
    return a_len < b_len ? -1 : a_len > b_len;
}

const char *lexicon_show(char out[LEXICON_SHOWN], const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        if (n > LEXICON_SHOWN - 9) { /* room for "\xNN", "..." and the NUL */
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (text[i] >= ' ' && text[i] <= '~')
            out[n++] = text[i];
        else
            n += (size_t)snprintf(out + n, 5, "\\x%02X", (unsigned char)text[i]);
    }
    out[n] = '\0';
    return out;
}
