/* test_pool.c - the CPU's threads: every index once, runs one after another. Under the thread
 * sanitizer this is the test that matters. */
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "kernels/cpu/pool.h"
#include "tests/check.h"

enum { MAX = 1000 };

static struct error err;

struct run {
    int counts[MAX];
    int owner[64]; /* written without a lock: no two tasks of one thread index at a time */
};

static void count(void *arg, int index, int thread)
{
    struct run *r = arg;

    r->counts[index]++;
    r->owner[thread]++;
}

static void every_index_once(void)
{
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        struct pool *p;
        CHECK_OK(pool_start(&p, n_threads, &err));
        CHECK_INT(pool_n_threads(p), n_threads);
        for (int n = 0; n < MAX; n = n * 3 + 1) {
            static struct run r;
            int done = 0;
            memset(&r, 0, sizeof(r));
            pool_run(p, count, &r, n);
            for (int i = 0; i < MAX; i++)
                CHECK_INT(r.counts[i], i < n);
            for (int t = 0; t < 64; t++) {
                CHECK(r.owner[t] == 0 || t < n_threads);
                done += r.owner[t];
            }
            CHECK_INT(done, n);
        }
        pool_stop(p);
    }
}

/* Long enough apart for the workers to sleep, and close enough for them to be on their way there.
 */
static void runs_after_a_pause(void)
{
    struct pool *p;

    CHECK_OK(pool_start(&p, 3, &err));
    for (int i = 0; i < 200; i++) {
        static struct run r;
        struct timespec pause = {0, i % 20 == 0 ? 2000000 : i * 1000};
        memset(&r, 0, sizeof(r));
        nanosleep(&pause, NULL);
        pool_run(p, count, &r, 7);
        for (int j = 0; j < 7; j++)
            CHECK_INT(r.counts[j], 1);
    }
    pool_stop(p);
    pool_stop(NULL);
}

struct watched {
    _Atomic bool is_over; /* the run: its memory may be gone */
    _Atomic int *late;
    int spins; /* how long a task takes */
};

static void note_when_late(void *arg, int index, int thread)
{
    struct watched *w = arg;

    (void)index;
    (void)thread;
    for (volatile int i = 0; i < w->spins; i++)
        ;
    if (atomic_load(&w->is_over))
        atomic_fetch_add(w->late, 1);
}

/* A worker that looks for a task while the pool is being stopped must not find the last run's once
 * more. Runs of many lengths, so that some worker looks just then. */
static void nothing_runs_after_a_run(void)
{
    static struct watched runs[20000]; /* static, so that a late task has something to read */
    static _Atomic int late;

    for (int i = 0; i < 20000; i++) {
        struct pool *p;
        runs[i].late = &late;
        runs[i].spins = i % 1000 * 40;
        CHECK_OK(pool_start(&p, 2, &err));
        pool_run(p, note_when_late, &runs[i], 2);
        atomic_store(&runs[i].is_over, true);
        pool_stop(p);
    }
    CHECK_INT(atomic_load(&late), 0);
}

int main(void)
{
    RUN(nothing_runs_after_a_run);
    RUN(every_index_once);
    RUN(runs_after_a_pause);
    return check_result();
}
