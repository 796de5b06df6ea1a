#include "service/problem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "service/formats/json_text.h"

static const struct {
    int status;
    const char *code, *title;
} kinds[PROBLEM_KINDS] = {
    [PROBLEM_NONE] = {500, "internal", "No problem"},
    [PROBLEM_BAD_REQUEST] = {400, "bad_request", "The request is malformed"},
    [PROBLEM_BAD_JSON] = {400, "bad_json", "The body is not JSON"},
    [PROBLEM_BAD_UTF8] = {400, "bad_utf8", "The body is not UTF-8"},
    [PROBLEM_DUPLICATE_FIELD] = {400, "duplicate_field", "A field is given twice"},
    [PROBLEM_TOO_COMPLEX] = {400, "too_complex", "The JSON is too deep or has too many values"},
    [PROBLEM_NOT_FOUND] = {404, "not_found", "There is no such route"},
    [PROBLEM_JOB_NOT_FOUND] = {404, "job_not_found", "There is no such job"},
    [PROBLEM_RESULT_NOT_FOUND] = {404, "result_not_found", "There is no such result"},
    [PROBLEM_METHOD_NOT_ALLOWED] = {405, "method_not_allowed", "The route has other methods"},
    [PROBLEM_NOT_ACCEPTABLE] = {406, "not_acceptable", "No format that Accept allows"},
    [PROBLEM_CANCELLED] = {410, "cancelled", "The job was cancelled"},
    [PROBLEM_LENGTH_REQUIRED] = {411, "length_required", "Content-Length is required"},
    [PROBLEM_BODY_TOO_LARGE] = {413, "body_too_large", "The body is too large"},
    [PROBLEM_UNSUPPORTED_MEDIA_TYPE] = {415, "unsupported_media_type", "The body must be JSON"},
    [PROBLEM_UNKNOWN_FIELD] = {422, "unknown_field", "A field is not known"},
    [PROBLEM_INVALID_FIELD] = {422, "invalid_field", "A field is missing or wrong"},
    [PROBLEM_UNKNOWN_MODEL] = {422, "unknown_model", "No such model is served"},
    [PROBLEM_OUTPUT_UNAVAILABLE] = {422, "output_unavailable", "The model lacks this output"},
    [PROBLEM_PROMPT_TOO_LONG] = {422, "prompt_too_long", "A prompt has too many tokens"},
    [PROBLEM_RESULT_TOO_LARGE] = {422, "result_too_large", "The result would be too large"},
    [PROBLEM_TENANT_QUOTA] = {429, "tenant_quota", "Too many open jobs of yours"},
    [PROBLEM_INTERNAL] = {500, "internal", "The service failed"},
    [PROBLEM_JOB_FAILED] = {502, "job_failed", "The job failed for good"},
    [PROBLEM_NO_MODEL] = {503, "no_model", "No model is served"},
    [PROBLEM_QUEUE_FULL] = {503, "queue_full", "The queue is full"},
    [PROBLEM_QUEUE_UNAVAILABLE] = {503, "queue_unavailable", "The queue cannot be reached"},
    [PROBLEM_CACHE_UNAVAILABLE] = {503, "cache_unavailable", "The cache cannot be reached"},
    [PROBLEM_CACHE_TOO_SMALL] = {503, "cache_too_small", "The cache loses results too soon"},
    [PROBLEM_OVERLOADED] = {503, "overloaded", "The service has no room"},
    [PROBLEM_DEADLINE_PASSED] = {504, "deadline_passed", "The job's deadline passed"},
};

bool problem_set(struct problem *p, enum problem_kind kind, const char *fmt, ...)
{
    va_list args;

    if (p->kind != PROBLEM_NONE)
        return false;
    p->kind = kind;
    va_start(args, fmt);
    vsnprintf(p->detail, sizeof(p->detail), fmt, args);
    va_end(args);
    return false;
}

void problem_add_number(struct problem *p, const char *name, int64_t value)
{
    if (p->n_numbers < PROBLEM_MAX_NUMBERS)
        p->numbers[p->n_numbers++] = (struct problem_number){name, value};
}

int problem_status(enum problem_kind kind)
{
    return kinds[kind].status;
}

const char *problem_code(enum problem_kind kind)
{
    return kinds[kind].code;
}

int problem_write(struct buf *out, const struct problem *p, const char *request_id,
                  struct error *err)
{
    const char *code = kinds[p->kind].code;
    int rc;

    if ((rc = buf_printf(out, err,
                         "{\"type\":\"urn:prompt-encoder:problem:%s\",\"title\":", code)) != OK ||
        (rc = json_text_append(out, kinds[p->kind].title, err)) != OK ||
        (rc = buf_printf(out, err, ",\"status\":%d,\"code\":\"%s\",\"detail\":",
                         kinds[p->kind].status, code)) != OK ||
        (rc = json_text_append(out, p->detail, err)) != OK ||
        (rc = buf_printf(out, err, ",\"request_id\":")) != OK ||
        (rc = json_text_append(out, request_id, err)) != OK)
        return rc;
    for (size_t i = 0; i < p->n_numbers; i++)
        if ((rc = buf_printf(out, err, ",\"%s\":%" PRId64, p->numbers[i].name,
                             p->numbers[i].value)) != OK)
            return rc;
    return buf_printf(out, err, "}\n");
}
