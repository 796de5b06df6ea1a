/* Any bytes as a request's body, as a job's payload, and as the headers that ask for things. */
#include "service/request.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/payload.h"
#include "service/headers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_body(const char *body, size_t size)
{
    struct problem p = {0};
    struct request r;

    if (request_parse_encode(&r, body, size, &p)) {
        if (p.kind != PROBLEM_NONE || r.n_prompts < 1 || r.n_prompts > REQUEST_MAX_PROMPTS ||
            r.n_layers < 0 || r.n_layers > REQUEST_MAX_LAYERS)
            abort();
        for (int i = 0; i < r.n_layers; i++)
            if (r.layers[i] < 0 || r.layers[i] >= REQUEST_MAX_LAYERS)
                abort();
    } else if (p.kind == PROBLEM_NONE || p.detail[0] == '\0') {
        abort();
    }
    request_free(&r);
    p = (struct problem){0};
    if (request_parse_tokenize(&r, body, size, &p) != (p.kind == PROBLEM_NONE))
        abort();
    request_free(&r);
}

/* What is read is written as the same bytes: there is one spelling. */
static void fuzz_payload(const char *text, size_t size)
{
    struct buf again = {.max = 2 * PAYLOAD_MAX_BYTES};
    struct error err = {0};
    struct payload p;

    if (payload_read(&p, text, size, &err) == OK) {
        if (payload_write(&again, &p, &err) != OK || again.len != size ||
            memcmp(again.data, text, size) != 0)
            abort();
    } else if (err.code == OK || p.ids != NULL) {
        abort();
    }
    payload_free(&p);
    buf_free(&again);
}

static void fuzz_headers(const char *text, size_t size)
{
    char *copy = malloc(size + 1);
    enum answer_format format;
    struct prefer prefer;

    if (copy == NULL)
        return;
    memcpy(copy, text, size);
    copy[size] = '\0';
    if (headers_choose_format(&format, copy) && format >= FORMAT_COUNT)
        abort();
    headers_read_prefer(&prefer, copy);
    if (prefer.wait_s < -1)
        abort();
    headers_match_etag(copy, "\"a.b\"");
    headers_body_is_json(copy);
    headers_request_id_is_good(copy);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = size == 0 ? "" : (const char *)data;

    fuzz_body(text, size);
    fuzz_payload(text, size);
    fuzz_headers(text, size);
    return 0;
}
