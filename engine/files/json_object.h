/* json_object.h - the JSON files of a model directory, read strictly.
 *
 * Only for the readers beside it: the only header here that shows jansson. */
#pragma once
#include <jansson.h>
#include <stddef.h>

#include "base/error.h"

/* Parses `size` bytes that must be one JSON object without duplicate keys, and nothing after it but
 * white space. `name` stands for them in messages. The caller gives *out back with json_decref().
 * ERR_FORMAT otherwise. Depth is bounded by jansson (JSON_PARSER_MAX_DEPTH, 2048). */
int json_object_parse(json_t **out, const void *data, size_t size, const char *name,
                      struct error *err);

/* "a string", "an object" ... for messages. */
const char *json_object_kind(const json_t *value);
