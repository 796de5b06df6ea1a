/* buf.h - a growable run of bytes that is born with its ceiling.
 *
 *     struct buf b = {.max = 1 << 20};
 *     if ((rc = buf_append(&b, data, len, err)) != OK) ...
 *     buf_free(&b);
 *
 * Going over `max` is ERR_SIZE, never a truncation. After any failure the buffer is empty, so half
 * of an answer cannot be used by mistake. Not for sharing between threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct buf {
    char *data; /* `len` bytes, then a NUL that is not counted; NULL while nothing was added */
    size_t len;
    size_t cap;
    size_t max;     /* bytes; set it before the first use */
    bool is_secret; /* as max: no copy of the bytes is left in memory that is given back */
};

int buf_append(struct buf *b, const void *data, size_t len, struct error *err);
int buf_printf(struct buf *b, struct error *err, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Room for `len` more bytes; *out points at it. The bytes count as added. */
int buf_extend(struct buf *b, void **out, size_t len, struct error *err);
/* Text of unknown origin for a person's terminal: at most max bytes of it, no character cut in two,
 * control characters (C0, DEL, C1) as spaces, "..." where it was cut. Expects UTF-8. */
int buf_append_printable(struct buf *b, const char *text, size_t len, size_t max,
                         struct error *err);
void buf_free(struct buf *b); /* leaves an empty buffer of the same kind */
