/* queue.c - see queue.h.
 *
 * Only words travel here (queue_call.h); all that happens to a job happens in queue.lua. Replies
 * are checked as if a stranger had written them. */
#include "jobs/queue.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/queue_call.h"
#include "jobs/redis.h"
#include "jobs/redis_policy.h"
#include "jobs/reply.h"

enum { TENANT_SIZE = 64 };

struct queue {
    struct redis *redis;
    char base[QUEUE_BASE_SIZE];
    char instance[33]; /* tells this process from another of the same name */
};

static void begin_call(struct queue_call *c, const struct queue *q, const char *function)
{
    queue_call_begin(c, function, q->base);
}

static int run_call(struct queue *q, struct queue_call *c, redisReply **out, struct error *err)
{
    return queue_call_run(c, q->redis, out, err);
}

static int bad_reply(const struct queue *q, const struct queue_call *c, struct error *err)
{
    return queue_call_bad_reply(c, q->redis, err);
}

static bool read_answer(enum lease_answer *out, const redisReply *reply)
{
    if (reply_is_word(reply, "ok"))
        *out = LEASE_OK;
    else if (reply_is_word(reply, "stale"))
        *out = LEASE_STALE;
    else if (reply_is_word(reply, "cancelled"))
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

void queue_base(char out[QUEUE_BASE_SIZE], const char *model, const char *weights,
                const char *compute)
{
    snprintf(out, QUEUE_BASE_SIZE, "pe:{%s:%s:%s}", model, weights, compute);
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

/* [state, joined, error] of each job, after what was said of the group. */
static bool read_submitted(struct submitted *results, size_t n, redisReply *const *e)
{
    for (size_t i = 0; i < n; i++, e += 3) {
        int64_t joined;

        if (!reply_state(&results[i].state, e[0]) || !reply_int(&joined, e[1], 0, 1) ||
            !reply_text(results[i].error, sizeof(results[i].error), e[2]))
            return false;
        results[i].joined = joined == 1;
    }
    return true;
}

static bool read_outcome(enum submit_outcome *outcome, struct submitted *results, size_t n,
                         struct queue_load *load, const redisReply *reply)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 3 ||
        !reply_int(&load->tokens_ahead, reply->element[1], 0, INT64_MAX) ||
        !reply_number(&load->tokens_per_s, reply->element[2]))
        return false;
    if (reply_is_word(reply->element[0], "full"))
        *outcome = SUBMIT_FULL;
    else if (reply_is_word(reply->element[0], "tenant_full"))
        *outcome = SUBMIT_TENANT_FULL;
    else if (reply_is_word(reply->element[0], "queued"))
        *outcome = SUBMIT_QUEUED;
    else
        return false;
    return *outcome != SUBMIT_QUEUED ||
           (reply_is_array(reply, 3 + 3 * n) && read_submitted(results, n, reply->element + 3));
}

int queue_submit(struct queue *q, const char *tenant, double weight, int64_t lifetime_ms,
                 const struct job *jobs, size_t n, bool force, const struct queue_limits *limits,
                 enum submit_outcome *outcome, struct submitted *results, struct queue_load *load,
                 struct error *err)
{
    struct queue_load met = {0};
    struct queue_call c;
    redisReply *reply;
    bool good;
    int rc;

    if (n == 0 || n > JOB_GROUP_MAX)
        return error_set(err, ERR_INPUT, "queue: a group of %zu jobs, not 1 to %d", n,
                         JOB_GROUP_MAX);
    if (tenant[0] == '\0' || strlen(tenant) >= TENANT_SIZE)
        return error_set(err, ERR_INPUT, "queue: a tenant's name is not 1 to %d bytes",
                         TENANT_SIZE - 1);
    if (!isfinite(weight) || weight <= 0.0 || lifetime_ms < 0)
        return error_set(err, ERR_INPUT, "queue: a weight or deadline that is none");
    begin_call(&c, q, "submit");
    queue_call_text(&c, tenant);
    queue_call_number(&c, weight);
    queue_call_int(&c, lifetime_ms);
    queue_call_int(&c, limits->max_open);
    queue_call_int(&c, limits->max_tenant);
    queue_call_text(&c, force ? "1" : "0");
    for (size_t i = 0; i < n; i++) {
        if ((rc = check_id(jobs[i].id, err)) != OK)
            return rc;
        if (jobs[i].n_tokens < 1)
            return error_set(err, ERR_INPUT, "queue: a job of %d tokens", jobs[i].n_tokens);
        queue_call_text(&c, jobs[i].id);
        queue_call_int(&c, jobs[i].n_tokens);
        queue_call_bytes(&c, jobs[i].payload != NULL ? jobs[i].payload : "", jobs[i].payload_len);
    }
    memset(results, 0, n * sizeof(*results));
    if ((rc = run_call(q, &c, &reply, err)) != OK)
        return rc;
    good = read_outcome(outcome, results, n, &met, reply);
    freeReplyObject(reply);
    if (!good)
        return bad_reply(q, &c, err);
    if (load != NULL)
        *load = met;
    return OK;
}

static bool read_status(struct job_status *out, const redisReply *reply)
{
    redisReply **e = reply->element;
    int64_t attempt;

    if (reply_is_array(reply, 1))
        return reply_state(&out->state, e[0]) && out->state == JOB_NONE;
    if (!reply_is_array(reply, 8) || !reply_state(&out->state, e[0]) ||
        !reply_int(&attempt, e[1], 0, INT32_MAX) || !reply_int(&out->place, e[2], -1, INT64_MAX) ||
        !reply_int(&out->enqueued_ms, e[3], 0, INT64_MAX) ||
        !reply_int(&out->started_ms, e[4], 0, INT64_MAX) ||
        !reply_int(&out->finished_ms, e[5], 0, INT64_MAX) ||
        !reply_text(out->error, sizeof(out->error), e[6]) ||
        !reply_text(out->tenant, sizeof(out->tenant), e[7]))
        return false;
    out->attempt = (int)attempt;
    return true;
}

/* The functions' loops are bounded by what they are given. */
static int check_count(size_t n, struct error *err)
{
    if (n > QUEUE_CLAIM_MAX)
        return error_set(err, ERR_INPUT, "queue: %zu jobs in one call, at most %d", n,
                         QUEUE_CLAIM_MAX);
    return OK;
}

int queue_status(struct queue *q, const char *const *ids, size_t n, struct job_status *out,
                 struct error *err)
{
    struct queue_call c;
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = check_count(n, err)) != OK || n == 0)
        return rc;
    begin_call(&c, q, "status");
    for (size_t i = 0; i < n; i++) {
        out[i] = (struct job_status){.place = -1};
        if ((rc = check_id(ids[i], err)) != OK)
            return rc;
        queue_call_text(&c, ids[i]);
    }
    if ((rc = run_call(q, &c, &reply, err)) != OK)
        return rc;
    good = reply_is_array(reply, n);
    for (size_t i = 0; good && i < n; i++)
        good = read_status(&out[i], reply->element[i]);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &c, err);
}

int queue_cancel(struct queue *q, const char *id, enum job_state *state, struct error *err)
{
    redisReply *reply;
    struct queue_call c;
    bool good;
    int rc;

    *state = JOB_NONE;
    if ((rc = check_id(id, err)) != OK)
        return rc;
    begin_call(&c, q, "cancel");
    queue_call_text(&c, id);
    if ((rc = run_call(q, &c, &reply, err)) != OK)
        return rc;
    good = reply_state(state, reply);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &c, err);
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

static int read_claimed(struct queue *q, const struct queue_call *c, struct claimed_job *out,
                        const redisReply *reply, struct error *err)
{
    redisReply **e = reply->element;
    int64_t attempt, solo, n_tokens;

    if (!reply_is_array(reply, 8) || !reply_text(out->id, sizeof(out->id), e[0]) ||
        !reply_text(out->token, sizeof(out->token), e[1]) ||
        !reply_int(&attempt, e[2], 1, INT32_MAX) || !reply_int(&solo, e[3], 0, 1) ||
        !reply_int(&n_tokens, e[4], 1, INT32_MAX) ||
        !reply_int(&out->deadline_ms, e[5], 0, INT64_MAX) ||
        !reply_int(&out->waited_ms, e[6], 0, INT64_MAX) || e[7]->type != REDIS_REPLY_STRING)
        return bad_reply(q, c, err);
    out->attempt = (int)attempt;
    out->solo = solo == 1;
    out->n_tokens = (int)n_tokens;
    if ((out->payload = malloc(e[7]->len + 1)) == NULL)
        return error_set(err, ERR_MEM, "queue: no memory for a payload of %zu bytes", e[7]->len);
    memcpy(out->payload, e[7]->str, e[7]->len);
    out->payload[e[7]->len] = '\0';
    out->payload_len = e[7]->len;
    return OK;
}

int queue_claim(struct queue *q, const char *owner, int64_t budget_tokens, int max_jobs,
                int lease_ms, double tokens_per_s, struct claimed_job *out, size_t cap, size_t *n,
                struct error *err)
{
    redisReply *reply;
    struct queue_call c;
    int rc;

    *n = 0;
    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    if (budget_tokens < 1 || lease_ms < 1 || max_jobs < 1 || max_jobs > QUEUE_CLAIM_MAX)
        return error_set(err, ERR_INPUT,
                         "queue: a claim of %d jobs and %" PRId64 " tokens for %d ms; at most %d "
                         "jobs",
                         max_jobs, budget_tokens, lease_ms, QUEUE_CLAIM_MAX);
    if (!isfinite(tokens_per_s) || tokens_per_s < 0)
        return error_set(err, ERR_INPUT, "queue: a rate that is none");
    if ((size_t)max_jobs > cap)
        max_jobs = (int)cap;
    begin_call(&c, q, "claim");
    queue_call_text(&c, owner);
    queue_call_int(&c, budget_tokens);
    queue_call_int(&c, max_jobs);
    queue_call_int(&c, lease_ms);
    queue_call_number(&c, tokens_per_s);
    queue_call_int(&c, QUEUE_MAX_DELIVERIES);
    if ((rc = run_call(q, &c, &reply, err)) != OK)
        return rc;
    memset(out, 0, cap * sizeof(*out));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements > (size_t)max_jobs)
        rc = bad_reply(q, &c, err);
    for (size_t i = 0; rc == OK && i < reply->elements; i++) {
        rc = read_claimed(q, &c, &out[i], reply->element[i], err);
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

/* A call that answers a word for each of n jobs. */
static int run_for_answers(struct queue *q, struct queue_call *c, enum lease_answer *answers,
                           size_t n, struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = run_call(q, c, &reply, err)) != OK)
        return rc;
    good = reply_is_array(reply, n);
    for (size_t i = 0; good && i < n; i++)
        good = read_answer(&answers[i], reply->element[i]);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, c, err);
}

static int renew_some(struct queue *q, const struct claimed_job *jobs, size_t n, int lease_ms,
                      enum lease_answer *answers, struct error *err)
{
    char owner[JOB_TOKEN_SIZE];
    struct queue_call c;

    owner_of(owner, jobs[0].token);
    begin_call(&c, q, "renew");
    queue_call_text(&c, owner);
    queue_call_int(&c, lease_ms);
    for (size_t i = 0; i < n; i++) {
        queue_call_text(&c, jobs[i].id);
        queue_call_text(&c, jobs[i].token);
    }
    return run_for_answers(q, &c, answers, n, err);
}

int queue_renew(struct queue *q, const struct claimed_job *jobs, size_t n, int lease_ms,
                enum lease_answer *answers, struct error *err)
{
    int rc = OK;

    if (lease_ms < 1)
        return error_set(err, ERR_INPUT, "queue: a lease of %d ms", lease_ms);
    for (size_t i = 0; i < n && rc == OK; i += QUEUE_CLAIM_MAX)
        rc = renew_some(q, jobs + i, n - i < QUEUE_CLAIM_MAX ? n - i : QUEUE_CLAIM_MAX, lease_ms,
                        answers + i, err);
    return rc;
}

int queue_complete(struct queue *q, const struct claimed_job *const *jobs, size_t n,
                   enum lease_answer *answers, struct error *err)
{
    struct queue_call c;
    int rc;

    if ((rc = check_count(n, err)) != OK || n == 0)
        return rc;
    begin_call(&c, q, "complete");
    for (size_t i = 0; i < n; i++) {
        queue_call_text(&c, jobs[i]->id);
        queue_call_text(&c, jobs[i]->token);
    }
    return run_for_answers(q, &c, answers, n, err);
}

static int end_claim(struct queue *q, struct queue_call *c, enum lease_answer *answer,
                     struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = run_call(q, c, &reply, err)) != OK)
        return rc;
    good = read_answer(answer, reply);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, c, err);
}

static void begin_end(struct queue_call *c, const struct queue *q, const char *function,
                      const struct claimed_job *job)
{
    begin_call(c, q, function);
    queue_call_text(c, job->id);
    queue_call_text(c, job->token);
}

int queue_fail(struct queue *q, const struct claimed_job *job, bool permanent, const char *error,
               enum lease_answer *answer, struct error *err)
{
    struct queue_call c;

    if (strlen(error) >= JOB_ERROR_SIZE)
        return error_set(err, ERR_INPUT, "queue: an error code of %zu bytes, at most %d",
                         strlen(error), JOB_ERROR_SIZE - 1);
    begin_end(&c, q, "fail", job);
    queue_call_text(&c, permanent ? "1" : "0");
    queue_call_text(&c, error);
    queue_call_int(&c, QUEUE_MAX_DELIVERIES);
    return end_claim(q, &c, answer, err);
}

int queue_release(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                  struct error *err)
{
    struct queue_call c;

    begin_end(&c, q, "release", job);
    return end_claim(q, &c, answer, err);
}

int queue_cancelled(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                    struct error *err)
{
    struct queue_call c;

    begin_end(&c, q, "cancelled", job);
    return end_claim(q, &c, answer, err);
}

/* A call whose answer is one number. */
static int call_for_number(struct queue *q, struct queue_call *c, int64_t *out, struct error *err)
{
    redisReply *reply;
    bool good;
    int rc;

    if ((rc = run_call(q, c, &reply, err)) != OK)
        return rc;
    good = reply_int(out, reply, -1, INT64_MAX);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, c, err);
}

int queue_take_name(struct queue *q, const char *owner, int lock_ms, int64_t *n_released,
                    struct error *err)
{
    struct queue_call c;
    int rc;

    *n_released = 0;
    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    begin_call(&c, q, "take_name");
    queue_call_text(&c, owner);
    queue_call_text(&c, q->instance);
    queue_call_int(&c, lock_ms > 0 ? lock_ms : 1);
    queue_call_int(&c, QUEUE_MAX_DELIVERIES);
    if ((rc = call_for_number(q, &c, n_released, err)) != OK)
        return rc;
    if (*n_released < 0) {
        *n_released = 0;
        return error_set(err, ERR_BUSY, "queue: another live engine has the name %s", owner);
    }
    return OK;
}

int queue_drop_name(struct queue *q, const char *owner, struct error *err)
{
    struct queue_call c;
    int64_t nothing;
    int rc;

    if ((rc = check_owner(owner, err)) != OK)
        return rc;
    begin_call(&c, q, "drop_name");
    queue_call_text(&c, owner);
    queue_call_text(&c, q->instance);
    return call_for_number(q, &c, &nothing, err);
}

/* ---- both ---- */

int queue_sweep(struct queue *q, int64_t *n_moved, struct error *err)
{
    struct queue_call c;

    begin_call(&c, q, "sweep");
    queue_call_int(&c, QUEUE_MAX_DELIVERIES);
    return call_for_number(q, &c, n_moved, err);
}

int queue_depth(struct queue *q, struct queue_depth *out, struct error *err)
{
    int64_t *const fields[] = {&out->waiting, &out->delayed,        &out->leased,
                               &out->dead,    &out->waiting_tokens, &out->oldest_wait_ms,
                               &out->engines, &out->leases_lost};
    const size_t n = sizeof(fields) / sizeof(fields[0]);
    redisReply *reply;
    struct queue_call c;
    bool good;
    int rc;

    *out = (struct queue_depth){0};
    begin_call(&c, q, "depth");
    if ((rc = run_call(q, &c, &reply, err)) != OK)
        return rc;
    good = reply_is_array(reply, n + 1) && reply_number(&out->tokens_per_s, reply->element[n]);
    for (size_t i = 0; good && i < n; i++)
        good = reply_int(fields[i], reply->element[i], INT64_MIN, INT64_MAX);
    freeReplyObject(reply);
    return good ? OK : bad_reply(q, &c, err);
}
