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

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worker/hand.h"
#include "engine/worker/keeper.h"
#include "engine/worker/proof.h"
#include "engine/worker/vitals.h"
#include "jobs/cache.h"
#include "jobs/payload.h"
#include "jobs/queue.h"

enum {
    DOORBELL_MS = 1000,
    TOGETHER_MS = 5, /* how long a stored result waits for others to be completed with */
    BACKOFF_MIN_MS = 100,
    BACKOFF_MAX_MS = 2000,
    TICK_MAX_MS = 10000,
    CONTACT_MS = 5000, /* Redis counts as reachable for so long after an answer */
    WRITERS = 4        /* results that are stored at once: one connection fills no cache */
};

/* Jobs whose results are in the cache, not completed yet: Q writes to its disk once for all. */
struct stored {
    struct held *jobs[HAND_MAX];
    int metrics[HAND_MAX]; /* what each counts as */
    size_t n;
    int64_t since_ns; /* when the first of them began to be stored */
};

_Static_assert((int)ENGINE_MAX_TENSORS < (int)CACHE_MAX_TENSORS, "a result and its ids fit");

struct worker {
    struct worker_options options;
    const struct model_card *card;
    struct engine *engine;
    char base[QUEUE_BASE_SIZE];
    struct vitals vitals;
    struct hand *hand;
    struct keeper *keeper;

    /* the loop's own */
    pthread_t loop;
    bool loop_started;
    struct queue *queue;
    struct cache *caches[WRITERS]; /* the first is the loop's, for all else, too */
    struct stored stored;
    double recent_tokens, recent_s; /* of the last batches, the older the less: what we compute */
    int backoff_ms;

    _Atomic bool draining, loop_ended;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended; /* loop_ended became true */
    int rc;
    struct error err;
};

/* ---- outcomes: each ends one job in hand ---- */

/* `told`: Q took note of it. */
static void end_job(struct worker *w, struct held *h, int metric, bool told,
                    enum lease_answer answer)
{
    hand_end(w->hand, h);
    vitals_advance(&w->vitals);
    if (!told)
        return; /* its lease ends by itself, and the job is delivered again */
    if (answer == LEASE_STALE) {
        metric_add(&w->vitals.metrics[M_STALE], 1);
        log_warn("lease_lost", "id=%.12s attempt=%d", h->job.id, h->job.attempt);
        return;
    }
    metric_add(&w->vitals.metrics[metric], 1);
}

static void complete_stored(struct worker *w)
{
    const struct claimed_job *jobs[HAND_MAX];
    enum lease_answer answers[HAND_MAX];
    struct stored *s = &w->stored;
    bool told = false;

    if (s->n == 0)
        return;
    for (size_t i = 0; i < s->n; i++)
        jobs[i] = &s->jobs[i]->job;
    /* twice: a connection that broke meanwhile is opened again, and to repeat it is harmless */
    for (int i = 0; i < 2 && !told; i++) {
        struct error err = {0};
        told = vitals_note_queue(&w->vitals, queue_complete(w->queue, jobs, s->n, answers, &err),
                                 &err) == OK;
    }
    for (size_t i = 0; i < s->n; i++)
        end_job(w, s->jobs[i], s->metrics[i], told, told ? answers[i] : LEASE_OK);
    s->n = 0;
}

/* A result that is in the cache since it began to be stored at since_ns. */
static void add_stored(struct worker *w, struct held *h, int metric, int64_t since_ns)
{
    struct stored *s = &w->stored;

    if (s->n == 0)
        s->since_ns = since_ns;
    s->jobs[s->n] = h;
    s->metrics[s->n++] = metric;
    if (clock_ms_since(s->since_ns) >= TOGETHER_MS)
        complete_stored(w);
}

/* `code` is for the waiting client; it never holds any text of the prompt. */
static void fail(struct worker *w, struct held *h, bool permanent, const char *code)
{
    enum lease_answer answer = LEASE_OK;
    struct error err = {0};
    bool told =
        vitals_note_queue(&w->vitals, queue_fail(w->queue, &h->job, permanent, code, &answer, &err),
                          &err) == OK;

    log_warn("job_failed", "id=%.12s attempt=%d permanent=%d code=%s", h->job.id, h->job.attempt,
             permanent, code);
    end_job(w, h, M_FAILED, told, answer);
}

/* Whether the job is still wanted and still ours; if not, ends it. */
static bool is_wanted(struct worker *w, struct held *h)
{
    enum lease_answer answer = hand_answer(w->hand, h);
    struct error err = {0};
    bool told = true;

    if (answer == LEASE_OK)
        return true;
    if (answer == LEASE_CANCELLED)
        told = vitals_note_queue(&w->vitals, queue_cancelled(w->queue, &h->job, &answer, &err),
                                 &err) == OK;
    end_job(w, h, M_CANCELLED, told, answer);
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

/* False: it names something that this engine does not know. */
static bool request_of(struct engine_request *out, const struct payload *p)
{
    *out = (struct engine_request){
        .layers = p->layers, .n_layers = p->n_layers, .dtype = dtype_of(p->dtype)};
    return out->dtype != DTYPE_COUNT && engine_level_find(&out->level, p->output) &&
           engine_modalities_find(&out->modalities, p->modalities);
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
    if (!request_of(&request, &h->payload)) {
        log_error("unsupported_output", "id=%.12s output=%s dtype=%s", h->job.id, h->payload.output,
                  h->payload.dtype);
        fail(w, h, true, "unsupported_output");
        return false;
    }
    if (engine_check_prompt(engine_info(w->engine),
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
    bool told;

    metric_add(&w->vitals.metrics[M_CACHE_ERRORS], 1);
    log_warn("cache_error", "id=%.12s text=\"%s\"", h->job.id, why->text);
    atomic_store(&w->vitals.cache_is_away, true);
    told =
        vitals_note_queue(&w->vitals, queue_release(w->queue, &h->job, &answer, &err), &err) == OK;
    end_job(w, h, M_RELEASED, told, answer);
}

/* Which results are there already: an engine died between storing and completing, or another
 * computed them meanwhile. ERR_IO and the like: the cache does not say. */
static int find_cached(struct worker *w, struct held *const *jobs, size_t n, bool *cached,
                       struct error *err)
{
    const char *ids[HAND_MAX];

    for (size_t i = 0; i < n; i++)
        ids[i] = jobs[i]->job.id;
    return n == 0 ? OK : cache_exist_all(w->caches[0], ids, n, cached, err);
}

/* Whether the cache answers; asked before anything is claimed. */
static bool cache_answers(struct worker *w)
{
    struct error err = {0};
    bool there;
    int rc = cache_ping(w->caches[0], &err);

    there = rc == OK;
    if (!there && !atomic_exchange(&w->vitals.cache_is_away, true))
        log_warn("cache_away", "text=\"%s\"", err.text);
    if (there && atomic_exchange(&w->vitals.cache_is_away, false))
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

/* A result as the cache has it: what the engine gave, then the ids. */
struct stored_parts {
    const void *data[ENGINE_MAX_TENSORS + 1];
    size_t bytes[ENGINE_MAX_TENSORS + 1];
};

static void describe_result(struct cache_header *header, struct stored_parts *parts,
                            const struct payload *p, const struct engine_result *r)
{
    size_t n_ids = (size_t)p->n_ids, n = (size_t)r->n_tensors;

    for (size_t i = 0; i < n; i++) {
        const struct engine_tensor *from = &r->tensors[i];
        struct cache_tensor *to = &header->tensors[i];
        snprintf(to->name, sizeof(to->name), "%s", from->name);
        snprintf(to->dtype, sizeof(to->dtype), "%s", dtype_info(from->dtype)->name);
        to->n_dims = from->n_dims;
        memcpy(to->shape, from->shape, sizeof(from->shape));
        to->bytes = from->bytes;
        parts->data[i] = from->data;
    }
    header->tensors[n] =
        (struct cache_tensor){"token_ids", "I32", 1, {n_ids}, n_ids * sizeof(int32_t)};
    parts->data[n] = p->ids;
    header->n_tensors = (int)n + 1;
    for (size_t i = 0; i <= n; i++) {
        parts->bytes[i] = header->tensors[i].bytes;
        header->bytes += parts->bytes[i];
    }
}

/* A result on its way into the cache. */
struct put {
    struct worker *w;
    struct cache *cache;
    struct held *held;
    struct cache_header header;
    struct stored_parts parts;
    int64_t ttl_ms, start_ns;
    int rc;
    struct error err;
};

static void put_prepare(struct put *p, struct worker *w, struct held *h,
                        const struct engine_result *r)
{
    const struct engine_info *info = engine_info(w->engine);
    struct cache_header *header = &p->header;

    *p = (struct put){.w = w, .held = h};
    p->ttl_ms = h->payload.ttl_s > 0 ? (int64_t)h->payload.ttl_s * 1000 : w->options.result_ttl_ms;
    header->n_tokens = r->n_tokens;
    header->truncated = h->payload.truncated;
    describe_result(header, &p->parts, &h->payload, r);
    snprintf(header->model, sizeof(header->model), "%s", w->card->id);
    snprintf(header->weights, sizeof(header->weights), "%s", w->card->weights);
    snprintf(header->tokenizer, sizeof(header->tokenizer), "%s", w->card->tokenizer);
    snprintf(header->gemma_version, sizeof(header->gemma_version), "%s", w->card->gemma_version);
    snprintf(header->output, sizeof(header->output), "%s", h->payload.output);
    snprintf(header->modalities, sizeof(header->modalities), "%s", h->payload.modalities);
    layers_text(header->layers, sizeof(header->layers), &h->payload);
    if (h->payload.n_layers == 0) { /* what LTX had a part in */
        snprintf(header->extractor, sizeof(header->extractor), "v%d", info->extractor);
        snprintf(header->ltx_version, sizeof(header->ltx_version), "%s", info->ltx_version);
    }
}

static void *put_run(void *arg)
{
    struct put *p = arg;
    bool stored;

    p->start_ns = clock_now_ns();
    p->rc = ERR_IO;
    /* twice: a connection that broke since it was used last is opened again */
    for (int i = 0; i < 2 && p->rc == ERR_IO; i++) {
        p->err = (struct error){0};
        p->rc = cache_put(p->cache, p->held->job.id, &p->header, p->parts.data, p->parts.bytes,
                          (size_t)p->header.n_tensors, p->ttl_ms, false, &stored, &p->err);
        vitals_advance(&p->w->vitals);
    }
    if (p->rc == OK)
        metric_observe(&p->w->vitals.metrics[M_STORE], clock_ms_since(p->start_ns) / 1e3);
    return NULL;
}

/* Large ones at once, each in a thread of its own, the first in this one; where the system has no
 * thread to give, and small ones, one after another. */
static void put_run_all(struct put *puts, int n, bool large)
{
    pthread_t threads[WRITERS];
    bool started[WRITERS] = {false};

    for (int i = 1; i < n && large; i++)
        started[i] = pthread_create(&threads[i], NULL, put_run, &puts[i]) == 0;
    for (int i = 0; i < n; i++)
        if (!started[i])
            put_run(&puts[i]);
    for (int i = 1; i < n; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

/* Its job is completed soon after it was stored, never before. */
static void put_settle(struct put *p)
{
    if (p->rc == OK) {
        add_stored(p->w, p->held, M_DONE, p->start_ns);
    } else if (p->rc == ERR_MEM) {
        metric_add(&p->w->vitals.metrics[M_CACHE_ERRORS], 1);
        fail(p->w, p->held, false, "cache_full");
    } else {
        give_back(p->w, p->held, &p->err);
    }
}

/* Stores results, WRITERS at once, each on a connection of its own; frees them. */
static void store(struct worker *w, struct held *const *jobs, struct engine_result *results,
                  size_t n)
{
    struct put puts[WRITERS];

    for (size_t first = 0, next; first < n; first = next) {
        bool large = false;
        int n_puts = 0;
        for (next = first; next < n && n_puts < WRITERS; next++) {
            if (!is_wanted(w, jobs[next]))
                continue;
            put_prepare(&puts[n_puts], w, jobs[next], &results[next]);
            puts[n_puts].cache = w->caches[n_puts];
            large |= puts[n_puts++].header.bytes > CACHE_PIECE;
        }
        if (large) /* the small ones before do not wait for it */
            complete_stored(w);
        put_run_all(puts, n_puts, large);
        for (int i = 0; i < n_puts; i++)
            put_settle(&puts[i]);
        for (size_t i = first; i < next; i++)
            engine_result_free(&results[i]);
    }
    complete_stored(w);
}

static void note_speed(struct worker *w, size_t n_tokens, double seconds)
{
    w->recent_tokens = 0.9 * w->recent_tokens + (double)n_tokens;
    w->recent_s = 0.9 * w->recent_s + seconds;
}

/* Tokens a second, storing included; 0: not known yet. */
static double speed(const struct worker *w)
{
    return w->recent_s > 0.0 ? w->recent_tokens / w->recent_s : 0.0;
}

/* Encodes jobs together, in halves when memory lacks. ERR_GPU alone is returned. */
static int encode(struct worker *w, struct held **jobs, size_t n, struct error *err)
{
    struct engine_request requests[HAND_MAX];
    struct engine_prompt prompts[HAND_MAX];
    struct engine_result results[HAND_MAX];
    int64_t start = clock_now_ns();
    struct error why = {0};
    size_t n_tokens = 0;
    int rc;

    if (n == 0)
        return OK;
    for (size_t i = 0; i < n; i++) {
        request_of(&requests[i], &jobs[i]->payload); /* accepted before */
        prompts[i] =
            (struct engine_prompt){jobs[i]->payload.ids, jobs[i]->payload.n_ids, &requests[i]};
        n_tokens += (size_t)jobs[i]->payload.n_ids;
    }
    rc = engine_encode(w->engine, prompts, (int)n, results, &why);
    vitals_advance(&w->vitals);
    if (rc != OK && rc != ERR_GPU && n > 1) { /* out of memory, or one of them is at fault */
        metric_add(&w->vitals.metrics[M_HALVED], 1);
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
    vitals_note_proof(&w->vitals, true);
    metric_add(&w->vitals.metrics[M_BATCHES], 1);
    metric_add(&w->vitals.metrics[M_TOKENS], (int64_t)n_tokens);
    metric_observe(&w->vitals.metrics[M_ENCODE], clock_ms_since(start) / 1e3);
    log_info("batch_encoded", "jobs=%zu tokens=%zu ms=%.1f", n, n_tokens, clock_ms_since(start));
    store(w, jobs, results, n);
    note_speed(w, n_tokens, clock_ms_since(start) / 1e3);
    return OK;
}

static int run_batch(struct worker *w, struct error *err)
{
    struct held *wanted[HAND_MAX], *rest[HAND_MAX];
    bool cached[HAND_MAX] = {false};
    struct error why = {0};
    size_t n = 0, n_rest = 0;

    for (size_t i = 0; i < hand_n(w->hand); i++) {
        struct held *h = hand_at(w->hand, i);
        if (accept_job(w, h) && is_wanted(w, h))
            wanted[n++] = h;
    }
    if (find_cached(w, wanted, n, cached, &why) != OK) {
        for (size_t i = 0; i < n; i++)
            give_back(w, wanted[i], &why);
        return OK;
    }
    vitals_advance(&w->vitals);
    for (size_t i = 0; i < n; i++)
        if (cached[i])
            add_stored(w, wanted[i], M_CACHED, clock_now_ns());
        else
            rest[n_rest++] = wanted[i];
    complete_stored(w);
    return encode(w, rest, n_rest, err);
}

/* ---- the loop ---- */

/* While nothing waits, a forward pass of one token now and then proves that the device works. */
static int probe(struct worker *w, struct error *err)
{
    struct error why = {0};
    int rc;

    if (clock_ms_since(atomic_load(&w->vitals.last_proof_ns)) < w->options.probe_every_ms)
        return OK;
    rc = proof_run(w->engine, false, &why);
    vitals_note_proof(&w->vitals, rc == OK);
    if (rc == ERR_GPU)
        return error_set(err, why.code, "%s", why.text);
    if (rc != OK)
        log_warn("probe_failed", "text=\"%s\"", why.text);
    return OK;
}

static void back_off(struct worker *w)
{
    w->backoff_ms = w->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * w->backoff_ms;
    if (w->backoff_ms > BACKOFF_MAX_MS)
        w->backoff_ms = BACKOFF_MAX_MS;
    clock_pause_ms(w->backoff_ms);
}

static void note_claim(struct worker *w, const struct claimed_job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        metric_observe(&w->vitals.metrics[M_WAIT], (double)jobs[i].waited_ms / 1e3);
        if (jobs[i].attempt > 1)
            metric_add(&w->vitals.metrics[M_REDELIVERED], 1);
    }
}

/* One round: what is there is claimed and run. ERR_GPU alone is returned. */
static int round_of_work(struct worker *w, struct error *err)
{
    struct claimed_job jobs[HAND_MAX];
    struct error why = {0};
    size_t n = 0;
    bool rang;
    int rc;

    vitals_advance(&w->vitals);
    if (!cache_answers(w)) {
        back_off(w);
        return OK;
    }
    rc = queue_claim(w->queue, w->options.owner, w->options.budget_tokens, w->options.max_jobs,
                     w->options.lease_ms, speed(w), jobs, HAND_MAX, &n, &why);
    if (rc == OK && n == 0)
        rc = queue_wait(w->queue, DOORBELL_MS, &rang, &why);
    if (vitals_note_queue(&w->vitals, rc, &why) != OK) {
        back_off(w);
        return OK;
    }
    w->backoff_ms = 0;
    if (n == 0)
        return probe(w, err);
    note_claim(w, jobs, n);
    hand_take(w->hand, jobs, n);
    metric_set(&w->vitals.metrics[M_IN_HAND], (int64_t)n);
    rc = run_batch(w, err);
    hand_let_go(w->hand);
    metric_set(&w->vitals.metrics[M_IN_HAND], 0);
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
    keeper_expect_nothing(w->keeper);
    pthread_mutex_lock(&w->lock);
    w->rc = rc;
    w->err = err;
    atomic_store(&w->loop_ended, true);
    pthread_cond_broadcast(&w->ended);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- from outside ---- */

int worker_start(struct worker **out, struct engine *engine, struct registration *registration,
                 const struct worker_options *options, struct error *err)
{
    struct worker *w;
    struct keeper_options keeper_options;
    int rc;

    *out = NULL;
    if ((w = calloc(1, sizeof(*w))) == NULL)
        return error_set(err, ERR_MEM, "worker: no memory");
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->ended);
    vitals_init(&w->vitals);
    vitals_note_proof(&w->vitals, true);
    w->options = *options;
    if (w->options.max_jobs > HAND_MAX)
        w->options.max_jobs = HAND_MAX;
    w->engine = engine;
    w->card = registration_card(registration);
    queue_base(w->base, w->card->id, w->card->weights, w->card->compute);
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
        .vitals = &w->vitals,
    };
    if ((rc = hand_create(&w->hand, err)) != OK)
        goto out;
    keeper_options.hand = w->hand;
    if ((rc = queue_open(&w->queue, options->queue_url, w->base, options->redis_timeout_ms, err)) !=
        OK)
        goto out;
    vitals_note_queue(&w->vitals, OK, NULL); /* it has answered: ready from the first moment on */
    for (int i = 0; i < WRITERS; i++)
        if ((rc = cache_open(&w->caches[i], options->cache_urls, options->redis_timeout_ms, err)) !=
            OK)
            goto out;
    if ((rc = keeper_start(&w->keeper, &keeper_options, err)) != OK)
        goto out;
    if (pthread_create(&w->loop, NULL, loop_main, w) != 0) {
        rc = error_set(err, ERR_MEM, "worker: cannot start a thread");
        goto out;
    }
    w->loop_started = true;
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
    int64_t until_ns = clock_now_ns() + timeout_ms * INT64_C(1000000);
    bool ended;

    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->loop_ended) && clock_cond_wait(&w->ended, &w->lock, until_ns))
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
    return keeper_gave_up(w->keeper) || (atomic_load(&w->loop_ended) && !atomic_load(&w->draining));
}

int worker_release(struct worker *w, struct error *err)
{
    struct claimed_job jobs[HAND_MAX];
    struct queue *queue = NULL;
    size_t n = hand_copy_open(w->hand, jobs);
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
    keeper_stop(w->keeper);
    hand_free(w->hand);
    queue_close(w->queue);
    for (int i = 0; i < WRITERS; i++)
        cache_close(w->caches[i]);
    pthread_cond_destroy(&w->ended);
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
    snprintf(why, cap, "ready; the last forward pass was good, %.0f s ago", proof_ms / 1e3);
    return true;
}

int worker_metrics(struct worker *w, struct buf *out, struct error *err)
{
    return metrics_render(w->vitals.metrics, N_METRICS, out, err);
}
