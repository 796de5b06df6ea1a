#include "engine/group/team.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"

enum { TICK_MS = 50, END_MS = 2000 };

struct member {
    struct team *team;
    pthread_t thread;
    bool started;
    /* guarded by team->lock */
    bool has_work, ends, failed;
    struct error err;      /* where it failed */
    pthread_cond_t posted; /* has_work or ends became true */
};

struct team {
    int n;
    struct member members[GROUP_MAX_RANKS];
    bool broken; /* the caller's own */

    pthread_mutex_t lock; /* guards what follows, and the members' flags */
    pthread_cond_t done;  /* n_working fell, or a rank failed */
    team_fn *fn;
    void *arg;
    int n_working;
    int rc, failed; /* of the failure that came first: its rank */
    struct error err;
};

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    int rank = (int)(m - t->members);

    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct error err = {0};
        team_fn *fn;
        void *fn_arg;
        int rc;

        while (!m->has_work && !m->ends)
            pthread_cond_wait(&m->posted, &t->lock);
        if (!m->has_work)
            break;
        fn = t->fn;
        fn_arg = t->arg;
        pthread_mutex_unlock(&t->lock);
        rc = fn(fn_arg, rank, &err);
        pthread_mutex_lock(&t->lock);
        m->has_work = false;
        t->n_working--;
        if (rc != OK) {
            m->failed = true;
            m->err = err;
        }
        if (rc != OK && (t->rc == OK || (rc == ERR_GPU && t->rc != ERR_GPU))) {
            t->rc = rc;
            t->failed = rank;
            t->err = err;
        }
        pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

int team_start(struct team **out, int n, struct error *err)
{
    struct team *t;

    *out = NULL;
    if ((t = calloc(1, sizeof(*t))) == NULL)
        return error_set(err, ERR_MEM, "team: no memory");
    t->n = n;
    pthread_mutex_init(&t->lock, NULL);
    clock_cond_init(&t->done);
    for (int i = 0; i < n; i++) {
        struct member *m = &t->members[i];
        m->team = t;
        pthread_cond_init(&m->posted, NULL);
    }
    for (int i = 0; i < n; i++) {
        struct member *m = &t->members[i];
        m->started = pthread_create(&m->thread, NULL, member_main, m) == 0;
        if (!m->started) {
            team_stop(t);
            return error_set(err, ERR_MEM, "team: cannot start a thread");
        }
    }
    *out = t;
    return OK;
}

void team_stop(struct team *t)
{
    if (t == NULL || t->broken)
        return;
    for (int i = 0; i < t->n; i++) {
        struct member *m = &t->members[i];
        pthread_mutex_lock(&t->lock);
        m->ends = true;
        pthread_cond_signal(&m->posted);
        pthread_mutex_unlock(&t->lock);
        if (m->started)
            pthread_join(m->thread, NULL);
        pthread_cond_destroy(&m->posted);
    }
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* When each rank was seen to take a step last. */
struct progress {
    uint64_t steps[GROUP_MAX_RANKS];
    int64_t seen_ns[GROUP_MAX_RANKS];
};

/* The rank that hangs; -1: none does. */
static int find_hanging(const struct team_watch *watch, struct progress *p, const bool *working,
                        int n)
{
    int64_t now = clock_now_ns();
    int hanging = -1;

    for (int i = 0; i < n; i++) {
        uint64_t steps = watch->steps(watch->arg, i);
        if (steps != p->steps[i] || !working[i]) {
            p->steps[i] = steps;
            p->seen_ns[i] = now;
        }
        /* of several that stand still, others may wait for one that stood still before them */
        if (working[i] && !watch->waits(watch->arg, i) &&
            (now - p->seen_ns[i]) / 1000000 > watch->deadline_ms &&
            (hanging < 0 || p->seen_ns[i] < p->seen_ns[hanging]))
            hanging = i;
    }
    return hanging;
}

static void post(struct team *t, int ranks, team_fn *fn, void *arg)
{
    t->fn = fn;
    t->arg = arg;
    t->rc = OK;
    for (int i = 0; i < t->n; i++)
        t->members[i].failed = false;
    for (int i = 0; i < t->n; i++)
        if (ranks == TEAM_ALL || (ranks >> i & 1) != 0) {
            t->members[i].has_work = true;
            t->n_working++;
            pthread_cond_signal(&t->members[i].posted);
        }
}

/* Until all have returned, or it is clear that they will not; true: they have. */
static bool wait_for_all(struct team *t, const struct team_watch *watch)
{
    struct progress progress = {0};
    int64_t tick_ns = INT64_C(1000000) * TICK_MS, end_ns = 0;
    bool gave_up = false;

    for (int i = 0; i < t->n; i++)
        progress.seen_ns[i] = clock_now_ns();
    while (t->n_working > 0) {
        bool working[GROUP_MAX_RANKS], fatal = t->rc == ERR_GPU;
        int failed = t->failed;
        struct error err = t->err;

        if (end_ns != 0 && clock_now_ns() > end_ns)
            return false;
        for (int i = 0; i < t->n; i++)
            working[i] = t->members[i].has_work;
        if (watch == NULL || gave_up) {
            clock_cond_wait(&t->done, &t->lock, clock_now_ns() + tick_ns);
            continue;
        }
        pthread_mutex_unlock(&t->lock); /* the callbacks may take their time */
        if (!fatal && watch->deadline_ms > 0 &&
            (failed = find_hanging(watch, &progress, working, t->n)) >= 0) {
            err = (struct error){0};
            error_set(&err, ERR_TIME, "hangs: no step for %d ms", watch->deadline_ms);
            fatal = true;
        }
        if (fatal) {
            watch->give_up(watch->arg, failed, err.text);
            end_ns = clock_now_ns() + INT64_C(1000000) * END_MS;
            gave_up = true;
        }
        pthread_mutex_lock(&t->lock);
        if (fatal && t->rc != ERR_GPU) {
            t->rc = ERR_GPU;
            t->failed = failed;
            t->err = err;
        }
        if (!fatal && t->n_working > 0)
            clock_cond_wait(&t->done, &t->lock, clock_now_ns() + tick_ns);
    }
    return true;
}

int team_run(struct team *t, int ranks, team_fn *fn, void *arg, const struct team_watch *watch,
             struct error *err)
{
    struct error why;
    int rc;

    if (t->broken)
        return error_set(err, ERR_GPU, "the group of ranks has failed before");
    pthread_mutex_lock(&t->lock);
    post(t, ranks, fn, arg);
    t->broken = !wait_for_all(t, watch);
    rc = t->rc;
    why = t->err;
    pthread_mutex_unlock(&t->lock);
    if (rc != OK && watch != NULL && rc == ERR_GPU && !t->broken)
        watch->give_up(watch->arg, t->failed, why.text);
    return rc == OK ? OK : error_set(err, (enum err_code)rc, "%s", why.text);
}

bool team_is_broken(const struct team *t)
{
    return t->broken;
}

int team_failed_rank(const struct team *t)
{
    return t->failed;
}

bool team_failure(struct team *t, int rank, struct error *out)
{
    const struct member *m = &t->members[rank];
    bool failed;

    pthread_mutex_lock(&t->lock);
    failed = m->failed;
    if (failed)
        *out = m->err;
    pthread_mutex_unlock(&t->lock);
    return failed;
}
