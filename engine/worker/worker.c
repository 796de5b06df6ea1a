/* worker.c - see worker.h.
 *
 * Here the three steps get their threads; what each does is in its own file. With one thread the
 * engine stood still while results were stored, 12 ms for a large one, as long as it takes to
 * compute it on a fast GPU. */
#include "engine/worker/worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worker/belt.h"
#include "engine/worker/encoding.h"
#include "engine/worker/hand.h"
#include "engine/worker/keeper.h"
#include "engine/worker/staging.h"
#include "engine/worker/storing.h"
#include "engine/worker/vitals.h"
#include "engine/worker/work.h"
#include "jobs/queue.h"

enum {
    TICK_MAX_MS = 10000,
    CONTACT_MS = 5000 /* Redis counts as reachable for so long after an answer */
};

struct worker {
    struct worker_options options;
    char base[QUEUE_BASE_SIZE];
    struct vitals vitals;
    struct hand *hand;
    struct keeper *keeper;
    struct belt *belt;
    struct work work;
    struct staging *staging;
    struct encoding *encoding;
    struct storing *storing;
    pthread_t threads[N_STEPS];
    bool started[N_STEPS];

    _Atomic bool draining, ended;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t step_ended;
    int n_running;
    int rc; /* of the encoding step */
    struct error err;
};

/* ---- the steps' threads ---- */

static void end_step(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    if (--w->n_running == 0) {
        atomic_store(&w->ended, true);
        pthread_cond_broadcast(&w->step_ended);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *stage_main(void *arg)
{
    struct worker *w = arg;

    staging_run(w->staging);
    end_step(w);
    return NULL;
}

static void *encode_main(void *arg)
{
    struct worker *w = arg;
    struct error err = {0};
    int rc = encoding_run(w->encoding, &err);

    if (rc != OK)
        log_error("engine_failed", "text=\"%s\"", err.text);
    pthread_mutex_lock(&w->lock);
    w->rc = rc;
    w->err = err;
    pthread_mutex_unlock(&w->lock);
    end_step(w);
    return NULL;
}

static void *store_main(void *arg)
{
    struct worker *w = arg;

    storing_run(w->storing);
    end_step(w);
    return NULL;
}

static int start_steps(struct worker *w, struct error *err)
{
    static void *(*const mains[N_STEPS])(void *) = {stage_main, encode_main, store_main};

    w->n_running = N_STEPS; /* the last one to be started claims: all or none have work */
    for (int i = N_STEPS - 1; i >= 0; i--) {
        w->started[i] = pthread_create(&w->threads[i], NULL, mains[i], w) == 0;
        if (!w->started[i])
            return error_set(err, ERR_MEM, "worker: cannot start a thread");
    }
    return OK;
}

/* Each ends when the one before has; one that was never started has ended. */
static void join_steps(struct worker *w)
{
    belt_drain(w->belt);
    if (!w->started[STEP_STAGE])
        belt_end_staging(w->belt);
    if (!w->started[STEP_ENCODE])
        belt_end_encoding(w->belt);
    for (int i = 0; i < N_STEPS; i++)
        if (w->started[i])
            pthread_join(w->threads[i], NULL);
}

/* ---- from outside ---- */

int worker_start(struct worker **out, struct engine *engine, struct registration *registration,
                 const struct worker_options *options, struct error *err)
{
    struct worker *w;
    struct keeper_options keeper_options;
    const struct model_card *card = registration_card(registration);
    int rc;

    *out = NULL;
    if ((w = calloc(1, sizeof(*w))) == NULL)
        return error_set(err, ERR_MEM, "worker: no memory");
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->step_ended);
    vitals_init(&w->vitals);
    vitals_note_proof(&w->vitals, true);
    w->options = *options;
    if (w->options.max_jobs > BATCH_MAX)
        w->options.max_jobs = BATCH_MAX;
    queue_base(w->base, card->id, card->weights, card->compute);
    if ((rc = hand_create(&w->hand, err)) != OK || (rc = belt_create(&w->belt, err)) != OK)
        goto out;
    w->work = (struct work){.options = &w->options,
                            .base = w->base,
                            .card = card,
                            .info = engine_info(engine),
                            .belt = w->belt,
                            .hand = w->hand,
                            .vitals = &w->vitals};
    keeper_options = (struct keeper_options){
        .queue_url = options->queue_url,
        .base = w->base,
        .owner = options->owner,
        .owner_is_fixed = options->owner_is_fixed,
        .redis_timeout_ms = options->redis_timeout_ms,
        .lease_ms = options->lease_ms,
        .hang_ms = options->hang_ms,
        .register_every_ms = options->register_every_ms,
        .registration = registration,
        .engine = engine,
        .hand = w->hand,
        .vitals = &w->vitals,
    };
    if ((rc = staging_open(&w->staging, &w->work, err)) != OK ||
        (rc = encoding_open(&w->encoding, &w->work, engine, err)) != OK ||
        (rc = storing_open(&w->storing, &w->work, err)) != OK ||
        (rc = keeper_start(&w->keeper, &keeper_options, err)) != OK ||
        (rc = start_steps(w, err)) != OK)
        goto out;
    *out = w;
    w = NULL;
out:
    worker_stop(w);
    return rc;
}

void worker_drain(struct worker *w)
{
    atomic_store(&w->draining, true);
    belt_drain(w->belt);
}

bool worker_wait(struct worker *w, int timeout_ms, int *rc, struct error *err)
{
    int64_t until_ns = clock_now_ns() + timeout_ms * INT64_C(1000000);
    bool ended;

    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->ended) && clock_cond_wait(&w->step_ended, &w->lock, until_ns))
        ;
    ended = atomic_load(&w->ended);
    if (ended) {
        *rc = w->rc;
        if (w->rc != OK)
            error_set(err, w->err.code, "%s", w->err.text);
    }
    pthread_mutex_unlock(&w->lock);
    return ended;
}

bool worker_has_failed(struct worker *w)
{
    return keeper_gave_up(w->keeper) || (atomic_load(&w->ended) && !atomic_load(&w->draining));
}

int worker_release(struct worker *w, struct error *err)
{
    struct claimed_job jobs[HAND_MAX];
    struct queue *queue = NULL;
    size_t n = hand_copy(w->hand, jobs);
    int rc;

    /* a connection of its own: the others belong to threads that may be stuck */
    if ((rc = queue_open(&queue, w->options.queue_url, w->base, w->options.redis_timeout_ms,
                         err)) != OK)
        return rc;
    for (size_t i = 0; i < n && rc == OK; i++) {
        enum lease_answer answer;
        rc = queue_release(queue, &jobs[i], &answer, err);
    }
    queue_close(queue);
    return rc;
}

void worker_stop(struct worker *w)
{
    if (w == NULL)
        return;
    atomic_store(&w->draining, true);
    if (w->belt != NULL)
        join_steps(w);
    keeper_stop(w->keeper);
    storing_close(w->storing);
    encoding_close(w->encoding);
    staging_close(w->staging);
    belt_free(w->belt);
    hand_free(w->hand);
    pthread_cond_destroy(&w->step_ended);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool worker_is_live(struct worker *w, char *why, size_t cap)
{
    double tick_ms = keeper_tick_ms(w->keeper);

    if (worker_has_failed(w)) {
        snprintf(why, cap, "the engine failed or hangs");
        return false;
    }
    snprintf(why, cap, "last tick %.0f ms ago", tick_ms);
    /* the keeper may wait for Redis, which is no reason to be killed */
    return tick_ms < TICK_MAX_MS + 4.0 * w->options.redis_timeout_ms;
}

bool worker_is_ready(struct worker *w, char *why, size_t cap)
{
    double contact_ms = clock_ms_since(atomic_load(&w->vitals.last_contact_ns));
    double proof_ms = clock_ms_since(atomic_load(&w->vitals.last_proof_ns));

    if (atomic_load(&w->draining)) {
        snprintf(why, cap, "draining");
        return false;
    }
    if (worker_has_failed(w)) {
        snprintf(why, cap, "the engine failed or hangs");
        return false;
    }
    if (atomic_load(&w->vitals.cache_is_away)) {
        snprintf(why, cap, "no answer from the cache's Redis");
        return false;
    }
    if (contact_ms > CONTACT_MS) {
        snprintf(why, cap, "no answer from the queue's Redis");
        return false;
    }
    if (atomic_load(&w->vitals.proof_failed)) {
        snprintf(why, cap, "the last forward pass failed, %.0f s ago", proof_ms / 1e3);
        return false;
    }
    if (atomic_load(&w->vitals.is_asleep)) {
        snprintf(why, cap, "ready; asleep");
        return true;
    }
    snprintf(why, cap, "ready; the last forward pass was good, %.0f s ago", proof_ms / 1e3);
    return true;
}

int worker_metrics(struct worker *w, struct buf *out, struct error *err)
{
    metric_set(&w->vitals.metrics[M_IN_HAND], (int64_t)hand_n(w->hand));
    return metrics_render(w->vitals.metrics, N_METRICS, out, err);
}
