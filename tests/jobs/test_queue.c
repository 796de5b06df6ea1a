/* test_queue.c - each rule of the queue by a short scenario, against a real Redis. */
#include "base/clock.h"
#include "tests/check.h"

#include "jobs/queue.h"
#include "jobs/queue_events.h"
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

static void begin(const char *name)
{
    claimed_jobs_free(got, n_got);
    n_got = 0;
    queue_close(q);
    queue_base(base, "test", name, "float32");
    CHECK_OK(queue_open(&q, server.url, base, 5000, &err));
}

static struct job job(const char *id, int n_tokens)
{
    struct job j = {.n_tokens = n_tokens, .payload = id, .payload_len = strlen(id)};

    snprintf(j.id, sizeof(j.id), "%s", id);
    return j;
}

static int complete(const struct claimed_job *c)
{
    err = (struct error){0};
    return queue_complete(q, &c, 1, &answer, &err);
}

static int look(const char *id, struct job_status *s)
{
    err = (struct error){0};
    return queue_status(q, &id, 1, s, &err);
}

/* Submits jobs "a", "b" .. of `ids`, `n_tokens` each, as one group. */
static void submit_as(const char *tenant, double weight, const char *ids, int n_tokens, bool force,
                      int64_t deadline_ms, const struct queue_limits *limits)
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
    CHECK_OK(queue_submit(q, tenant, weight, deadline_ms, jobs, n, force, limits, &outcome, results,
                          &load, &err));
}

static void submit(const char *ids, int n_tokens)
{
    submit_as("t", 1.0, ids, n_tokens, false, 0, &no_limits);
    CHECK_INT(outcome, SUBMIT_QUEUED);
}

static void claim_as(const char *owner, int64_t budget, int max_jobs, int lease_ms)
{
    claimed_jobs_free(got, n_got);
    CHECK_OK(queue_claim(q, owner, budget, max_jobs, lease_ms, 0, got, CAP, &n_got, &err));
}

/* Claims, and the ids must be these. */
static void claim(const char *want)
{
    char ids[CAP + 1] = "";

    claim_as("e1", BUDGET, CAP, LEASE_MS);
    for (size_t i = 0; i < n_got; i++)
        ids[i] = got[i].id[0];
    CHECK_TEXT(ids, want);
}

static void claim_short(const char *want)
{
    char ids[CAP + 1] = "";

    claim_as("e1", BUDGET, CAP, SHORT_MS);
    for (size_t i = 0; i < n_got; i++)
        ids[i] = got[i].id[0];
    CHECK_TEXT(ids, want);
}

static enum job_state state(const char *id)
{
    struct job_status s;

    CHECK_OK(look(id, &s));
    return s.state;
}

static void complete_all(void)
{
    for (size_t i = 0; i < n_got; i++) {
        CHECK_OK(complete(&got[i]));
        CHECK_INT(answer, LEASE_OK);
    }
}

/* An integer that Redis answers. */
static long long ask(const char *command, const char *suffix, const char *arg)
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

static void one_job_from_end_to_end(void)
{
    struct job_status s;
    struct job j = job("abc", 7);

    begin("end-to-end");
    j.payload = "a\0prompt";
    j.payload_len = 8;
    CHECK_OK(queue_submit(q, "tenant", 1.0, 0, &j, 1, false, &no_limits, &outcome, results, &load,
                          &err));
    CHECK_INT(outcome, SUBMIT_QUEUED);
    CHECK(results[0].state == JOB_WAITING && !results[0].joined);
    CHECK_OK(look("abc", &s));
    CHECK(s.state == JOB_WAITING && s.place == 0 && s.attempt == 0 && s.enqueued_ms > 0);
    CHECK_TEXT(s.tenant, "tenant");
    CHECK_INT(ask("PTTL", ":j:abc", NULL), -1); /* open jobs never expire */

    claim_as("e1", BUDGET, CAP, LEASE_MS);
    CHECK_INT(n_got, 1);
    CHECK_TEXT(got[0].id, "abc");
    CHECK(got[0].attempt == 1 && !got[0].solo && got[0].n_tokens == 7 && got[0].deadline_ms == 0);
    CHECK(got[0].payload_len == 8 && memcmp(got[0].payload, "a\0prompt", 8) == 0);
    CHECK(strncmp(got[0].token, "e1:", 3) == 0);
    CHECK_INT(state("abc"), JOB_LEASED);

    CHECK_OK(complete(&got[0]));
    CHECK_INT(answer, LEASE_OK);
    CHECK_OK(look("abc", &s));
    CHECK(s.state == JOB_DONE && s.place == -1 && s.finished_ms >= s.enqueued_ms);
    CHECK_INT(ask("HEXISTS", ":j:abc", "payload"), 0); /* the prompt is gone */
    CHECK(ask("PTTL", ":j:abc", NULL) > 3500000 && ask("PTTL", ":j:abc", NULL) <= 3600000);
    CHECK_INT(ask("EXISTS", ":tc", NULL), 0);
    CHECK_OK(complete(&got[0])); /* its answer may have been lost */
    CHECK_INT(answer, LEASE_OK);
    CHECK_INT(state("unknown"), JOB_NONE);
}

static void bad_input_is_refused(void)
{
    struct job j = job("a b", 1), many[JOB_GROUP_MAX + 1];
    struct job_status s;

    begin("input");
    memset(many, 0, sizeof(many));
    CHECK_ERR(queue_submit(q, "t", 1, 0, &j, 1, false, &no_limits, &outcome, results, &load, &err),
              ERR_INPUT, "id");
    j = job("a", 0);
    CHECK_ERR(queue_submit(q, "t", 1, 0, &j, 1, false, &no_limits, &outcome, results, &load, &err),
              ERR_INPUT, "0 tokens");
    j = job("a", 1);
    CHECK_ERR(queue_submit(q, "", 1, 0, &j, 1, false, &no_limits, &outcome, results, &load, &err),
              ERR_INPUT, "tenant");
    CHECK_ERR(queue_submit(q, "t", 0, 0, &j, 1, false, &no_limits, &outcome, results, &load, &err),
              ERR_INPUT, "weight");
    CHECK_ERR(queue_submit(q, "t", 1, 0, many, JOB_GROUP_MAX + 1, false, &no_limits, &outcome,
                           results, &load, &err),
              ERR_INPUT, "group");
    CHECK_ERR(look("../a", &s), ERR_INPUT, "id");
    CHECK_ERR(queue_claim(q, "e:1", 1, 1, 1, 0, got, CAP, &n_got, &err), ERR_INPUT, "name");
    CHECK_ERR(queue_claim(q, "e", 1, QUEUE_CLAIM_MAX + 1, 1, 0, got, CAP, &n_got, &err), ERR_INPUT,
              "at most 64");
    CHECK_INT(ask("EXISTS", ":m", NULL), 0);
}

static void an_open_job_is_joined(void)
{
    begin("join");
    submit("a", 5);
    submit("ab", 5);
    CHECK(results[0].state == JOB_WAITING && results[0].joined);
    CHECK(results[1].state == JOB_WAITING && !results[1].joined);
    claim("ab");
    submit("a", 5);
    CHECK(results[0].state == JOB_LEASED && results[0].joined);
    claim("");
    submit("cc", 5); /* the same prompt twice in one request */
    CHECK(!results[0].joined && results[1].joined);
    CHECK_OK(queue_cancel(q, "c", &(enum job_state){0}, &err));
    CHECK_INT(state("c"), JOB_CANCELLED); /* it was one interest */
}

static void what_is_over_needs_force(void)
{
    begin("force");
    submit("ab", 5);
    claim("ab");
    CHECK_OK(complete(&got[0]));
    CHECK_OK(queue_fail(q, &got[1], true, "bad_prompt", &answer, &err));
    submit("ab", 5);
    CHECK(results[0].state == JOB_DONE && !results[0].joined);
    CHECK(results[1].state == JOB_DEAD && !results[1].joined);
    CHECK_TEXT(results[1].error, "bad_prompt");
    claim("");
    submit_as("t", 1.0, "ab", 5, true, 0, &no_limits);
    CHECK(results[0].state == JOB_WAITING && results[1].state == JOB_WAITING);
    CHECK_INT(ask("PTTL", ":j:a", NULL), -1); /* the old record's expiry does not stay */
    CHECK_INT(ask("ZCARD", ":x", NULL), 0);
    CHECK_INT(ask("EXISTS", ":p:b", NULL), 0);
    claim("ab");
    CHECK_INT(got[0].attempt, 1);
    complete_all();
}

static void quotas_take_all_or_none(void)
{
    struct queue_limits small = {3, 100}, mine = {100, 2};

    begin("quota");
    submit_as("t", 1.0, "ab", 5, false, 0, &small);
    CHECK_INT(outcome, SUBMIT_QUEUED);
    submit_as("t", 1.0, "cd", 5, false, 0, &small);
    CHECK_INT(outcome, SUBMIT_FULL);
    CHECK_INT(state("c"), JOB_NONE);
    submit_as("t", 1.0, "c", 5, false, 0, &mine);
    CHECK_INT(outcome, SUBMIT_TENANT_FULL);
    submit_as("t", 1.0, "ab", 5, false, 0, &mine); /* joining costs nothing */
    CHECK_INT(outcome, SUBMIT_QUEUED);
    submit_as("u", 1.0, "cd", 5, false, 0, &mine);
    CHECK_INT(outcome, SUBMIT_QUEUED);
    CHECK_INT(load.tokens_ahead, 10);
    claim("abcd");
    submit_as("t", 1.0, "e", 5, false, 0, &mine); /* leased jobs are open jobs */
    CHECK_INT(outcome, SUBMIT_TENANT_FULL);
    complete_all();
    submit_as("t", 1.0, "e", 5, false, 0, &mine);
    CHECK_INT(outcome, SUBMIT_QUEUED);
}

static void tenants_share_by_tokens(void)
{
    begin("fair");
    for (const char *p = "abcdef"; *p != '\0'; p++)
        submit_as("hog", 1.0, (char[]){*p, '\0'}, 10, false, 0, &no_limits);
    for (const char *p = "uvw"; *p != '\0'; p++)
        submit_as("small", 1.0, (char[]){*p, '\0'}, 10, false, 0, &no_limits);
    for (const char *p = "QRST"; *p != '\0'; p++)
        submit_as("vip", 4.0, (char[]){*p, '\0'}, 10, false, 0, &no_limits);
    /* tags: hog 0 10 20 ..; small 0 10 20; vip 0 2.5 5 7.5; ties by age */
    claim("auQRSTbvcwdef");
    complete_all();
}

/* A newcomer begins at the virtual time, not at zero: it does not overtake what it never waited
 * for, and it is not behind the hog's whole backlog either. */
static void a_newcomer_begins_now(void)
{
    begin("newcomer");
    for (const char *p = "abcdef"; *p != '\0'; p++)
        submit_as("hog", 1.0, (char[]){*p, '\0'}, 10, false, 0, &no_limits);
    claim_as("e1", BUDGET, 3, LEASE_MS); /* a b c: the virtual time is 20 */
    complete_all();
    submit_as("new", 1.0, "x", 10, false, 0, &no_limits);
    CHECK_INT(load.tokens_ahead, 0);
    submit_as("new", 1.0, "y", 10, false, 0, &no_limits);
    CHECK_INT(load.tokens_ahead, 20); /* x at 20, d and y at 30 */
    claim("xdyef");
}

static void a_group_is_not_cut(void)
{
    begin("group");
    submit("ab", 300);
    submit("cd", 300);
    claim("ab"); /* c would fit the rest, c and d would not */
    claim("cd");
    complete_all();
    submit("efg", 400); /* over a whole budget: cut */
    claim("ef");
    claim("g");
    submit("h", 5000); /* over the budget on its own: goes alone */
    submit("i", 5);
    claim("h");
    claim("i");
    submit("jkl", 1);
    submit("mn", 1);
    claim_as("e1", BUDGET, 4, LEASE_MS); /* the number of jobs counts as tokens do */
    CHECK_INT(n_got, 3);
    claim("mn");
}

/* Two groups with one tag lie one after the other, and not mixed by their ids. */
static void groups_of_one_tag_stay_together(void)
{
    begin("group-tag");
    submit_as("t", 1.0, "ac", 300, false, 0, &no_limits);
    submit_as("u", 1.0, "bd", 300, false, 0, &no_limits);
    claim("ac");
    claim("bd");
}

static void a_full_group_fits_the_window(void)
{
    struct job jobs[JOB_GROUP_MAX];
    char id[16];

    begin("window");
    submit("a", 1);
    for (int i = 0; i < JOB_GROUP_MAX; i++) {
        snprintf(id, sizeof(id), "g%02d", i);
        jobs[i] = job(id, 1);
        jobs[i].payload = "";
        jobs[i].payload_len = 0;
    }
    CHECK_OK(queue_submit(q, "u", 1.0, 0, jobs, JOB_GROUP_MAX, false, &no_limits, &outcome, results,
                          &load, &err));
    claim_as("e1", BUDGET, JOB_GROUP_MAX, LEASE_MS); /* a, and not 31 of the 32 */
    CHECK_INT(n_got, 1);
    claim_as("e1", BUDGET, JOB_GROUP_MAX, LEASE_MS);
    CHECK_INT(n_got, JOB_GROUP_MAX);
}

static void deadlines(void)
{
    struct job_status s;

    begin("deadline");
    submit_as("t", 1.0, "ab", 5, false, 1, &no_limits); /* 1970 */
    submit("cd", 5);
    submit("a", 5); /* whoever joins without a deadline takes it away */
    claim("acd");
    CHECK_OK(look("b", &s));
    CHECK_INT(s.state, JOB_EXPIRED);
    CHECK_TEXT(s.error, "deadline");
    CHECK_INT(ask("HEXISTS", ":j:b", "payload"), 0);
    complete_all();
    submit_as("t", 1.0, "b", 5, false, 0, &no_limits); /* expired: queued anew without force */
    CHECK(results[0].state == JOB_WAITING && !results[0].joined);
    claim("b");
    CHECK_INT(got[0].deadline_ms, 0);
    submit_as("t", 1.0, "e", 5, false, 4102444800000, &no_limits);
    submit_as("t", 1.0, "e", 5, false, 4102444800001, &no_limits); /* the latest holds */
    submit_as("t", 1.0, "e", 5, false, 4102444799999, &no_limits);
    claim("e");
    CHECK_INT(got[0].deadline_ms, 4102444800001);
}

/* The rule that everything rests on. */
static void a_stale_claim_writes_nothing(void)
{
    struct claimed_job old[1];

    begin("fence");
    submit("a", 5);
    CHECK_OK(queue_claim(q, "e1", BUDGET, 1, SHORT_MS, 0, old, 1, &n_got, &err));
    n_got = 0;
    sleep_ms(SHORT_MS + 20);
    claim(""); /* sweeps: delayed */
    CHECK_INT(state("a"), JOB_DELAYED);
    CHECK_OK(complete(old));
    CHECK_INT(answer, LEASE_STALE);
    sleep_ms(600); /* the delay */
    claim_as("e2", BUDGET, CAP, LEASE_MS);
    CHECK_INT(n_got, 1);
    CHECK_INT(got[0].attempt, 2);

    CHECK_OK(queue_renew(q, old, 1, LEASE_MS, &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(complete(old));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_fail(q, old, true, "late", &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_release(q, old, &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_cancelled(q, old, &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_INT(state("a"), JOB_LEASED);
    complete_all();
    CHECK_OK(complete(old)); /* done, but not by this one */
    CHECK_INT(answer, LEASE_STALE);
    claimed_jobs_free(old, 1);
}

/* Attempts begin anew after a release or by force; tokens never do. */
static void tokens_never_come_back(void)
{
    struct claimed_job first[1];

    begin("tokens");
    submit("a", 5);
    CHECK_OK(queue_claim(q, "e1", BUDGET, 1, LEASE_MS, 0, first, 1, &n_got, &err));
    n_got = 0;
    CHECK_OK(queue_release(q, first, &answer, &err));
    CHECK_INT(answer, LEASE_OK);
    claim("a");
    CHECK_INT(got[0].attempt, 1); /* the released attempt does not count */
    CHECK(strcmp(got[0].token, first[0].token) != 0);
    CHECK_OK(complete(first));
    CHECK_INT(answer, LEASE_STALE);
    complete_all();
    submit_as("t", 1.0, "a", 5, true, 0, &no_limits);
    claim("a");
    CHECK_INT(got[0].attempt, 1);
    CHECK_OK(complete(first));
    CHECK_INT(answer, LEASE_STALE);
    claimed_jobs_free(first, 1);
}

static void renewing_keeps_a_lease(void)
{
    enum lease_answer answers[2];
    int64_t moved;

    begin("renew");
    submit("ab", 5);
    claim_short("ab");
    CHECK_OK(queue_renew(q, got, 2, LEASE_MS, answers, &err));
    CHECK(answers[0] == LEASE_OK && answers[1] == LEASE_OK);
    sleep_ms(SHORT_MS + 20);
    CHECK_OK(queue_sweep(q, &moved, &err));
    CHECK_INT(moved, 0);
    CHECK_OK(queue_renew(q, got, 1, 1, answers, &err));
    sleep_ms(10);
    CHECK_OK(queue_sweep(q, &moved, &err));
    CHECK_INT(moved, 1);
    CHECK_INT(state("a"), JOB_DELAYED);
    CHECK_INT(state("b"), JOB_LEASED);
}

/* Loses all that is claimed; brings it back without waiting for the delay. */
static void lose_all(void)
{
    char key[QUEUE_BASE_SIZE + 8];
    redisReply *reply;
    int64_t moved;

    CHECK_OK(queue_sweep(q, &moved, &err));
    snprintf(key, sizeof(key), "%s:d", base);
    CHECK_OK(redis_commandf(admin, &reply, &err, "ZRANGE %s 0 -1", key));
    for (size_t i = 0; i < reply->elements; i++) {
        redisReply *added;

        CHECK_OK(redis_commandf(admin, &added, &err, "ZADD %s 1 %s", key, reply->element[i]->str));
        freeReplyObject(added);
    }
    freeReplyObject(reply);
}

/* A prompt that kills its engine takes two batches with it, and then only itself. */
static void poison_dies_alone(void)
{
    struct job_status s;

    begin("poison");
    submit("abc", 5);
    for (int i = 1; i <= 2; i++) {
        claim_short("abc"); /* once lost, still with its group */
        CHECK(got[0].attempt == i && !got[0].solo);
        sleep_ms(SHORT_MS + 10);
        lose_all();
    }
    submit("d", 5);
    for (int i = 0; i < 2; i++) { /* a and c clear */
        claim_short(i == 0 ? "a" : "b");
        CHECK(got[0].solo && got[0].attempt == 3);
        if (i == 0)
            complete_all();
    }
    /* b, the poison, kills again; c gets through; d was never touched */
    claim("c");
    CHECK(got[0].solo);
    complete_all();
    claim("d");
    CHECK(!got[0].solo);
    complete_all();
    for (int i = 4; i <= QUEUE_MAX_DELIVERIES; i++) {
        sleep_ms(SHORT_MS + 10);
        lose_all();
        claim_short("b");
        CHECK_INT(got[0].attempt, i);
    }
    sleep_ms(SHORT_MS + 10);
    lose_all();
    CHECK_OK(look("b", &s));
    CHECK(s.state == JOB_DEAD && s.attempt == QUEUE_MAX_DELIVERIES);
    CHECK_TEXT(s.error, "lease_lost");
    CHECK(ask("PTTL", ":j:b", NULL) > 6 * 24 * 3600000LL);
    CHECK_INT(ask("HEXISTS", ":j:b", "payload"), 0);
    CHECK_INT(ask("STRLEN", ":p:b", NULL), 1); /* for an admin, and not for long */
    CHECK(ask("PTTL", ":p:b", NULL) <= 6 * 3600000LL && ask("PTTL", ":p:b", NULL) > 5 * 3600000LL);
    CHECK_INT(ask("ZCARD", ":x", NULL), 1);
    CHECK_INT(state("a"), JOB_DONE);
}

static void a_solo_job_waits_for_an_empty_claim(void)
{
    begin("solo");
    submit("a", 5);
    submit("b", 5);
    for (int i = 0; i < 2; i++) {
        claim_short("ab");
        CHECK_OK(queue_release(q, &got[0], &answer, &err));
        sleep_ms(SHORT_MS + 10);
        lose_all();
    }
    submit("c", 5);
    claim("a"); /* b would fit, and waits */
    CHECK(!got[0].solo);
    claim("b");
    CHECK(got[0].solo);
    CHECK_OK(queue_release(q, &got[0], &answer, &err));
    claim("b"); /* released, it is still solo */
    CHECK(got[0].solo);
    claim("c");
}

static void failures(void)
{
    struct job_status s;

    begin("fail");
    submit("ab", 5);
    claim("ab");
    CHECK_OK(queue_fail(q, &got[0], false, "cache_away", &answer, &err));
    CHECK_INT(answer, LEASE_OK);
    CHECK_OK(look("a", &s));
    CHECK_INT(s.state, JOB_DELAYED);
    CHECK_TEXT(s.error, "cache_away");
    CHECK_OK(queue_fail(q, &got[1], true, "bad_prompt", &answer, &err));
    CHECK_OK(look("b", &s));
    CHECK_INT(s.state, JOB_DEAD);
    CHECK_TEXT(s.error, "bad_prompt");
    claim("");
    for (int i = 2; i <= QUEUE_MAX_DELIVERIES; i++) {
        lose_all(); /* nothing is leased: only the delay ends */
        claim("a");
        CHECK_INT(got[0].attempt, i);
        CHECK(!got[0].solo); /* failing is not killing */
        CHECK_OK(queue_fail(q, &got[0], false, "cache_away", &answer, &err));
    }
    CHECK_INT(state("a"), JOB_DEAD);
    CHECK_ERR(queue_fail(q, &got[0], false,
                         "0123456789012345678901234567890123456789012345678901234567890123",
                         &answer, &err),
              ERR_INPUT, "at most 63");
}

static void cancelling(void)
{
    enum job_state now;

    begin("cancel");
    submit("a", 5);
    submit("a", 5);
    CHECK_OK(queue_cancel(q, "a", &now, &err));
    CHECK_INT(now, JOB_WAITING); /* one is still interested */
    CHECK_OK(queue_cancel(q, "a", &now, &err));
    CHECK_INT(now, JOB_CANCELLED);
    CHECK_OK(queue_cancel(q, "a", &now, &err));
    CHECK_INT(now, JOB_CANCELLED);
    CHECK_OK(queue_cancel(q, "none", &now, &err));
    CHECK_INT(now, JOB_NONE);
    claim("");

    submit("ab", 5);
    claim("ab");
    CHECK_OK(queue_cancel(q, "a", &now, &err));
    CHECK_INT(now, JOB_LEASED);
    enum lease_answer answers[2];
    CHECK_OK(queue_renew(q, got, 2, LEASE_MS, answers, &err));
    CHECK(answers[0] == LEASE_CANCELLED && answers[1] == LEASE_OK);
    CHECK_OK(queue_cancelled(q, &got[0], &answer, &err));
    CHECK_INT(answer, LEASE_OK);
    CHECK_INT(state("a"), JOB_CANCELLED);

    /* someone joins after the engine was told: the job is wanted again */
    CHECK_OK(queue_cancel(q, "b", &now, &err));
    CHECK_OK(queue_renew(q, &got[1], 1, LEASE_MS, answers, &err));
    CHECK_INT(answers[0], LEASE_CANCELLED);
    submit("b", 5);
    CHECK(results[0].joined);
    CHECK_OK(queue_cancelled(q, &got[1], &answer, &err));
    CHECK_INT(state("b"), JOB_WAITING);
    claim("b");
    complete_all();
    CHECK_INT(ask("EXISTS", ":tc", NULL), 0);
}

static void names_bring_leases_back(void)
{
    struct queue *successor;
    int64_t n;

    begin("name");
    CHECK_OK(queue_take_name(q, "gpu-1", 60000, &n, &err));
    CHECK_INT(n, 0);
    submit("ab", 5);
    claim_as("gpu-1", BUDGET, 1, LEASE_MS);
    claimed_jobs_free(got, n_got);
    claim_as("gpu-11", BUDGET, 1, LEASE_MS); /* another engine, whose name begins alike */
    CHECK_OK(queue_open(&successor, server.url, base, 5000, &err));
    CHECK_OK(queue_take_name(q, "gpu-1", 60000, &n, &err)); /* keeps it, and its leases */
    CHECK_INT(n, 0);
    CHECK_ERR(queue_take_name(successor, "gpu-1", SHORT_MS, &n, &err), ERR_BUSY, "gpu-1");
    CHECK_OK(queue_take_name(q, "gpu-1", SHORT_MS, &n, &err));
    sleep_ms(SHORT_MS + 20); /* the former self is dead */
    CHECK_OK(queue_take_name(successor, "gpu-1", 60000, &n, &err));
    CHECK_INT(n, 1);
    CHECK_INT(state("a"), JOB_WAITING);
    CHECK_INT(state("b"), JOB_LEASED);
    CHECK_ERR(queue_take_name(q, "gpu-1", SHORT_MS, &n, &err), ERR_BUSY, "gpu-1");
    CHECK_OK(queue_drop_name(q, "gpu-1", &err)); /* not its own: stays */
    CHECK_ERR(queue_take_name(q, "gpu-1", SHORT_MS, &n, &err), ERR_BUSY, "gpu-1");
    CHECK_OK(queue_drop_name(successor, "gpu-1", &err));
    CHECK_OK(queue_take_name(q, "gpu-1", SHORT_MS, &n, &err));
    queue_close(successor);
}

/* ---- events ---- */

static void trim_events(int n)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(admin, &reply, &err, "XTRIM %s:ev MAXLEN %d", base, n));
    freeReplyObject(reply);
}

enum { EVENTS = 64 };

static struct queue_events *reader;
static struct queue_event events[EVENTS];
static size_t n_events;
static bool missed;

static bool follow(const char *const *bases, size_t n)
{
    bool fresh;

    CHECK_OK(queue_events_follow(reader, bases, n, &fresh, &err));
    return fresh;
}

/* Opens a reader of the base of this test; it begins at what is newest. */
static void begin_events(const char *name)
{
    begin(name);
    queue_events_close(reader);
    CHECK_OK(queue_events_open(&reader, server.url, 5000, &err));
    CHECK(follow((const char *const[]){base}, 1));
}

static void read_events(int block_ms, size_t cap)
{
    CHECK_OK(queue_events_read(reader, block_ms, events, cap, &n_events, &missed, &err));
}

static void run_jobs(const char *ids)
{
    submit(ids, 5);
    claim(ids);
    complete_all();
}

static void events_tell_what_is_over(void)
{
    begin_events("events");
    submit("abc", 5);
    claim("abc");
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);
    complete_all();
    read_events(100, 2);
    CHECK(n_events == 2 && !missed);
    CHECK_TEXT(events[0].id, "a");
    CHECK_INT(events[1].state, JOB_DONE);
    read_events(100, 8);
    CHECK(n_events == 1 && !missed && events[0].id[0] == 'c');
    int64_t start = clock_now_ns();
    read_events(80, 8);
    CHECK(n_events == 0 && !missed && clock_ms_since(start) >= 70);
    CHECK(!follow((const char *const[]){base}, 1)); /* it keeps its place */

    /* cut past our place */
    run_jobs("def");
    trim_events(1);
    read_events(100, 8);
    CHECK(n_events == 1 && missed && events[0].id[0] == 'f');
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);

    /* the stream begins anew: a failover lost it */
    ask("DEL", ":ev", NULL);
    read_events(10, 8);
    CHECK(n_events == 0 && missed);
    read_events(10, 8);
    CHECK(n_events == 0 && !missed);
    run_jobs("g");
    read_events(10, 8);
    CHECK(n_events == 1 && !missed && events[0].id[0] == 'g');
}

static void the_doorbell(void)
{
    bool rang;
    int64_t start = clock_now_ns();

    begin("bell");
    CHECK_OK(queue_wait(q, 0, &rang, &err));
    CHECK(!rang);
    CHECK_OK(queue_wait(q, 60, &rang, &err));
    CHECK(!rang && clock_ms_since(start) >= 50);
    for (const char *p = "abcdefghijklmnopqrstuvwxyz"; *p != '\0'; p++)
        submit((char[]){*p, '\0'}, 5);
    CHECK_INT(ask("LLEN", ":bell", NULL), 16);
    start = clock_now_ns();
    CHECK_OK(queue_wait(q, 3000, &rang, &err));
    CHECK(rang && clock_ms_since(start) < 2000);
}

static void the_depth(void)
{
    struct queue_depth d;
    struct job_status s;

    begin("depth");
    CHECK_OK(queue_depth(q, &d, &err));
    CHECK(d.waiting == 0 && d.waiting_tokens == 0 && d.oldest_wait_ms == 0 && d.engines == 0);
    submit("abc", 5);
    submit("d", 7);
    sleep_ms(5);
    claim_as("e1", 15, CAP, LEASE_MS);
    CHECK_INT(n_got, 3);
    CHECK_OK(queue_fail(q, &got[0], false, "x", &answer, &err));
    CHECK_OK(queue_fail(q, &got[1], true, "x", &answer, &err));
    submit("e", 9);
    CHECK_OK(look("e", &s));
    CHECK_INT(s.place, 1);
    CHECK_OK(queue_depth(q, &d, &err));
    CHECK(d.waiting == 2 && d.delayed == 1 && d.leased == 1 && d.dead == 1);
    CHECK(d.waiting_tokens == 16 && d.oldest_wait_ms >= 4 && d.engines == 1);
}

/* Work that was accepted is there after the server was killed; the functions are, too. */
static void a_killed_server_forgets_nothing(void)
{
    begin("durable");
    submit("ab", 5);
    claim("ab");
    CHECK_OK(complete(&got[0]));
    submit("c", 5);
    redis_server_kill(&server);
    CHECK_ERR(queue_sweep(q, &(int64_t){0}, &err), ERR_IO, "redis at unix:");
    CHECK(redis_server_restart(&server));
    CHECK_INT(state("a"), JOB_DONE);
    CHECK_INT(state("b"), JOB_LEASED);
    CHECK_OK(complete(&got[1]));
    CHECK_INT(answer, LEASE_OK);
    claim("c");
}

/* An empty server gets the functions at the first call. */
static void functions_are_loaded_where_missing(void)
{
    redisReply *reply;

    begin("load");
    CHECK_OK(redis_commandf(admin, &reply, &err, "FUNCTION FLUSH"));
    freeReplyObject(reply);
    submit("a", 5);
    CHECK_OK(redis_commandf(admin, &reply, &err, "FUNCTION LOAD %s",
                            "#!lua name=pe2\nredis.register_function('pe2_claim', "
                            "function() return 1 end)"));
    freeReplyObject(reply);
    begin("load"); /* beside another version, which stays */
    CHECK_OK(redis_commandf(admin, &reply, &err, "FUNCTION LIST"));
    CHECK_INT(reply->elements, 2);
    freeReplyObject(reply);
    claim("a");
}

/* A full server refuses new work, and lets what runs come to its end. */
static void a_full_server(void)
{
    struct job j = job("b", 5);
    redisReply *reply;

    begin("full");
    submit("a", 5);
    CHECK_OK(redis_commandf(admin, &reply, &err, "CONFIG SET maxmemory 1"));
    freeReplyObject(reply);
    err = (struct error){0};
    int rc = queue_submit(q, "t", 1, 0, &j, 1, false, &no_limits, &outcome, results, &load, &err);
    struct error claim_err = {0}, complete_err = {0};
    int claim_rc = queue_claim(q, "e1", BUDGET, 1, LEASE_MS, 0, got, CAP, &n_got, &claim_err);
    int complete_rc =
        queue_complete(q, (const struct claimed_job *const[]){&got[0]}, 1, &answer, &complete_err);
    CHECK_OK(redis_commandf(admin, &reply, NULL, "CONFIG SET maxmemory 0"));
    freeReplyObject(reply);
    CHECK_INT(rc, ERR_MEM);
    CHECK_INT(claim_rc, OK);
    CHECK_INT(n_got, 1);
    CHECK_INT(complete_rc, OK);
    CHECK_INT(answer, LEASE_OK);
}

int main(void)
{
    redis_server_need();
    if (!redis_server_start(&server, "test_queue", QUEUE_SETTINGS) ||
        redis_open(&admin, server.url, 5000, &err) != OK) {
        printf("redis-server does not start; see %s/redis.log\n", server.dir);
        return EXIT_FAILURE;
    }
    RUN(one_job_from_end_to_end);
    RUN(bad_input_is_refused);
    RUN(an_open_job_is_joined);
    RUN(what_is_over_needs_force);
    RUN(quotas_take_all_or_none);
    RUN(tenants_share_by_tokens);
    RUN(a_newcomer_begins_now);
    RUN(a_group_is_not_cut);
    RUN(groups_of_one_tag_stay_together);
    RUN(a_full_group_fits_the_window);
    RUN(deadlines);
    RUN(a_stale_claim_writes_nothing);
    RUN(tokens_never_come_back);
    RUN(renewing_keeps_a_lease);
    RUN(poison_dies_alone);
    RUN(a_solo_job_waits_for_an_empty_claim);
    RUN(failures);
    RUN(cancelling);
    RUN(names_bring_leases_back);
    RUN(events_tell_what_is_over);
    RUN(the_doorbell);
    RUN(the_depth);
    RUN(a_killed_server_forgets_nothing);
    RUN(functions_are_loaded_where_missing);
    RUN(a_full_server);
    claimed_jobs_free(got, n_got);
    queue_close(q);
    queue_events_close(reader);
    redis_close(admin);
    redis_server_stop(&server);
    return check_result();
}
