/* worker.c - see worker.h.
 *
 * Loop: wait for the doorbell, claim, run the batch, again. A batch is checked job by job (payloads
 * are hostile), what is in the cache already is completed at once, the rest is encoded together.
 * Out of memory halves what is encoded together, down to single jobs. A result is stored before its
 * job is completed: a crash between the two costs one look-up, never a result.
 *
 * Errors of Redis end no loop: it backs off and goes on, while leases it could not renew pass to
 * others. ERR_GPU ends it: the device is not to be trusted. */
#include "engine/worker/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "jobs/cache.h"
#include "jobs/payload.h"
#include "jobs/queue.h"

enum {
    MAX_JOBS = 64,
    KEEPER_TICK_MS = 200,
    DEPTH_EVERY_MS = 5000, /* how often the queue is measured */
    PROBE_EVERY_MS = 30000,
    DOORBELL_MS = 1000,
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 2000,
    TICK_MAX_MS = 10000,
    CONTACT_MS = 5000 /* Redis counts as reachable for so long after an answer */
};

enum {
    M_DONE,
    M_CACHED,
    M_FAILED,
    M_STALE,
    M_CANCELLED,
    M_RELEASED,
    M_BATCHES,
    M_TOKENS,
    M_HALVED,
    M_QUEUE_ERRORS,
    M_CACHE_ERRORS,
    M_IN_HAND,
    M_WAITING,
    M_DELAYED,
    M_LEASED,
    M_DEAD,
    M_WAITING_TOKENS,
    M_OLDEST_WAIT,
    M_ENGINES,
    M_ENCODE,
    M_STORE,
    N_METRICS
};

static const struct metric metric_rows[N_METRICS] = {
    [M_DONE] =
        METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"done\"", "jobs by what became of them"),
    [M_CACHED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"cached\"", ""),
    [M_FAILED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"failed\"", ""),
    [M_STALE] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"stale\"", ""),
    [M_CANCELLED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"cancelled\"", ""),
    [M_RELEASED] = METRIC(METRIC_COUNTER, "pe_jobs_total", "outcome=\"released\"", ""),
    [M_BATCHES] = METRIC(METRIC_COUNTER, "pe_batches_total", NULL, "batches encoded"),
    [M_TOKENS] = METRIC(METRIC_COUNTER, "pe_tokens_total", NULL, "tokens encoded"),
    [M_HALVED] = METRIC(METRIC_COUNTER, "pe_batches_halved_total", NULL,
                        "batches that failed and were tried in halves"),
    [M_QUEUE_ERRORS] = METRIC(METRIC_COUNTER, "pe_redis_errors_total", "role=\"queue\"",
                              "calls to Redis that failed"),
    [M_CACHE_ERRORS] = METRIC(METRIC_COUNTER, "pe_redis_errors_total", "role=\"cache\"", ""),
    [M_IN_HAND] = METRIC(METRIC_GAUGE, "pe_jobs_in_hand", NULL, "jobs this engine holds"),
    [M_WAITING] = METRIC(METRIC_GAUGE, "pe_queue_jobs", "state=\"waiting\"", "jobs in the queue"),
    [M_DELAYED] = METRIC(METRIC_GAUGE, "pe_queue_jobs", "state=\"delayed\"", ""),
    [M_LEASED] = METRIC(METRIC_GAUGE, "pe_queue_jobs", "state=\"leased\"", ""),
    [M_DEAD] = METRIC(METRIC_GAUGE, "pe_queue_jobs", "state=\"dead\"", ""),
    [M_WAITING_TOKENS] = METRIC(METRIC_GAUGE, "pe_queue_tokens", NULL, "tokens that wait"),
    [M_OLDEST_WAIT] = METRIC(METRIC_GAUGE, "pe_queue_oldest_wait_milliseconds", NULL,
                             "how long the oldest job waits"),
    [M_ENGINES] = METRIC(METRIC_GAUGE, "pe_engines", NULL, "engines of this model that are alive"),
    [M_ENCODE] = METRIC(METRIC_HISTOGRAM, "pe_batch_seconds", NULL, "encoding a batch"),
    [M_STORE] = METRIC(METRIC_HISTOGRAM, "pe_store_seconds", NULL, "storing a result"),
};

/* A job in hand. `answer` is the keeper's to write, under the lock. */
struct held {
    struct claimed_job job;
    struct payload payload;
    bool parsed;
    bool over; /* an outcome was written, or tried to */
    enum lease_answer answer;
};

struct worker {
    struct worker_options options;
    struct engine *engine;
    char base[QUEUE_BASE_SIZE];
    struct metric metrics[N_METRICS];

    /* the loop's own */
    pthread_t loop;
    bool loop_started;
    struct queue *queue;
    struct cache *cache;
    int64_t last_probe_ns;
    int backoff_ms;

    /* the keeper's own */
    pthread_t keeper;
    bool keeper_started;
    struct queue *keeper_queue;

    _Atomic bool draining, loop_ended, hangs, keeper_stops, cache_is_away;
    _Atomic uint64_t advances;       /* the loop's own steps, beside the engine's */
    _Atomic int64_t last_contact_ns; /* when Q answered last */
    _Atomic int64_t last_tick_ns;    /* the keeper's */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended; /* loop_ended became true */
    struct held held[MAX_JOBS];
    size_t n_held;
    int64_t renewed_ns; /* when the leases in hand began or were renewed */
    int rc;
    struct error err;
};

static void advance(struct worker *w)
{
    atomic_fetch_add(&w->advances, 1);
}

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};

    nanosleep(&t, NULL);
}

/* Notes whether Q answered. */
static int contact(struct worker *w, int rc, struct error *err)
{
    if (rc == OK) {
        atomic_store(&w->last_contact_ns, clock_now_ns());
        return OK;
    }
    metric_add(&w->metrics[M_QUEUE_ERRORS], 1);
    log_warn("queue_error", "text=\"%s\"", err->text);
    return rc;
}

/* ---- outcomes: each ends one job in hand ---- */

static enum lease_answer answer_of(struct worker *w, const struct held *h)
{
    enum lease_answer answer;

    pthread_mutex_lock(&w->lock);
    answer = h->answer;
    pthread_mutex_unlock(&w->lock);
    return answer;
}

static void end_job(struct worker *w, struct held *h, int metric, int rc, enum lease_answer answer,
                    struct error *err)
{
    pthread_mutex_lock(&w->lock);
    h->over = true;
    pthread_mutex_unlock(&w->lock);
    advance(w);
    if (contact(w, rc, err) != OK)
        return; /* its lease ends by itself, and the job is delivered again */
    if (answer == LEASE_STALE) {
        metric_add(&w->metrics[M_STALE], 1);
        log_warn("lease_lost", "id=%.12s attempt=%d", h->job.id, h->job.attempt);
        return;
    }
    metric_add(&w->metrics[metric], 1);
}

static void complete(struct worker *w, struct held *h, int metric)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    int rc = queue_complete(w->queue, &h->job, &answer, &err);

    end_job(w, h, metric, rc, answer, &err);
}

/* `code` is for the waiting client; it never holds any text of the prompt. */
static void fail(struct worker *w, struct held *h, bool permanent, const char *code)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    int rc = queue_fail(w->queue, &h->job, permanent, code, &answer, &err);

    log_warn("job_failed", "id=%.12s attempt=%d permanent=%d code=%s", h->job.id, h->job.attempt,
             permanent, code);
    end_job(w, h, M_FAILED, rc, answer, &err);
}

/* Whether the job is still wanted and still ours; if not, ends it. */
static bool is_wanted(struct worker *w, struct held *h)
{
    enum lease_answer answer = answer_of(w, h);
    struct error err = {0};
    int rc;

    if (answer == LEASE_OK)
        return true;
    if (answer == LEASE_STALE) {
        end_job(w, h, M_STALE, OK, LEASE_STALE, &err);
        return false;
    }
    rc = queue_cancelled(w->queue, &h->job, &answer, &err);
    end_job(w, h, M_CANCELLED, rc, answer, &err);
    return false;
}

/* ---- a batch ---- */

static enum dtype dtype_of(const char *name)
{
    return strcmp(name, "float32") == 0    ? DTYPE_F32
           : strcmp(name, "float16") == 0  ? DTYPE_F16
           : strcmp(name, "bfloat16") == 0 ? DTYPE_BF16
                                           : DTYPE_COUNT;
}

static struct engine_request request_of(const struct payload *p)
{
    return (struct engine_request){
        .layers = p->layers, .n_layers = p->n_layers, .dtype = dtype_of(p->dtype)};
}

/* Parses and checks what the queue says to do; it came over the network. */
static bool accept_job(struct worker *w, struct held *h)
{
    struct engine_request request;
    struct error err = {0};

    if (payload_read(&h->payload, h->job.payload, h->job.payload_len, &err) != OK) {
        log_error("bad_payload", "id=%.12s text=\"%s\"", h->job.id, err.text);
        fail(w, h, true, "bad_payload");
        return false;
    }
    h->parsed = true;
    if (strcmp(h->payload.output, "hidden_states") != 0) {
        fail(w, h, true, "unsupported_output");
        return false;
    }
    request = request_of(&h->payload);
    if (request.dtype == DTYPE_COUNT ||
        engine_check_prompt(engine_info(w->engine),
                            &(struct engine_prompt){h->payload.ids, h->payload.n_ids, &request},
                            &err) != OK) {
        log_error("bad_payload", "id=%.12s text=\"%s\"", h->job.id, err.text);
        fail(w, h, true, "bad_payload");
        return false;
    }
    return true;
}

/* A cache that cannot be reached is no fault of the job's: it goes back, the attempt not counted.
 * The loop claims nothing more until the cache answers. */
static void give_back(struct worker *w, struct held *h, const struct error *why)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    int rc;

    metric_add(&w->metrics[M_CACHE_ERRORS], 1);
    log_warn("cache_error", "id=%.12s text=\"%s\"", h->job.id, why->text);
    atomic_store(&w->cache_is_away, true);
    rc = queue_release(w->queue, &h->job, &answer, &err);
    end_job(w, h, M_RELEASED, rc, answer, &err);
}

/* Which results are there already: an engine died between storing and completing, or another
 * computed them meanwhile. ERR_IO and the like: the cache does not say. */
static int find_cached(struct worker *w, struct held *const *jobs, size_t n, bool *cached,
                       struct error *err)
{
    const char *ids[MAX_JOBS];

    for (size_t i = 0; i < n; i++)
        ids[i] = jobs[i]->job.id;
    return n == 0 ? OK : cache_exist_all(w->cache, ids, n, cached, err);
}

/* Whether the cache answers; asked before anything is claimed. */
static bool cache_answers(struct worker *w)
{
    struct error err = {0};
    bool there;
    int rc = cache_ping(w->cache, &err);

    there = rc == OK;
    if (!there && !atomic_exchange(&w->cache_is_away, true))
        log_warn("cache_away", "text=\"%s\"", err.text);
    if (there && atomic_exchange(&w->cache_is_away, false))
        log_info("cache_back", "owner=%s", w->options.owner);
    return there;
}

static void layers_text(char *out, size_t cap, const struct payload *p)
{
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < p->n_layers && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%d", i > 0 ? "," : "", p->layers[i]);
}

/* Stores one result, then completes its job. */
static void store(struct worker *w, struct held *h, const struct engine_result *r)
{
    struct cache_header header = {
        .n_tokens = r->n_tokens, .truncated = h->payload.truncated, .n_tensors = 2};
    struct cache_tensor *states = &header.tensors[0], *ids = &header.tensors[1];
    const void *parts[2] = {r->hidden_states, h->payload.ids};
    const size_t sizes[2] = {r->bytes, (size_t)h->payload.n_ids * sizeof(int32_t)};
    int64_t ttl_ms =
        h->payload.ttl_s > 0 ? (int64_t)h->payload.ttl_s * 1000 : w->options.result_ttl_ms;
    int64_t start = clock_now_ns();
    struct error err = {0};
    bool stored;

    if (!is_wanted(w, h))
        return;
    snprintf(header.output, sizeof(header.output), "%s", h->payload.output);
    layers_text(header.layers, sizeof(header.layers), &h->payload);
    snprintf(states->name, sizeof(states->name), "hidden_states");
    snprintf(states->dtype, sizeof(states->dtype), "%s", dtype_info(r->dtype)->name);
    states->n_dims = 3;
    states->shape[0] = (size_t)r->n_states;
    states->shape[1] = (size_t)r->n_tokens;
    states->shape[2] = (size_t)r->width;
    states->bytes = sizes[0];
    snprintf(ids->name, sizeof(ids->name), "token_ids");
    snprintf(ids->dtype, sizeof(ids->dtype), "I32");
    ids->n_dims = 1;
    ids->shape[0] = (size_t)h->payload.n_ids;
    ids->bytes = sizes[1];
    header.bytes = sizes[0] + sizes[1];
    if (cache_put(w->cache, h->job.id, &header, parts, sizes, 2, ttl_ms, false, &stored, &err) !=
        OK) {
        if (err.code == ERR_MEM) {
            metric_add(&w->metrics[M_CACHE_ERRORS], 1);
            fail(w, h, false, "cache_full");
        } else {
            give_back(w, h, &err);
        }
        return;
    }
    metric_observe(&w->metrics[M_STORE], clock_ms_since(start) / 1e3);
    complete(w, h, M_DONE);
}

/* Encodes jobs together, in halves when memory lacks. ERR_GPU alone is returned. */
static int encode(struct worker *w, struct held **jobs, size_t n, struct error *err)
{
    struct engine_request requests[MAX_JOBS];
    struct engine_prompt prompts[MAX_JOBS];
    struct engine_result results[MAX_JOBS];
    int64_t start = clock_now_ns();
    struct error why = {0};
    size_t n_tokens = 0;
    int rc;

    if (n == 0)
        return OK;
    for (size_t i = 0; i < n; i++) {
        requests[i] = request_of(&jobs[i]->payload);
        prompts[i] =
            (struct engine_prompt){jobs[i]->payload.ids, jobs[i]->payload.n_ids, &requests[i]};
        n_tokens += (size_t)jobs[i]->payload.n_ids;
    }
    rc = engine_encode(w->engine, prompts, (int)n, results, &why);
    advance(w);
    if (rc != OK && rc != ERR_GPU && n > 1) { /* out of memory, or one of them is at fault */
        metric_add(&w->metrics[M_HALVED], 1);
        log_warn("batch_halved", "jobs=%zu tokens=%zu text=\"%s\"", n, n_tokens, why.text);
        if ((rc = encode(w, jobs, n / 2, err)) != OK)
            return rc;
        return encode(w, jobs + n / 2, n - n / 2, err);
    }
    if (rc == ERR_GPU)
        return error_set(err, why.code, "%s", why.text);
    if (rc != OK) {
        log_error("encode_failed", "jobs=%zu tokens=%zu text=\"%s\"", n, n_tokens, why.text);
        for (size_t i = 0; i < n; i++)
            fail(w, jobs[i], false, rc == ERR_MEM ? "out_of_memory" : "encode_failed");
        return OK;
    }
    metric_add(&w->metrics[M_BATCHES], 1);
    metric_add(&w->metrics[M_TOKENS], (int64_t)n_tokens);
    metric_observe(&w->metrics[M_ENCODE], clock_ms_since(start) / 1e3);
    log_info("batch_encoded", "jobs=%zu tokens=%zu ms=%.1f", n, n_tokens, clock_ms_since(start));
    for (size_t i = 0; i < n; i++) {
        store(w, jobs[i], &results[i]);
        engine_result_free(&results[i]);
    }
    return OK;
}

static int run_batch(struct worker *w, struct error *err)
{
    struct held *wanted[MAX_JOBS], *rest[MAX_JOBS];
    bool cached[MAX_JOBS] = {false};
    struct error why = {0};
    size_t n = 0, n_rest = 0;

    for (size_t i = 0; i < w->n_held; i++)
        if (accept_job(w, &w->held[i]) && is_wanted(w, &w->held[i]))
            wanted[n++] = &w->held[i];
    if (find_cached(w, wanted, n, cached, &why) != OK) {
        for (size_t i = 0; i < n; i++)
            give_back(w, wanted[i], &why);
        return OK;
    }
    advance(w);
    for (size_t i = 0; i < n; i++)
        if (cached[i])
            complete(w, wanted[i], M_CACHED);
        else
            rest[n_rest++] = wanted[i];
    return encode(w, rest, n_rest, err);
}

/* ---- the loop ---- */

static void hold(struct worker *w, struct claimed_job *jobs, size_t n)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < n; i++)
        w->held[i] = (struct held){.job = jobs[i], .answer = LEASE_OK}; /* takes the payload over */
    w->n_held = n;
    w->renewed_ns = clock_now_ns();
    pthread_mutex_unlock(&w->lock);
    metric_set(&w->metrics[M_IN_HAND], (int64_t)n);
}

static void let_go(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_held; i++) {
        if (w->held[i].parsed)
            payload_free(&w->held[i].payload);
        claimed_jobs_free(&w->held[i].job, 1);
    }
    w->n_held = 0;
    pthread_mutex_unlock(&w->lock);
    metric_set(&w->metrics[M_IN_HAND], 0);
}

/* While nothing waits, a forward pass of one token now and then proves that the device works. */
static int probe(struct worker *w, struct error *err)
{
    static const int32_t bos[] = {2};
    struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {bos, 1, &request};
    struct engine_result result;
    struct error why = {0};
    int rc;

    if (clock_ms_since(w->last_probe_ns) < PROBE_EVERY_MS)
        return OK;
    w->last_probe_ns = clock_now_ns();
    if ((rc = engine_encode(w->engine, &prompt, 1, &result, &why)) == OK)
        engine_result_free(&result);
    else if (rc == ERR_GPU)
        return error_set(err, why.code, "%s", why.text);
    else
        log_warn("probe_failed", "text=\"%s\"", why.text);
    return OK;
}

static void back_off(struct worker *w)
{
    w->backoff_ms = w->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * w->backoff_ms;
    if (w->backoff_ms > BACKOFF_MAX_MS)
        w->backoff_ms = BACKOFF_MAX_MS;
    pause_ms(w->backoff_ms);
}

/* One round: what is there is claimed and run. ERR_GPU alone is returned. */
static int round_of_work(struct worker *w, struct error *err)
{
    struct claimed_job jobs[MAX_JOBS];
    struct error why = {0};
    size_t n = 0;
    bool rang;
    int rc;

    advance(w);
    if (!cache_answers(w)) {
        back_off(w);
        return OK;
    }
    rc = queue_claim(w->queue, w->options.owner, w->options.budget_tokens, w->options.max_jobs,
                     w->options.lease_ms, jobs, MAX_JOBS, &n, &why);
    if (rc == OK && n == 0)
        rc = queue_wait(w->queue, DOORBELL_MS, &rang, &why);
    if (contact(w, rc, &why) != OK) {
        back_off(w);
        return OK;
    }
    w->backoff_ms = 0;
    if (n == 0)
        return probe(w, err);
    hold(w, jobs, n);
    rc = run_batch(w, err);
    let_go(w);
    w->last_probe_ns = clock_now_ns();
    return rc;
}

static void *loop_main(void *arg)
{
    struct worker *w = arg;
    struct error err = {0};
    int rc = OK;

    while (rc == OK && !atomic_load(&w->draining))
        rc = round_of_work(w, &err);
    if (rc != OK)
        log_error("engine_failed", "text=\"%s\"", err.text);
    pthread_mutex_lock(&w->lock);
    w->rc = rc;
    w->err = err;
    atomic_store(&w->loop_ended, true);
    pthread_cond_broadcast(&w->ended);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- the keeper ---- */

/* The jobs in hand that have no outcome yet, without their payloads. */
static size_t copy_held(struct worker *w, struct claimed_job *jobs)
{
    size_t n = 0;

    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_held; i++)
        if (!w->held[i].over) {
            jobs[n] = w->held[i].job;
            jobs[n].payload = NULL;
            jobs[n++].payload_len = 0;
        }
    pthread_mutex_unlock(&w->lock);
    return n;
}

static void note_answers(struct worker *w, const struct claimed_job *jobs,
                         const enum lease_answer *answers, size_t n)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < w->n_held; j++)
            if (strcmp(w->held[j].job.token, jobs[i].token) == 0 &&
                strcmp(w->held[j].job.id, jobs[i].id) == 0)
                w->held[j].answer = answers[i];
    w->renewed_ns = clock_now_ns();
    pthread_mutex_unlock(&w->lock);
}

static void renew_leases(struct worker *w)
{
    struct claimed_job jobs[MAX_JOBS];
    enum lease_answer answers[MAX_JOBS];
    struct error err = {0};
    int64_t renewed_ns;
    size_t n;

    pthread_mutex_lock(&w->lock);
    renewed_ns = w->renewed_ns;
    pthread_mutex_unlock(&w->lock);
    if (clock_ms_since(renewed_ns) < w->options.lease_ms / 3 || (n = copy_held(w, jobs)) == 0)
        return;
    if (contact(w, queue_renew(w->keeper_queue, jobs, n, w->options.lease_ms, answers, &err),
                &err) == OK)
        note_answers(w, jobs, answers, n);
}

static void measure_queue(struct worker *w)
{
    struct queue_depth depth;
    struct error err = {0};

    if (contact(w, queue_depth(w->keeper_queue, &depth, &err), &err) != OK)
        return;
    metric_set(&w->metrics[M_WAITING], depth.waiting);
    metric_set(&w->metrics[M_DELAYED], depth.delayed);
    metric_set(&w->metrics[M_LEASED], depth.leased);
    metric_set(&w->metrics[M_DEAD], depth.dead);
    metric_set(&w->metrics[M_WAITING_TOKENS], depth.waiting_tokens);
    metric_set(&w->metrics[M_OLDEST_WAIT], depth.oldest_wait_ms);
    metric_set(&w->metrics[M_ENGINES], depth.engines);
}

/* Another engine can only have the name when we did not get to renew it for long: we go. */
static void renew_name(struct worker *w)
{
    struct error err = {0};
    int64_t n_back;
    int rc = queue_take_name(w->keeper_queue, w->options.owner, w->options.lease_ms, &n_back, &err);

    contact(w, rc == ERR_BUSY ? OK : rc, &err);
    if (rc == ERR_BUSY && !atomic_exchange(&w->hangs, true))
        log_error("name_lost", "owner=%s", w->options.owner);
}

static void *keeper_main(void *arg)
{
    struct worker *w = arg;
    int64_t advanced_ns = clock_now_ns(), measured_ns = 0, named_ns = clock_now_ns();
    uint64_t seen = 0;

    while (!atomic_load(&w->keeper_stops)) {
        uint64_t now = atomic_load(&w->advances) + engine_steps(w->engine);
        atomic_store(&w->last_tick_ns, clock_now_ns());
        if (now != seen) {
            seen = now;
            advanced_ns = clock_now_ns();
        }
        if (!atomic_load(&w->loop_ended) && clock_ms_since(advanced_ns) > w->options.hang_ms) {
            if (!atomic_exchange(&w->hangs, true))
                log_error("engine_hangs", "ms=%.0f", clock_ms_since(advanced_ns));
        } else {
            renew_leases(w);
        }
        if (w->options.owner_is_fixed && clock_ms_since(named_ns) > w->options.lease_ms / 3) {
            named_ns = clock_now_ns();
            renew_name(w);
        }
        if (clock_ms_since(measured_ns) > DEPTH_EVERY_MS) {
            measured_ns = clock_now_ns();
            measure_queue(w);
        }
        pause_ms(KEEPER_TICK_MS);
    }
    return NULL;
}

/* A fixed name belongs to one live engine. Its former self may have died a moment ago: its lock
 * then ends by itself, which is waited for. The keeper's connection holds the lock, as it renews
 * it. */
static int take_name(struct worker *w, struct error *err)
{
    int64_t start = clock_now_ns(), n_back = 0;
    int rc;

    for (;;) {
        struct error why = {0};
        rc = queue_take_name(w->keeper_queue, w->options.owner, w->options.lease_ms, &n_back, &why);
        if (rc != ERR_BUSY || clock_ms_since(start) > 1.5 * w->options.lease_ms) {
            if (rc != OK)
                return error_set(err, why.code, "%s", why.text);
            break;
        }
        pause_ms(KEEPER_TICK_MS);
    }
    if (n_back > 0)
        log_info("jobs_taken_back", "owner=%s jobs=%lld", w->options.owner, (long long)n_back);
    return OK;
}

/* ---- from outside ---- */

int worker_start(struct worker **out, struct engine *engine, const struct model_card *card,
                 const struct worker_options *options, struct error *err)
{
    struct worker *w;
    int rc;

    *out = NULL;
    if ((w = calloc(1, sizeof(*w))) == NULL)
        return error_set(err, ERR_MEM, "worker: no memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->ended, NULL);
    memcpy(w->metrics, metric_rows, sizeof(w->metrics));
    w->options = *options;
    if (w->options.max_jobs > MAX_JOBS)
        w->options.max_jobs = MAX_JOBS;
    w->engine = engine;
    atomic_store(&w->last_tick_ns, clock_now_ns());
    queue_base(w->base, card->id, card->weights);
    if ((rc = queue_open(&w->queue, options->queue_url, w->base, options->redis_timeout_ms, err)) !=
            OK ||
        (rc = queue_open(&w->keeper_queue, options->queue_url, w->base, options->redis_timeout_ms,
                         err)) != OK ||
        (rc = cache_open(&w->cache, options->cache_urls, options->redis_timeout_ms, err)) != OK)
        goto out;
    if (options->owner_is_fixed && (rc = take_name(w, err)) != OK)
        goto out;
    if (pthread_create(&w->keeper, NULL, keeper_main, w) != 0 || !(w->keeper_started = true) ||
        pthread_create(&w->loop, NULL, loop_main, w) != 0 || !(w->loop_started = true)) {
        rc = error_set(err, ERR_MEM, "worker: cannot start a thread");
        goto out;
    }
    *out = w;
    w = NULL;
out:
    worker_stop(w);
    return rc;
}

void worker_drain(struct worker *w)
{
    atomic_store(&w->draining, true);
}

bool worker_wait(struct worker *w, int timeout_ms, int *rc, struct error *err)
{
    struct timespec until;
    bool ended;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (timeout_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->loop_ended) &&
           pthread_cond_timedwait(&w->ended, &w->lock, &until) != ETIMEDOUT)
        ;
    ended = atomic_load(&w->loop_ended);
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
    return atomic_load(&w->hangs) || (atomic_load(&w->loop_ended) && !atomic_load(&w->draining));
}

int worker_release(struct worker *w, struct error *err)
{
    struct claimed_job jobs[MAX_JOBS];
    struct queue *queue = NULL;
    size_t n = copy_held(w, jobs);
    int rc;

    /* a connection of its own: the two others belong to threads that may be stuck */
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
    if (w->loop_started)
        pthread_join(w->loop, NULL);
    atomic_store(&w->keeper_stops, true);
    if (w->keeper_started)
        pthread_join(w->keeper, NULL);
    if (w->options.owner_is_fixed &&
        w->keeper_queue != NULL) /* the next one need not wait for it */
        queue_drop_name(w->keeper_queue, w->options.owner, NULL);
    queue_close(w->queue);
    queue_close(w->keeper_queue);
    cache_close(w->cache);
    pthread_cond_destroy(&w->ended);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

bool worker_is_live(struct worker *w, char *why, size_t cap)
{
    double tick_ms = clock_ms_since(atomic_load(&w->last_tick_ns));

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
    double contact_ms = clock_ms_since(atomic_load(&w->last_contact_ns));

    if (atomic_load(&w->draining)) {
        snprintf(why, cap, "draining");
        return false;
    }
    if (worker_has_failed(w)) {
        snprintf(why, cap, "the engine failed or hangs");
        return false;
    }
    if (atomic_load(&w->cache_is_away)) {
        snprintf(why, cap, "no answer from the cache's Redis");
        return false;
    }
    if (contact_ms > CONTACT_MS) {
        snprintf(why, cap, "no answer from the queue's Redis");
        return false;
    }
    snprintf(why, cap, "ready");
    return true;
}

int worker_metrics(struct worker *w, struct buf *out, struct error *err)
{
    return metrics_render(w->metrics, N_METRICS, out, err);
}
