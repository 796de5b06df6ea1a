#include "service/waiters.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"

enum {
    N_BUCKETS = 4096,
    TICK_MS = 50,
    RECHECK_MS = 5000, /* with a jitter of a fifth */
    CHECKS_A_TASK = 500
};

struct waiters {
    struct io_pool *pool;
    struct fetch *fetch;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards all below and the private fields of waiters */
    pthread_cond_t stop;
    bool stopping;
    int64_t limit_ns;
    struct waiter *buckets[N_BUCKETS];
};

/* A task that looks at jobs; it frees itself. */
struct check {
    struct io_task task;
    struct waiters *waiters;
    bool said_done;         /* an event did, of the only job: the result is looked for first */
    int waited_ms, took_ms; /* as the event has them */
    size_t n;
    struct check_job {
        char id[JOB_ID_SIZE], base[QUEUE_BASE_SIZE];
    } jobs[];
};

static struct waiter **bucket_of(struct waiters *t, const char *id)
{
    uint32_t hash = 0;

    for (int i = 0; i < 8 && id[i] != '\0'; i++)
        hash = hash * 31 + (unsigned char)id[i];
    return &t->buckets[hash % N_BUCKETS];
}

/* ---- looking at jobs ---- */

/* With the lock held. */
static bool is_one(const struct waiter *w, const char *id, bool wants_status)
{
    return w->submitted && w->wants_status == wants_status && strcmp(w->id, id) == 0;
}

static bool is_wanted(struct waiters *t, const char *id, bool wants_status)
{
    struct waiter *w;

    pthread_mutex_lock(&t->lock);
    w = *bucket_of(t, id);
    while (w != NULL && !is_one(w, id, wants_status))
        w = w->next;
    pthread_mutex_unlock(&t->lock);
    return w != NULL;
}

/* Takes those who wait for a job, its status or its result, out of the table; they are linked by
 * `next`. */
static struct waiter *take(struct waiters *t, const char *id, bool wants_status)
{
    struct waiter *taken = NULL;

    pthread_mutex_lock(&t->lock);
    for (struct waiter **at = bucket_of(t, id); *at != NULL;) {
        struct waiter *w = *at;
        if (!is_one(w, id, wants_status)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->listed = false;
        w->next = taken;
        taken = w;
        count(C_WAITERS, -1);
    }
    pthread_mutex_unlock(&t->lock);
    return taken;
}

static void tell(struct waiters *t, struct io *io, const char *id, bool wants_status,
                 const struct job_end *end)
{
    struct waiter *next;

    for (struct waiter *w = take(t, id, wants_status); w != NULL; w = next) {
        next = w->next;
        w->over(w, io, end);
    }
}

/* Those who want the result of a job that is over. */
static int tell_result(struct waiters *t, struct io *io, const char *id, struct job_end *end,
                       bool only_if_there, struct error *err)
{
    int64_t start_ns = clock_now_ns();
    int rc;

    if (!is_wanted(t, id, false))
        return OK;
    if (end->status.state == JOB_DONE &&
        (rc = fetch_open(&end->result, t->fetch, io, id, err)) != OK)
        return rc;
    end->fetch_ms = clock_ms_since(start_ns);
    if (end->result != NULL && end->queue_ms >= 0)
        metric_observe(&counters[C_QUEUE_WAIT_SECONDS], end->queue_ms / 1e3);
    if (end->result != NULL || !only_if_there)
        tell(t, io, id, false, end);
    result_release(end->result);
    end->result = NULL;
    return OK;
}

/* What Q says of a job. */
static int end_job(struct waiters *t, struct io *io, const char *id,
                   const struct job_status *status, struct error *err)
{
    struct job_end end = {.status = *status, .queue_ms = -1, .encode_ms = -1};

    if (job_is_open(status->state))
        return OK;
    if (status->started_ms != 0) {
        end.queue_ms = (int)(status->started_ms - status->enqueued_ms);
        if (status->finished_ms != 0)
            end.encode_ms = (int)(status->finished_ms - status->started_ms);
    }
    tell(t, io, id, true, &end);
    return tell_result(t, io, id, &end, false, err);
}

/* Asks for the states of `n` jobs of one queue, at most QUEUE_CLAIM_MAX, and tells who waits for
 * one that is over. */
static int look_at(struct waiters *t, struct io *io, const struct check_job *jobs, size_t n,
                   struct error *err)
{
    const char *ids[QUEUE_CLAIM_MAX];
    struct job_status *states;
    struct queue *queue;
    int rc;

    if ((states = calloc(n, sizeof(*states))) == NULL)
        return error_set(err, ERR_MEM, "waiters: no memory for the states of %zu jobs", n);
    for (size_t i = 0; i < n; i++)
        ids[i] = jobs[i].id;
    count(C_RECHECKS, (int)n);
    if ((rc = io_queue(&queue, io, jobs[0].base, err)) != OK ||
        (rc = queue_status(queue, ids, n, states, err)) != OK)
        io_queue_failed(io, err);
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = end_job(t, io, ids[i], &states[i], err);
    free(states);
    return rc;
}

static int by_base(const void *a, const void *b)
{
    return strcmp(((const struct check_job *)a)->base, ((const struct check_job *)b)->base);
}

/* What an event announced: who wants the result gets it without a question to Q. */
static int look_for_result(struct check *check, struct io *io, struct error *err)
{
    struct job_end end = {
        .status.state = JOB_DONE, .queue_ms = check->waited_ms, .encode_ms = check->took_ms};

    return tell_result(check->waiters, io, check->jobs[0].id, &end, true, err);
}

static bool is_settled(const struct check *check)
{
    const char *id = check->jobs[0].id;

    return !is_wanted(check->waiters, id, false) && !is_wanted(check->waiters, id, true);
}

static void run_check(struct io *io, void *arg)
{
    struct check *check = arg;
    struct error err = {0};
    int rc = OK;

    if (check->said_done) {
        rc = look_for_result(check, io, &err);
        if (rc == OK && is_settled(check))
            check->n = 0;
    }
    qsort(check->jobs, check->n, sizeof(check->jobs[0]), by_base);
    for (size_t i = 0, n; i < check->n && rc == OK; i += n) {
        for (n = 1; n < QUEUE_CLAIM_MAX && i + n < check->n; n++)
            if (strcmp(check->jobs[i + n].base, check->jobs[i].base) != 0)
                break;
        rc = look_at(check->waiters, io, &check->jobs[i], n, &err);
    }
    if (rc != OK) /* Redis away: the next recheck comes, and the waiters stay */
        log_debug("recheck_failed", "why=\"%s\"", err.text);
    free(check);
}

static struct check *new_check(struct waiters *t, size_t cap)
{
    struct check *check = calloc(1, sizeof(*check) + cap * sizeof(check->jobs[0]));

    if (check != NULL) {
        check->task = (struct io_task){.run = run_check, .arg = check};
        check->waiters = t;
    }
    return check;
}

static void add_job(struct check *check, const struct waiter *w)
{
    struct check_job *job = &check->jobs[check->n++];

    memcpy(job->id, w->id, sizeof(job->id));
    snprintf(job->base, sizeof(job->base), "%s", w->base);
}

/* `event`: what announced the end, or NULL. No memory for it: the next recheck does it. */
static void check_one(struct waiters *t, const struct waiter *w, const struct queue_event *event)
{
    struct check *check = new_check(t, 1);

    if (check == NULL)
        return;
    add_job(check, w);
    if (event != NULL && event->state == JOB_DONE) {
        check->said_done = true;
        check->waited_ms = event->waited_ms;
        check->took_ms = event->took_ms;
    }
    io_pool_run(t->pool, &check->task);
}

/* ---- the table ---- */

void waiters_add(struct waiters *t, struct waiter *w)
{
    struct waiter **bucket = bucket_of(t, w->id);

    pthread_mutex_lock(&t->lock);
    w->submitted = w->stirred = false;
    w->listed = true;
    w->next = *bucket;
    *bucket = w;
    if (t->limit_ns != 0 && (w->deadline_ns == 0 || w->deadline_ns > t->limit_ns))
        w->deadline_ns = t->limit_ns;
    count(C_WAITERS, 1);
    pthread_mutex_unlock(&t->lock);
}

void waiters_submitted(struct waiters *t, struct waiter *w)
{
    pthread_mutex_lock(&t->lock);
    w->submitted = true;
    if (w->listed && w->stirred) /* its end was announced while it was being submitted */
        check_one(t, w, NULL);
    pthread_mutex_unlock(&t->lock);
}

void waiters_submitted_before(struct waiters *t, struct waiter *w)
{
    pthread_mutex_lock(&t->lock);
    w->submitted = true;
    if (w->listed)
        check_one(t, w, NULL);
    pthread_mutex_unlock(&t->lock);
}

bool waiters_remove(struct waiters *t, struct waiter *w)
{
    struct waiter **at = bucket_of(t, w->id);
    bool was_listed;

    pthread_mutex_lock(&t->lock);
    if ((was_listed = w->listed)) {
        while (*at != w)
            at = &(*at)->next;
        *at = w->next;
        w->listed = false;
        count(C_WAITERS, -1);
    }
    pthread_mutex_unlock(&t->lock);
    return was_listed;
}

void waiters_stir(struct waiters *t, const struct queue_event *event)
{
    struct waiter *found = NULL;

    if (job_is_open(event->state))
        return;
    pthread_mutex_lock(&t->lock);
    for (struct waiter *w = *bucket_of(t, event->id); w != NULL; w = w->next)
        if (strcmp(w->id, event->id) == 0) {
            w->stirred = true;
            if (w->submitted)
                found = w;
        }
    if (found != NULL)
        check_one(t, found, event);
    pthread_mutex_unlock(&t->lock);
}

void waiters_recheck(struct waiters *t)
{
    struct check *check = NULL;

    pthread_mutex_lock(&t->lock);
    for (size_t b = 0; b < N_BUCKETS; b++)
        for (struct waiter *w = t->buckets[b]; w != NULL; w = w->next) {
            if (!w->submitted) {
                w->stirred = true; /* what is made up for may have been its end */
                continue;
            }
            if (check != NULL && strcmp(check->jobs[check->n - 1].id, w->id) == 0)
                continue; /* another waiter of the same job */
            if (check == NULL && (check = new_check(t, CHECKS_A_TASK)) == NULL)
                break;
            add_job(check, w);
            if (check->n == CHECKS_A_TASK) {
                io_pool_run(t->pool, &check->task);
                check = NULL;
            }
        }
    pthread_mutex_unlock(&t->lock);
    if (check != NULL)
        io_pool_run(t->pool, &check->task);
}

void waiters_limit(struct waiters *t, int64_t deadline_ns)
{
    pthread_mutex_lock(&t->lock);
    t->limit_ns = deadline_ns;
    for (size_t b = 0; b < N_BUCKETS; b++)
        for (struct waiter *w = t->buckets[b]; w != NULL; w = w->next)
            if (w->deadline_ns == 0 || w->deadline_ns > deadline_ns)
                w->deadline_ns = deadline_ns;
    pthread_mutex_unlock(&t->lock);
}

/* ---- the thread ---- */

/* With the lock held: takes out who has waited enough. */
static struct waiter *take_late(struct waiters *t)
{
    int64_t now = clock_now_ns();
    struct waiter *taken = NULL;

    for (size_t b = 0; b < N_BUCKETS; b++)
        for (struct waiter **at = &t->buckets[b]; *at != NULL;) {
            struct waiter *w = *at;
            /* one being submitted waits on: "accepted" may be said only of what is */
            if (!w->submitted || w->deadline_ns == 0 || w->deadline_ns > now) {
                at = &w->next;
                continue;
            }
            *at = w->next;
            w->listed = false;
            w->next = taken;
            taken = w;
            count(C_WAITERS, -1);
        }
    return taken;
}

static void *run(void *arg)
{
    struct waiters *t = arg;
    int64_t next_check_ns = clock_now_ns() + RECHECK_MS * INT64_C(1000000);
    bool stopping;

    do {
        struct waiter *late, *next;
        int64_t until_ns = clock_now_ns() + TICK_MS * INT64_C(1000000);

        pthread_mutex_lock(&t->lock);
        while (!t->stopping && clock_cond_wait(&t->stop, &t->lock, until_ns))
            ;
        stopping = t->stopping;
        late = take_late(t);
        pthread_mutex_unlock(&t->lock);
        for (; late != NULL; late = next) {
            next = late->next;
            late->late(late);
        }
        if (!stopping && clock_now_ns() > next_check_ns) {
            waiters_recheck(t);
            next_check_ns = clock_now_ns() +
                            (RECHECK_MS * 4 / 5 + clock_now_ns() / 1000 % (RECHECK_MS * 2 / 5)) *
                                INT64_C(1000000);
        }
    } while (!stopping);
    return NULL;
}

int waiters_start(struct waiters **out, struct io_pool *pool, struct fetch *fetch,
                  struct error *err)
{
    struct waiters *t = calloc(1, sizeof(*t));

    *out = NULL;
    if (t == NULL)
        return error_set(err, ERR_MEM, "waiters: no memory");
    t->pool = pool;
    t->fetch = fetch;
    pthread_mutex_init(&t->lock, NULL);
    clock_cond_init(&t->stop);
    if (pthread_create(&t->thread, NULL, run, t) != 0) {
        waiters_free(t);
        return error_set(err, ERR_MEM, "waiters: cannot start their thread");
    }
    t->started = true;
    *out = t;
    return OK;
}

void waiters_stop(struct waiters *t)
{
    if (t == NULL || !t->started)
        return;
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->stop);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    t->started = false;
}

void waiters_free(struct waiters *t)
{
    if (t == NULL)
        return;
    waiters_stop(t);
    for (size_t b = 0; b < N_BUCKETS; b++)
        for (struct waiter *w = t->buckets[b], *next; w != NULL; w = next) {
            next = w->next;
            w->listed = false;
            w->late(w);
        }
    pthread_cond_destroy(&t->stop);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
