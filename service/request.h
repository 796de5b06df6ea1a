/* request.h - a request's JSON body, checked.
 *
 * Pure: bytes in, a struct or a problem out; no model is looked at here. Everything is refused that
 * is not known: unknown fields, doubled ones, other types, deep or endless JSON. Details name
 * fields and limits, never a prompt's text. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "service/problem.h"

enum {
    REQUEST_MAX_PROMPTS = 32, /* the negative one included */
    REQUEST_MAX_LAYERS = 256, /* layers are numbered below it, too */
    REQUEST_MAX_DEPTH = 16,
    REQUEST_MAX_TOKENS = 4096, /* JSON values, keys and brackets */
    REQUEST_MAX_MODEL = 63     /* bytes of a model's name */
};

enum request_output { OUTPUT_HIDDEN_STATES, OUTPUT_FEATURES, OUTPUT_EMBEDDINGS };
enum request_modality { MODALITY_VIDEO = 1, MODALITY_AUDIO = 2 };
enum request_dtype { DTYPE_NAME_BFLOAT16, DTYPE_NAME_FLOAT16, DTYPE_NAME_FLOAT32 };
enum request_cache { CACHE_USE, CACHE_REFRESH, CACHE_BYPASS };

struct request_prompt {
    const char *text; /* UTF-8; may hold NULs */
    size_t len;       /* bytes */
};

/* What POST /v1/encode and POST /v1/tokenize take. */
struct request {
    json_t *root; /* what the texts lie in */
    size_t n_prompts;
    struct request_prompt prompts[REQUEST_MAX_PROMPTS];
    bool has_negative; /* the last prompt is the negative one */
    const char *model; /* NULL: the only one there is */
    bool has_output;   /* else `output` is the model's to say: request_settle_output() */
    enum request_output output;
    enum request_dtype dtype;
    enum request_cache cache;
    bool overflow_is_error;
    int n_layers; /* 0: all */
    int layers[REQUEST_MAX_LAYERS];
    unsigned modalities; /* of enum request_modality; 0: not said, and of OUTPUT_HIDDEN_STATES */
};

/* True, or false and *p says why. Free *out with request_free() either way. */
bool request_parse_encode(struct request *out, const char *body, size_t len, struct problem *p);
/* An output that the request did not name becomes `fallback`; false as above when it has what that
 * level has not. */
bool request_settle_output(struct request *r, enum request_output fallback, struct problem *p);
/* Knows `prompt`, `prompts` and `model` only. */
bool request_parse_tokenize(struct request *out, const char *body, size_t len, struct problem *p);
void request_free(struct request *r); /* a zeroed one is fine; prompts are wiped */

const char *request_output_name(enum request_output output); /* "hidden_states" */
/* "video,audio", in this order whatever the request's was; "" for none. */
const char *request_modalities_name(unsigned modalities);
const char *request_dtype_name(enum request_dtype dtype); /* "bfloat16" */
size_t request_dtype_bytes(enum request_dtype dtype);
