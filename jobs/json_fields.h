/* json_fields.h - small JSON objects out of Redis, read as if a stranger had written them.
 *
 * Only for the readers beside it. Each function names `what` (a card, a result) in its error, and
 * gives ERR_FORMAT when the field is missing, of another kind, or out of range. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* One object without duplicate keys and nothing after it, with exactly n_fields fields. The caller
 * gives *out back with json_decref(). */
int json_fields_parse(json_t **out, const char *text, size_t len, size_t n_fields, const char *what,
                      struct error *err);
/* ERR_FORMAT, too, when it does not fit or has control characters. */
int json_fields_text(char *out, size_t cap, const json_t *object, const char *field,
                     const char *what, struct error *err);
int json_fields_int(int64_t *out, const json_t *object, const char *field, int64_t min, int64_t max,
                    const char *what, struct error *err);
int json_fields_bool(bool *out, const json_t *object, const char *field, const char *what,
                     struct error *err);
