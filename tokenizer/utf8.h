/* utf8.h - strict UTF-8, one character at a time.
 *
 * Refuses what RFC 3629 refuses: overlong forms, surrogates, anything above U+10FFFF, and bytes
 * that are cut off. U+0000 is a character like any other. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define UTF8_MAX 4 /* bytes of the longest character */

/* Bytes of the character at `s`, of which `len` > 0 are there, and its code point; 0 and U+0000
 * when it is not UTF-8. */
static inline size_t utf8_decode(const char *s, size_t len, uint32_t *codepoint)
{
    const unsigned char *b = (const unsigned char *)s;
    uint32_t c = b[0], least;
    size_t n;

    if (c < 0x80) {
        *codepoint = c;
        return 1;
    }
    *codepoint = 0;
    if (c >= 0xc2 && c <= 0xdf) {
        n = 2, c &= 0x1f, least = 0x80;
    } else if (c >= 0xe0 && c <= 0xef) {
        n = 3, c &= 0x0f, least = 0x800;
    } else if (c >= 0xf0 && c <= 0xf4) {
        n = 4, c &= 0x07, least = 0x10000;
    } else {
        return 0;
    }
    if (n > len)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (b[i] & 0x3f);
    }
    if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *codepoint = c;
    return n;
}

/* Writes a code point that is no surrogate and at most U+10FFFF; how many bytes that took. */
static inline size_t utf8_encode(char out[UTF8_MAX], uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Where the first byte lies that is not UTF-8; `len` when all of it is. */
static inline size_t utf8_valid_len(const char *s, size_t len)
{
    size_t at = 0, n;
    uint32_t c;

    while (at < len) {
        if ((unsigned char)s[at] < 0x80) {
            at++;
            continue;
        }
        if ((n = utf8_decode(s + at, len - at, &c)) == 0)
            break;
        at += n;
    }
    return at;
}
