#include "service/ticket.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/trouble.h"

enum {
    MAX_LOSSES = 3, /* of one prompt's job, or of its result, for one request */
    RETRY_AFTER_LOSSES_S = 30,
    RETRY_AFTER_UNKNOWN_S = 5, /* no live engine has said how fast it is */
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
    }
    pthread_mutex_unlock(&t->lock);
    if (first)
        exchange_wake(t->exchange);
}

/* It has waited enough. */
static void settle_late(struct ticket *t)
{
    bool all_sent;

    pthread_mutex_lock(&t->lock);
    t->is_late = true;
    all_sent = t->n_unsent == 0;
    pthread_mutex_unlock(&t->lock);
    if (all_sent)
        settle(t, TICKET_PENDING, NULL);
}

static void begin_sending(struct ticket *t)
{
    pthread_mutex_lock(&t->lock);
    t->n_unsent++;
    pthread_mutex_unlock(&t->lock);
}

/* What could not be sent has settled the ticket before. */
static void end_sending(struct ticket *t)
{
    bool is_due;

    pthread_mutex_lock(&t->lock);
    is_due = --t->n_unsent == 0 && t->is_late;
    pthread_mutex_unlock(&t->lock);
    if (is_due)
        settle(t, TICKET_PENDING, NULL);
}

/* A result that comes while the answer is being sent must go on where the lost one ended; NULL:
 * none will come. */
static void end_repair(struct ticket *t, struct result *result);

static void fail(struct ticket *t, const struct problem *problem)
{
    if (t->sending)
        end_repair(t, NULL);
    else
        settle(t, TICKET_FAILED, problem);
}

static void fail_with(struct ticket *t, const struct error *err, enum trouble_place place)
{
    struct problem problem = {0};

    trouble_describe(&problem, err, place, exchange_request_id(t->exchange));
    fail(t, &problem);
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

static void set_result(struct ticket_prompt *p, struct result *result)
{
    struct result *old;

    result_hold(result);
    pthread_mutex_lock(&p->ticket->lock);
    old = p->result;
    p->result = result;
    pthread_mutex_unlock(&p->ticket->lock);
    result_release(old);
}

static void note_time(struct ticket *t, double *longest, double ms)
{
    pthread_mutex_lock(&t->lock);
    if (ms > *longest)
        *longest = ms;
    pthread_mutex_unlock(&t->lock);
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
    fail(t, &p);
}

static void end_repair(struct ticket *t, struct result *result)
{
    struct ticket_prompt *p = &t->prompts[t->repaired];

    if (result != NULL && result_header(result)->crc32c == p->sent_crc32c)
        set_result(p, result);
    else
        t->send_failed = true;
    exchange_wake(t->exchange);
}

/* The end of a prompt, and of all that are the same; `result` is NULL where states are asked for.
 */
static void end_prompt(struct ticket_prompt *p, struct result *result)
{
    struct ticket *t = p->ticket;

    if (t->sending) {
        end_repair(t, result);
        return;
    }
    for (size_t i = 0; i < t->n; i++) {
        if (t->prompts[i].first != p)
            continue;
        if (result != NULL)
            set_result(&t->prompts[i], result);
        end_one(t);
    }
}

static void submit_again(struct ticket *t, struct ticket_prompt *p, struct io *io, bool lost_job);

/* struct waiter's `over`: a hold of the ticket came with the waiter. */
static void on_over(struct waiter *w, struct io *io, const struct job_end *end)
{
    struct ticket_prompt *p =
        (struct ticket_prompt *)((char *)w - offsetof(struct ticket_prompt, waiter));
    enum job_state state = end->status.state;
    struct ticket *t = p->ticket;

    if (is_about_states(t)) {
        pthread_mutex_lock(&t->lock);
        p->status = end->status;
        pthread_mutex_unlock(&t->lock);
        end_prompt(p, NULL);
    } else if (end->result != NULL) {
        note_time(t, &t->times.queue, end->queue_ms);
        note_time(t, &t->times.encode, end->encode_ms);
        note_time(t, &t->times.fetch, end->fetch_ms);
        end_prompt(p, end->result);
    } else if (t->kind == TICKET_ENCODE && (state == JOB_DONE || state == JOB_NONE)) {
        submit_again(t, p, io, state == JOB_NONE);
    } else {
        fail_by_state(t, &end->status);
    }
    release(t);
}

static void on_late(struct waiter *w)
{
    struct ticket_prompt *p =
        (struct ticket_prompt *)((char *)w - offsetof(struct ticket_prompt, waiter));
    struct ticket *t = p->ticket;

    if (t->sending)
        end_repair(t, NULL);
    else
        settle_late(t);
    release(t);
}

/* Its client may have left meanwhile: then nobody waits, and the job goes on all the same. */
static void add_waiter(struct ticket *t, struct ticket_prompt *p)
{
    pthread_mutex_lock(&t->lock);
    if (!t->closed) {
        memcpy(p->waiter.id, p->id, sizeof(p->waiter.id));
        p->waiter.base = p->model->base;
        p->waiter.wants_status = is_about_states(t);
        p->waiter.over = on_over;
        p->waiter.late = on_late;
        p->waiter.deadline_ns = t->start_ns + t->wait_s * INT64_C(1000000000);
        hold(t);
        waiters_add(t->service->waiters, &p->waiter);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- submitting ---- */

/* Sends those of `list` as one group. False: the ticket has failed. */
static bool submit(struct ticket *t, struct io *io, struct ticket_prompt *const *list, size_t n,
                   bool force, struct submitted *results)
{
    const struct queue_limits limits = {t->service->max_open_jobs, t->service->max_tenant_jobs};
    struct job jobs[JOB_GROUP_MAX];
    enum submit_outcome outcome;
    struct problem problem = {0};
    struct queue_load load;
    struct error err = {0};
    struct queue *queue;

    for (size_t i = 0; i < n; i++) {
        jobs[i] = (struct job){.n_tokens = list[i]->n_tokens,
                               .payload = list[i]->payload.data,
                               .payload_len = list[i]->payload.len};
        memcpy(jobs[i].id, list[i]->id, sizeof(jobs[i].id));
    }
    if (io_queue(&queue, io, t->model->base, &err) != OK ||
        queue_submit(queue, t->service->tenant, 1, t->service->job_deadline_s * 1000, jobs, n,
                     force, &limits, &outcome, results, &load, &err) != OK) {
        io_queue_failed(io, &err);
        fail_with(t, &err, TROUBLE_QUEUE);
        return false;
    }
    pthread_mutex_lock(&t->lock);
    t->load = load;
    t->has_load = true;
    for (size_t i = 0; i < n && outcome == SUBMIT_QUEUED; i++)
        list[i]->joined = results[i].joined;
    pthread_mutex_unlock(&t->lock);
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
    fail(t, &problem);
    return false;
}

/* The result may be there by now. `found`: it is, and who asked has it. False: the ticket has
 * failed. */
static bool serve_from_cache(struct ticket *t, struct ticket_prompt *p, struct io *io, bool *found)
{
    int64_t start_ns = clock_now_ns();
    struct result *result = NULL;
    struct error err = {0};
    bool waited;

    *found = false;
    if (t->cache != CACHE_USE)
        return true;
    if (fetch_open(&result, t->service->fetch, io, p->id, &err) != OK) {
        fail_with(t, &err, TROUBLE_CACHE);
        return false;
    }
    if ((*found = result != NULL)) {
        note_time(t, &t->times.fetch, clock_ms_since(start_ns));
        waited = waiters_remove(t->service->waiters, &p->waiter);
        end_prompt(p, result);
        if (waited)
            release(t);
    }
    result_release(result);
    return true;
}

/* Submits the prompts of `list`, which wait already. `force`: also those whose jobs are over. */
static void submit_group(struct ticket *t, struct io *io, struct ticket_prompt *const *list,
                         size_t n, bool force)
{
    struct submitted results[JOB_GROUP_MAX];
    struct ticket_prompt *over[JOB_GROUP_MAX];
    size_t n_over = 0;
    bool found;

    if (!submit(t, io, list, n, force, results))
        return;
    for (size_t i = 0; i < n; i++) {
        struct ticket_prompt *p = list[i];
        if (job_is_open(results[i].state)) {
            waiters_submitted(t->service->waiters, &p->waiter);
        } else if (results[i].state == JOB_DEAD) {
            struct job_status status = {.state = JOB_DEAD};
            memcpy(status.error, results[i].error, sizeof(status.error));
            fail_by_state(t, &status);
            return;
        } else if (!serve_from_cache(t, p, io, &found)) {
            return;
        } else if (!found) {
            over[n_over++] = p;
        }
    }
    if (n_over == 0 || !submit(t, io, over, n_over, true, results))
        return;
    for (size_t i = 0; i < n_over; i++)
        waiters_submitted(t->service->waiters, &over[i]->waiter);
}

/* Counts a loss. True: it was one too many, and the ticket has failed. */
static bool is_lost_too_often(struct ticket *t, struct ticket_prompt *p, bool lost_job)
{
    const char *request_id = exchange_request_id(t->exchange);
    int n = lost_job ? ++p->n_lost_jobs : ++p->n_lost_results;
    struct problem problem = {.retry_after_s = RETRY_AFTER_LOSSES_S};

    if (n < MAX_LOSSES) {
        count(lost_job ? C_LOST_JOBS : C_LOST_RESULTS, 1);
        return false;
    }
    count(lost_job ? C_GIVEN_UP_JOBS : C_GIVEN_UP_RESULTS, 1);
    if (lost_job) {
        log_error("job_lost_too_often", "id=%s job=%.12s", request_id, p->id);
        problem_set(&problem, PROBLEM_QUEUE_UNAVAILABLE, "the queue has lost the job %d times", n);
    } else {
        log_error("cache_too_small", "id=%s job=%.12s", request_id, p->id);
        problem_set(&problem, PROBLEM_CACHE_TOO_SMALL,
                    "the result was computed %d times and dropped by the cache before it could be "
                    "read",
                    n);
    }
    fail(t, &problem);
    return true;
}

/* Its job was lost, or was done and its result is gone: the prompt waits on. Each sending is one
 * interest in a job, and here the job of the earlier one is no more. */
static void submit_again(struct ticket *t, struct ticket_prompt *p, struct io *io, bool lost_job)
{
    if (is_lost_too_often(t, p, lost_job))
        return;
    begin_sending(t);
    add_waiter(t, p);
    submit_group(t, io, &p, 1, !lost_job);
    end_sending(t);
}

/* ---- what the kinds do first ---- */

/* Results that are in the cache. False: the ticket has failed. */
static bool look_up(struct ticket *t, struct io *io)
{
    struct error err = {0};

    for (size_t i = 0; i < t->n; i++) {
        struct ticket_prompt *p = &t->prompts[i];
        bool found = false;
        if (p->first != p)
            continue;
        if (t->cache == CACHE_REFRESH) { /* what is there goes; who asks next joins the job */
            if (cache_delete(io_cache(io), p->id, &err) != OK) {
                io_cache_failed(io, &err);
                fail_with(t, &err, TROUBLE_CACHE);
                return false;
            }
            /* after it: nobody can open the old one again */
            fetch_forget(t->service->fetch, p->id);
        } else if (!serve_from_cache(t, p, io, &found)) {
            return false;
        }
        p->was_missing = !found;
    }
    t->times.lookup = clock_ms_since(t->start_ns);
    return true;
}

static size_t list_missing(struct ticket *t, struct ticket_prompt *out[JOB_GROUP_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < t->n; i++)
        if (t->prompts[i].first == &t->prompts[i] && t->prompts[i].was_missing)
            out[n++] = &t->prompts[i];
    return n;
}

static void count_prompts(struct ticket *t)
{
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->n; i++) {
        const struct ticket_prompt *first = t->prompts[i].first;
        count(!first->was_missing                        ? C_HITS
              : first->joined || first != &t->prompts[i] ? C_JOINED
                                                         : C_MISSES,
              1);
    }
    pthread_mutex_unlock(&t->lock);
}

static void begin_encode(struct ticket *t, struct io *io)
{
    struct ticket_prompt *missing[JOB_GROUP_MAX];
    size_t n;

    if (!look_up(t, io))
        return;
    n = list_missing(t, missing);
    for (size_t i = 0; i < n; i++) {
        missing[i]->model = t->model;
        add_waiter(t, missing[i]); /* before the submit: an end cannot fall between */
    }
    if (n > 0)
        submit_group(t, io, missing, n, t->cache == CACHE_REFRESH);
    count_prompts(t);
    if (n > 0 && t->respond_async)
        settle_late(t);
}

/* Those that this model's queue knows leave the list. */
static int find_in_queue(const struct model *model, struct io *io, struct ticket_prompt **list,
                         size_t *n, struct error *err)
{
    struct job_status states[JOB_GROUP_MAX];
    const char *ids[JOB_GROUP_MAX];
    struct queue *queue;
    size_t n_left = 0;
    int rc;

    for (size_t i = 0; i < *n; i++)
        ids[i] = list[i]->id;
    if ((rc = io_queue(&queue, io, model->base, err)) != OK ||
        (rc = queue_status(queue, ids, *n, states, err)) != OK)
        return rc;
    for (size_t i = 0; i < *n; i++) {
        if (states[i].state == JOB_NONE) {
            list[n_left++] = list[i];
            continue;
        }
        list[i]->status = states[i];
        list[i]->model = model;
        model_hold(model);
    }
    *n = n_left;
    return OK;
}

/* Finds the queues that know these jobs. False: the ticket has failed. */
static bool find_jobs(struct ticket *t, struct io *io, struct ticket_prompt *const *list, size_t n)
{
    struct ticket_prompt *left[JOB_GROUP_MAX];
    const struct model *models[CARD_MAX];
    size_t n_models = models_list(t->service->models, models);
    struct error err = {0};

    memcpy(left, list, n * sizeof(left[0]));
    for (size_t i = 0; i < n_models && n > 0 && err.code == OK; i++)
        find_in_queue(models[i], io, left, &n, &err);
    for (size_t i = 0; i < n_models; i++)
        model_release(models[i]);
    if (err.code == OK)
        return true;
    io_queue_failed(io, &err);
    fail_with(t, &err, TROUBLE_QUEUE);
    return false;
}

/* Waits for the end of a job that was open a moment ago. */
static void wait_for(struct ticket *t, struct ticket_prompt *p)
{
    add_waiter(t, p);
    waiters_submitted_before(t->service->waiters, &p->waiter);
}

static void begin_result(struct ticket *t, struct io *io)
{
    struct ticket_prompt *missing[JOB_GROUP_MAX];
    size_t n, n_open = 0;
    bool found = false;

    if (!look_up(t, io))
        return;
    n = list_missing(t, missing);
    if (n == 0 || !find_jobs(t, io, missing, n))
        return;
    for (size_t i = 0; i < n; i++) {
        struct ticket_prompt *p = missing[i];
        if (job_is_open(p->status.state)) {
            missing[n_open++] = p;
        } else if (p->status.state == JOB_DONE && !serve_from_cache(t, p, io, &found)) {
            return;
        } else if (p->status.state != JOB_DONE || !found) {
            fail_by_state(t, &p->status);
            return;
        }
    }
    for (size_t i = 0; i < n_open && t->wait_s > 0; i++)
        wait_for(t, missing[i]);
    if (n_open > 0 && t->wait_s == 0)
        settle_late(t);
}

static void begin_lookup(struct ticket *t, struct io *io)
{
    struct problem problem = {0};

    if (!look_up(t, io) || !t->prompts[0].was_missing)
        return;
    problem_set(&problem, PROBLEM_RESULT_NOT_FOUND, "the cache has no result of this key");
    fail(t, &problem);
}

/* False: the ticket has failed. */
static bool cancel(struct ticket *t, struct io *io, struct ticket_prompt *p)
{
    struct error err = {0};
    struct queue *queue;

    if (io_queue(&queue, io, p->model->base, &err) == OK &&
        queue_cancel(queue, p->id, &p->status.state, &err) == OK)
        return true;
    io_queue_failed(io, &err);
    fail_with(t, &err, TROUBLE_QUEUE);
    return false;
}

static void begin_states(struct ticket *t, struct io *io)
{
    struct ticket_prompt *list[JOB_GROUP_MAX];
    size_t n = 0, n_known = 0;

    for (size_t i = 0; i < t->n; i++)
        if (t->prompts[i].first == &t->prompts[i])
            list[n++] = &t->prompts[i];
    if (!find_jobs(t, io, list, n))
        return;
    for (size_t i = 0; i < n; i++) {
        n_known += list[i]->model != NULL;
        if (t->kind == TICKET_CANCEL && job_is_open(list[i]->status.state) &&
            !cancel(t, io, list[i]))
            return;
    }
    if (n_known == 0) {
        fail_by_state(t, &(struct job_status){.state = JOB_NONE});
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (t->wait_s > 0 && job_is_open(list[i]->status.state))
            wait_for(t, list[i]);
        else
            end_prompt(list[i], NULL);
    }
}

static void begin(struct io *io, void *arg)
{
    struct problem problem = {0};
    struct ticket *t = arg;
    struct error err = {0};

    if (!is_about_states(t) && io_cache_check(io, &err) != OK) {
        fail_with(t, &err, TROUBLE_CACHE);
    } else if (!is_about_states(t) && fetch_is_full(t->service->fetch)) {
        problem.retry_after_s = 1;
        problem_set(&problem, PROBLEM_OVERLOADED, "too many results are being sent just now");
        fail(t, &problem);
    } else if (t->kind == TICKET_ENCODE) {
        begin_encode(t, io);
    } else if (t->kind == TICKET_LOOKUP) {
        begin_lookup(t, io);
    } else if (t->kind == TICKET_RESULT) {
        begin_result(t, io);
    } else {
        begin_states(t, io);
    }
    end_one(t); /* first: what is there is better than that it is coming */
    end_sending(t);
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
    t->n_unsent = 1;
    t->times = (struct ticket_times){-1, -1, -1, -1, -1};
    for (size_t i = 0; i < n; i++)
        t->prompts[i].ticket = t;
    t->start_ns = clock_now_ns();
    return t;
}

/* Of n <= JOB_GROUP_MAX. */
static void find_twins(struct ticket *t)
{
    for (size_t i = 0; i < t->n; i++) {
        size_t k = 0;
        while (strcmp(t->prompts[k].id, t->prompts[i].id) != 0)
            k++;
        t->prompts[i].first = &t->prompts[k];
    }
}

void ticket_start(struct ticket *t)
{
    find_twins(t);
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

    if (++p->n_repairs > MAX_LOSSES ||
        fetch_open(&result, t->service->fetch, io, p->id, &err) != OK || result != NULL) {
        end_repair(t, result);
        result_release(result);
    } else if (t->kind != TICKET_ENCODE) { /* no payload, so nobody can compute it again */
        end_repair(t, NULL);
    } else {
        p->model = t->model;
        submit_again(t, p, io, false);
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

int ticket_retry_after(struct ticket *t)
{
    double s = 1;

    pthread_mutex_lock(&t->lock);
    if (t->has_load)
        s = t->load.tokens_per_s > 0 ? (double)t->load.tokens_ahead / t->load.tokens_per_s
                                     : RETRY_AFTER_UNKNOWN_S;
    pthread_mutex_unlock(&t->lock);
    s = s < 1 ? 1 : s > MAX_RETRY_AFTER_S ? MAX_RETRY_AFTER_S : s;
    s *= 1 + (double)(clock_now_ns() / 1000 % 5 - 2) / 10;
    return s < 1 ? 1 : (int)s;
}
