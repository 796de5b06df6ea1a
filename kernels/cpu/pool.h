/* pool.h - the host threads of a device: all that a CPU computes with, and what fills a GPU.
 *
 * pool_run() hands out the indices 0 .. n_tasks-1 to all threads, the caller's among them, and
 * returns when all are done. One caller at a time. Workers spin for a moment before they sleep:
 * a forward pass is some two hundred short runs, and waking a sleeper costs as much as one. */
#pragma once
#include "base/error.h"

struct pool;

int pool_start(struct pool **out, int n_threads, struct error *err);
void pool_stop(struct pool *p); /* joins the threads; NULL is fine */

int pool_n_threads(const struct pool *p);

/* `thread` is 0 .. n_threads-1 and not shared at one moment: an index for scratch space. */
void pool_run(struct pool *p, void (*task)(void *arg, int index, int thread), void *arg,
              int n_tasks);
