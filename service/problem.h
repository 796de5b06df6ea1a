/* problem.h - what goes wrong for a client, as RFC 9457 has it.
 *
 * Each kind has one stable `code`, one status and one title, in one table; the detail is a sentence
 * for a person. Pure: no HTTP library here. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum problem_kind {
    PROBLEM_NONE,
    PROBLEM_BAD_REQUEST,
    PROBLEM_BAD_JSON,
    PROBLEM_BAD_UTF8,
    PROBLEM_DUPLICATE_FIELD,
    PROBLEM_TOO_COMPLEX,
    PROBLEM_NOT_FOUND,
    PROBLEM_JOB_NOT_FOUND,
    PROBLEM_RESULT_NOT_FOUND,
    PROBLEM_METHOD_NOT_ALLOWED,
    PROBLEM_NOT_ACCEPTABLE,
    PROBLEM_CANCELLED,
    PROBLEM_LENGTH_REQUIRED,
    PROBLEM_BODY_TOO_LARGE,
    PROBLEM_UNSUPPORTED_MEDIA_TYPE,
    PROBLEM_UNKNOWN_FIELD,
    PROBLEM_INVALID_FIELD,
    PROBLEM_UNKNOWN_MODEL,
    PROBLEM_OUTPUT_UNAVAILABLE,
    PROBLEM_PROMPT_TOO_LONG,
    PROBLEM_RESULT_TOO_LARGE,
    PROBLEM_TENANT_QUOTA,
    PROBLEM_INTERNAL,
    PROBLEM_JOB_FAILED,
    PROBLEM_NO_MODEL,
    PROBLEM_QUEUE_FULL,
    PROBLEM_QUEUE_UNAVAILABLE,
    PROBLEM_CACHE_UNAVAILABLE,
    PROBLEM_CACHE_TOO_SMALL,
    PROBLEM_OVERLOADED,
    PROBLEM_DEADLINE_PASSED,
    PROBLEM_KINDS
};

enum { PROBLEM_MAX_NUMBERS = 3 };

struct problem {
    enum problem_kind kind;
    char detail[400];
    int retry_after_s; /* 0: no Retry-After */
    /* members of their own: {"bytes": 1234} */
    struct problem_number {
        const char *name;
        int64_t value;
    } numbers[PROBLEM_MAX_NUMBERS];
    size_t n_numbers;
};

/* Keeps the first problem. Always false, so that a check can end in `return problem_set(...)`. */
bool problem_set(struct problem *p, enum problem_kind kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Adds a member; past PROBLEM_MAX_NUMBERS it is dropped. */
void problem_add_number(struct problem *p, const char *name, int64_t value);

int problem_status(enum problem_kind kind);
const char *problem_code(enum problem_kind kind);

/* Appends the application/problem+json body. */
int problem_write(struct buf *out, const struct problem *p, const char *request_id,
                  struct error *err);
