/* queue_scene.h - a queue in a Redis of its own, and short words for what happens in it: jobs are
 * called "a", "b" .., and one engine claims them. For test_queue.c and test_queue_events.c. */
#pragma once
#include "tests/check.h"

#include "jobs/queue.h"
#include "tests/jobs/redis_server.h"

enum { LEASE_MS = 60000, SHORT_MS = 30, BUDGET = 1000, CAP = 64 };

static struct error err;
static struct redis_server server;
static struct redis *admin; /* looks at keys behind the queue's back */
static struct queue *q;     /* a fresh base for each test */
static char base[QUEUE_BASE_SIZE];
static struct claimed_job got[CAP];
static size_t n_got;
static const struct queue_limits no_limits = {1000000, 1000000};
static enum submit_outcome outcome;
static struct submitted results[JOB_GROUP_MAX];
static struct queue_load load;
static enum lease_answer answer;

static inline void begin(const char *name)
{
    claimed_jobs_free(got, n_got);
    n_got = 0;
    queue_close(q);
    queue_base(base, "test", name, "float32");
    CHECK_OK(queue_open(&q, server.url, base, 5000, &err));
}

static inline struct job job(const char *id, int n_tokens)
{
    struct job j = {.n_tokens = n_tokens, .payload = id, .payload_len = strlen(id)};

    snprintf(j.id, sizeof(j.id), "%s", id);
    return j;
}

static inline int complete(const struct claimed_job *c)
{
    err = (struct error){0};
    return queue_complete(q, &c, 1, &answer, &err);
}

static inline int look(const char *id, struct job_status *s)
{
    err = (struct error){0};
    return queue_status(q, &id, 1, s, &err);
}

/* Submits jobs "a", "b" .. of `ids`, `n_tokens` each, as one group. */
static inline void submit_as(const char *tenant, double weight, const char *ids, int n_tokens,
                             bool force, int64_t lifetime_ms, const struct queue_limits *limits)
{
    struct job jobs[JOB_GROUP_MAX];
    size_t n = strlen(ids);
    char id[2] = "";

    for (size_t i = 0; i < n; i++) {
        id[0] = ids[i];
        jobs[i] = job(id, n_tokens);
        jobs[i].payload = ids + i;
        jobs[i].payload_len = 1;
    }
    CHECK_OK(queue_submit(q, tenant, weight, lifetime_ms, jobs, n, force, limits, &outcome, results,
                          &load, &err));
}

static inline void submit(const char *ids, int n_tokens)
{
    submit_as("t", 1.0, ids, n_tokens, false, 0, &no_limits);
    CHECK_INT(outcome, SUBMIT_QUEUED);
}

static inline void claim_as(const char *owner, int64_t budget, int max_jobs, int lease_ms)
{
    claimed_jobs_free(got, n_got);
    CHECK_OK(queue_claim(q, owner, budget, max_jobs, lease_ms, 0, got, CAP, &n_got, &err));
}

/* Claims, and the ids must be these. */
static inline void claim(const char *want)
{
    char ids[CAP + 1] = "";

    claim_as("e1", BUDGET, CAP, LEASE_MS);
    for (size_t i = 0; i < n_got; i++)
        ids[i] = got[i].id[0];
    CHECK_TEXT(ids, want);
}

static inline void claim_short(const char *want)
{
    char ids[CAP + 1] = "";

    claim_as("e1", BUDGET, CAP, SHORT_MS);
    for (size_t i = 0; i < n_got; i++)
        ids[i] = got[i].id[0];
    CHECK_TEXT(ids, want);
}

static inline enum job_state state(const char *id)
{
    struct job_status s;

    CHECK_OK(look(id, &s));
    return s.state;
}

static inline void complete_all(void)
{
    for (size_t i = 0; i < n_got; i++) {
        CHECK_OK(complete(&got[i]));
        CHECK_INT(answer, LEASE_OK);
    }
}

/* An integer that Redis answers. */
static inline long long ask(const char *command, const char *suffix, const char *arg)
{
    redisReply *reply;
    char key[QUEUE_BASE_SIZE + 80];
    const char *argv[] = {command, key, arg};
    long long n;

    snprintf(key, sizeof(key), "%s%s", base, suffix);
    CHECK_OK(redis_command(admin, &reply, arg != NULL ? 3 : 2, argv, NULL, &err));
    n = reply->type == REDIS_REPLY_INTEGER ? reply->integer
                                           : (reply->type == REDIS_REPLY_NIL ? -1 : -2);
    freeReplyObject(reply);
    return n;
}

static inline void scene_open(const char *name)
{
    redis_server_need();
    if (!redis_server_start(&server, name, QUEUE_SETTINGS) ||
        redis_open(&admin, server.url, 5000, &err) != OK) {
        printf("redis-server does not start; see %s/redis.log\n", server.dir);
        exit(EXIT_FAILURE);
    }
}

static inline int scene_close(void)
{
    claimed_jobs_free(got, n_got);
    queue_close(q);
    redis_close(admin);
    redis_server_stop(&server);
    return check_result();
}
