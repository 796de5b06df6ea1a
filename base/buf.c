#define _GNU_SOURCE /* explicit_bzero */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* realloc(), but what a secret leaves behind is wiped. */
static char *move(struct buf *b, size_t cap)
{
    char *data;

    if (!b->is_secret || b->data == NULL)
        return realloc(b->data, cap);
    if ((data = malloc(cap)) == NULL)
        return NULL;
    memcpy(data, b->data, b->len);
    explicit_bzero(b->data, b->cap);
    free(b->data);
    return data;
}

void buf_free(struct buf *b)
{
    if (b->is_secret && b->data != NULL)
        explicit_bzero(b->data, b->cap);
    free(b->data);
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
}

int buf_extend(struct buf *b, void **out, size_t len, struct error *err)
{
    size_t need, cap;
    char *data;

    *out = NULL;
    if (len > b->max || b->len > b->max - len) {
        int rc = error_set(err, ERR_SIZE, "buffer: %zu and %zu more bytes, at most %zu", b->len,
                           len, b->max);
        buf_free(b);
        return rc;
    }
    need = b->len + len + 1; /* the NUL */
    if (need > b->cap) {
        cap = b->cap < 256 ? 256 : b->cap;
        while (cap < need)
            cap = cap > SIZE_MAX / 2 ? need : cap * 2;
        if (cap > b->max + 1)
            cap = b->max + 1;
        if ((data = move(b, cap)) == NULL) {
            buf_free(b);
            return error_set(err, ERR_MEM, "buffer: no memory for %zu bytes", cap);
        }
        b->data = data;
        b->cap = cap;
    }
    *out = b->data + b->len;
    b->len += len;
    b->data[b->len] = '\0';
    return OK;
}

int buf_append(struct buf *b, const void *data, size_t len, struct error *err)
{
    void *room;
    int rc;

    if ((rc = buf_extend(b, &room, len, err)) != OK)
        return rc;
    if (len > 0)
        memcpy(room, data, len);
    return OK;
}

int buf_printf(struct buf *b, struct error *err, const char *fmt, ...)
{
    va_list args;
    void *room;
    int n, rc;

    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        buf_free(b);
        return error_set(err, ERR_INPUT, "buffer: bad format %s", fmt);
    }
    if ((rc = buf_extend(b, &room, (size_t)n, err)) != OK)
        return rc;
    va_start(args, fmt);
    vsnprintf(room, (size_t)n + 1, fmt, args);
    va_end(args);
    return OK;
}

int buf_append_printable(struct buf *b, const char *text, size_t len, size_t max, struct error *err)
{
    size_t shown = len < max ? len : max;
    int rc = OK;

    while (shown > 0 && shown < len && ((unsigned char)text[shown] & 0xc0) == 0x80)
        shown--;
    for (size_t i = 0; i < shown && rc == OK; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < shown ? (unsigned char)text[i + 1] : 0;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) { /* U+0080 .. U+009F */
            rc = buf_append(b, " ", 1, err);
            i++;
        } else {
            rc = buf_append(b, c < 0x20 || c == 0x7f ? " " : text + i, 1, err);
        }
    }
    if (rc == OK && shown < len)
        rc = buf_append(b, "...", 3, err);
    return rc;
}
