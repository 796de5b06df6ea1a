#include "engine/residence.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct residence {
    const struct ops *ops;
    bool sleeps;
    int n_homes;
    struct home homes[GROUP_MAX_RANKS];
    /* Of each home, or of the first for all; NULL: it never slept. Who moves the weights alone
     * looks at them. */
    struct saved_weights *copies[GROUP_MAX_RANKS];

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t settled; /* is_moving became false */
    bool is_moving;         /* an engine is taking the weights somewhere */
    bool is_asleep;         /* they are */
    int n_engines, n_awake;
    struct source source; /* of zeros, until the engine whose it was has gone */
};

int residence_create(struct residence **out, const struct ops *ops, int n_homes, bool sleeps,
                     struct error *err)
{
    struct residence *r;

    *out = NULL;
    if (sleeps && ops->sleep == NULL)
        return error_set(
            err, ERR_INPUT,
            "engine: the backend %s has no device memory to give back: it cannot sleep", ops->name);
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return error_set(err, ERR_MEM, "engine: no memory");
    r->ops = ops;
    r->sleeps = sleeps;
    r->n_homes = n_homes;
    r->n_engines = r->n_awake = 1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->settled, NULL);
    *out = r;
    return OK;
}

struct home *residence_home(struct residence *r, int rank)
{
    return &r->homes[r->n_homes == 1 ? 0 : rank];
}

bool residence_sleeps(const struct residence *r)
{
    return r->sleeps;
}

bool residence_is_shared(struct residence *r)
{
    bool is_shared;

    pthread_mutex_lock(&r->lock);
    is_shared = r->n_engines > 1;
    pthread_mutex_unlock(&r->lock);
    return is_shared;
}

struct residence *residence_share(struct residence *r)
{
    pthread_mutex_lock(&r->lock);
    r->n_engines++;
    pthread_mutex_unlock(&r->lock);
    return r;
}

static void free_copies(struct residence *r)
{
    for (int i = 0; i < r->n_homes; i++)
        if (r->copies[i] != NULL)
            r->ops->saved_free(r->copies[i]);
    memset(r->copies, 0, sizeof(r->copies));
}

static void residence_free(struct residence *r)
{
    for (int i = 0; i < r->n_homes; i++) {
        struct home *home = &r->homes[i];
        if (home->device == NULL)
            continue;
        r->ops->bind(home->device, NULL); /* its thread has ended */
        replica_free(&home->replica);
        r->ops->close(home->device);
    }
    free_copies(r);
    source_close(&r->source);
    pthread_cond_destroy(&r->settled);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void residence_leave(struct residence *r, bool awake, struct source *source)
{
    bool was_last;

    if (r == NULL) {
        if (source != NULL)
            source_close(source);
        return;
    }
    pthread_mutex_lock(&r->lock);
    while (r->is_moving)
        pthread_cond_wait(&r->settled, &r->lock);
    if (source != NULL)
        r->source = *source;
    was_last = --r->n_engines == 0;
    r->n_awake -= awake;
    pthread_mutex_unlock(&r->lock);
    if (was_last)
        residence_free(r);
}

/* ---- to and fro ---- */

static bool has_shares(const struct residence *r)
{
    return r->homes[0].replica.portion.kind != PORTION_ALL;
}

static int save_home(void *arg, int rank, struct error *err)
{
    struct residence *r = arg;
    int rc = r->ops->bind(r->homes[rank].device, err);

    return rc == OK ? r->ops->save(r->homes[rank].device, &r->copies[rank], err) : rc;
}

static int save_all(struct residence *r, struct team *team, const struct team_watch *watch,
                    struct error *err)
{
    int rc = team_run(team, has_shares(r) ? TEAM_ALL : 1, save_home, r, watch, err);

    if (rc != OK)
        free_copies(r);
    return rc;
}

static int sleep_home(void *arg, int rank, struct error *err)
{
    struct residence *r = arg;
    int rc;

    if (rank >= r->n_homes)
        return OK;
    rc = r->ops->bind(r->homes[rank].device, err);
    return rc == OK ? r->ops->sleep(r->homes[rank].device, err) : rc;
}

static int wake_home(void *arg, int rank, struct error *err)
{
    struct residence *r = arg;
    int rc;

    if (rank >= r->n_homes)
        return OK;
    rc = r->ops->bind(r->homes[rank].device, err);
    return rc == OK ? r->ops->wake(r->homes[rank].device, r->copies[has_shares(r) ? rank : 0], err)
                    : rc;
}

/* Whether the caller is to move the weights: then it alone does, until settle(). */
static bool begin_moving(struct residence *r, bool to_sleep)
{
    bool moves;

    pthread_mutex_lock(&r->lock);
    while (r->is_moving)
        pthread_cond_wait(&r->settled, &r->lock);
    moves = r->is_moving = to_sleep ? r->n_awake == 1 : r->is_asleep;
    if (!moves)
        r->n_awake += to_sleep ? -1 : 1;
    pthread_mutex_unlock(&r->lock);
    return moves;
}

static void settle(struct residence *r, bool to_sleep, bool moved)
{
    pthread_mutex_lock(&r->lock);
    r->is_moving = false;
    if (moved) {
        r->is_asleep = to_sleep;
        r->n_awake += to_sleep ? -1 : 1;
    }
    pthread_cond_broadcast(&r->settled);
    pthread_mutex_unlock(&r->lock);
}

int residence_sleep(struct residence *r, struct team *team, const struct team_watch *watch,
                    struct error *err)
{
    int rc = OK;

    if (!begin_moving(r, true))
        return OK;
    if (r->copies[0] == NULL)
        rc = save_all(r, team, watch, err);
    if (rc == OK)
        rc = team_run(team, TEAM_ALL, sleep_home, r, watch, err);
    settle(r, true, rc == OK);
    return rc;
}

int residence_wake(struct residence *r, struct team *team, const struct team_watch *watch,
                   struct error *err)
{
    struct error ignored = {0};
    int rc;

    if (!begin_moving(r, false))
        return OK;
    rc = team_run(team, TEAM_ALL, wake_home, r, watch, err);
    if (rc != OK && rc != ERR_GPU) /* some may be awake: all or none */
        team_run(team, TEAM_ALL, sleep_home, r, NULL, &ignored);
    settle(r, false, rc == OK);
    return rc;
}
