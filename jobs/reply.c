#include "jobs/reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"

bool reply_text(char *out, size_t cap, const redisReply *reply)
{
    if ((reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS) ||
        reply->len >= cap || memchr(reply->str, '\0', reply->len) != NULL)
        return false;
    memcpy(out, reply->str, reply->len);
    out[reply->len] = '\0';
    return true;
}

bool reply_int(int64_t *out, const redisReply *reply, int64_t min, int64_t max)
{
    if (reply->type != REDIS_REPLY_INTEGER || reply->integer < min || reply->integer > max)
        return false;
    *out = reply->integer;
    return true;
}

bool reply_digits(int64_t *out, const redisReply *reply, int64_t min, int64_t max)
{
    char text[24];

    return reply_text(text, sizeof(text), reply) &&
           options_parse_int(out, text, min, max, "a number", NULL) == OK;
}

bool reply_number(double *out, const redisReply *reply)
{
    char text[32], *end;

    if (!reply_text(text, sizeof(text), reply))
        return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out >= 0;
}

bool reply_state(enum job_state *out, const redisReply *reply)
{
    static const char *const names[] = {
        [JOB_NONE] = "none",       [JOB_WAITING] = "waiting",    [JOB_DELAYED] = "delayed",
        [JOB_LEASED] = "leased",   [JOB_DONE] = "done",          [JOB_DEAD] = "dead",
        [JOB_EXPIRED] = "expired", [JOB_CANCELLED] = "cancelled"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (reply_is_word(reply, names[i])) {
            *out = (enum job_state)i;
            return true;
        }
    return false;
}

bool reply_is_array(const redisReply *reply, size_t n)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == n;
}

bool reply_is_word(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_STRING && reply->len == strlen(word) &&
           memcmp(reply->str, word, reply->len) == 0;
}
