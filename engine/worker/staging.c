#include "engine/worker/staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worker/outcome.h"
#include "jobs/cache.h"

enum {
    DOORBELL_MS = 1000,
    LOOK_EVERY_MS = 1, /* for work, when the engine gets free soon */
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 2000
};

struct staging {
    const struct work *work;
    struct queue *queue;
    struct cache *cache;
    struct outcomes outcomes;
    int backoff_ms;
    bool alone;      /* a solo job was met: claim when nothing else is in hand */
    bool rang;       /* the doorbell, when it was asked last */
    bool owes_claim; /* a ring was taken, or it is time for a claim without one */
    int64_t look_ns; /* there was nothing to claim ahead; not again before */
};

int staging_open(struct staging **out, const struct work *work, struct error *err)
{
    const struct worker_options *o = work->options;
    struct staging *s;
    int rc;

    *out = NULL;
    if ((s = calloc(1, sizeof(*s))) == NULL)
        return error_set(err, ERR_MEM, "staging: no memory");
    s->work = work;
    s->owes_claim = true; /* of who was here before */
    if ((rc = queue_open(&s->queue, o->queue_url, work->base, o->redis_timeout_ms, err)) != OK ||
        (rc = cache_open(&s->cache, o->cache_urls, o->redis_timeout_ms, err)) != OK)
        goto out;
    vitals_note_queue(work->vitals, OK, NULL); /* it has answered */
    s->outcomes = (struct outcomes){
        .queue = s->queue, .hand = work->hand, .vitals = work->vitals, .step = STEP_STAGE};
    *out = s;
    s = NULL;
out:
    staging_close(s);
    return rc;
}

void staging_close(struct staging *s)
{
    if (s == NULL)
        return;
    queue_close(s->queue);
    cache_close(s->cache);
    free(s);
}

/* ---- what was claimed ---- */

static enum dtype dtype_of(const char *name)
{
    return strcmp(name, "float32") == 0    ? DTYPE_F32
           : strcmp(name, "float16") == 0  ? DTYPE_F16
           : strcmp(name, "bfloat16") == 0 ? DTYPE_BF16
                                           : DTYPE_COUNT;
}

/* False: it names something that this engine does not know. */
static bool request_of(struct engine_request *out, const struct payload *p)
{
    *out = (struct engine_request){
        .layers = p->layers, .n_layers = p->n_layers, .dtype = dtype_of(p->dtype)};
    return out->dtype != DTYPE_COUNT && engine_level_find(&out->level, p->output) &&
           engine_modalities_find(&out->modalities, p->modalities);
}

/* Parses and checks what the queue says to do; it came over the network. */
static bool accept_job(struct staging *s, struct held *h)
{
    struct error err = {0};

    if (payload_read(&h->payload, h->job.payload, h->job.payload_len, &err) != OK) {
        log_error("bad_payload", "id=%.12s text=\"%s\"", h->job.id, err.text);
        outcome_fail(&s->outcomes, h, true, "bad_payload");
        return false;
    }
    h->parsed = true;
    if (!request_of(&h->request, &h->payload)) {
        log_error("unsupported_output", "id=%.12s output=%s dtype=%s", h->job.id, h->payload.output,
                  h->payload.dtype);
        outcome_fail(&s->outcomes, h, true, "unsupported_output");
        return false;
    }
    if (engine_check_prompt(s->work->info,
                            &(struct engine_prompt){h->payload.ids, h->payload.n_ids, &h->request},
                            &err) != OK) {
        log_error("bad_payload", "id=%.12s text=\"%s\"", h->job.id, err.text);
        outcome_fail(&s->outcomes, h, true, "bad_payload");
        return false;
    }
    return true;
}

/* Which results are there already: an engine died between storing and completing, or another
 * computed them meanwhile. ERR_IO and the like: the cache does not say. */
static int find_cached(struct staging *s, struct held *const *jobs, size_t n, bool *cached,
                       struct error *err)
{
    const char *ids[BATCH_MAX];

    for (size_t i = 0; i < n; i++)
        ids[i] = jobs[i]->job.id;
    return n == 0 ? OK : cache_exist_all(s->cache, ids, n, cached, err);
}

/* A cache that cannot be reached is no fault of the jobs'. */
static void give_back(struct staging *s, struct held *const *jobs, size_t n,
                      const struct error *why)
{
    metric_add(&s->work->vitals->metrics[M_CACHE_ERRORS], 1);
    log_warn("cache_error", "jobs=%zu text=\"%s\"", n, why->text);
    atomic_store(&s->work->vitals->cache_is_away, true);
    for (size_t i = 0; i < n; i++)
        outcome_release(&s->outcomes, jobs[i]);
}

/* Leaves in `batch` what is to be encoded. */
static void prepare(struct staging *s, struct batch *batch, const struct claimed_job *claimed,
                    size_t n_claimed)
{
    struct held *jobs[BATCH_MAX];
    bool cached[BATCH_MAX] = {false};
    struct error err = {0};
    size_t n = 0;

    hand_take(s->work->hand, claimed, n_claimed, jobs);
    for (size_t i = 0; i < n_claimed; i++)
        if (accept_job(s, jobs[i]) && outcome_is_wanted(&s->outcomes, jobs[i]))
            jobs[n++] = jobs[i];
    if (find_cached(s, jobs, n, cached, &err) != OK) {
        give_back(s, jobs, n, &err);
        return;
    }
    vitals_advance(s->work->vitals, STEP_STAGE);
    for (size_t i = 0; i < n; i++) {
        if (cached[i]) {
            outcome_add_stored(&s->outcomes, jobs[i], M_CACHED, clock_now_ns());
        } else {
            batch->n_tokens += (size_t)jobs[i]->payload.n_ids;
            batch->solo |= jobs[i]->job.solo;
            batch->jobs[batch->n++] = jobs[i];
        }
    }
    outcome_complete(&s->outcomes);
}

/* ---- claiming ---- */

/* Whether the cache answers; asked before anything is claimed. */
static bool cache_answers(struct staging *s)
{
    struct vitals *v = s->work->vitals;
    struct error err = {0};
    bool there = cache_ping(s->cache, &err) == OK;

    if (!there && !atomic_exchange(&v->cache_is_away, true))
        log_warn("cache_away", "text=\"%s\"", err.text);
    if (there && atomic_exchange(&v->cache_is_away, false))
        log_info("cache_back", "owner=%s", s->work->options->owner);
    return there;
}

static void back_off(struct staging *s)
{
    s->backoff_ms = s->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * s->backoff_ms;
    if (s->backoff_ms > BACKOFF_MAX_MS)
        s->backoff_ms = BACKOFF_MAX_MS;
    vitals_rest(s->work->vitals, STEP_STAGE);
    clock_pause_ms(s->backoff_ms);
    vitals_resume(s->work->vitals, STEP_STAGE);
}

static void note_claim(struct staging *s, const struct claimed_job *jobs, size_t n)
{
    struct metric *metrics = s->work->vitals->metrics;

    for (size_t i = 0; i < n; i++) {
        metric_observe(&metrics[M_WAIT], (double)jobs[i].waited_ms / 1e3);
        if (jobs[i].attempt > 1)
            metric_add(&metrics[M_REDELIVERED], 1);
    }
}

/* While nothing waits and nothing is in hand, a forward pass of one token now and then proves that
 * the device works; after long enough the engine sleeps, and is left alone. */
static void pass_the_time(struct staging *s)
{
    static const struct batch probe = {.probe = true}, sleep = {.sleep = true};
    const struct worker_options *o = s->work->options;
    struct vitals *v = s->work->vitals;

    if (!belt_is_empty(s->work->belt) || atomic_load(&v->is_asleep))
        return;
    if (o->sleep_after_ms > 0 &&
        clock_ms_since(atomic_load(&v->last_work_ns)) >= (double)o->sleep_after_ms)
        belt_stage(s->work->belt, &sleep);
    else if (clock_ms_since(atomic_load(&v->last_proof_ns)) >= o->probe_every_ms)
        belt_stage(s->work->belt, &probe);
}

/* What is claimed is checked and staged. */
static void stage(struct staging *s, struct claimed_job *jobs, size_t n, bool ahead,
                  int64_t start_ns)
{
    struct metric *metrics = s->work->vitals->metrics;
    struct batch batch = {0};

    /* whoever killed engines kills no other job, neither one that is computed nor one that is
     * stored: once more, then, when there is none */
    s->alone = jobs[0].solo && !belt_is_empty(s->work->belt);
    if (s->alone) {
        struct held *held[BATCH_MAX];
        hand_take(s->work->hand, jobs, n, held);
        for (size_t i = 0; i < n; i++)
            outcome_release(&s->outcomes, held[i]);
        return;
    }
    note_claim(s, jobs, n);
    prepare(s, &batch, jobs, n);
    metric_observe(&metrics[M_STAGE], clock_ms_since(start_ns) / 1e3);
    if (batch.n == 0)
        return;
    if (ahead) {
        metric_add(&metrics[M_AHEAD], 1);
        log_debug("batch_ahead", "jobs=%zu tokens=%zu", batch.n, batch.n_tokens);
    }
    belt_stage(s->work->belt, &batch);
}

/* The doorbell is asked before a claim, which Q has to write to its disk; once a second a claim is
 * tried without it. It says more than that there is work: an engine without any sleeps at it and
 * takes each ring, so that one which is left says that no such engine is there. Only then is
 * anything claimed ahead of the engine. */
static int ask_doorbell(struct staging *s, bool ahead, struct error *err)
{
    struct vitals *v = s->work->vitals;
    int rc;

    vitals_rest(v, STEP_STAGE);
    rc = queue_wait(s->queue, ahead ? 0 : DOORBELL_MS, &s->rang, err);
    vitals_resume(v, STEP_STAGE);
    s->owes_claim = rc == OK && (s->rang || !ahead);
    if (ahead && !s->rang)
        s->look_ns = clock_now_ns() + LOOK_EVERY_MS * INT64_C(1000000);
    return rc;
}

static int claim(struct staging *s, bool ahead, struct error *err)
{
    const struct worker_options *o = s->work->options;
    struct claimed_job jobs[BATCH_MAX];
    int64_t start_ns = clock_now_ns();
    size_t n = 0;
    int rc;

    if ((rc = queue_claim(s->queue, o->owner, o->budget_tokens, o->max_jobs, o->lease_ms,
                          atomic_load(&s->work->vitals->tokens_per_s), jobs, BATCH_MAX, &n, err)) !=
        OK)
        return rc;
    s->owes_claim = s->alone = false;
    if (n > 0)
        stage(s, jobs, n, ahead, start_ns);
    else if (!s->rang)
        pass_the_time(s);
    return OK;
}

/* One look for work; after a ring there is another one, which claims: unless that is over
 * meanwhile. False: Q or C does not answer. */
static bool look(struct staging *s, bool ahead)
{
    struct error err = {0};
    int rc;

    if (s->owes_claim && !cache_answers(s))
        return false;
    rc = s->owes_claim ? claim(s, ahead, &err) : ask_doorbell(s, ahead, &err);
    return vitals_note_queue(s->work->vitals, rc, &err) == OK;
}

void staging_run(struct staging *s)
{
    struct vitals *v = s->work->vitals;

    for (;;) {
        enum belt_room room;

        vitals_rest(v, STEP_STAGE);
        room = belt_wait_for_room(s->work->belt, s->alone, s->look_ns);
        if (room == BELT_OVER)
            break;
        vitals_resume(v, STEP_STAGE);
        if (look(s, room == BELT_SOON))
            s->backoff_ms = 0;
        else
            back_off(s);
    }
    belt_end_staging(s->work->belt);
}
