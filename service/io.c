#include "service/io.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    MAX_QUEUES = 64,
    STALLED_MS = 1000 /* that a Redis which did not answer is left alone */
};

struct io {
    struct io_pool *pool;
    pthread_t thread;
    struct cache *cache;
    struct open_queue {
        char base[QUEUE_BASE_SIZE];
        struct queue *queue;
    } queues[MAX_QUEUES];
    size_t n_queues;
    int64_t queue_asked_ns, cache_asked_ns; /* the last io_queue() and io_cache() */
};

struct io_pool {
    struct io_options options;
    _Atomic int64_t queue_stalled_ns, cache_stalled_ns; /* last without an answer; 0: never */
    pthread_mutex_t lock;                               /* guards first, last, stopping */
    pthread_cond_t more;
    struct io_task *first, *last;
    bool stopping;
    size_t n_threads; /* started */
    struct io *threads;
};

static struct io_task *next_task(struct io_pool *pool)
{
    struct io_task *task;

    pthread_mutex_lock(&pool->lock);
    while (pool->first == NULL && !pool->stopping)
        pthread_cond_wait(&pool->more, &pool->lock);
    if ((task = pool->first) != NULL)
        pool->first = task->next;
    pthread_mutex_unlock(&pool->lock);
    return task;
}

static void *work(void *arg)
{
    struct io *io = arg;
    struct io_task *task;

    while ((task = next_task(io->pool)) != NULL)
        task->run(io, task->arg);
    return NULL;
}

static bool is_stalled(const _Atomic int64_t *stalled_ns)
{
    int64_t ns = atomic_load(stalled_ns);

    return ns != 0 && clock_ms_since(ns) < STALLED_MS;
}

static void note_failure(const struct io *io, _Atomic int64_t *stalled_ns, int64_t asked_ns,
                         const struct error *err)
{
    if (err->code == ERR_IO && clock_ms_since(asked_ns) > io->pool->options.timeout_ms / 2)
        atomic_store(stalled_ns, clock_now_ns());
}

struct cache *io_cache(struct io *io)
{
    io->cache_asked_ns = clock_now_ns();
    return io->cache;
}

void io_cache_failed(struct io *io, const struct error *err)
{
    note_failure(io, &io->pool->cache_stalled_ns, io->cache_asked_ns, err);
}

int io_cache_check(const struct io *io, struct error *err)
{
    if (is_stalled(&io->pool->cache_stalled_ns))
        return error_set(err, ERR_IO, "io: the cache's Redis did not answer a moment ago");
    return OK;
}

int io_queue(struct queue **out, struct io *io, const char *base, struct error *err)
{
    struct open_queue *slot;
    size_t i = 0;
    int rc;

    *out = NULL;
    io->queue_asked_ns = clock_now_ns();
    if (is_stalled(&io->pool->queue_stalled_ns))
        return error_set(err, ERR_IO, "io: the queue's Redis did not answer a moment ago");
    while (i < io->n_queues && strcmp(io->queues[i].base, base) != 0)
        i++;
    if (i == io->n_queues) {
        if (i == MAX_QUEUES) { /* models that came and went: the oldest makes room */
            queue_close(io->queues[0].queue);
            memmove(&io->queues[0], &io->queues[1], (MAX_QUEUES - 1) * sizeof(io->queues[0]));
            i = --io->n_queues;
        }
        slot = &io->queues[i];
        if ((rc = queue_open(&slot->queue, io->pool->options.queue_url, base,
                             io->pool->options.timeout_ms, err)) != OK)
            return rc;
        snprintf(slot->base, sizeof(slot->base), "%s", base);
        io->n_queues++;
    }
    *out = io->queues[i].queue;
    return OK;
}

void io_queue_failed(struct io *io, const struct error *err)
{
    note_failure(io, &io->pool->queue_stalled_ns, io->queue_asked_ns, err);
}

void io_pool_run(struct io_pool *pool, struct io_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->first == NULL)
        pool->first = task;
    else
        pool->last->next = task;
    pool->last = task;
    pthread_cond_signal(&pool->more);
    pthread_mutex_unlock(&pool->lock);
}

int io_pool_start(struct io_pool **out, const struct io_options *options, struct error *err)
{
    struct io_pool *pool = calloc(1, sizeof(*pool));
    int rc = OK;

    *out = NULL;
    if (pool == NULL ||
        (pool->threads = calloc((size_t)options->n_threads, sizeof(*pool->threads))) == NULL) {
        free(pool);
        return error_set(err, ERR_MEM, "io: no memory for %d threads", options->n_threads);
    }
    pool->options = *options;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->more, NULL);
    for (int i = 0; i < options->n_threads && rc == OK; i++) {
        struct io *io = &pool->threads[i];
        io->pool = pool;
        if ((rc = cache_open(&io->cache, options->cache_urls, options->timeout_ms, err)) != OK)
            break;
        if (pthread_create(&io->thread, NULL, work, io) != 0) {
            cache_close(io->cache);
            io->cache = NULL;
            rc = error_set(err, ERR_MEM, "io: cannot start thread %d", i);
            break;
        }
        pool->n_threads++;
    }
    if (rc != OK) {
        io_pool_stop(pool);
        return rc;
    }
    *out = pool;
    return OK;
}

void io_pool_stop(struct io_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->n_threads; i++) {
        struct io *io = &pool->threads[i];
        pthread_join(io->thread, NULL);
        cache_close(io->cache);
        for (size_t k = 0; k < io->n_queues; k++)
            queue_close(io->queues[k].queue);
    }
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}
