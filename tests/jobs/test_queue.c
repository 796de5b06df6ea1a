/* test_queue.c - each rule of the queue by a short scenario, against a real Redis. */
#include <math.h>

#include "base/clock.h"
#include "tests/jobs/queue_scene.h"

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

static void times_of_a_job(void)
{
    struct job_status s, again;

    begin("times");
    submit("a", 5);
    CHECK_OK(look("a", &s));
    CHECK(s.started_ms == 0 && s.finished_ms == 0);
    clock_pause_ms(30);
    claim("a");
    CHECK(got[0].waited_ms >= 30 && got[0].waited_ms < 10000);
    CHECK_OK(look("a", &s));
    CHECK_INT(s.started_ms - s.enqueued_ms, got[0].waited_ms);
    CHECK_OK(queue_release(q, &got[0], &answer, &err));
    CHECK_OK(look("a", &again));
    CHECK_INT(again.started_ms, s.started_ms);
    clock_pause_ms(10);
    claim("a");
    CHECK(got[0].waited_ms >= 40); /* since it was enqueued, all tries together */
    complete_all();
    CHECK_OK(look("a", &again));
    CHECK(again.started_ms >= s.started_ms + 10 && again.finished_ms >= again.started_ms);
    submit_as("t", 1.0, "a", 5, true, 0, &no_limits); /* anew */
    CHECK_OK(look("a", &again));
    CHECK(again.started_ms == 0 && again.finished_ms == 0 && again.enqueued_ms > s.enqueued_ms);
}

static void several_are_asked_at_once(void)
{
    const char *ids[] = {"b", "none", "a", "c", "a"}, *many[QUEUE_CLAIM_MAX + 1];
    struct job_status s[QUEUE_CLAIM_MAX + 1];

    begin("statuses");
    submit("abc", 5);
    claim_as("e1", 10, CAP, LEASE_MS);
    CHECK_OK(complete(&got[0]));
    CHECK_OK(queue_status(q, ids, 5, s, &err));
    CHECK(s[0].state == JOB_LEASED && s[0].attempt == 1);
    CHECK(s[1].state == JOB_NONE && s[1].place == -1 && s[1].enqueued_ms == 0);
    CHECK(s[2].state == JOB_DONE && s[2].finished_ms > 0);
    CHECK(s[3].state == JOB_WAITING && s[3].place == 0);
    CHECK(memcmp(&s[4], &s[2], sizeof(s[4])) == 0);
    CHECK_TEXT(s[0].tenant, "t");
    for (int i = 0; i < QUEUE_CLAIM_MAX + 1; i++)
        many[i] = "c";
    CHECK_OK(queue_status(q, many, QUEUE_CLAIM_MAX, s, &err));
    CHECK_INT(s[QUEUE_CLAIM_MAX - 1].state, JOB_WAITING);
    CHECK_ERR(queue_status(q, many, QUEUE_CLAIM_MAX + 1, s, &err), ERR_INPUT, "at most 64");
    many[5] = "../c";
    CHECK_ERR(queue_status(q, many, 6, s, &err), ERR_INPUT, "id");
    CHECK_OK(queue_status(q, many, 0, s, &err));
}

static void several_are_completed_at_once(void)
{
    const struct claimed_job *list[QUEUE_CLAIM_MAX + 1];
    enum lease_answer answers[QUEUE_CLAIM_MAX + 1];
    struct claimed_job old[1];
    struct job jobs[JOB_GROUP_MAX];
    char id[32];

    begin("completes");
    submit("a", 5);
    CHECK_OK(queue_claim(q, "e1", BUDGET, 1, LEASE_MS, 0, old, 1, &n_got, &err));
    n_got = 0;
    CHECK_OK(queue_release(q, old, &answer, &err));
    submit("bcd", 5);
    claim("abcd");
    CHECK_OK(complete(&got[1]));
    list[0] = &got[0];
    list[1] = old;     /* a, by a claim that is over */
    list[2] = &got[1]; /* done already */
    list[3] = &got[2];
    list[4] = &got[2]; /* twice */
    CHECK_OK(queue_complete(q, list, 5, answers, &err));
    CHECK(answers[0] == LEASE_OK && answers[1] == LEASE_STALE && answers[2] == LEASE_OK &&
          answers[3] == LEASE_OK && answers[4] == LEASE_OK);
    CHECK(state("a") == JOB_DONE && state("b") == JOB_DONE && state("c") == JOB_DONE);
    CHECK_INT(state("d"), JOB_LEASED);                   /* was not among them */
    CHECK_OK(queue_complete(q, list, 5, answers, &err)); /* its answer may have been lost */
    CHECK(answers[0] == LEASE_OK && answers[1] == LEASE_STALE && answers[4] == LEASE_OK);
    CHECK_OK(queue_complete(q, list, 0, answers, &err));
    CHECK_INT(ask("XLEN", ":ev", NULL), 3); /* one event a job, however often it was said */

    for (int half = 0; half < 2; half++) { /* as many as a claim can have */
        for (int i = 0; i < JOB_GROUP_MAX; i++) {
            snprintf(id, sizeof(id), "g%d%02d", half, i);
            jobs[i] = job(id, 1);
            jobs[i].payload_len = 0;
        }
        CHECK_OK(queue_submit(q, "u", 1.0, 0, jobs, JOB_GROUP_MAX, false, &no_limits, &outcome,
                              results, &load, &err));
    }
    claim_as("e1", BUDGET, QUEUE_CLAIM_MAX, LEASE_MS);
    CHECK_INT(n_got, QUEUE_CLAIM_MAX);
    for (int i = 0; i < QUEUE_CLAIM_MAX + 1; i++)
        list[i] = &got[i % QUEUE_CLAIM_MAX];
    CHECK_ERR(queue_complete(q, list, QUEUE_CLAIM_MAX + 1, answers, &err), ERR_INPUT, "at most 64");
    CHECK_OK(queue_complete(q, list, QUEUE_CLAIM_MAX, answers, &err));
    for (int i = 0; i < QUEUE_CLAIM_MAX; i++)
        CHECK_INT(answers[i], LEASE_OK);
    CHECK_INT(ask("ZCARD", ":l", NULL), 1); /* d */
    claimed_jobs_free(old, 1);
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
    char id[32];

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
    submit_as("t", 1.0, "ab", 5, false, 1, &no_limits);
    clock_pause_ms(5);
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
    submit_as("t", 1.0, "e", 5, false, 60000, &no_limits);
    submit_as("t", 1.0, "e", 5, false, 90000, &no_limits); /* the latest holds */
    submit_as("t", 1.0, "e", 5, false, 30000, &no_limits);
    claim("e");
    CHECK_OK(look("e", &s)); /* by Q's clock, whatever ours says */
    CHECK(got[0].deadline_ms >= s.enqueued_ms + 90000 &&
          got[0].deadline_ms < s.enqueued_ms + 150000);
}

/* The rule that everything rests on. */
static void a_stale_claim_writes_nothing(void)
{
    struct claimed_job old[1];

    begin("fence");
    submit("a", 5);
    CHECK_OK(queue_claim(q, "e1", BUDGET, 1, SHORT_MS, 0, old, 1, &n_got, &err));
    n_got = 0;
    clock_pause_ms(SHORT_MS + 20);
    claim(""); /* sweeps: delayed */
    CHECK_INT(state("a"), JOB_DELAYED);
    CHECK_OK(complete(old));
    CHECK_INT(answer, LEASE_STALE);
    clock_pause_ms(600); /* the delay */
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
    clock_pause_ms(SHORT_MS + 20);
    CHECK_OK(queue_sweep(q, &moved, &err));
    CHECK_INT(moved, 0);
    CHECK_OK(queue_renew(q, got, 1, 1, answers, &err));
    clock_pause_ms(10);
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
        clock_pause_ms(SHORT_MS + 10);
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
        clock_pause_ms(SHORT_MS + 10);
        lose_all();
        claim_short("b");
        CHECK_INT(got[0].attempt, i);
    }
    clock_pause_ms(SHORT_MS + 10);
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
        clock_pause_ms(SHORT_MS + 10);
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

/* Takes a job's hash away, as only a hand or a failover that lost some can do. */
static void vanish(const char *id)
{
    char suffix[80];

    snprintf(suffix, sizeof(suffix), ":j:%s", id);
    CHECK_INT(ask("DEL", suffix, NULL), 1);
}

/* Nothing is left: neither hashes nor members of sets nor counts. */
static void check_nothing_open(void)
{
    static const char *const sets[] = {":w", ":d", ":l", ":tc", ":f"};
    struct queue_depth d;

    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        if (ask("EXISTS", sets[i], NULL) != 0)
            CHECK_FAIL("%s is left", sets[i]);
    CHECK_OK(queue_depth(q, &d, &err));
    CHECK(d.waiting_tokens == 0 && d.leases_lost == 0);
}

static void vanished_jobs_stay_away(void)
{
    enum job_state now;
    int64_t n;

    begin("vanish-waiting");
    submit("ab", 5);
    vanish("a");
    CHECK_INT(state("a"), JOB_NONE);
    claim("b");
    CHECK_INT(ask("EXISTS", ":j:a", NULL), 0);
    complete_all();
    check_nothing_open();
    submit("a", 5); /* alone, and looked at by a claim */
    vanish("a");
    claim("");
    check_nothing_open();

    begin("vanish-delayed");
    submit("ab", 5);
    claim("ab");
    CHECK_OK(queue_fail(q, &got[0], false, "x", &answer, &err));
    CHECK_OK(complete(&got[1]));
    vanish("a");
    lose_all(); /* its time comes */
    CHECK_OK(queue_sweep(q, &n, &err));
    CHECK_INT(n, 0);
    CHECK_INT(ask("EXISTS", ":j:a", NULL), 0);
    check_nothing_open();

    begin("vanish-leased");
    submit("abc", 5);
    claim_short("abc");
    vanish("a");
    vanish("b");
    CHECK_OK(complete(&got[0]));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_fail(q, &got[1], false, "x", &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_release(q, &got[1], &answer, &err));
    CHECK_INT(answer, LEASE_STALE);
    CHECK_OK(queue_cancel(q, "a", &now, &err));
    CHECK_INT(now, JOB_NONE);
    CHECK_OK(complete(&got[2]));
    CHECK_OK(queue_take_name(q, "e1", LEASE_MS, &n, &err)); /* it looks through the leases */
    CHECK_INT(n, 0);
    clock_pause_ms(SHORT_MS + 20);
    CHECK_OK(queue_sweep(q, &n, &err));
    CHECK_INT(n, 0);
    CHECK(ask("EXISTS", ":j:a", NULL) == 0 && ask("EXISTS", ":j:b", NULL) == 0);
    check_nothing_open();
}

/* What the sets still have of its former life must not move a job that was submitted anew. */
static void vanished_jobs_begin_anew(void)
{
    begin("anew-leased");
    submit("a", 5);
    claim_short("a");
    vanish("a");
    submit("a", 5);
    CHECK(results[0].state == JOB_WAITING && !results[0].joined);
    clock_pause_ms(SHORT_MS + 20);
    claim("a");
    CHECK(got[0].attempt == 1 && ask("ZCARD", ":d", NULL) == 0);
    complete_all();
    check_nothing_open();

    begin("anew-delayed");
    submit("a", 5);
    claim("a");
    CHECK_OK(queue_fail(q, &got[0], false, "x", &answer, &err));
    vanish("a");
    submit("a", 5);
    lose_all();
    claim("a");
    CHECK(got[0].attempt == 1 && ask("ZCARD", ":d", NULL) == 0 && ask("ZCARD", ":w", NULL) == 0);
    complete_all();
    check_nothing_open();

    begin("anew-waiting");
    submit("a", 5);
    vanish("a");
    submit("a", 5);
    CHECK_INT(ask("ZCARD", ":w", NULL), 2);
    claim("a"); /* once */
    CHECK_INT(ask("ZCARD", ":l", NULL), 1);
    complete_all();
    submit("b", 5);
    claim("b");
    complete_all();
    check_nothing_open();
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
    clock_pause_ms(SHORT_MS + 20); /* the former self is dead */
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

/* ---- what an engine says of itself, and what is said of the queue ---- */

static double rate_of_all(void)
{
    struct queue_depth d;

    CHECK_OK(queue_depth(q, &d, &err));
    return d.tokens_per_s;
}

static void claim_at(const char *owner, double rate, int lease_ms)
{
    claimed_jobs_free(got, n_got);
    CHECK_OK(queue_claim(q, owner, BUDGET, CAP, lease_ms, rate, got, CAP, &n_got, &err));
}

static void rates_of_live_engines_are_summed(void)
{
    begin("rates");
    submit("a", 5);
    CHECK(load.tokens_per_s == 0);
    claim_at("e1", 0, LEASE_MS); /* it does not know yet */
    CHECK(rate_of_all() == 0);
    complete_all();
    claim_at("e1", 1234.5, LEASE_MS);
    CHECK(rate_of_all() == 1234.5);
    claim_at("e2", 1000, LEASE_MS);
    CHECK(rate_of_all() == 2234.5);
    submit("b", 5);
    CHECK(load.tokens_per_s == 2234.5);
    submit_as("t", 1.0, "c", 5, false, 0, &(struct queue_limits){1, 100});
    CHECK(outcome == SUBMIT_FULL && load.tokens_per_s == 2234.5 && load.tokens_ahead == 5);
    submit_as("t", 1.0, "c", 5, false, 0, &(struct queue_limits){100, 1});
    CHECK(outcome == SUBMIT_TENANT_FULL && load.tokens_per_s == 2234.5);

    claim_at("e2", 1000, 1);
    clock_pause_ms(20); /* e2 is gone */
    CHECK(rate_of_all() == 1234.5);
    claim_at("e1", 10, LEASE_MS);
    CHECK(rate_of_all() == 10);
    CHECK_INT(ask("HLEN", ":wr", NULL), 1); /* and forgotten */
    CHECK_INT(ask("ZCARD", ":wk", NULL), 1);
    claim_at("e2", 0, LEASE_MS); /* a new one of that name does not know yet */
    CHECK(rate_of_all() == 10);
    claim_at("e1", 0, LEASE_MS);
    CHECK(rate_of_all() == 0);
    CHECK_INT(ask("EXISTS", ":wr", NULL), 0);
    CHECK_ERR(queue_claim(q, "e1", 1, 1, 1, -1, got, CAP, &n_got, &err), ERR_INPUT, "rate");
    CHECK_ERR(queue_claim(q, "e1", 1, 1, 1, (double)NAN, got, CAP, &n_got, &err), ERR_INPUT,
              "rate");
}

/* An engine busy with one long batch renews, and its rate counts on. */
static void renewing_keeps_a_rate(void)
{
    begin("rates-renewed");
    submit("a", 5);
    claim_at("e1", 7, SHORT_MS);
    CHECK_OK(queue_renew(q, got, 1, LEASE_MS, &answer, &err));
    clock_pause_ms(SHORT_MS + 20);
    CHECK(rate_of_all() == 7);
}

static void lost_leases_are_counted(void)
{
    struct queue_depth d;

    begin("lost");
    submit("ab", 5);
    claim_short("ab");
    CHECK_OK(queue_release(q, &got[0], &answer, &err)); /* given back is not lost */
    clock_pause_ms(SHORT_MS + 20);
    CHECK_OK(queue_sweep(q, &(int64_t){0}, &err));
    CHECK_OK(queue_depth(q, &d, &err));
    CHECK_INT(d.leases_lost, 1);
    claim("a");
    complete_all();
    lose_all();
    claim("b");
    complete_all();
    CHECK_OK(queue_depth(q, &d, &err));
    CHECK_INT(d.leases_lost, 1); /* for ever */
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
    clock_pause_ms(5);
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
    scene_open("test_queue");
    RUN(one_job_from_end_to_end);
    RUN(times_of_a_job);
    RUN(several_are_asked_at_once);
    RUN(several_are_completed_at_once);
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
    RUN(vanished_jobs_stay_away);
    RUN(vanished_jobs_begin_anew);
    RUN(names_bring_leases_back);
    RUN(rates_of_live_engines_are_summed);
    RUN(renewing_keeps_a_rate);
    RUN(lost_leases_are_counted);
    RUN(the_doorbell);
    RUN(the_depth);
    RUN(a_killed_server_forgets_nothing);
    RUN(functions_are_loaded_where_missing);
    RUN(a_full_server);
    return scene_close();
}
