/* fake_engine.c - an engine without a model, for tests of the service.
 *
 * Registers a card with a real tokenizer, claims jobs and answers each with tensors made of the
 * ids, what is wanted of them and --seed alone, so that a test can tell right bytes from wrong
 * ones. Token ids named on the command line make it slow, fail, hang or die. Every computation is
 * one line in the journal: the job's id, the attempt, its tokens, and the number of this engine's
 * claim that it came with. */
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/options.h"
#include "jobs/cache.h"
#include "jobs/card.h"
#include "jobs/payload.h"
#include "jobs/queue.h"
#include "jobs/redis.h"
#include "tokenizer/tokenizer.h"

enum { MAX_CLAIMED = 32 };

struct settings {
    const char *redis_queue, *redis_cache, *tokenizer, *model_id, *weights, *compute, *journal,
        *route;
    const char *ltx_version;
    int64_t video, audio, rows; /* of features and embeddings; video 0: neither */
    int64_t n_states, width, seed, delay_ms, lease_ms, max_jobs, tokens_per_s, slow_ms;
    int64_t slow_id, fail_id, hang_id, die_id;
    bool only_register;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"redis-queue", 0, NULL, OPT_TEXT, FIELD(redis_queue), NULL, 0, 0, "URL", "jobs"},
    {"redis-cache", 0, NULL, OPT_TEXT, FIELD(redis_cache), NULL, 0, 0, "URL", "results"},
    {"tokenizer", 0, NULL, OPT_TEXT, FIELD(tokenizer), NULL, 0, 0, "PATH", "tokenizer.json"},
    {"model-id", 0, NULL, OPT_TEXT, FIELD(model_id), "tiny", 0, 0, "NAME", "of the card"},
    {"weights", 0, NULL, OPT_TEXT, FIELD(weights), NULL, 0, 0, "HEX", "digest of the card"},
    {"compute", 0, NULL, OPT_TEXT, FIELD(compute), "float32", 0, 0, "WORD", "of the card"},
    {"journal", 0, NULL, OPT_TEXT, FIELD(journal), NULL, 0, 0, "PATH", "a line a computation"},
    {"route", 0, NULL, OPT_TEXT, FIELD(route), NULL, 0, 0, "TEXT", "of its results"},
    {"states", 0, NULL, OPT_INT, FIELD(n_states), "8", 1, 256, "N", "of the card"},
    {"width", 0, NULL, OPT_INT, FIELD(width), "128", 1, 8192, "N", "of the card"},
    {"video", 0, NULL, OPT_INT, FIELD(video), "0", 0, 8192, "N", "width of features"},
    {"audio", 0, NULL, OPT_INT, FIELD(audio), "0", 0, 8192, "N", "likewise"},
    {"rows", 0, NULL, OPT_INT, FIELD(rows), "1024", 1, 1024, "N", "of embeddings"},
    {"ltx-version", 0, NULL, OPT_TEXT, FIELD(ltx_version), NULL, 0, 0, "TEXT", "of the card"},
    {"seed", 0, NULL, OPT_INT, FIELD(seed), "0", 0, 1 << 30, "N", "of its tensors"},
    {"delay-ms", 0, NULL, OPT_INT, FIELD(delay_ms), "0", 0, 60000, "N", "of each batch"},
    {"lease-ms", 0, NULL, OPT_INT, FIELD(lease_ms), "30000", 100, 60000, "N", "of a claim"},
    {"max-jobs", 0, NULL, OPT_INT, FIELD(max_jobs), "32", 1, MAX_CLAIMED, "N", "of a claim"},
    {"tokens-per-s", 0, NULL, OPT_INT, FIELD(tokens_per_s), "0", 0, 1 << 30, "N", "as it says"},
    {"slow-id", 0, NULL, OPT_INT, FIELD(slow_id), "-1", -1, 1 << 30, "ID", "takes slow-ms"},
    {"slow-ms", 0, NULL, OPT_INT, FIELD(slow_ms), "1000", 0, 60000, "N", "more, for slow-id"},
    {"fail-id", 0, NULL, OPT_INT, FIELD(fail_id), "-1", -1, 1 << 30, "ID", "fails for good"},
    {"hang-id", 0, NULL, OPT_INT, FIELD(hang_id), "-1", -1, 1 << 30, "ID", "is never completed"},
    {"die-id", 0, NULL, OPT_INT, FIELD(die_id), "-1", -1, 1 << 30, "ID", "ends this process"},
    {"only-register", 0, NULL, OPT_BOOL, FIELD(only_register), "0", 0, 0, "", "then exit"},
    {0},
};
static const struct program program = {"fake_engine", "[options]", "For tests.", options};

struct fake {
    struct settings settings;
    struct model_card card;
    struct queue *queue;
    struct cache *cache;
    int n_claims;
};

static bool has_id(const struct payload *p, int64_t id)
{
    for (int i = 0; i < p->n_ids; i++)
        if (p->ids[i] == id)
            return true;
    return false;
}

static int register_card(const struct settings *s, struct model_card *card, struct error *err)
{
    struct tokenizer *tokenizer = NULL;
    struct buf compact = {.max = 64 << 20};
    struct redis *redis = NULL;
    unsigned char digest[32];
    int rc;

    *card = (struct model_card){.architecture = "gemma3",
                                .engine_version = "fake",
                                .n_states = (int)s->n_states,
                                .width = (int)s->width,
                                .max_tokens = 1024,
                                .has_hidden_states = true,
                                .extractor = s->video > 0 ? 2 : 0,
                                .rows = s->video > 0 ? (int)s->rows : 0,
                                .video_width = (int)s->video,
                                .audio_width = (int)s->audio};
    if (s->ltx_version != NULL)
        snprintf(card->ltx_version, sizeof(card->ltx_version), "%s", s->ltx_version);
    snprintf(card->id, sizeof(card->id), "%s", s->model_id);
    snprintf(card->compute, sizeof(card->compute), "%s", s->compute);
    for (int i = 0; i < CARD_DIGEST_SIZE - 1; i++)
        card->weights[i] = s->weights == NULL ? 'a' : s->weights[(size_t)i % strlen(s->weights)];
    if ((rc = tokenizer_load(&tokenizer, s->tokenizer, err)) != OK ||
        (rc = tokenizer_save(tokenizer, &compact, err)) != OK ||
        (rc = redis_open(&redis, s->redis_queue, 5000, err)) != OK)
        goto out;
    card->vocabulary = (int)tokenizer_n_ids(tokenizer);
    gnutls_hash_fast(GNUTLS_DIG_SHA256, compact.data, compact.len, digest);
    for (size_t i = 0; i < sizeof(digest); i++)
        snprintf(card->tokenizer + 2 * i, 3, "%02x", digest[i]);
    rc = card_register(redis, card, compact.data, compact.len, err);
out:
    redis_close(redis);
    tokenizer_free(tokenizer);
    buf_free(&compact);
    return rc;
}

/* A result as it is made. */
struct made {
    struct cache_header header;
    void *parts[CACHE_MAX_TENSORS];
};

static void *add_tensor(struct made *m, const char *name, const char *dtype, int n_dims,
                        const size_t *shape, size_t item)
{
    struct cache_header *h = &m->header;
    struct cache_tensor *t = &h->tensors[h->n_tensors];

    t->bytes = item;
    snprintf(t->name, sizeof(t->name), "%s", name);
    snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
    t->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        t->bytes *= shape[i];
    }
    h->bytes += t->bytes;
    if ((m->parts[h->n_tensors] = malloc(t->bytes)) == NULL)
        abort();
    return m->parts[h->n_tensors++];
}

/* Adds a tensor of bytes that follow from ids and numbers; test_service.py has the same formula. */
static void add_numbers(struct made *m, const char *name, int n_dims, const size_t *shape,
                        const struct payload *p, const int *numbers, int n, uint32_t seed)
{
    bool wide = strcmp(p->dtype, "float32") == 0, half = strcmp(p->dtype, "float16") == 0;
    unsigned char *out = add_tensor(m, name,
                                    wide   ? "F32"
                                    : half ? "F16"
                                           : "BF16",
                                    n_dims, shape, wide ? 4 : 2);

    for (int i = 0; i < p->n_ids; i++)
        seed = seed * 31 + (uint32_t)p->ids[i];
    for (int i = 0; i < n; i++)
        seed = seed * 31 + (uint32_t)numbers[i];
    for (size_t k = 0; k < m->header.tensors[m->header.n_tensors - 1].bytes; k++)
        out[k] = (unsigned char)(seed + k * 7 + (k >> 8));
}

/* Features and embeddings are numbered 1000 (video) and 1001, and 2000 and 2001. */
static void add_modality(const struct fake *f, struct made *m, const struct payload *p, int audio)
{
    bool embeddings = strcmp(p->output, "embeddings") == 0;
    const char *name = audio ? "audio" : "video";
    int number = (embeddings ? 2000 : 1000) + audio;
    size_t shape[2] = {embeddings ? (size_t)f->card.rows : (size_t)p->n_ids,
                       (size_t)(audio ? f->card.audio_width : f->card.video_width)};
    char full[32];

    snprintf(full, sizeof(full), "%s%s", name, embeddings ? "" : "_features");
    if (strstr(p->modalities, name) != NULL)
        add_numbers(m, full, 2, shape, p, &number, 1, (uint32_t)f->settings.seed);
}

static void make(const struct fake *f, struct made *m, const struct payload *p)
{
    size_t tokens = (size_t)p->n_ids, rows = (size_t)f->card.rows, len = 0;
    struct cache_header *h = &m->header;

    *h = (struct cache_header){.n_tokens = p->n_ids, .truncated = p->truncated};
    snprintf(h->model, sizeof(h->model), "%s", f->card.id);
    snprintf(h->weights, sizeof(h->weights), "%s", f->card.weights);
    snprintf(h->tokenizer, sizeof(h->tokenizer), "%s", f->card.tokenizer);
    snprintf(h->gemma_version, sizeof(h->gemma_version), "%s", f->card.gemma_version);
    snprintf(h->output, sizeof(h->output), "%s", p->output);
    snprintf(h->route, sizeof(h->route), "%s", f->settings.route != NULL ? f->settings.route : "");
    snprintf(h->modalities, sizeof(h->modalities), "%s", p->modalities);
    if (p->n_layers > 0) {
        const size_t shape[] = {(size_t)p->n_layers, tokens, (size_t)f->card.width};
        for (int i = 0; i < p->n_layers; i++)
            len += (size_t)snprintf(h->layers + len, sizeof(h->layers) - len, "%s%d",
                                    i > 0 ? "," : "", p->layers[i]);
        add_numbers(m, "hidden_states", 3, shape, p, p->layers, p->n_layers,
                    (uint32_t)f->settings.seed);
    } else {
        snprintf(h->extractor, sizeof(h->extractor), "v%d", f->card.extractor);
        snprintf(h->ltx_version, sizeof(h->ltx_version), "%s", f->card.ltx_version);
        add_modality(f, m, p, 0);
        add_modality(f, m, p, 1);
    }
    if (strcmp(p->output, "embeddings") == 0) {
        int64_t *mask = add_tensor(m, "mask", "I64", 1, &rows, sizeof(int64_t));
        for (size_t i = 0; i < rows; i++)
            mask[i] = 1;
    }
    memcpy(add_tensor(m, "token_ids", "I32", 1, &tokens, sizeof(int32_t)), p->ids,
           tokens * sizeof(int32_t));
}

static int put(const struct fake *f, const struct claimed_job *job, const struct payload *p,
               struct error *err)
{
    size_t sizes[CACHE_MAX_TENSORS];
    struct made m = {0};
    bool stored;
    int rc;

    make(f, &m, p);
    for (int i = 0; i < m.header.n_tensors; i++)
        sizes[i] = m.header.tensors[i].bytes;
    rc = cache_put(f->cache, job->id, &m.header, (const void *const *)m.parts, sizes,
                   (size_t)m.header.n_tensors, p->ttl_s > 0 ? p->ttl_s * INT64_C(1000) : 3600000,
                   false, &stored, err);
    for (int i = 0; i < m.header.n_tensors; i++)
        free(m.parts[i]);
    return rc;
}

static int encode(const struct fake *f, const struct claimed_job *job, struct error *err)
{
    const struct settings *s = &f->settings;
    struct payload p = {0};
    enum lease_answer answer;
    FILE *journal;
    int rc;

    if ((rc = payload_read(&p, job->payload, job->payload_len, err)) != OK)
        return rc;
    if (has_id(&p, s->die_id))
        _exit(9);
    if (has_id(&p, s->slow_id))
        clock_pause_ms(s->slow_ms);
    if (has_id(&p, s->hang_id)) {
        rc = OK;
    } else if (has_id(&p, s->fail_id)) {
        rc = queue_fail(f->queue, job, true, "told_to_fail", &answer, err);
    } else {
        if (s->journal != NULL && (journal = fopen(s->journal, "a")) != NULL) {
            fprintf(journal, "%s %d %d %d\n", job->id, job->attempt, p.n_ids, f->n_claims);
            fclose(journal);
        }
        if ((rc = put(f, job, &p, err)) == OK)
            rc = queue_complete(f->queue, &job, 1, &answer, err);
    }
    payload_free(&p);
    return rc;
}

/* One claim; what goes wrong with Redis is tried again. */
static int work(struct fake *f, const char *owner, struct error *err)
{
    const struct settings *s = &f->settings;
    struct claimed_job jobs[MAX_CLAIMED];
    size_t n = 0;
    bool rang;
    int rc;

    if ((rc = queue_wait(f->queue, 50, &rang, err)) != OK ||
        (rc = queue_claim(f->queue, owner, 1 << 20, (int)s->max_jobs, (int)s->lease_ms,
                          (double)s->tokens_per_s, jobs, MAX_CLAIMED, &n, err)) != OK)
        return rc;
    f->n_claims++;
    if (n > 0)
        clock_pause_ms(s->delay_ms);
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = encode(f, &jobs[i], err);
    claimed_jobs_free(jobs, n);
    return rc;
}

int main(int argc, char **argv)
{
    static struct fake f;
    struct settings *s = &f.settings;
    struct error err = {0};
    char base[QUEUE_BASE_SIZE], owner[32];
    int n_rest;
    bool help;

    if (options_parse(&program, s, argc, argv, &n_rest, &help, &err) != OK ||
        register_card(s, &f.card, &err) != OK)
        goto fail;
    printf("ready\n");
    fflush(stdout);
    if (s->only_register)
        return EXIT_SUCCESS;
    queue_base(base, f.card.id, f.card.weights, f.card.compute);
    snprintf(owner, sizeof(owner), "fake-%ld", (long)getpid());
    for (;;) {
        err = (struct error){0};
        if ((f.queue == NULL && queue_open(&f.queue, s->redis_queue, base, 2000, &err) != OK) ||
            (f.cache == NULL && cache_open(&f.cache, s->redis_cache, 2000, &err) != OK) ||
            work(&f, owner, &err) != OK) {
            fprintf(stderr, "fake_engine: %s\n", err.text);
            clock_pause_ms(100);
        }
    }
fail:
    fprintf(stderr, "fake_engine: %s\n", err.text);
    return EXIT_FAILURE;
}
