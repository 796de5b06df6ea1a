#include "jobs/queue_call.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "jobs/queue_library.h"
#include "jobs/redis.h"

void queue_call_bytes(struct queue_call *c, const char *text, size_t len)
{
    assert(c->n < QUEUE_CALL_WORDS);
    c->argv[c->n] = text;
    c->len[c->n++] = len;
}

void queue_call_text(struct queue_call *c, const char *text)
{
    queue_call_bytes(c, text, strlen(text));
}

static char *next_number(struct queue_call *c)
{
    assert(c->n_numbers < QUEUE_CALL_NUMBERS);
    return c->numbers[c->n_numbers++];
}

void queue_call_int(struct queue_call *c, int64_t n)
{
    char *text = next_number(c);

    snprintf(text, sizeof(c->numbers[0]), "%" PRId64, n);
    queue_call_text(c, text);
}

void queue_call_number(struct queue_call *c, double n)
{
    char *text = next_number(c);

    snprintf(text, sizeof(c->numbers[0]), "%.17g", n);
    queue_call_text(c, text);
}

void queue_call_begin(struct queue_call *c, const char *function, const char *base)
{
    const char *library, *source;
    size_t size;

    queue_library(&library, &source, &size);
    c->n = c->n_numbers = 0;
    snprintf(c->function, sizeof(c->function), "%s_%s", library, function);
    queue_call_text(c, "FCALL");
    queue_call_text(c, c->function);
    queue_call_text(c, "1");
    queue_call_text(c, base);
}

static bool is_missing(const struct redis *r)
{
    return strstr(redis_refusal(r), "Function not found") != NULL;
}

static int load_library(struct redis *r, struct error *err)
{
    const char *library, *source;
    redisReply *reply;
    size_t size;
    int rc;

    queue_library(&library, &source, &size);
    rc = redis_commandf(r, &reply, err, "FUNCTION LOAD %b", source, size);
    if (reply != NULL)
        freeReplyObject(reply);
    return rc;
}

int queue_call_run(struct queue_call *c, struct redis *r, redisReply **out, struct error *err)
{
    struct error first = {0}, load = {0};
    int rc;

    if ((rc = redis_command(r, out, c->n, c->argv, c->len, &first)) == OK)
        return OK;
    if (rc != ERR_INPUT || !is_missing(r))
        return error_set(err, first.code, "%s", first.text);
    rc = load_library(r, &load);
    if (rc != OK && rc != ERR_INPUT) /* ERR_INPUT: another process may have been faster */
        return error_set(err, load.code, "%s", load.text);
    first = (struct error){0};
    if ((rc = redis_command(r, out, c->n, c->argv, c->len, &first)) == OK)
        return OK;
    if (is_missing(r) && load.code != OK)
        return error_set(err, load.code, "%s", load.text);
    return error_set(err, first.code, "%s", first.text);
}

int queue_call_bad_reply(const struct queue_call *c, const struct redis *r, struct error *err)
{
    return error_set(err, ERR_FORMAT, "redis at %s: %s: an answer that is none of this queue's",
                     redis_address(r), c->function);
}
