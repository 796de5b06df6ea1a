/* io.h - the threads that talk to Redis, so that HTTP threads never wait for it.
 *
 * Each thread of the pool has its own connections: one to the cache, and one to the queue of each
 * model, opened when first needed. What is to be done travels as a task; tasks start in the order
 * given, on whatever thread is free. */
#pragma once
#include "base/error.h"
#include "jobs/cache.h"
#include "jobs/queue.h"

struct io; /* one thread's connections */
struct io_pool;

typedef void io_fn(struct io *io, void *arg);

/* Belongs to whoever runs it and must live until `run` was called; it may be given again then. */
struct io_task {
    io_fn *run;
    void *arg;
    struct io_task *next; /* private */
};

struct io_options {
    const char *queue_url, *cache_urls; /* borrowed as long as the pool lives */
    int n_threads;
    int timeout_ms;
};

int io_pool_start(struct io_pool **out, const struct io_options *options, struct error *err);
void io_pool_stop(struct io_pool *pool); /* runs what was given, then joins; NULL is fine */
void io_pool_run(struct io_pool *pool, struct io_task *task);

/* For tasks: */
struct cache *io_cache(struct io *io);
int io_queue(struct queue **out, struct io *io, const char *base, struct error *err);
/* What was asked of that queue failed. When it took long, Redis does not answer at all, and for a
 * second io_queue() fails at once: else all threads would wait for it, and answers from the cache
 * with them. */
void io_queue_failed(struct io *io, const struct error *err);
/* The same of the cache: for a second nothing new should be begun that needs it (ERR_IO). What is
 * being sent already may go on asking. */
void io_cache_failed(struct io *io, const struct error *err);
int io_cache_check(const struct io *io, struct error *err);
