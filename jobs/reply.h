/* reply.h - answers of Redis, read as if a stranger had written them.
 *
 * Only for the readers beside it. False: it is something else, and `out` is not to be used. */
#pragma once
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "jobs/job.h"

bool reply_text(char *out, size_t cap, const redisReply *reply);
bool reply_int(int64_t *out, const redisReply *reply, int64_t min, int64_t max);
/* A text of digits, as it lies in hashes and streams. */
bool reply_digits(int64_t *out, const redisReply *reply, int64_t min, int64_t max);
/* A text that is a finite number, at least 0. */
bool reply_number(double *out, const redisReply *reply);
bool reply_state(enum job_state *out, const redisReply *reply);
bool reply_is_array(const redisReply *reply, size_t n);
bool reply_is_word(const redisReply *reply, const char *word);
