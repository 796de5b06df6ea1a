/* pool.c - see pool.h.
 *
 * `next` holds the run's number in its upper half and the next index in its lower one, so that one
 * compare-and-swap claims an index of exactly the run that was looked at: what a worker read of an
 * older run is dropped when the swap fails. The caller works too and then waits for tasks, not for
 * workers: one that sleeps, or that the system does not let run, delays nobody. */
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/cores.h"

enum {
    SPINS = 4000,       /* some tens of microseconds */
    CLOSED = 0x7fffffff /* an index past every run's last */
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
    bool started;
};

struct pool {
    int n_threads;
    struct worker *workers; /* [n_threads - 1] */

    /* one run; written by the caller before `next` gets the run's number */
    void (*_Atomic task)(void *arg, int index, int thread);
    void *_Atomic arg;
    _Atomic int n_tasks;
    _Atomic int n_finished; /* tasks */
    _Atomic uint64_t next;  /* run << 32 | index */

    _Atomic bool stopping;
    _Atomic int n_asleep;
    pthread_mutex_t lock; /* guards only going to sleep on `wake` */
    pthread_cond_t wake;
};

static void work(struct pool *p, int thread)
{
    uint64_t next = atomic_load(&p->next);

    while ((int)(uint32_t)next < atomic_load(&p->n_tasks)) {
        void (*task)(void *, int, int) = atomic_load(&p->task);
        void *arg = atomic_load(&p->arg);
        if (atomic_compare_exchange_weak(&p->next, &next, next + 1)) {
            /* claimed: this run cannot end before the task does, so task and arg are its own */
            task(arg, (int)(uint32_t)next, thread);
            atomic_fetch_add(&p->n_finished, 1);
            next = atomic_load(&p->next);
        }
    }
}

static uint32_t run_of(struct pool *p)
{
    return (uint32_t)(atomic_load(&p->next) >> 32);
}

/* Returns when the run is no longer `seen`. */
static void wait_for_run(struct pool *p, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (run_of(p) != seen)
            return;
        cores_pause();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (run_of(p) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

/* Begins a run and wakes sleepers, if there are any. A worker counts itself asleep before it looks
 * at `next` for the last time, so one of the two sees the other. */
static void publish(struct pool *p)
{
    atomic_store(&p->next, (uint64_t)(run_of(p) + 1) << 32);
    if (atomic_load(&p->n_asleep) == 0)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t seen = 0;

    for (;;) {
        wait_for_run(p, seen);
        seen = run_of(p);
        if (atomic_load(&p->stopping))
            return NULL;
        work(p, w->index);
    }
}

int pool_start(struct pool **out, int n_threads, struct error *err)
{
    struct pool *p;
    int rc = OK;

    *out = NULL;
    if ((p = calloc(1, sizeof(*p))) == NULL)
        return error_set(err, ERR_MEM, "pool: no memory");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n_threads = n_threads;
    if ((p->workers = calloc((size_t)n_threads, sizeof(*p->workers))) == NULL) {
        rc = error_set(err, ERR_MEM, "pool: no memory for %d threads", n_threads);
        goto out;
    }
    for (int i = 0; i < n_threads - 1; i++) {
        struct worker *w = &p->workers[i];
        w->pool = p;
        w->index = i + 1;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            rc = error_set(err, ERR_MEM, "pool: cannot start thread %d of %d", i + 1, n_threads);
            goto out;
        }
        w->started = true;
    }
    *out = p;
    p = NULL;
out:
    pool_stop(p);
    return rc;
}

void pool_stop(struct pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stopping, true);
    /* a worker that is still looking for tasks must not take the last run's for this one's */
    atomic_store(&p->n_tasks, 0);
    publish(p);
    for (int i = 0; p->workers != NULL && i < p->n_threads - 1; i++)
        if (p->workers[i].started)
            pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_run(struct pool *p, void (*task)(void *arg, int index, int thread), void *arg,
              int n_tasks)
{
    int spins = 0;

    if (n_tasks <= 0)
        return;
    if (p->n_threads == 1 || n_tasks == 1) {
        for (int i = 0; i < n_tasks; i++)
            task(arg, i, 0);
        return;
    }
    /* no index can be claimed while task, arg and n_tasks change */
    atomic_store(&p->next, (uint64_t)(run_of(p) + 1) << 32 | CLOSED);
    atomic_store(&p->task, task);
    atomic_store(&p->arg, arg);
    atomic_store(&p->n_tasks, n_tasks);
    atomic_store(&p->n_finished, 0);
    publish(p);
    work(p, 0);
    while (atomic_load(&p->n_finished) < n_tasks) {
        cores_pause();
        if (++spins % SPINS == 0) /* more threads than cores: let them run */
            sched_yield();
    }
}
