#include "engine/worker/keeper.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    TICK_MS = 200,
    SWEEP_EVERY_MS = 2000,   /* shorter than what /readyz takes for silence */
    REGISTER_AGAIN_MS = 5000 /* after a failure */
};

struct keeper {
    struct keeper_options options;
    pthread_t thread;
    bool started;
    struct queue *queue; /* holds a fixed name's lock */
    /* when each was done last; the thread's own */
    int64_t swept_ns, named_ns, registered_ns;
    int register_wait_ms;
    bool told_asleep; /* as it was registered */
    struct {
        uint64_t seen; /* how often the step had advanced */
        int64_t since_ns;
    } steps[N_STEPS];

    _Atomic bool stops, gave_up;
    _Atomic int64_t last_tick_ns;
};

static bool is_due(int64_t *last_ns, int every_ms)
{
    if (*last_ns != 0 && clock_ms_since(*last_ns) < every_ms)
        return false;
    *last_ns = clock_now_ns();
    return true;
}

/* For how long a step has stood still though it does not rest. */
static double stands_still_ms(struct keeper *k, enum step step)
{
    const struct keeper_options *o = &k->options;
    const struct pulse *pulse = &o->vitals->pulses[step];
    bool rests = atomic_load(&pulse->rests);
    uint64_t advances = atomic_load(&pulse->advances);

    if (step == STEP_ENCODE)
        advances += engine_steps(o->engine);
    if (rests || advances != k->steps[step].seen) {
        k->steps[step].seen = advances;
        k->steps[step].since_ns = clock_now_ns();
        return 0.0;
    }
    return clock_ms_since(k->steps[step].since_ns);
}

static bool hangs(struct keeper *k)
{
    static const char *const names[N_STEPS] = {"stage", "encode", "store"};
    bool hangs = false;

    for (enum step step = 0; step < N_STEPS; step++) {
        double ms = stands_still_ms(k, step);
        if (ms <= k->options.hang_ms)
            continue;
        hangs = true;
        if (!atomic_exchange(&k->gave_up, true))
            log_error("engine_hangs", "step=%s ms=%.0f", names[step], ms);
    }
    return hangs;
}

static void renew_leases(struct keeper *k)
{
    const struct keeper_options *o = &k->options;
    struct claimed_job jobs[HAND_MAX];
    enum lease_answer answers[HAND_MAX];
    struct error err = {0};
    size_t n;

    if (hand_oldest_ms(o->hand) < o->lease_ms / 3 || (n = hand_copy(o->hand, jobs)) == 0)
        return;
    if (vitals_note_queue(o->vitals, queue_renew(k->queue, jobs, n, o->lease_ms, answers, &err),
                          &err) == OK)
        hand_note_answers(o->hand, jobs, answers, n);
}

/* While every engine is at a long batch nobody claims, and a claim is what else brings lost and
 * delayed jobs back. It shows, too, that Q answers. */
static void sweep_queue(struct keeper *k)
{
    struct error err = {0};
    int64_t n_moved;

    vitals_note_queue(k->options.vitals, queue_sweep(k->queue, &n_moved, &err), &err);
}

/* Another engine can only have the name when we did not get to renew it for long: we go. */
static void renew_name(struct keeper *k)
{
    const struct keeper_options *o = &k->options;
    struct error err = {0};
    int64_t n_back;
    int rc = queue_take_name(k->queue, o->owner, o->lease_ms, &n_back, &err);

    vitals_note_queue(o->vitals, rc == ERR_BUSY ? OK : rc, &err);
    if (rc == ERR_BUSY && !atomic_exchange(&k->gave_up, true))
        log_error("name_lost", "owner=%s", o->owner);
}

static void register_again(struct keeper *k)
{
    const struct keeper_options *o = &k->options;
    struct error err = {0};
    int rc;

    k->told_asleep = atomic_load(&o->vitals->is_asleep);
    rc = registration_publish(o->registration, k->told_asleep, &err);

    k->register_wait_ms = o->register_every_ms;
    if (vitals_note_queue(o->vitals, rc, &err) != OK && k->register_wait_ms > REGISTER_AGAIN_MS)
        k->register_wait_ms = REGISTER_AGAIN_MS;
}

static void *keeper_main(void *arg)
{
    struct keeper *k = arg;
    const struct keeper_options *o = &k->options;

    while (!atomic_load(&k->stops)) {
        atomic_store(&k->last_tick_ns, clock_now_ns());
        if (!hangs(k))
            renew_leases(k);
        if (o->owner_is_fixed && is_due(&k->named_ns, o->lease_ms / 3))
            renew_name(k);
        if (atomic_load(&o->vitals->is_asleep) != k->told_asleep)
            k->registered_ns = 0;
        if (is_due(&k->registered_ns, k->register_wait_ms))
            register_again(k);
        if (is_due(&k->swept_ns, SWEEP_EVERY_MS))
            sweep_queue(k);
        clock_pause_ms(TICK_MS);
    }
    return NULL;
}

/* A fixed name belongs to one live engine. Its former self may have died a moment ago: its lock
 * then ends by itself, which is waited for. */
static int take_name(struct keeper *k, struct error *err)
{
    const struct keeper_options *o = &k->options;
    int64_t start = clock_now_ns(), n_back = 0;
    int rc;

    for (;;) {
        struct error why = {0};
        rc = queue_take_name(k->queue, o->owner, o->lease_ms, &n_back, &why);
        if (rc != ERR_BUSY || clock_ms_since(start) > 1.5 * o->lease_ms) {
            if (rc != OK)
                return error_set(err, why.code, "%s", why.text);
            break;
        }
        clock_pause_ms(TICK_MS);
    }
    if (n_back > 0)
        log_info("jobs_taken_back", "owner=%s jobs=%lld", o->owner, (long long)n_back);
    return OK;
}

int keeper_start(struct keeper **out, const struct keeper_options *options, struct error *err)
{
    struct keeper *k;
    int rc;

    *out = NULL;
    if ((k = calloc(1, sizeof(*k))) == NULL)
        return error_set(err, ERR_MEM, "keeper: no memory");
    k->options = *options;
    if ((rc = queue_open(&k->queue, options->queue_url, options->base, options->redis_timeout_ms,
                         err)) != OK ||
        (options->owner_is_fixed && (rc = take_name(k, err)) != OK))
        goto out;
    k->named_ns = k->registered_ns = clock_now_ns();
    for (int i = 0; i < N_STEPS; i++)
        k->steps[i].since_ns = clock_now_ns();
    k->register_wait_ms = options->register_every_ms;
    atomic_store(&k->last_tick_ns, clock_now_ns());
    if (pthread_create(&k->thread, NULL, keeper_main, k) != 0) {
        rc = error_set(err, ERR_MEM, "keeper: cannot start a thread");
        goto out;
    }
    k->started = true;
    *out = k;
    k = NULL;
out:
    keeper_stop(k);
    return rc;
}

void keeper_stop(struct keeper *k)
{
    if (k == NULL)
        return;
    atomic_store(&k->stops, true);
    if (k->started)
        pthread_join(k->thread, NULL);
    if (k->options.owner_is_fixed && k->queue != NULL) /* the next one need not wait for it */
        queue_drop_name(k->queue, k->options.owner, NULL);
    queue_close(k->queue);
    free(k);
}

bool keeper_gave_up(struct keeper *k)
{
    return atomic_load(&k->gave_up);
}

double keeper_tick_ms(struct keeper *k)
{
    return clock_ms_since(atomic_load(&k->last_tick_ns));
}
