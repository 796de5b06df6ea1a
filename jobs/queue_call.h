/* queue_call.h - a call of one function of queue.lua. Only for the queue.
 *
 *     struct queue_call c;
 *     queue_call_begin(&c, "cancel", base);
 *     queue_call_text(&c, id);
 *     rc = queue_call_run(&c, redis, &reply, err);
 *
 * A function that Redis does not know (it was restarted without its file, or flushed) did not run,
 * so the library is loaded and the function called once more. */
#pragma once
#include <hiredis/hiredis.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/job.h"
#include "jobs/queue.h"

struct redis;

enum {
    /* a group, or a token for each of many jobs, and a few words before them */
    QUEUE_CALL_WORDS = 16 + 3 * JOB_GROUP_MAX + 2 * QUEUE_CLAIM_MAX,
    QUEUE_CALL_NUMBERS = 16 + JOB_GROUP_MAX
};

/* Texts are borrowed until it has run. */
struct queue_call {
    const char *argv[QUEUE_CALL_WORDS];
    size_t len[QUEUE_CALL_WORDS];
    int n;
    char function[64];
    char numbers[QUEUE_CALL_NUMBERS][32];
    int n_numbers;
};

void queue_call_begin(struct queue_call *c, const char *function, const char *base);
void queue_call_bytes(struct queue_call *c, const char *text, size_t len);
void queue_call_text(struct queue_call *c, const char *text);
void queue_call_int(struct queue_call *c, int64_t n);
void queue_call_number(struct queue_call *c, double n);

/* The caller frees *out (freeReplyObject). */
int queue_call_run(struct queue_call *c, struct redis *r, redisReply **out, struct error *err);
/* ERR_FORMAT: the answer is not what this function gives. */
int queue_call_bad_reply(const struct queue_call *c, const struct redis *r, struct error *err);
