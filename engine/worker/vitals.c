#include "engine/worker/vitals.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

static const struct metric metric_rows[N_METRICS] = {
    [M_DONE] =
        METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"done\"", "jobs by what became of them"),
    [M_CACHED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"cached\"", ""),
    [M_FAILED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"failed\"", ""),
    [M_STALE] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"stale\"", ""),
    [M_CANCELLED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"cancelled\"", ""),
    [M_RELEASED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"released\"", ""),
    [M_BATCHES] = METRIC(METRIC_COUNTER, "pe_batches_total", NULL, "batches encoded"),
    [M_AHEAD] = METRIC(METRIC_COUNTER, "pe_batches_ahead_total", NULL,
                       "batches claimed while another was computed"),
    [M_TOKENS] = METRIC(METRIC_COUNTER, "pe_tokens_total", NULL, "tokens encoded"),
    [M_HALVED] = METRIC(METRIC_COUNTER, "pe_batches_halved_total", NULL,
                        "batches that failed and were tried in halves"),
    [M_REDELIVERED] = METRIC(METRIC_COUNTER, "pe_jobs_redelivered_total", NULL,
                             "claims of jobs that an engine had before"),
    [M_QUEUE_ERRORS] = METRIC(METRIC_COUNTER, "pe_redis_errors_total", "role=\"queue\"",
                              "calls to Redis that failed"),
    [M_CACHE_ERRORS] = METRIC(METRIC_COUNTER, "pe_redis_errors_total", "role=\"cache\"", ""),
    [M_IN_HAND] = METRIC(METRIC_GAUGE, "pe_jobs_in_hand", NULL, "jobs this engine holds"),
    [M_WAIT] = METRIC(METRIC_HISTOGRAM, "pe_queue_wait_seconds", NULL,
                      "from a job's submission to its claim"),
    [M_STAGE] = METRIC(METRIC_HISTOGRAM, "pe_stage_seconds", NULL,
                       "claiming a batch, checking it and looking for its results"),
    [M_ENCODE] = METRIC(METRIC_HISTOGRAM, "pe_batch_seconds", NULL, "encoding a batch"),
    [M_STORE_BATCH] = METRIC(METRIC_HISTOGRAM, "pe_store_batch_seconds", NULL,
                             "storing and completing what was encoded together"),
    [M_STORE] = METRIC(METRIC_HISTOGRAM, "pe_store_seconds", NULL, "storing a result"),
    [M_ASLEEP] = METRIC(METRIC_GAUGE, "pe_engine_asleep", NULL,
                        "1 while the weights are in the host's memory"),
    [M_WAKE] =
        METRIC(METRIC_HISTOGRAM, "pe_wake_seconds", NULL, "bringing the weights back to the GPUs"),
};

void vitals_init(struct vitals *v)
{
    memset(v, 0, sizeof(*v));
    memcpy(v->metrics, metric_rows, sizeof(v->metrics));
    for (int i = 0; i < N_STEPS; i++)
        atomic_store(&v->pulses[i].rests, true);
    atomic_store(&v->last_work_ns, clock_now_ns());
}

void vitals_advance(struct vitals *v, enum step step)
{
    atomic_fetch_add(&v->pulses[step].advances, 1);
}

void vitals_rest(struct vitals *v, enum step step)
{
    atomic_store(&v->pulses[step].rests, true);
}

void vitals_resume(struct vitals *v, enum step step)
{
    vitals_advance(v, step);
    atomic_store(&v->pulses[step].rests, false);
}

void vitals_note_sleep(struct vitals *v, bool is_asleep)
{
    atomic_store(&v->is_asleep, is_asleep);
    metric_set(&v->metrics[M_ASLEEP], is_asleep);
}

void vitals_note_proof(struct vitals *v, bool good)
{
    atomic_store(&v->proof_failed, !good);
    atomic_store(&v->last_proof_ns, clock_now_ns());
}

int vitals_note_queue(struct vitals *v, int rc, const struct error *err)
{
    if (rc == OK) {
        atomic_store(&v->last_contact_ns, clock_now_ns());
        if (atomic_exchange(&v->queue_is_away, false))
            log_info("queue_back", "it answers");
        return OK;
    }
    metric_add(&v->metrics[M_QUEUE_ERRORS], 1);
    if (rc != ERR_IO)
        log_warn("queue_error", "text=\"%s\"", err->text);
    else if (!atomic_exchange(&v->queue_is_away, true))
        log_warn("queue_away", "text=\"%s\"", err->text);
    return rc;
}
