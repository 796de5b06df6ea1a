#include "engine/worker/encoding.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worker/forecast.h"
#include "engine/worker/proof.h"

enum { WAKE_TRIES = 10, WAKE_PAUSE_MS = 1000 };

struct encoding {
    const struct work *work;
    struct engine *engine;
    struct forecast forecast;
    struct batch batch; /* as it was staged */
    struct batch part;  /* of it: what is encoded together */
};

int encoding_open(struct encoding **out, const struct work *work, struct engine *engine,
                  struct error *err)
{
    struct encoding *e;

    if ((*out = e = calloc(1, sizeof(*e))) == NULL)
        return error_set(err, ERR_MEM, "encoding: no memory");
    e->work = work;
    e->engine = engine;
    return OK;
}

void encoding_close(struct encoding *e)
{
    free(e);
}

static void hand_over(struct encoding *e, const struct batch *batch)
{
    vitals_rest(e->work->vitals, STEP_ENCODE);
    belt_hand_over(e->work->belt, batch);
    vitals_resume(e->work->vitals, STEP_ENCODE);
}

static int encode(struct encoding *e, struct error *err)
{
    struct engine_prompt prompts[BATCH_MAX];
    struct batch *p = &e->part;

    for (size_t i = 0; i < p->n; i++)
        prompts[i] = (struct engine_prompt){p->jobs[i]->payload.ids, p->jobs[i]->payload.n_ids,
                                            &p->jobs[i]->request};
    return engine_encode(e->engine, prompts, (int)p->n, p->results, err);
}

static void note_encoded(struct encoding *e)
{
    struct metric *metrics = e->work->vitals->metrics;
    const struct batch *p = &e->part;

    vitals_note_proof(e->work->vitals, true);
    atomic_store(&e->work->vitals->last_work_ns, clock_now_ns());
    metric_add(&metrics[M_BATCHES], 1);
    metric_add(&metrics[M_TOKENS], (int64_t)p->n_tokens);
    metric_observe(&metrics[M_ENCODE], p->encode_ms / 1e3);
    log_info("batch_encoded", "jobs=%zu tokens=%zu ms=%.1f", p->n, p->n_tokens, p->encode_ms);
    forecast_note(&e->forecast, p->n, p->n_tokens, p->encode_ms);
}

static void let_go(struct encoding *e, struct held *const *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hand_end(e->work->hand, jobs[i]);
}

/* Encodes jobs together, in halves when memory lacks, and hands them over. ERR_GPU alone is
 * returned; the jobs are let go then. */
static int encode_jobs(struct encoding *e, struct held *const *jobs, size_t n, struct error *err)
{
    int64_t start_ns = clock_now_ns();
    struct batch *p = &e->part;
    struct error why = {0};
    int rc;

    *p = (struct batch){.n = n};
    for (size_t i = 0; i < n; i++) {
        p->jobs[i] = jobs[i];
        p->n_tokens += (size_t)jobs[i]->payload.n_ids;
    }
    rc = encode(e, &why);
    p->encode_ms = clock_ms_since(start_ns);
    vitals_advance(e->work->vitals, STEP_ENCODE);
    if (rc == ERR_GPU) {
        vitals_note_proof(e->work->vitals, false); /* ready no more, while the rest is stored */
        let_go(e, jobs, n);
        return error_set(err, why.code, "%s", why.text);
    }
    if (rc != OK && n > 1) { /* out of memory, or one of them is at fault */
        metric_add(&e->work->vitals->metrics[M_HALVED], 1);
        log_warn("batch_halved", "jobs=%zu tokens=%zu text=\"%s\"", n, p->n_tokens, why.text);
        if ((rc = encode_jobs(e, jobs, n / 2, err)) != OK) {
            let_go(e, jobs + n / 2, n - n / 2);
            return rc;
        }
        return encode_jobs(e, jobs + n / 2, n - n / 2, err);
    }
    if (rc != OK) {
        log_error("encode_failed", "jobs=%zu tokens=%zu text=\"%s\"", n, p->n_tokens, why.text);
        p->failure = rc == ERR_MEM ? "out_of_memory" : "encode_failed";
    } else {
        note_encoded(e);
    }
    hand_over(e, p);
    return OK;
}

static int probe(struct encoding *e, struct error *err)
{
    struct error why = {0};
    int rc = proof_run(e->engine, false, &why);

    vitals_note_proof(e->work->vitals, rc == OK);
    if (rc == ERR_GPU)
        return error_set(err, why.code, "%s", why.text);
    if (rc != OK)
        log_warn("probe_failed", "text=\"%s\"", why.text);
    return OK;
}

/* Where the host has no memory for the weights it stays awake, and tries again as long after. */
static int sleep_now(struct encoding *e, struct error *err)
{
    struct vitals *v = e->work->vitals;
    int64_t start_ns = clock_now_ns();
    struct error why = {0};
    int rc;

    vitals_rest(v, STEP_ENCODE); /* the first time it may take longer than a step */
    rc = engine_sleep(e->engine, &why);
    vitals_resume(v, STEP_ENCODE);
    atomic_store(&v->last_work_ns, clock_now_ns());
    if (rc == ERR_GPU)
        return error_set(err, why.code, "%s", why.text);
    if (rc != OK)
        log_warn("sleep_failed", "text=\"%s\"", why.text);
    else
        log_info("asleep", "ms=%.0f", clock_ms_since(start_ns));
    vitals_note_sleep(v, rc == OK);
    return OK;
}

/* Before jobs: it wakes, and proves that it can compute. While others have the GPU's memory it is
 * tried again, and jobs wait; not for ever: another engine may have room. ERR_GPU alone is
 * returned.
 */
static int wake_now(struct encoding *e, struct error *err)
{
    struct vitals *v = e->work->vitals;
    struct error why = {0};
    double seconds = 0.0;
    int rc = OK;

    for (int i = 0; i < WAKE_TRIES; i++) {
        why = (struct error){0};
        vitals_rest(v, STEP_ENCODE);
        if (i > 0)
            clock_pause_ms(WAKE_PAUSE_MS);
        rc = engine_wake(e->engine, &seconds, &why);
        vitals_resume(v, STEP_ENCODE);
        if (rc != ERR_MEM)
            break;
        vitals_note_proof(v, false); /* not ready */
        log_warn("wake_failed", "text=\"%s\"", why.text);
    }
    if (rc != OK)
        return error_set(err, ERR_GPU, "the engine does not wake: %s", why.text);
    metric_observe(&v->metrics[M_WAKE], seconds);
    log_info("awake", "ms=%.0f", seconds * 1e3);
    vitals_note_sleep(v, false);
    return probe(e, err);
}

static int run_batch(struct encoding *e, struct error *err)
{
    struct batch *b = &e->batch;
    double expected_ms;
    int rc;

    if (b->probe)
        return probe(e, err);
    if (b->sleep)
        return sleep_now(e, err);
    /* C went away since it was staged: it would be computed for nothing */
    b->cache_is_away = atomic_load(&e->work->vitals->cache_is_away);
    if (b->cache_is_away) {
        hand_over(e, b);
        return OK;
    }
    if (engine_is_asleep(e->engine) && (rc = wake_now(e, err)) != OK) {
        let_go(e, b->jobs, b->n);
        return rc;
    }
    expected_ms = forecast_ms(&e->forecast, b->n, b->n_tokens);
    if (expected_ms > 0.0)
        belt_expect_end(e->work->belt, clock_now_ns() + (int64_t)(expected_ms * 1e6));
    return encode_jobs(e, b->jobs, b->n, err);
}

int encoding_run(struct encoding *e, struct error *err)
{
    struct vitals *v = e->work->vitals;
    int rc = OK;

    while (rc == OK && belt_take_staged(e->work->belt, &e->batch)) {
        vitals_resume(v, STEP_ENCODE);
        rc = run_batch(e, err);
        vitals_rest(v, STEP_ENCODE);
    }
    belt_end_encoding(e->work->belt);
    return rc;
}
