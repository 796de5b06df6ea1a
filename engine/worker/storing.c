#include "engine/worker/storing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/worker/outcome.h"
#include "jobs/cache.h"

enum { WRITERS = 4 }; /* results that are stored at once: one connection fills no cache */

_Static_assert((int)ENGINE_MAX_TENSORS < (int)CACHE_MAX_TENSORS, "a result and its ids fit");

struct storing {
    const struct work *work;
    struct queue *queue;
    struct cache *caches[WRITERS];
    struct outcomes outcomes;
    double recent_tokens, recent_s; /* of the last batches, the older the less */
};

int storing_open(struct storing **out, const struct work *work, struct error *err)
{
    const struct worker_options *o = work->options;
    struct storing *s;
    int rc;

    *out = NULL;
    if ((s = calloc(1, sizeof(*s))) == NULL)
        return error_set(err, ERR_MEM, "storing: no memory");
    s->work = work;
    if ((rc = queue_open(&s->queue, o->queue_url, work->base, o->redis_timeout_ms, err)) != OK)
        goto out;
    for (int i = 0; i < WRITERS; i++)
        if ((rc = cache_open(&s->caches[i], o->cache_urls, o->redis_timeout_ms, err)) != OK)
            goto out;
    s->outcomes = (struct outcomes){
        .queue = s->queue, .hand = work->hand, .vitals = work->vitals, .step = STEP_STORE};
    *out = s;
    s = NULL;
out:
    storing_close(s);
    return rc;
}

void storing_close(struct storing *s)
{
    if (s == NULL)
        return;
    queue_close(s->queue);
    for (int i = 0; i < WRITERS; i++)
        cache_close(s->caches[i]);
    free(s);
}

/* ---- a result ---- */

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
    struct storing *s;
    struct cache *cache;
    struct held *held;
    struct cache_header header;
    struct stored_parts parts;
    int64_t ttl_ms, start_ns;
    int rc;
    struct error err;
};

static void put_prepare(struct put *p, struct storing *s, struct held *h,
                        const struct engine_result *r)
{
    const struct engine_info *info = s->work->info;
    const struct model_card *card = s->work->card;
    struct cache_header *header = &p->header;

    *p = (struct put){.s = s, .held = h};
    p->ttl_ms =
        h->payload.ttl_s > 0 ? (int64_t)h->payload.ttl_s * 1000 : s->work->options->result_ttl_ms;
    header->n_tokens = r->n_tokens;
    header->truncated = h->payload.truncated;
    describe_result(header, &p->parts, &h->payload, r);
    snprintf(header->model, sizeof(header->model), "%s", card->id);
    snprintf(header->weights, sizeof(header->weights), "%s", card->weights);
    snprintf(header->tokenizer, sizeof(header->tokenizer), "%s", card->tokenizer);
    snprintf(header->gemma_version, sizeof(header->gemma_version), "%s", card->gemma_version);
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
    struct vitals *v = p->s->work->vitals;
    bool stored;

    p->start_ns = clock_now_ns();
    p->rc = ERR_IO;
    /* twice: a connection that broke since it was used last is opened again */
    for (int i = 0; i < 2 && p->rc == ERR_IO; i++) {
        p->err = (struct error){0};
        p->rc = cache_put(p->cache, p->held->job.id, &p->header, p->parts.data, p->parts.bytes,
                          (size_t)p->header.n_tensors, p->ttl_ms, false, &stored, &p->err);
        vitals_advance(v, STEP_STORE);
    }
    if (p->rc == OK)
        metric_observe(&v->metrics[M_STORE], clock_ms_since(p->start_ns) / 1e3);
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

/* Its job is completed soon after it was stored, never before. A cache that cannot be reached is no
 * fault of the job's: it goes back, and nothing more is claimed until the cache answers. */
static void put_settle(struct put *p)
{
    struct vitals *v = p->s->work->vitals;
    struct outcomes *o = &p->s->outcomes;

    if (p->rc == OK) {
        outcome_add_stored(o, p->held, M_DONE, p->start_ns);
        return;
    }
    metric_add(&v->metrics[M_CACHE_ERRORS], 1);
    if (p->rc == ERR_MEM) {
        outcome_fail(o, p->held, false, "cache_full");
        return;
    }
    log_warn("cache_error", "id=%.12s text=\"%s\"", p->held->job.id, p->err.text);
    atomic_store(&v->cache_is_away, true);
    outcome_release(o, p->held);
}

/* ---- a batch ---- */

/* Stores results, WRITERS at once, each on a connection of its own; frees them. */
static void store(struct storing *s, struct batch *b)
{
    struct put puts[WRITERS];

    for (size_t first = 0, next; first < b->n; first = next) {
        bool large = false;
        int n_puts = 0;
        for (next = first; next < b->n && n_puts < WRITERS; next++) {
            if (!outcome_is_wanted(&s->outcomes, b->jobs[next]))
                continue;
            put_prepare(&puts[n_puts], s, b->jobs[next], &b->results[next]);
            puts[n_puts].cache = s->caches[n_puts];
            large |= puts[n_puts++].header.bytes > CACHE_PIECE;
        }
        if (large) /* the small ones before do not wait for it */
            outcome_complete(&s->outcomes);
        put_run_all(puts, n_puts, large);
        for (int i = 0; i < n_puts; i++)
            put_settle(&puts[i]);
        for (size_t i = first; i < next; i++)
            engine_result_free(&b->results[i]);
        vitals_advance(s->work->vitals, STEP_STORE);
    }
    outcome_complete(&s->outcomes);
}

/* Batches follow each other as fast as the slower of encoding and storing lets them. */
static void note_speed(struct storing *s, const struct batch *b, double store_ms)
{
    double ms = b->encode_ms > store_ms ? b->encode_ms : store_ms;

    s->recent_tokens = 0.9 * s->recent_tokens + (double)b->n_tokens;
    s->recent_s = 0.9 * s->recent_s + ms / 1e3;
    if (s->recent_s > 0.0)
        atomic_store(&s->work->vitals->tokens_per_s, s->recent_tokens / s->recent_s);
}

static void give_back(struct storing *s, const struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        outcome_release(&s->outcomes, b->jobs[i]);
}

static void run_batch(struct storing *s, struct batch *b)
{
    int64_t start_ns = clock_now_ns();
    double ms;

    if (b->cache_is_away) {
        give_back(s, b);
        return;
    }
    if (b->failure != NULL) {
        for (size_t i = 0; i < b->n; i++)
            outcome_fail(&s->outcomes, b->jobs[i], false, b->failure);
        return;
    }
    store(s, b);
    ms = clock_ms_since(start_ns);
    metric_observe(&s->work->vitals->metrics[M_STORE_BATCH], ms / 1e3);
    log_info("batch_stored", "jobs=%zu ms=%.1f", b->n, ms);
    note_speed(s, b, ms);
}

void storing_run(struct storing *s)
{
    struct vitals *v = s->work->vitals;
    struct batch *b, left;

    while ((b = belt_take_encoded(s->work->belt)) != NULL) {
        vitals_resume(v, STEP_STORE);
        run_batch(s, b);
        vitals_rest(v, STEP_STORE);
        belt_stored(s->work->belt);
    }
    if (belt_take_left(s->work->belt, &left))
        give_back(s, &left);
}
