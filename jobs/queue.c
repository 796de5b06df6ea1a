/* queue.c - see queue.h.
 *
 * Only words travel here; all that happens to a job happens in queue.lua. A function that Redis
 * does not know (it was restarted without its file, or flushed) did not run, so it is loaded and
 * called once more. Replies are checked as if a stranger had written them. */
#include "jobs/queue.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/queue_library.h"
#include "jobs/redis.h"
#include "jobs/redis_policy.h"

enum {
    KEY_SIZE = QUEUE_BASE_SIZE + 8,
    TENANT_SIZE = 64,
    RENEW_MAX = 64, /* jobs a call: a function should be short */
    WORDS_MAX = 3 + 1 + 6 + 3 * JOB_GROUP_MAX + 2 * RENEW_MAX,
    NUMBERS_MAX = 16 + JOB_GROUP_MAX
};

struct queue {
    struct redis *redis;
    char base[QUEUE_BASE_SIZE];
    char instance[33]; /* tells this process from another of the same name */
    const char *library, *source;
    size_t source_size;
};

/* A call under construction. */
struct words {
    const char *argv[WORDS_MAX];
    size_t len[WORDS_MAX];
    int n;
    char function[64];
    char numbers[NUMBERS_MAX][32];
    int n_numbers;
};

static void add_bytes(struct words *w, const char *text, size_t len)
{
    w->argv[w->n] = text;
    w->len[w->n++] = len;
}

static void add_text(struct words *w, const char *text)
{
    add_bytes(w, text, strlen(text));
}

static void add_int(struct words *w, int64_t n)
{
    char *text = w->numbers[w->n_numbers++];

    snprintf(text, sizeof(w->numbers[0]), "%" PRId64, n);
    add_text(w, text);
}

static void begin_call(struct words *w, const struct queue *q, const char *function)
{
    w->n = w->n_numbers = 0;
    snprintf(w->function, sizeof(w->function), "%s_%s", q->library, function);
    add_text(w, "FCALL");
    add_text(w, w->function);
    add_text(w, "1");
    add_text(w, q->base);
}

static bool is_missing(const struct queue *q)
{
    return strstr(redis_refusal(q->redis), "Function not found") != NULL;
}

static int call(struct queue *q, struct words *w, redisReply **out, struct error *err)
{
    struct error first = {0}, load = {0};
    redisReply *loaded;
    int rc;

    if ((rc = redis_command(q->redis, out, w->n, w->argv, w->len, &first)) == OK)
        return OK;
    if (rc != ERR_INPUT || !is_missing(q))
        return error_set(err, first.code, "%s", first.text);
    rc = redis_commandf(q->redis, &loaded, &load, "FUNCTION LOAD %b", q->source, q->source_size);
    if (loaded != NULL)
        freeReplyObject(loaded);
    if (rc != OK && rc != ERR_INPUT) /* ERR_INPUT: another process may have been faster */
        return error_set(err, load.code, "%s", load.text);
    first = (struct error){0};
    if ((rc = redis_command(q->redis, out, w->n, w->argv, w->len, &first)) == OK)
        return OK;
    if (is_missing(q) && load.code != OK)
        return error_set(err, load.code, "%s", load.text);
    return error_set(err, first.code, "%s", first.text);
}

/* ---- replies ---- */

static int bad_reply(const struct queue *q, const struct words *w, struct error *err)
{
    return error_set(err, ERR_FORMAT, "redis at %s: %s: an answer that is none of this queue's",
                     redis_address(q->redis), w->function);
}

static bool read_text(char *out, size_t cap, const redisReply *reply)
{
    if ((reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS) ||
        reply->len >= cap || memchr(reply->str, '\0', reply->len) != NULL)
        return false;
    memcpy(out, reply->str, reply->len);
    out[reply->len] = '\0';
    return true;
}

static bool read_int(int64_t *out, const redisReply *reply, int64_t min, int64_t max)
{
    if (reply->type != REDIS_REPLY_INTEGER || reply->integer < min || reply->integer > max)
        return false;
    *out = reply->integer;
    return true;
}

static bool is_array(const redisReply *reply, size_t n)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == n;
}

static bool is_word(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_STRING && reply->len == strlen(word) &&
           memcmp(reply->str, word, reply->len) == 0;
}

static bool read_state(enum job_state *out, const redisReply *reply)
{
    static const char *const names[] = {
        [JOB_NONE] = "none",       [JOB_WAITING] = "waiting",    [JOB_DELAYED] = "delayed",
        [JOB_LEASED] = "leased",   [JOB_DONE] = "done",          [JOB_DEAD] = "dead",
        [JOB_EXPIRED] = "expired", [JOB_CANCELLED] = "cancelled"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (is_word(reply, names[i])) {
            *out = (enum job_state)i;
            return true;
        }
    return false;
}

static bool read_answer(enum lease_answer *out, const redisReply *reply)
{
    if (is_word(reply, "ok"))
        *out = LEASE_OK;
    else if (is_word(reply, "stale"))
        *out = LEASE_STALE;
    else if (is_word(reply, "cancelled"))
        *out = LEASE_CANCELLED;
    else
        return false;
    return true;
}

/* ---- checks of what callers give ---- */

static int check_id(const char *id, struct error *err)
{
    if (!job_id_is_plain(id))
        return error_set(err, ERR_INPUT, "queue: a job's id is not 1 to %d of a-z A-Z 0-9 _ -",
                         JOB_ID_SIZE - 1);
    return OK;
}

static int check_owner(const char *owner, struct error *err)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(owner);

    if (len == 0 || len > QUEUE_OWNER_MAX || strspn(owner, plain) != len)
        return error_set(err, ERR_INPUT,
                         "queue: an engine's name is not 1 to %d of a-z A-Z 0-9 . _ -",
                         QUEUE_OWNER_MAX);
    return OK;
}

/* ---- opening ---- */

void queue_base(char out[QUEUE_BASE_SIZE], const char *model, const char *digest)
{
    snprintf(out, QUEUE_BASE_SIZE, "pe:{%s:%s}", model, digest);
}

int queue_open(struct queue **out, const char *url, const char *base, int timeout_ms,
               struct error *err)
{
    unsigned char random[16];
    struct queue_depth depth;
    struct queue *q;
    int rc;

    *out = NULL;
    if ((q = calloc(1, sizeof(*q))) == NULL)
        return error_set(err, ERR_MEM, "queue: no memory");
    if (strlen(base) >= sizeof(q->base)) {
        rc = error_set(err, ERR_INPUT, "queue: a base of %zu bytes, at most %zu", strlen(base),
                       sizeof(q->base) - 1);
        goto out;
    }
    memcpy(q->base, base, strlen(base) + 1);
    queue_library(&q->library, &q->source, &q->source_size);
    if (gnutls_rnd(GNUTLS_RND_NONCE, random, sizeof(random)) != 0) {
        rc = error_set(err, ERR_IO, "queue: no random numbers");
        goto out;
    }
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(q->instance + 2 * i, 3, "%02x", random[i]);
    if ((rc = redis_open(&q->redis, url, timeout_ms, err)) != OK)
        goto out;
    if ((rc = queue_depth(q, &depth, err)) != OK) /* loads the functions where they are missing */
        goto out;
    *out = q;
    q = NULL; /* handed over */
out:
    queue_close(q);
    return rc;
}

void queue_close(struct queue *q)
{
    if (q == NULL)
        return;
    redis_close(q->redis);
    free(q);
}

static int check_setting(const struct redis *r, const char *setting, const char *is,
                         const char *needs, bool assumed, char *warning, size_t warning_cap,
                         struct error *err)
{
    if (strcmp(is, needs) == 0)
        return OK;
    return redis_policy_object(r, "queue", setting, is, needs, needs, assumed, warning, warning_cap,
                               err);
}

int queue_check_policy(const char *url, bool assumed, bool shared_with_cache, char *warning,
                       size_t warning_cap, struct error *err)
{
    const int timeout_ms = 5000;
    struct redis_policy p;
    struct redis *r = NULL;
    int rc;

    if (warning != NULL && warning_cap > 0)
        warning[0] = '\0';
    else
        warning = NULL;
    if ((rc = redis_open(&r, url, timeout_ms, err)) != OK ||
        (rc = redis_policy_read(&p, r, err)) != OK)
        goto out;
    if (p.version >= 0 && p.version < 7) {
        rc = error_set(err, ERR_FORMAT, "redis at %s: is version %d, a queue needs 7.0 or newer",
                       redis_address(r), p.version);
        goto out;
    }
    /* volatile-lfu evicts only what expires: of a queue, the records of jobs that are over */
    if (shared_with_cache)
        rc = check_setting(r, "maxmemory-policy", p.maxmemory_policy, "volatile-lfu", assumed,
                           warning, warning_cap, err);
    else
        rc = check_setting(r, "maxmemory-policy", p.maxmemory_policy, "noeviction", assumed,
                           warning, warning_cap, err);
    if (rc == OK)
        rc =
            check_setting(r, "appendonly", p.appendonly, "yes", assumed, warning, warning_cap, err);
    if (rc == OK)
        rc = check_setting(r, "appendfsync", p.appendfsync, "always", assumed, warning, warning_cap,
                           err);
    if (rc == OK && shared_with_cache && warning != NULL && warning[0] == '\0')
        snprintf(warning, warning_cap,
                 "redis at %s: one server for queue and cache: each result is written to the "
                 "append-only file, and jobs wait meanwhile; two servers are faster",
                 redis_address(r));
out:
    redis_close(r);
    return rc;
}

/* ---- the service's side ---- */

int queue_submit(struct queue *q, const char *tenant, double weight, int64_t deadline_ms,
                 const struct job *jobs, size_t n, bool force, const struct queue_limits *limits,
                 enum submit_outcome *outcome, struct submitted *results, int64_t *tokens_ahead,
                 struct error *err)
{
    redisReply *reply = NULL;
    char weight_text[32];
    struct words w;
    int64_t ahead;
    int rc;

    if (n == 0 || n > JOB_GROUP_MAX)
        return error_set(err, ERR_INPUT, "queue: a group of %zu jobs, not 1 to %d", n,
                         JOB_GROUP_MAX);
    if (tenant[0] == '\0' || strlen(tenant) >= TENANT_SIZE)
        return error_set(err, ERR_INPUT, "queue: a tenant's name is not 1 to %d bytes",
                         TENANT_SIZE - 1);
    if (!isfinite(weight) || weight <= 0.0 || deadline_ms < 0)
        return error_set(err, ERR_INPUT, "queue: a weight or deadline that is none");
    snprintf(weight_text, sizeof(weight_text), "%.17g", weight);
    begin_call(&w, q, "submit");
    add_text(&w, tenant);
    add_text(&w, weight_text);
    add_int(&w, deadline_ms);
    add_int(&w, limits->max_open);
    add_int(&w, limits->max_tenant);
    add_text(&w, force ? "1" : "0");
    for (size_t i = 0; i < n; i++) {
        if ((rc = check_id(jobs[i].id, err)) != OK)
            return rc;
        if (jobs[i].n_tokens < 1)
            return error_set(err, ERR_INPUT, "queue: a job of %d tokens", jobs[i].n_tokens);
        add_text(&w, jobs[i].id);
        add_int(&w, jobs[i].n_tokens);
        add_bytes(&w, jobs[i].payload != NULL ? jobs[i].payload : "", jobs[i].payload_len);
    }
    memset(results, 0, n * sizeof(*results));
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;

    rc = bad_reply(q, &w, NULL);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2 ||
        !read_int(&ahead, reply->element[1], 0, INT64_MAX))
        goto out;
    if (is_word(reply->element[0], "full")) {
        *outcome = SUBMIT_FULL;
    } else if (is_word(reply->element[0], "tenant_full")) {
        *outcome = SUBMIT_TENANT_FULL;
    } else {
        *outcome = SUBMIT_QUEUED;
        if (!is_word(reply->element[0], "queued") || reply->elements != 2 + 3 * n)
            goto out;
        for (size_t i = 0; i < n; i++) {
            redisReply *const *e = reply->element + 2 + 3 * i;
            int64_t joined;

            if (!read_state(&results[i].state, e[0]) || !read_int(&joined, e[1], 0, 1) ||
                !read_text(results[i].error, sizeof(results[i].error), e[2]))
                goto out;
            results[i].joined = joined == 1;
        }
    }
    if (tokens_ahead != NULL)
        *tokens_ahead = ahead;
    rc = OK;
out:
    freeReplyObject(reply);
    return rc == OK ? OK : bad_reply(q, &w, err);
}

int queue_status(struct queue *q, const char *id, struct job_status *out, struct error *err)
{
    redisReply *reply;
    struct words w;
    int64_t attempt;
    bool good;
    int rc;

    *out = (struct job_status){.place = -1};
    if ((rc = check_id(id, err)) != OK)
        return rc;
    begin_call(&w, q, "status");
    add_text(&w, id);
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;
    if (is_array(reply, 1)) {
        good = read_state(&out->state, reply->element[0]) && out->state == JOB_NONE;
    } else {
        redisReply **e = reply->element;

        good = is_array(reply, 7) && read_state(&out->state, e[0]) &&
               read_int(&attempt, e[1], 0, INT32_MAX) &&
               read_int(&out->place, e[2], -1, INT64_MAX) &&
               read_int(&out->enqueued_ms, e[3], 0, INT64_MAX) &&
               read_int(&out->finished_ms, e[4], 0, INT64_MAX) &&
               read_text(out->error, sizeof(out->error), e[5]) &&
               read_text(out->tenant, sizeof(out->tenant), e[6]);
        if (good)
            out->attempt = (int)attempt;
    }
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &w, err);
}

int queue_cancel(struct queue *q, const char *id, enum job_state *state, struct error *err)
{
    redisReply *reply;
    struct words w;
    bool good;
    int rc;

    *state = JOB_NONE;
    if ((rc = check_id(id, err)) != OK)
        return rc;
    begin_call(&w, q, "cancel");
    add_text(&w, id);
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;
    good = read_state(state, reply);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &w, err);
}

/* ---- events ---- */

static int bad_events(const struct queue *q, struct error *err)
{
    return error_set(err, ERR_FORMAT, "redis at %s: %s:ev is no stream of events",
                     redis_address(q->redis), q->base);
}

/* "milliseconds-number" */
static bool parse_place(uint64_t out[2], const char *text)
{
    int used = 0;

    return text[0] >= '0' && text[0] <= '9' &&
           sscanf(text, "%" SCNu64 "-%" SCNu64 "%n", &out[0], &out[1], &used) == 2 &&
           text[used] == '\0';
}

static int compare_places(const uint64_t a[2], const uint64_t b[2])
{
    if (a[0] != b[0])
        return a[0] < b[0] ? -1 : 1;
    return a[1] == b[1] ? 0 : a[1] < b[1] ? -1 : 1;
}

/* The id of the one entry of an XRANGE reply, "0-0" for none. */
static bool read_only_place(char out[QUEUE_EVENT_ID_SIZE], const redisReply *reply)
{
    uint64_t parsed[2];

    snprintf(out, QUEUE_EVENT_ID_SIZE, "0-0");
    if (reply->type != REDIS_REPLY_ARRAY)
        return false;
    if (reply->elements == 0)
        return true;
    return is_array(reply->element[0], 2) &&
           read_text(out, QUEUE_EVENT_ID_SIZE, reply->element[0]->element[0]) &&
           parse_place(parsed, out);
}

int queue_events_tail(struct queue *q, char place[QUEUE_EVENT_ID_SIZE], struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    snprintf(place, QUEUE_EVENT_ID_SIZE, "0-0");
    if ((rc = redis_commandf(q->redis, &reply, err, "XREVRANGE %s:ev + - COUNT 1", q->base)) != OK)
        return rc;
    good = read_only_place(place, reply);
    freeReplyObject(reply);
    return good ? OK : bad_events(q, err);
}

/* Entries of one stream: [[id, [name, value, ..]], ..]. A stranger's entry is passed over. */
static bool read_events(char place[QUEUE_EVENT_ID_SIZE], const redisReply *entries,
                        struct queue_event *events, size_t cap, size_t *n)
{
    uint64_t parsed[2];

    for (size_t i = 0; i < entries->elements && i < cap; i++) {
        const redisReply *entry = entries->element[i], *fields;
        struct queue_event *e = &events[*n];

        if (!is_array(entry, 2) || !read_text(place, QUEUE_EVENT_ID_SIZE, entry->element[0]) ||
            !parse_place(parsed, place))
            return false;
        fields = entry->element[1];
        if (is_array(fields, 4) && is_word(fields->element[0], "j") &&
            is_word(fields->element[2], "s") &&
            read_text(e->id, sizeof(e->id), fields->element[1]) &&
            read_state(&e->state, fields->element[3]))
            (*n)++;
    }
    return true;
}

int queue_events_read(struct queue *q, char place[QUEUE_EVENT_ID_SIZE], int block_ms,
                      struct queue_event *events, size_t cap, size_t *n, bool *missed,
                      struct error *err)
{
    char key[KEY_SIZE], block[16], count[16], edge[QUEUE_EVENT_ID_SIZE];
    const char *newer[] = {"XREAD", "COUNT", count, "BLOCK", block, "STREAMS", key, place};
    const char *now[] = {"XREAD", "COUNT", count, "STREAMS", key, place};
    const char *first[] = {"XRANGE", key, "-", "+", "COUNT", "1"};
    const char *last[] = {"XREVRANGE", key, "+", "-", "COUNT", "1"};
    redisReply *reply = NULL;
    uint64_t from[2], at[2];
    bool good;
    int rc;

    *n = 0;
    *missed = false;
    if (!parse_place(from, place))
        return error_set(err, ERR_INPUT, "queue: a place that is none of queue_events_tail()");
    snprintf(key, sizeof(key), "%s:ev", q->base);
    snprintf(block, sizeof(block), "%d", block_ms);
    snprintf(count, sizeof(count), "%zu", cap);
    redis_next_timeout(q->redis, 0);
    if (block_ms > 0) /* XREAD takes 0 for "for ever" */
        redis_next_timeout(q->redis, block_ms + redis_timeout(q->redis));
    if ((rc = block_ms > 0 ? redis_append(q->redis, 8, newer, NULL, err)
                           : redis_append(q->redis, 6, now, NULL, err)) != OK ||
        (rc = redis_append(q->redis, 6, first, NULL, err)) != OK ||
        (rc = redis_append(q->redis, 6, last, NULL, err)) != OK ||
        (rc = redis_read(q->redis, &reply, err)) != OK)
        return rc;
    good = reply->type == REDIS_REPLY_NIL ||
           (is_array(reply, 1) && is_array(reply->element[0], 2) &&
            reply->element[0]->element[1]->type == REDIS_REPLY_ARRAY &&
            read_events(place, reply->element[0]->element[1], events, cap, n));
    freeReplyObject(reply);

    /* the first event that is still there lies behind our place: some between may be gone */
    if ((rc = redis_read(q->redis, &reply, err)) != OK)
        return rc;
    good = good && read_only_place(edge, reply) && parse_place(at, edge);
    freeReplyObject(reply);
    if (good && (from[0] | from[1]) != 0 && compare_places(at, from) > 0)
        *missed = true;

    /* the last one lies before it: the stream is a new one, or lost its end in a failover */
    if ((rc = redis_read(q->redis, &reply, err)) != OK)
        return rc;
    good = good && read_only_place(edge, reply) && parse_place(at, edge);
    freeReplyObject(reply);
    if (good && compare_places(at, from) < 0) {
        *missed = true;
        snprintf(place, QUEUE_EVENT_ID_SIZE, "%s", edge);
    }
    return good ? OK : bad_events(q, err);
}

/* ---- the engine's side ---- */

void claimed_jobs_free(struct claimed_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].payload != NULL) /* a prompt: not left lying about in memory */
            gnutls_memset(jobs[i].payload, 0, jobs[i].payload_len);
        free(jobs[i].payload);
        jobs[i].payload = NULL;
        jobs[i].payload_len = 0;
    }
}

static int read_claimed(struct queue *q, const struct words *w, struct claimed_job *out,
                        const redisReply *reply, struct error *err)
{
    redisReply **e = reply->element;
    int64_t attempt, solo, n_tokens;

    if (!is_array(reply, 7) || !read_text(out->id, sizeof(out->id), e[0]) ||
        !read_text(out->token, sizeof(out->token), e[1]) ||
        !read_int(&attempt, e[2], 1, INT32_MAX) || !read_int(&solo, e[3], 0, 1) ||
        !read_int(&n_tokens, e[4], 1, INT32_MAX) ||
        !read_int(&out->deadline_ms, e[5], 0, INT64_MAX) || e[6]->type != REDIS_REPLY_STRING)
        return bad_reply(q, w, err);
    out->attempt = (int)attempt;
    out->solo = solo == 1;
    out->n_tokens = (int)n_tokens;
    if ((out->payload = malloc(e[6]->len + 1)) == NULL)
        return error_set(err, ERR_MEM, "queue: no memory for a payload of %zu bytes", e[6]->len);
    memcpy(out->payload, e[6]->str, e[6]->len);
    out->payload[e[6]->len] = '\0';
    out->payload_len = e[6]->len;
    return OK;
}

int queue_claim(struct queue *q, const char *owner, int64_t budget_tokens, int max_jobs,
                int lease_ms, struct claimed_job *out, size_t cap, size_t *n, struct error *err)
{
    redisReply *reply;
    struct words w;
    int rc;

    *n = 0;
    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    if (budget_tokens < 1 || lease_ms < 1 || max_jobs < 1 || max_jobs > QUEUE_CLAIM_MAX)
        return error_set(err, ERR_INPUT,
                         "queue: a claim of %d jobs and %" PRId64 " tokens for %d ms; at most %d "
                         "jobs",
                         max_jobs, budget_tokens, lease_ms, QUEUE_CLAIM_MAX);
    if ((size_t)max_jobs > cap)
        max_jobs = (int)cap;
    begin_call(&w, q, "claim");
    add_text(&w, owner);
    add_int(&w, budget_tokens);
    add_int(&w, max_jobs);
    add_int(&w, lease_ms);
    add_int(&w, QUEUE_MAX_DELIVERIES);
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;
    memset(out, 0, cap * sizeof(*out));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements > (size_t)max_jobs)
        rc = bad_reply(q, &w, err);
    for (size_t i = 0; rc == OK && i < reply->elements; i++) {
        rc = read_claimed(q, &w, &out[i], reply->element[i], err);
        if (rc == OK)
            *n = i + 1;
    }
    freeReplyObject(reply);
    if (rc != OK) { /* their leases end by themselves */
        claimed_jobs_free(out, *n);
        *n = 0;
    }
    return rc;
}

int queue_wait(struct queue *q, int block_ms, bool *rang, struct error *err)
{
    redisReply *reply;
    int rc;

    *rang = false;
    if (block_ms > 0) {
        redis_next_timeout(q->redis, block_ms + redis_timeout(q->redis));
        rc = redis_commandf(q->redis, &reply, err, "BLPOP %s:bell %d.%03d", q->base,
                            block_ms / 1000, block_ms % 1000);
    } else { /* BLPOP takes 0 for "for ever" */
        rc = redis_commandf(q->redis, &reply, err, "LPOP %s:bell", q->base);
    }
    if (rc != OK)
        return rc;
    *rang = reply->type != REDIS_REPLY_NIL;
    freeReplyObject(reply);
    return OK;
}

static void owner_of(char out[JOB_TOKEN_SIZE], const char *token)
{
    const char *colon = strrchr(token, ':');

    snprintf(out, JOB_TOKEN_SIZE, "%.*s", colon != NULL ? (int)(colon - token) : 0, token);
}

static int renew_some(struct queue *q, const struct claimed_job *jobs, size_t n, int lease_ms,
                      enum lease_answer *answers, struct error *err)
{
    char owner[JOB_TOKEN_SIZE];
    redisReply *reply;
    struct words w;
    bool good;
    int rc;

    owner_of(owner, jobs[0].token);
    begin_call(&w, q, "renew");
    add_text(&w, owner);
    add_int(&w, lease_ms);
    for (size_t i = 0; i < n; i++) {
        add_text(&w, jobs[i].id);
        add_text(&w, jobs[i].token);
    }
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;
    good = is_array(reply, n);
    for (size_t i = 0; good && i < n; i++)
        good = read_answer(&answers[i], reply->element[i]);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &w, err);
}

int queue_renew(struct queue *q, const struct claimed_job *jobs, size_t n, int lease_ms,
                enum lease_answer *answers, struct error *err)
{
    int rc = OK;

    if (lease_ms < 1)
        return error_set(err, ERR_INPUT, "queue: a lease of %d ms", lease_ms);
    for (size_t i = 0; i < n && rc == OK; i += RENEW_MAX)
        rc = renew_some(q, jobs + i, n - i < RENEW_MAX ? n - i : RENEW_MAX, lease_ms, answers + i,
                        err);
    return rc;
}

static int end_claim(struct queue *q, struct words *w, enum lease_answer *answer, struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = call(q, w, &reply, err)) != OK)
        return rc;
    good = read_answer(answer, reply);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, w, err);
}

static void begin_end(struct words *w, const struct queue *q, const char *function,
                      const struct claimed_job *job)
{
    begin_call(w, q, function);
    add_text(w, job->id);
    add_text(w, job->token);
}

int queue_complete(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                   struct error *err)
{
    struct words w;

    begin_end(&w, q, "complete", job);
    return end_claim(q, &w, answer, err);
}

int queue_fail(struct queue *q, const struct claimed_job *job, bool permanent, const char *error,
               enum lease_answer *answer, struct error *err)
{
    struct words w;

    if (strlen(error) >= JOB_ERROR_SIZE)
        return error_set(err, ERR_INPUT, "queue: an error code of %zu bytes, at most %d",
                         strlen(error), JOB_ERROR_SIZE - 1);
    begin_end(&w, q, "fail", job);
    add_text(&w, permanent ? "1" : "0");
    add_text(&w, error);
    add_int(&w, QUEUE_MAX_DELIVERIES);
    return end_claim(q, &w, answer, err);
}

int queue_release(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                  struct error *err)
{
    struct words w;

    begin_end(&w, q, "release", job);
    return end_claim(q, &w, answer, err);
}

int queue_cancelled(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                    struct error *err)
{
    struct words w;

    begin_end(&w, q, "cancelled", job);
    return end_claim(q, &w, answer, err);
}

/* A call whose answer is one number. */
static int call_for_number(struct queue *q, struct words *w, int64_t *out, struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = call(q, w, &reply, err)) != OK)
        return rc;
    good = read_int(out, reply, -1, INT64_MAX);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, w, err);
}

int queue_take_name(struct queue *q, const char *owner, int lock_ms, int64_t *n_released,
                    struct error *err)
{
    struct words w;
    int rc;

    *n_released = 0;
    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    begin_call(&w, q, "take_name");
    add_text(&w, owner);
    add_text(&w, q->instance);
    add_int(&w, lock_ms > 0 ? lock_ms : 1);
    add_int(&w, QUEUE_MAX_DELIVERIES);
    if ((rc = call_for_number(q, &w, n_released, err)) != OK)
        return rc;
    if (*n_released < 0) {
        *n_released = 0;
        return error_set(err, ERR_BUSY, "queue: another live engine has the name %s", owner);
    }
    return OK;
}

int queue_drop_name(struct queue *q, const char *owner, struct error *err)
{
    struct words w;
    int64_t nothing;
    int rc;

    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    begin_call(&w, q, "drop_name");
    add_text(&w, owner);
    add_text(&w, q->instance);
    return call_for_number(q, &w, &nothing, err);
}

/* ---- both ---- */

int queue_sweep(struct queue *q, int64_t *n_moved, struct error *err)
{
    struct words w;

    begin_call(&w, q, "sweep");
    add_int(&w, QUEUE_MAX_DELIVERIES);
    return call_for_number(q, &w, n_moved, err);
}

int queue_depth(struct queue *q, struct queue_depth *out, struct error *err)
{
    int64_t *const fields[] = {&out->waiting,        &out->delayed,        &out->leased, &out->dead,
                               &out->waiting_tokens, &out->oldest_wait_ms, &out->engines};
    const size_t n = sizeof(fields) / sizeof(fields[0]);
    redisReply *reply;
    struct words w;
    bool good;
    int rc;

    *out = (struct queue_depth){0};
    begin_call(&w, q, "depth");
    if ((rc = call(q, &w, &reply, err)) != OK)
        return rc;
    good = is_array(reply, n);
    for (size_t i = 0; good && i < n; i++)
        good = read_int(fields[i], reply->element[i], INT64_MIN, INT64_MAX);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &w, err);
}
