#include "service/events.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "jobs/queue_events.h"
#include "service/counters.h"

enum {
    BLOCK_MS = 1000,
    MAX_EVENTS = 1000, /* a read */
    RETRY_MS = 100
};

struct reader {
    struct events *events;
    char base[QUEUE_BASE_SIZE];
    pthread_t thread;
    atomic_bool stopping;
    bool wanted; /* while the list is gone through */
};

struct events {
    const char *queue_url;
    int timeout_ms;
    struct waiters *waiters;
    pthread_mutex_t lock; /* guards all below */
    bool stopped;
    struct reader *readers[CARD_MAX];
    size_t n;
};

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    nanosleep(&t, NULL);
}

/* Reads until something breaks or the reader stops. */
static int follow(struct reader *r, struct queue_events *queue, struct queue_event *list,
                  struct error *err)
{
    const char *base = r->base;
    bool fresh;
    int rc;

    if ((rc = queue_events_follow(queue, &base, 1, &fresh, err)) != OK)
        return rc;
    /* what happened before the place is known only to the jobs */
    waiters_recheck(r->events->waiters, r->base);
    while (!atomic_load(&r->stopping)) {
        bool missed = false;
        size_t n = 0;
        if ((rc = queue_events_read(queue, BLOCK_MS, list, MAX_EVENTS, &n, &missed, err)) != OK)
            return rc;
        count(C_EVENTS, (int)n);
        if (missed) {
            count(C_EVENTS_MISSED, 1);
            waiters_recheck(r->events->waiters, r->base);
        }
        for (size_t i = 0; i < n; i++)
            waiters_stir(r->events->waiters, list[i].id, list[i].state);
    }
    return OK;
}

static void *run(void *arg)
{
    struct reader *r = arg;
    struct queue_event *list = calloc(MAX_EVENTS, sizeof(*list));
    bool was_away = false;

    while (list != NULL && !atomic_load(&r->stopping)) {
        struct queue_events *queue = NULL;
        struct error err = {0};
        if (queue_events_open(&queue, r->events->queue_url, r->events->timeout_ms, &err) == OK)
            follow(r, queue, list, &err);
        if (err.code != OK && !was_away)
            log_warn("events_away", "why=\"%s\"", err.text);
        was_away = err.code != OK;
        queue_events_close(queue);
        if (!atomic_load(&r->stopping))
            pause_ms(RETRY_MS);
    }
    free(list);
    return NULL;
}

static void stop_reader(struct reader *r)
{
    atomic_store(&r->stopping, true);
    pthread_join(r->thread, NULL);
    free(r);
}

static void start_reader(struct events *e, const char *base)
{
    struct reader *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return;
    r->events = e;
    r->wanted = true;
    snprintf(r->base, sizeof(r->base), "%s", base);
    if (pthread_create(&r->thread, NULL, run, r) != 0) {
        log_error("events", "why=\"cannot start a thread\"");
        free(r);
        return;
    }
    e->readers[e->n++] = r;
}

void events_follow(void *events, const struct model *const *models, size_t n)
{
    struct events *e = events;
    struct reader *gone[CARD_MAX];
    size_t n_gone = 0, n_left = 0;

    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < e->n; i++)
        e->readers[i]->wanted = false;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < e->n; i++)
            if (strcmp(e->readers[i]->base, models[k]->base) == 0)
                e->readers[i]->wanted = true;
    for (size_t i = 0; i < e->n; i++) {
        if (e->readers[i]->wanted)
            e->readers[n_left++] = e->readers[i];
        else
            gone[n_gone++] = e->readers[i];
    }
    e->n = n_left;
    for (size_t k = 0; k < n && !e->stopped; k++) {
        size_t i = 0;
        while (i < e->n && strcmp(e->readers[i]->base, models[k]->base) != 0)
            i++;
        if (i == e->n && e->n < CARD_MAX)
            start_reader(e, models[k]->base);
    }
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < n_gone; i++)
        stop_reader(gone[i]);
}

int events_start(struct events **out, const char *queue_url, int timeout_ms,
                 struct waiters *waiters, struct error *err)
{
    struct events *e = calloc(1, sizeof(*e));

    *out = NULL;
    if (e == NULL)
        return error_set(err, ERR_MEM, "events: no memory");
    e->queue_url = queue_url;
    e->timeout_ms = timeout_ms;
    e->waiters = waiters;
    pthread_mutex_init(&e->lock, NULL);
    *out = e;
    return OK;
}

void events_stop(struct events *e)
{
    struct reader *readers[CARD_MAX];
    size_t n;

    if (e == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    n = e->n;
    memcpy(readers, e->readers, n * sizeof(readers[0]));
    e->n = 0;
    e->stopped = true;
    pthread_mutex_unlock(&e->lock);
    for (size_t i = 0; i < n; i++)
        atomic_store(&readers[i]->stopping, true);
    for (size_t i = 0; i < n; i++)
        stop_reader(readers[i]);
}

void events_free(struct events *e)
{
    if (e == NULL)
        return;
    events_stop(e);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
