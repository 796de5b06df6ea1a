/* queue_events.c - see queue_events.h.
 *
 * One XREAD covers the streams of all queues. What it cannot say is whether something is missing:
 * after it, the first entry of each stream that gave events tells whether the stream was cut past
 * our place, and now and then the last entry of every stream whether it lies before our place (the
 * stream is a new one, or lost its end in a failover). Places move only when all of that worked, so
 * that an error loses no event. */
#include "jobs/queue_events.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "jobs/card.h"
#include "jobs/queue.h"
#include "jobs/redis.h"
#include "jobs/reply.h"

enum {
    KEY_SIZE = QUEUE_BASE_SIZE + 4,
    PLACE_SIZE = 48,
    ENDS_EVERY_MS = 1000, /* how often the last entries are looked at while events come */
    READ_WORDS = 6 + 2 * CARD_MAX
};

struct place {
    uint64_t ms, number;
};

struct followed {
    char key[KEY_SIZE]; /* "<base>:ev" */
    struct place place; /* of the last event that was read */
    struct place next;  /* while a read is under way */
    bool gave;          /* this read got events of it */
};

struct queue_events {
    struct redis *redis;
    struct followed list[CARD_MAX];
    size_t n;
    int64_t ends_seen_ns; /* when the last entries were looked at */
};

int queue_events_open(struct queue_events **out, const char *url, int timeout_ms, struct error *err)
{
    struct queue_events *e;
    int rc;

    *out = NULL;
    if ((e = calloc(1, sizeof(*e))) == NULL)
        return error_set(err, ERR_MEM, "events: no memory");
    if ((rc = redis_open(&e->redis, url, timeout_ms, err)) != OK) {
        queue_events_close(e);
        return rc;
    }
    *out = e;
    return OK;
}

void queue_events_close(struct queue_events *e)
{
    if (e == NULL)
        return;
    redis_close(e->redis);
    free(e);
}

/* ---- places ---- */

/* "milliseconds-number" */
static bool read_place(struct place *out, const redisReply *reply)
{
    char text[PLACE_SIZE];
    int used = 0;

    return reply_text(text, sizeof(text), reply) && text[0] >= '0' && text[0] <= '9' &&
           sscanf(text, "%" SCNu64 "-%" SCNu64 "%n", &out->ms, &out->number, &used) == 2 &&
           text[used] == '\0';
}

static void write_place(char out[PLACE_SIZE], const struct place *p)
{
    snprintf(out, PLACE_SIZE, "%" PRIu64 "-%" PRIu64, p->ms, p->number);
}

static bool lies_before(const struct place *a, const struct place *b)
{
    return a->ms != b->ms ? a->ms < b->ms : a->number < b->number;
}

static bool is_start(const struct place *p)
{
    return p->ms == 0 && p->number == 0;
}

static int bad_stream(const struct queue_events *e, const struct followed *f, struct error *err)
{
    return error_set(err, ERR_FORMAT, "redis at %s: %s is no stream of events",
                     redis_address(e->redis), f->key);
}

static int ask_edge(struct queue_events *e, const struct followed *f, bool last, struct error *err)
{
    const char *first_argv[] = {"XRANGE", f->key, "-", "+", "COUNT", "1"};
    const char *last_argv[] = {"XREVRANGE", f->key, "+", "-", "COUNT", "1"};

    return redis_append(e->redis, 6, last ? last_argv : first_argv, NULL, err);
}

/* The place of the one entry that ask_edge() gets, the start for none. `so_far` is what became of
 * those before it: all that was asked has to be read. */
static int read_edge(struct queue_events *e, const struct followed *f, struct place *out,
                     int so_far, struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    *out = (struct place){0};
    if ((rc = redis_read(e->redis, &reply, err)) != OK)
        return so_far != OK ? so_far : rc;
    good = reply_is_array(reply, 0) ||
           (reply_is_array(reply, 1) && reply_is_array(reply->element[0], 2) &&
            read_place(out, reply->element[0]->element[0]));
    freeReplyObject(reply);
    return so_far != OK ? so_far : good ? OK : bad_stream(e, f, err);
}

/* ---- what is followed ---- */

static const struct followed *find(const struct queue_events *e, const char *key)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->list[i].key, key) == 0)
            return &e->list[i];
    return NULL;
}

int queue_events_follow(struct queue_events *e, const char *const *bases, size_t n, bool *fresh,
                        struct error *err)
{
    struct followed list[CARD_MAX];
    const struct followed *known[CARD_MAX];
    int rc = OK;

    *fresh = false;
    if (n > CARD_MAX)
        return error_set(err, ERR_INPUT, "events: %zu queues to follow, at most %d", n, CARD_MAX);
    for (size_t i = 0; i < n; i++) {
        list[i] = (struct followed){0};
        snprintf(list[i].key, sizeof(list[i].key), "%s:ev", bases[i]);
        if ((known[i] = find(e, list[i].key)) != NULL)
            list[i].place = known[i]->place;
        else if ((rc = ask_edge(e, &list[i], true, err)) != OK)
            return rc;
    }
    for (size_t i = 0; i < n; i++)
        if (known[i] == NULL) {
            rc = read_edge(e, &list[i], &list[i].place, rc, err);
            *fresh = true;
        }
    if (rc != OK)
        return rc;
    memcpy(e->list, list, n * sizeof(list[0]));
    e->n = n;
    return OK;
}

/* ---- reading ---- */

static int clamp(int64_t ms)
{
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

/* [j, id, s, state, w, waited, t, took] */
static bool read_event(struct queue_event *out, const redisReply *fields)
{
    redisReply **e = fields->element;
    int64_t waited, took;

    if (!reply_is_array(fields, 8) || !reply_is_word(e[0], "j") || !reply_is_word(e[2], "s") ||
        !reply_is_word(e[4], "w") || !reply_is_word(e[6], "t") ||
        !reply_text(out->id, sizeof(out->id), e[1]) || !reply_state(&out->state, e[3]) ||
        !reply_digits(&waited, e[5], -1, INT64_MAX) || !reply_digits(&took, e[7], -1, INT64_MAX))
        return false;
    out->waited_ms = clamp(waited);
    out->took_ms = clamp(took);
    return true;
}

/* One stream of an XREAD reply: [key, [[place, fields], ..]]. A stranger's entry is passed over. */
static bool read_stream(struct queue_events *e, const redisReply *stream,
                        struct queue_event *events, size_t count, size_t *n)
{
    const redisReply *entries;
    struct followed *f = NULL;

    if (!reply_is_array(stream, 2) || stream->element[0]->type != REDIS_REPLY_STRING)
        return false;
    entries = stream->element[1];
    for (size_t i = 0; i < e->n; i++)
        if (reply_is_word(stream->element[0], e->list[i].key))
            f = &e->list[i];
    if (f == NULL || f->gave || entries->type != REDIS_REPLY_ARRAY || entries->elements > count)
        return false;
    f->gave = true;
    for (size_t i = 0; i < entries->elements; i++) {
        const redisReply *entry = entries->element[i];

        if (!reply_is_array(entry, 2) || !read_place(&f->next, entry->element[0]))
            return false;
        if (read_event(&events[*n], entry->element[1]))
            (*n)++;
    }
    return true;
}

/* XREAD of all streams, each from its place; at most `count` events of each. */
static int read_new(struct queue_events *e, int block_ms, struct queue_event *events, size_t count,
                    size_t *n, struct error *err)
{
    char places[CARD_MAX][PLACE_SIZE], count_text[24], block_text[24];
    const char *argv[READ_WORDS] = {"XREAD", "COUNT", count_text};
    redisReply *reply;
    bool good;
    int argc = 3, rc;

    snprintf(count_text, sizeof(count_text), "%zu", count);
    snprintf(block_text, sizeof(block_text), "%d", block_ms);
    if (block_ms > 0) { /* XREAD takes 0 for "for ever" */
        argv[argc++] = "BLOCK";
        argv[argc++] = block_text;
        redis_next_timeout(e->redis, block_ms + redis_timeout(e->redis));
    }
    argv[argc++] = "STREAMS";
    for (size_t i = 0; i < e->n; i++)
        argv[argc++] = e->list[i].key;
    for (size_t i = 0; i < e->n; i++) {
        write_place(places[i], &e->list[i].place);
        argv[argc++] = places[i];
        e->list[i].next = e->list[i].place;
        e->list[i].gave = false;
    }
    if ((rc = redis_command(e->redis, &reply, argc, argv, NULL, err)) != OK)
        return rc;
    good = reply->type == REDIS_REPLY_NIL ||
           (reply->type == REDIS_REPLY_ARRAY && reply->elements <= e->n);
    for (size_t i = 0; good && reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        good = read_stream(e, reply->element[i], events, count, n);
    freeReplyObject(reply);
    return good ? OK : bad_stream(e, &e->list[0], err);
}

/* Whether a stream that gave events was cut past the place they were read from. */
static int look_at_starts(struct queue_events *e, bool *missed, struct error *err)
{
    struct place first;
    int rc = OK;

    for (size_t i = 0; i < e->n; i++)
        if (e->list[i].gave && (rc = ask_edge(e, &e->list[i], false, err)) != OK)
            return rc;
    for (size_t i = 0; i < e->n; i++) {
        const struct followed *f = &e->list[i];

        if (!f->gave)
            continue;
        rc = read_edge(e, f, &first, rc, err);
        if (!is_start(&f->place) && lies_before(&f->place, &first))
            *missed = true;
    }
    return rc;
}

/* Whether a stream ends before our place; then it is read on from there. */
static int look_at_ends(struct queue_events *e, bool *missed, struct error *err)
{
    struct place last;
    int rc = OK;

    for (size_t i = 0; i < e->n; i++)
        if ((rc = ask_edge(e, &e->list[i], true, err)) != OK)
            return rc;
    for (size_t i = 0; i < e->n; i++) {
        struct followed *f = &e->list[i];

        rc = read_edge(e, f, &last, rc, err);
        if (lies_before(&last, &f->next)) {
            *missed = true;
            f->next = last;
        }
    }
    e->ends_seen_ns = clock_now_ns();
    return rc;
}

int queue_events_read(struct queue_events *e, int block_ms, struct queue_event *events, size_t cap,
                      size_t *n, bool *missed, struct error *err)
{
    size_t n_read = 0;
    int rc;

    *n = 0;
    *missed = false;
    if (e->n == 0) {
        clock_pause_ms(block_ms);
        return OK;
    }
    if (cap < e->n)
        return error_set(err, ERR_INPUT, "events: room for %zu of %zu queues", cap, e->n);
    if ((rc = read_new(e, block_ms, events, cap / e->n, &n_read, err)) != OK ||
        (rc = look_at_starts(e, missed, err)) != OK)
        return rc;
    if ((n_read == 0 || clock_ms_since(e->ends_seen_ns) > ENDS_EVERY_MS) &&
        (rc = look_at_ends(e, missed, err)) != OK)
        return rc;
    for (size_t i = 0; i < e->n; i++)
        e->list[i].place = e->list[i].next;
    *n = n_read;
    return OK;
}
