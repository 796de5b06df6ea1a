#include "service/events.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "jobs/queue_events.h"
#include "service/counters.h"

enum {
    BLOCK_MS = 250,    /* until a new model is followed */
    MAX_EVENTS = 1000, /* a read */
    RETRY_MS = 100
};

struct events {
    struct waiters *waiters;
    pthread_t thread;
    bool started;
    /* the thread's own: */
    struct queue_events *reader;
    struct queue_event *list; /* [MAX_EVENTS] */
    bool away;                /* Redis did not answer */

    pthread_mutex_t lock; /* guards all below */
    bool stopping;
    bool changed; /* the bases, since the reader was told */
    size_t n;
    char bases[CARD_MAX][QUEUE_BASE_SIZE];
};

static bool is_stopping(struct events *e)
{
    bool stopping;

    pthread_mutex_lock(&e->lock);
    stopping = e->stopping;
    pthread_mutex_unlock(&e->lock);
    return stopping;
}

/* Tells the reader what is followed now, where that has changed. */
static int follow(struct events *e, bool *fresh, struct error *err)
{
    char bases[CARD_MAX][QUEUE_BASE_SIZE];
    const char *pointers[CARD_MAX];
    bool changed;
    size_t n;
    int rc;

    pthread_mutex_lock(&e->lock);
    changed = e->changed;
    e->changed = false;
    n = e->n;
    memcpy(bases, e->bases, n * sizeof(bases[0]));
    pthread_mutex_unlock(&e->lock);
    if (!changed)
        return OK;
    for (size_t i = 0; i < n; i++)
        pointers[i] = bases[i];
    if ((rc = queue_events_follow(e->reader, pointers, n, fresh, err)) != OK) {
        pthread_mutex_lock(&e->lock);
        e->changed = true; /* it has to be told again */
        pthread_mutex_unlock(&e->lock);
    }
    return rc;
}

static int read_once(struct events *e, struct error *err)
{
    bool fresh = false, missed = false;
    size_t n = 0;
    int rc;

    if ((rc = follow(e, &fresh, err)) != OK)
        return rc;
    if (fresh) /* what happened before is known only to the jobs */
        waiters_recheck(e->waiters);
    if ((rc = queue_events_read(e->reader, BLOCK_MS, e->list, MAX_EVENTS, &n, &missed, err)) != OK)
        return rc;
    count(C_EVENTS, (int)n);
    count(C_EVENTS_MISSED, missed);
    for (size_t i = 0; i < n; i++)
        waiters_stir(e->waiters, &e->list[i]);
    if (missed || e->away)
        waiters_recheck(e->waiters);
    return OK;
}

static void *run(void *arg)
{
    struct events *e = arg;

    while (!is_stopping(e)) {
        struct error err = {0};
        bool failed = read_once(e, &err) != OK;
        if (failed && !e->away)
            log_warn("events_away", "why=\"%s\"", err.text);
        else if (!failed && e->away)
            log_info("events_back", "followed again");
        e->away = failed;
        if (failed)
            clock_pause_ms(RETRY_MS);
    }
    return NULL;
}

void events_follow(void *events, const struct model *const *models, size_t n)
{
    struct events *e = events;

    pthread_mutex_lock(&e->lock);
    e->changed = e->changed || n != e->n;
    for (size_t i = 0; i < n && i < CARD_MAX; i++) {
        e->changed = e->changed || strcmp(e->bases[i], models[i]->base) != 0;
        memcpy(e->bases[i], models[i]->base, sizeof(e->bases[i]));
    }
    e->n = n < CARD_MAX ? n : CARD_MAX;
    pthread_mutex_unlock(&e->lock);
}

int events_start(struct events **out, const char *queue_url, int timeout_ms,
                 struct waiters *waiters, struct error *err)
{
    struct events *e = calloc(1, sizeof(*e));
    int rc;

    *out = NULL;
    if (e == NULL)
        return error_set(err, ERR_MEM, "events: no memory");
    pthread_mutex_init(&e->lock, NULL);
    e->waiters = waiters;
    if ((e->list = calloc(MAX_EVENTS, sizeof(*e->list))) == NULL) {
        rc = error_set(err, ERR_MEM, "events: no memory for %d events", MAX_EVENTS);
        goto out;
    }
    if ((rc = queue_events_open(&e->reader, queue_url, timeout_ms, err)) != OK)
        goto out;
    if (pthread_create(&e->thread, NULL, run, e) != 0) {
        rc = error_set(err, ERR_MEM, "events: cannot start their thread");
        goto out;
    }
    e->started = true;
    *out = e;
    e = NULL; /* handed over */
out:
    events_free(e);
    return rc;
}

void events_stop(struct events *e)
{
    if (e == NULL || !e->started)
        return;
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void events_free(struct events *e)
{
    if (e == NULL)
        return;
    events_stop(e);
    queue_events_close(e->reader);
    free(e->list);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
