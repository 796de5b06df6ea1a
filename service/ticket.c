#include "service/ticket.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/trouble.h"

enum {
    MAX_TRIES = 3,          /* computations of one prompt for one request */
    TOKENS_A_SECOND = 2000, /* a guess, for Retry-After */
    MAX_RETRY_AFTER_S = 60
};

/* ---- life ---- */

static void hold(struct ticket *t)
{
    atomic_fetch_add(&t->refs, 1);
}

static void release(struct ticket *t)
{
    if (atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        if (p->payload.data != NULL) /* ids are as good as the prompt */
            memset(p->payload.data, 0, p->payload.len);
        buf_free(&p->payload);
        result_release(p->result);
        if (p->model != t->model)
            model_release(p->model);
    }
    model_release(t->model);
    exchange_release(t->exchange);
    pthread_mutex_destroy(&t->lock);
    free(t->prompts);
    free(t);
}

/* The first outcome counts. */
static void settle(struct ticket *t, enum ticket_outcome outcome, const struct problem *problem)
{
    bool first;

    pthread_mutex_lock(&t->lock);
    if ((first = t->outcome == TICKET_WORKING)) {
        t->outcome = outcome;
        if (problem != NULL)
            t->problem = *problem;
        if (t->submitted_ns != 0)
            t->encode_ms = clock_ms_since(t->submitted_ns);
    }
    pthread_mutex_unlock(&t->lock);
    if (first)
        exchange_wake(t->exchange);
}

static void settle_error(struct ticket *t, const struct error *err, enum trouble_place place)
{
    struct problem problem = {0};

    trouble_describe(&problem, err, place, exchange_request_id(t->exchange));
    settle(t, TICKET_FAILED, &problem);
}

/* A prompt has come to its end, or the task that started the ticket has. */
static void end_one(struct ticket *t)
{
    bool last;

    pthread_mutex_lock(&t->lock);
    last = --t->n_open == 0;
    pthread_mutex_unlock(&t->lock);
    if (last)
        settle(t, TICKET_READY, NULL);
}

/* Takes over one hold of `result`. */
static void set_result(struct ticket_prompt *p, struct result *result)
{
    struct result *old;

    pthread_mutex_lock(&p->ticket->lock);
    old = p->result;
    p->result = result;
    pthread_mutex_unlock(&p->ticket->lock);
    result_release(old);
}

/* ---- a prompt's end ---- */

static bool is_about_states(const struct ticket *t)
{
    return t->kind == TICKET_STATUS || t->kind == TICKET_CANCEL;
}

static void fail_by_state(struct ticket *t, const struct job_status *status)
{
    struct problem p = {0};

    switch (status->state) {
    case JOB_DEAD:
        problem_set(&p, PROBLEM_JOB_FAILED,
                    "the job failed for good (%s); the same request with \"cache\":\"refresh\" "
                    "tries it again",
                    status->error[0] == '\0' ? "no reason given" : status->error);
        break;
    case JOB_EXPIRED:
        problem_set(&p, PROBLEM_DEADLINE_PASSED, "the job's deadline passed before it ran");
        break;
    case JOB_CANCELLED:
        problem_set(&p, PROBLEM_CANCELLED, "the job was cancelled");
        break;
    case JOB_DONE:
        problem_set(
            &p, PROBLEM_RESULT_NOT_FOUND,
            "the job is done, but the cache has dropped its result: send the request again");
        break;
    default:
        problem_set(&p, PROBLEM_JOB_NOT_FOUND, "there is no such job");
        break;
    }
    settle(t, TICKET_FAILED, &p);
}

/* A result that comes while the answer is being sent must go on where the lost one ended. */
static void end_repair(struct ticket *t, struct ticket_prompt *p, struct result *result)
{
    if (result != NULL && result_header(result)->crc32c == p->sent_crc32c) {
        result_hold(result);
        set_result(p, result);
    } else {
        t->send_failed = true;
    }
    exchange_wake(t->exchange);
}

static void submit_again(struct ticket *t, struct ticket_prompt *p, struct io *io, bool force);

/* struct waiter's `over`: a hold of the ticket came with the waiter. */
static void on_over(struct waiter *w, struct io *io, const struct job_status *status,
                    struct result *result)
{
    struct ticket_prompt *p =
        (struct ticket_prompt *)((char *)w - offsetof(struct ticket_prompt, waiter));
    struct ticket *t = p->ticket;

    if (result == NULL && t->kind == TICKET_ENCODE &&
        (status->state == JOB_DONE || status->state == JOB_NONE)) {
        count(status->state == JOB_DONE ? C_LOST_RESULTS : C_LOST_JOBS, 1);
        submit_again(t, p, io, status->state == JOB_DONE);
    } else if (t->sending) {
        end_repair(t, p, result);
    } else if (is_about_states(t)) {
        pthread_mutex_lock(&t->lock);
        p->status = *status;
        pthread_mutex_unlock(&t->lock);
        end_one(t);
    } else if (result != NULL) {
        result_hold(result);
        set_result(p, result);
        end_one(t);
    } else {
        fail_by_state(t, status);
    }
    release(t);
}

static void on_late(struct waiter *w)
{
    struct ticket_prompt *p =
        (struct ticket_prompt *)((char *)w - offsetof(struct ticket_prompt, waiter));
    struct ticket *t = p->ticket;

    if (t->sending)
        end_repair(t, p, NULL);
    else
        settle(t, TICKET_PENDING, NULL);
    release(t);
}

/* Its client may have left meanwhile: then nobody waits, and the job goes on all the same. */
static void add_waiter(struct ticket *t, struct ticket_prompt *p)
{
    pthread_mutex_lock(&t->lock);
    if (!t->closed) {
        memcpy(p->waiter.id, p->id, sizeof(p->waiter.id));
        p->waiter.base = p->model->base;
        p->waiter.over = on_over;
        p->waiter.late = on_late;
        p->waiter.deadline_ns = t->start_ns + t->wait_s * INT64_C(1000000000);
        hold(t);
        waiters_add(t->service->waiters, &p->waiter);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- submitting ---- */

static int64_t deadline_ms(const struct ticket *t)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000 + t->service->job_deadline_s * 1000;
}

/* Sends those of `list` as one group. False: the ticket is settled with what was wrong. */
static bool submit(struct ticket *t, struct io *io, struct ticket_prompt *const *list, size_t n,
                   bool force, struct submitted *results)
{
    const struct queue_limits limits = {t->service->max_open_jobs, t->service->max_tenant_jobs};
    struct job jobs[JOB_GROUP_MAX];
    enum submit_outcome outcome;
    struct queue_load load = {0};
    struct problem problem = {0};
    struct error err = {0};
    struct queue *queue;

    for (size_t i = 0; i < n; i++) {
        jobs[i] = (struct job){.n_tokens = list[i]->n_tokens,
                               .payload = list[i]->payload.data,
                               .payload_len = list[i]->payload.len};
        memcpy(jobs[i].id, list[i]->id, sizeof(jobs[i].id));
    }
    if (io_queue(&queue, io, t->model->base, &err) != OK ||
        queue_submit(queue, t->service->tenant, 1, deadline_ms(t), jobs, n, force, &limits,
                     &outcome, results, &load, &err) != OK) {
        io_queue_failed(io, &err);
        settle_error(t, &err, TROUBLE_QUEUE);
        return false;
    }
    t->tokens_ahead = load.tokens_ahead;
    if (outcome == SUBMIT_QUEUED) {
        count(C_SUBMITTED, 1);
        return true;
    }
    count(outcome == SUBMIT_FULL ? C_REFUSED_FULL : C_REFUSED_TENANT, 1);
    problem.retry_after_s = ticket_retry_after(t);
    if (outcome == SUBMIT_FULL)
        problem_set(&problem, PROBLEM_QUEUE_FULL, "the queue has its most of %lld open jobs",
                    (long long)limits.max_open);
    else
        problem_set(&problem, PROBLEM_TENANT_QUOTA, "you have your most of %lld open jobs",
                    (long long)limits.max_tenant);
    settle(t, TICKET_FAILED, &problem);
    return false;
}

/* From on_over: the job must run again, and the prompt waits on. */
static void submit_again(struct ticket *t, struct ticket_prompt *p, struct io *io, bool force)
{
    struct problem problem = {0};
    struct submitted submitted;

    if (++p->n_tries >= MAX_TRIES) {
        problem.retry_after_s = 30;
        problem_set(&problem, PROBLEM_CACHE_TOO_SMALL,
                    "the result was computed %d times and dropped by the cache before it could be "
                    "read",
                    p->n_tries);
        log_error("cache_too_small", "id=%s job=%.12s", exchange_request_id(t->exchange), p->id);
        if (t->sending)
            end_repair(t, p, NULL);
        settle(t, TICKET_FAILED, &problem);
        return;
    }
    add_waiter(t, p);
    if (submit(t, io, &p, 1, force, &submitted))
        waiters_submitted(t->service->waiters, &p->waiter);
    else if (t->sending)
        end_repair(t, p, NULL);
}

/* What the queue said of a job that is over: its result may have come meanwhile. True: it has to be
 * forced. */
static bool must_force(struct ticket *t, struct ticket_prompt *p, struct io *io,
                       const struct submitted *s)
{
    struct result *result = NULL;
    struct error err = {0};

    if (s->state == JOB_DONE && t->cache == CACHE_USE &&
        fetch_open(&result, t->service->fetch, io, p->id, &err) == OK && result != NULL) {
        if (waiters_remove(t->service->waiters, &p->waiter)) {
            set_result(p, result);
            end_one(t);
            release(t);
        } else {
            result_release(result);
        }
        return false;
    }
    return true;
}

/* Submits the prompts of `list`, which wait already. */
static void submit_group(struct ticket *t, struct io *io, struct ticket_prompt **list, size_t n)
{
    struct submitted results[JOB_GROUP_MAX];
    struct ticket_prompt *over[JOB_GROUP_MAX];
    size_t n_over = 0;

    if (!submit(t, io, list, n, t->cache == CACHE_REFRESH, results))
        return;
    for (size_t i = 0; i < n; i++) {
        list[i]->joined = results[i].joined;
        if (job_is_open(results[i].state)) {
            waiters_submitted(t->service->waiters, &list[i]->waiter);
        } else if (results[i].state == JOB_DEAD) {
            struct job_status status = {.state = JOB_DEAD};
            memcpy(status.error, results[i].error, sizeof(status.error));
            fail_by_state(t, &status);
            return;
        } else if (must_force(t, list[i], io, &results[i])) {
            over[n_over++] = list[i];
        }
    }
    if (n_over == 0 || !submit(t, io, over, n_over, true, results))
        return;
    for (size_t i = 0; i < n_over; i++) {
        over[i]->joined = results[i].joined;
        waiters_submitted(t->service->waiters, &over[i]->waiter);
    }
}

/* ---- what the kinds do first ---- */

/* Results that are in the cache. False: the ticket is settled. */
static bool look_up(struct ticket *t, struct io *io)
{
    struct error err = {0};

    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        struct result *result = NULL;
        if (t->cache == CACHE_REFRESH) { /* what is there goes; who asks next joins the job */
            if (cache_delete(io_cache(io), p->id, &err) != OK) {
                settle_error(t, &err, TROUBLE_CACHE);
                return false;
            }
            fetch_forget(t->service->fetch,
                         p->id); /* after it: nobody can open the old one again */
        } else if (t->cache == CACHE_USE &&
                   fetch_open(&result, t->service->fetch, io, p->id, &err) != OK) {
            settle_error(t, &err, TROUBLE_CACHE);
            return false;
        }
        p->was_missing = result == NULL;
        if (result != NULL) {
            set_result(p, result);
            end_one(t);
        }
    }
    return true;
}

static void begin_encode(struct ticket *t, struct io *io)
{
    struct ticket_prompt *missing[JOB_GROUP_MAX];
    size_t n = 0;

    if (!look_up(t, io))
        return;
    t->lookup_ms = clock_ms_since(t->start_ns);
    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        if (!p->was_missing) {
            count(C_HITS, 1);
            continue;
        }
        p->model = t->model;
        add_waiter(t, p); /* before the submit: an end cannot fall between */
        missing[n++] = p;
    }
    if (n == 0)
        return;
    t->submitted_ns = clock_now_ns();
    /* the same prompt twice is one job */
    struct ticket_prompt *unique[JOB_GROUP_MAX], *twice[JOB_GROUP_MAX];
    size_t n_unique = 0, n_twice = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < n_unique && strcmp(unique[k]->id, missing[i]->id) != 0)
            k++;
        if (k == n_unique)
            unique[n_unique++] = missing[i];
        else
            twice[n_twice++] = missing[i];
    }
    submit_group(t, io, unique, n_unique);
    for (size_t i = 0; i < n_twice; i++)
        waiters_submitted(t->service->waiters, &twice[i]->waiter);
    for (size_t i = 0; i < n; i++)
        count(missing[i]->joined ? C_JOINED : C_MISSES, 1);
    if (t->respond_async)
        settle(t, TICKET_PENDING, NULL);
}

/* Finds the queue that knows the job. False: the ticket is settled. */
static bool find_job(struct ticket *t, struct ticket_prompt *p, struct io *io)
{
    const struct model *models[CARD_MAX];
    size_t n = models_list(t->service->models, models);
    struct error err = {0};

    for (size_t i = 0; i < n && p->model == NULL && err.code == OK; i++) {
        struct queue *queue;
        if (io_queue(&queue, io, models[i]->base, &err) == OK &&
            queue_status(queue, (const char *const[]){p->id}, 1, &p->status, &err) == OK &&
            p->status.state != JOB_NONE) {
            p->model = models[i];
            model_hold(p->model);
        }
    }
    for (size_t i = 0; i < n; i++)
        model_release(models[i]);
    if (err.code != OK) {
        io_queue_failed(io, &err);
        settle_error(t, &err, TROUBLE_QUEUE);
        return false;
    }
    return true;
}

/* Waits for the end of a job that is open, if the request waits at all. */
static void wait_for(struct ticket *t, struct ticket_prompt *p)
{
    add_waiter(t, p);
    waiters_submitted(t->service->waiters, &p->waiter);
    /* it may have ended before it was in the table */
    waiters_stir(t->service->waiters, p->id, JOB_CANCELLED);
}

static void begin_result(struct ticket *t, struct io *io)
{
    if (!look_up(t, io))
        return;
    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        if (!p->was_missing)
            continue;
        if (!find_job(t, p, io))
            return;
        if (!job_is_open(p->status.state)) {
            fail_by_state(t, &p->status);
            return;
        }
        if (t->wait_s == 0)
            settle(t, TICKET_PENDING, NULL);
        else
            wait_for(t, p);
    }
}

static void begin_lookup(struct ticket *t, struct io *io)
{
    struct problem problem = {0};

    if (!look_up(t, io) || !t->prompts[0].was_missing)
        return;
    problem_set(&problem, PROBLEM_RESULT_NOT_FOUND, "the cache has no result of this key");
    settle(t, TICKET_FAILED, &problem);
}

static void begin_states(struct ticket *t, struct io *io)
{
    struct error err = {0};
    size_t n_known = 0;

    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        struct queue *queue;
        if (!find_job(t, p, io))
            return;
        n_known += p->model != NULL;
        if (t->kind == TICKET_CANCEL && p->model != NULL && job_is_open(p->status.state) &&
            (io_queue(&queue, io, p->model->base, &err) != OK ||
             queue_cancel(queue, p->id, &p->status.state, &err) != OK)) {
            io_queue_failed(io, &err);
            settle_error(t, &err, TROUBLE_QUEUE);
            return;
        }
    }
    if (n_known == 0) {
        fail_by_state(t, &(struct job_status){.state = JOB_NONE});
        return;
    }
    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        if (t->wait_s > 0 && p->model != NULL && job_is_open(p->status.state))
            wait_for(t, p);
        else
            end_one(t);
    }
}

static void begin(struct io *io, void *arg)
{
    struct problem problem = {0};
    struct ticket *t = arg;

    if (!is_about_states(t) && fetch_is_full(t->service->fetch)) {
        problem.retry_after_s = 1;
        problem_set(&problem, PROBLEM_OVERLOADED, "too many results are being sent just now");
        settle(t, TICKET_FAILED, &problem);
    } else if (t->kind == TICKET_ENCODE) {
        begin_encode(t, io);
    } else if (t->kind == TICKET_LOOKUP) {
        begin_lookup(t, io);
    } else if (t->kind == TICKET_RESULT) {
        begin_result(t, io);
    } else {
        begin_states(t, io);
    }
    end_one(t);
    release(t);
}

/* ---- the HTTP thread's side ---- */

struct ticket *ticket_new(const struct service *s, struct exchange *x, enum ticket_kind kind,
                          size_t n, const struct model *model)
{
    struct ticket *t = calloc(1, sizeof(*t));

    if (t == NULL || (t->prompts = calloc(n, sizeof(*t->prompts))) == NULL) {
        free(t);
        return NULL;
    }
    atomic_init(&t->refs, 1);
    pthread_mutex_init(&t->lock, NULL);
    t->kind = kind;
    t->service = s;
    t->exchange = x;
    exchange_hold(x);
    t->model = model;
    if (model != NULL)
        model_hold(model);
    t->n = n;
    t->n_open = n + 1;
    for (size_t i = 0; i < n; i++)
        t->prompts[i].ticket = t;
    t->start_ns = clock_now_ns();
    return t;
}

void ticket_start(struct ticket *t)
{
    t->task = (struct io_task){.run = begin, .arg = t};
    hold(t);
    exchange_park(t->exchange);
    io_pool_run(t->service->pool, &t->task);
}

void ticket_close(struct ticket *t)
{
    size_t n = 1; /* holds to give up: ours, and one a waiter */

    if (t == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    t->closed = true;
    for (size_t i = 0; i < t->n; i++) {
        struct waiter *w = &t->prompts[i].waiter;
        if (w->over != NULL && waiters_remove(t->service->waiters, w))
            n++;
    }
    pthread_mutex_unlock(&t->lock);
    while (n-- > 0)
        release(t);
}

/* ---- repair ---- */

static void repair(struct io *io, void *arg)
{
    struct ticket *t = arg;
    struct ticket_prompt *p = &t->prompts[t->repaired];
    struct result *result = NULL;
    struct error err = {0};

    if (++p->n_tries > MAX_TRIES || fetch_open(&result, t->service->fetch, io, p->id, &err) != OK ||
        result != NULL) {
        end_repair(t, p, result);
        result_release(result);
    } else if (t->kind != TICKET_ENCODE) { /* no payload, so nobody can compute it again */
        end_repair(t, p, NULL);
    } else {
        count(C_LOST_RESULTS, 1);
        p->model = t->model;
        submit_again(t, p, io, true);
    }
    release(t);
}

void ticket_repair(struct ticket *t, size_t prompt)
{
    struct ticket_prompt *p = &t->prompts[prompt];

    t->sending = true;
    t->repaired = prompt;
    p->sent_crc32c = result_header(p->result)->crc32c;
    t->start_ns = clock_now_ns(); /* its deadline counts anew */
    if (t->wait_s == 0)
        t->wait_s = t->service->wait_s;
    t->task = (struct io_task){.run = repair, .arg = t};
    hold(t);
    exchange_park(t->exchange);
    io_pool_run(t->service->pool, &t->task);
}

int ticket_retry_after(const struct ticket *t)
{
    int64_t s = 1 + t->tokens_ahead / TOKENS_A_SECOND;

    if (s > MAX_RETRY_AFTER_S)
        s = MAX_RETRY_AFTER_S;
    s += s * (clock_now_ns() / 1000 % 5 - 2) / 10; /* so that not all come back at once */
    return (int)(s < 1 ? 1 : s);
}
