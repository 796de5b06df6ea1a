/* json_reader.h - JSON read in place, value by value, in the order of the file.
 *
 *     struct json_reader r;
 *     json_reader_init(&r, data, size, "tokenizer.json");
 *     json_enter(&r, JSON_OBJECT, err);
 *     while (json_next_key(&r, &key, &more, err) == OK && more)
 *         ... read the value with exactly one of json_read_*, json_skip, or json_enter ...
 *     json_finish(&r, err);
 *
 * Strict RFC 8259: no comments, no trailing commas, UTF-8 checked, escapes and surrogate pairs
 * decoded. Nothing is allocated. Errors are ERR_FORMAT and name the line and the byte. After an
 * error the reader must not be used again. One thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define JSON_MAX_DEPTH 64
#define JSON_MAX_TEXT  4096 /* bytes of a string that is read, not skipped */

enum json_kind {
    JSON_OBJECT,
    JSON_ARRAY,
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
};

struct json_text {
    const char *data; /* decoded; not NUL-terminated, may contain NUL */
    size_t len;
};

struct json_reader {
    const char *name; /* stands for the bytes in messages */
    const char *data;
    size_t size;
    size_t at;  /* at a value: keep it, and json_seek() comes back to that value */
    bool fresh; /* a container was entered and nothing of it read yet */
    char text[JSON_MAX_TEXT];
};

/* `data` and `name` are borrowed for as long as the reader is used. */
void json_reader_init(struct json_reader *r, const void *data, size_t size, const char *name);
void json_seek(struct json_reader *r, size_t at);

/* What the next value is, without reading it. */
int json_peek(struct json_reader *r, enum json_kind *kind, struct error *err);

/* Into an object or array; then json_next_* until *more is false, which also leaves it. */
int json_enter(struct json_reader *r, enum json_kind kind, struct error *err);
int json_next_key(struct json_reader *r, struct json_text *key, bool *more, struct error *err);
int json_next_item(struct json_reader *r, bool *more, struct error *err);

/* A text is good until the next text or key is read. */
int json_read_text(struct json_reader *r, struct json_text *out, struct error *err);
int json_read_int(struct json_reader *r, int64_t *out, struct error *err); /* no fraction */
int json_read_bool(struct json_reader *r, bool *out, struct error *err);
/* A string decoded, or the letters of a number, true, false or null. */
int json_read_scalar(struct json_reader *r, struct json_text *out, struct error *err);
int json_skip(struct json_reader *r, struct error *err);
int json_finish(struct json_reader *r, struct error *err); /* nothing but blanks may follow */

bool json_text_is(const struct json_text *text, const char *word);
/* Fails at the present place: "name: line 3, byte 41: " and the words. */
int json_error(const struct json_reader *r, struct error *err, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
