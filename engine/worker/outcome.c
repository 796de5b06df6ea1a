#include "engine/worker/outcome.h"

#include "base/clock.h"
#include "base/log.h"

enum { TOGETHER_MS = 5 }; /* how long a stored result waits for others to be completed with */

/* `told`: Q took note of it. */
static void end_job(struct outcomes *o, struct held *h, int metric, bool told,
                    enum lease_answer answer)
{
    if (told && answer == LEASE_STALE) {
        metric_add(&o->vitals->metrics[M_STALE], 1);
        log_warn("lease_lost", "id=%.12s attempt=%d", h->job.id, h->job.attempt);
    } else if (told) {
        metric_add(&o->vitals->metrics[metric], 1);
    }
    hand_end(o->hand, h);
    vitals_advance(o->vitals, o->step);
}

bool outcome_is_wanted(struct outcomes *o, struct held *h)
{
    enum lease_answer answer = hand_answer(o->hand, h);
    struct error err = {0};
    bool told = true;

    if (answer == LEASE_OK)
        return true;
    if (answer == LEASE_CANCELLED)
        told = vitals_note_queue(o->vitals, queue_cancelled(o->queue, &h->job, &answer, &err),
                                 &err) == OK;
    end_job(o, h, M_CANCELLED, told, answer);
    return false;
}

void outcome_fail(struct outcomes *o, struct held *h, bool permanent, const char *code)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    bool told =
        vitals_note_queue(o->vitals, queue_fail(o->queue, &h->job, permanent, code, &answer, &err),
                          &err) == OK;

    log_warn("job_failed", "id=%.12s attempt=%d permanent=%d code=%s", h->job.id, h->job.attempt,
             permanent, code);
    end_job(o, h, M_FAILED, told, answer);
}

void outcome_release(struct outcomes *o, struct held *h)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    bool told =
        vitals_note_queue(o->vitals, queue_release(o->queue, &h->job, &answer, &err), &err) == OK;

    end_job(o, h, M_RELEASED, told, answer);
}

void outcome_add_stored(struct outcomes *o, struct held *h, int metric, int64_t since_ns)
{
    if (o->stored.n == 0)
        o->stored.since_ns = since_ns;
    o->stored.jobs[o->stored.n] = h;
    o->stored.metrics[o->stored.n++] = metric;
    if (clock_ms_since(o->stored.since_ns) >= TOGETHER_MS)
        outcome_complete(o);
}

void outcome_complete(struct outcomes *o)
{
    const struct claimed_job *jobs[QUEUE_CLAIM_MAX];
    enum lease_answer answers[QUEUE_CLAIM_MAX];
    size_t n = o->stored.n;
    bool told = false;

    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        jobs[i] = &o->stored.jobs[i]->job;
    /* twice: a connection that broke meanwhile is opened again, and to repeat it is harmless */
    for (int i = 0; i < 2 && !told; i++) {
        struct error err = {0};
        told = vitals_note_queue(o->vitals, queue_complete(o->queue, jobs, n, answers, &err),
                                 &err) == OK;
    }
    for (size_t i = 0; i < n; i++)
        end_job(o, o->stored.jobs[i], o->stored.metrics[i], told, told ? answers[i] : LEASE_OK);
    o->stored.n = 0;
}
