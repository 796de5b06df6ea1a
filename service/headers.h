/* headers.h - what a request's headers ask for. Pure: text in, values out. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum answer_format { FORMAT_SAFETENSORS, FORMAT_JSON, FORMAT_NPY, FORMAT_COUNT };

/* The format that Accept likes best, ours first among equals; NULL and "" allow all. False: none.
 */
bool headers_choose_format(enum answer_format *out, const char *accept);
/* Whether Accept takes application/json, for answers that are nothing else. */
bool headers_accept(const char *accept, const char *media_type);
const char *format_media_type(enum answer_format format); /* "application/safetensors" */
const char *format_name(enum answer_format format);       /* "safetensors", for the ETag */

/* Content-Type is application/json, with or without parameters; a charset must be UTF-8. */
bool headers_body_is_json(const char *content_type);

struct prefer {
    bool respond_async;
    int wait_s; /* -1: not said */
};
/* RFC 7240; what is not understood is skipped, as it asks. */
void headers_read_prefer(struct prefer *out, const char *prefer);

/* Whether If-None-Match names `etag` (with its quotes), weakly compared, or is "*". */
bool headers_match_etag(const char *if_none_match, const char *etag);

/* "*", or scheme://host[:port] as a browser's Origin has it (RFC 6454): in small letters, without a
 * path, and without the scheme's usual port. */
bool headers_origin_is_good(const char *text);

/* 1 to 64 of [A-Za-z0-9._-]. */
bool headers_request_id_is_good(const char *text);
