#include "service/models.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "jobs/redis.h"
#include "service/counters.h"

enum { SAID_SIZE = 1024 };

/* A tokenizer that models share, by digest. */
struct shared_tokenizer {
    atomic_int refs;
    char digest[CARD_DIGEST_SIZE];
    struct tokenizer *tokenizer;
};

struct held_model {
    struct model model; /* first: what the outside sees */
    atomic_int refs;
    struct shared_tokenizer *shared;
};

struct models {
    struct models_options options;
    struct redis *redis; /* the thread's own */
    pthread_t thread;
    bool started;
    _Atomic int64_t last_seen_ns;
    /* the thread's own: */
    /* to log a change once, not at every reading */
    bool was_away;
    char left_out[SAID_SIZE], unmeasured[SAID_SIZE];
    /* whose tokenizers are no good: not asked for again before they are registered again */
    struct model_card rejected[CARD_MAX];
    size_t n_rejected;
    int64_t measured_ns;
    struct measured_queue {
        char base[QUEUE_BASE_SIZE];
        struct queue *queue;
    } queues[CARD_MAX];
    size_t n_queues;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t stop;
    bool stopping;
    struct held_model *list[CARD_MAX];
    size_t n;
    struct model_depth depths[CARD_MAX];
    size_t n_depths;
};

static void shared_release(struct shared_tokenizer *s)
{
    if (s != NULL && atomic_fetch_sub(&s->refs, 1) == 1) {
        tokenizer_free(s->tokenizer);
        free(s);
    }
}

static struct held_model *held(const struct model *model)
{
    return (struct held_model *)(uintptr_t)model;
}

void model_hold(const struct model *model)
{
    atomic_fetch_add(&held(model)->refs, 1);
}

void model_release(const struct model *model)
{
    if (model == NULL || atomic_fetch_sub(&held(model)->refs, 1) != 1)
        return;
    shared_release(held(model)->shared);
    free(held(model));
}

/* ---- reading the cards ---- */

static bool is_same_model(const struct model_card *a, const struct model_card *b)
{
    return strcmp(a->id, b->id) == 0 && strcmp(a->weights, b->weights) == 0 &&
           strcmp(a->compute, b->compute) == 0;
}

static bool is_same_card(const struct model_card *a, const struct model_card *b)
{
    return is_same_model(a, b) && strcmp(a->tokenizer, b->tokenizer) == 0 &&
           strcmp(a->architecture, b->architecture) == 0 &&
           strcmp(a->engine_version, b->engine_version) == 0 &&
           a->registered_ms == b->registered_ms && a->seen_ms == b->seen_ms &&
           a->is_live == b->is_live && a->is_asleep == b->is_asleep && a->n_states == b->n_states &&
           a->width == b->width && a->max_tokens == b->max_tokens &&
           a->vocabulary == b->vocabulary && strcmp(a->gemma_version, b->gemma_version) == 0 &&
           a->has_hidden_states == b->has_hidden_states && a->extractor == b->extractor &&
           a->rows == b->rows && a->video_width == b->video_width &&
           a->audio_width == b->audio_width && strcmp(a->ltx_version, b->ltx_version) == 0;
}

static bool is_known(const struct models *m, const struct model_card *card)
{
    for (size_t i = 0; i < m->n; i++)
        if (is_same_model(&m->list[i]->model.card, card))
            return true;
    return false;
}

static int load_tokenizer(struct shared_tokenizer **out, struct models *m,
                          const struct model_card *card, struct error *err)
{
    struct buf compact = {.max = 256u << 20};
    struct shared_tokenizer *s = NULL;
    int rc;

    *out = NULL;
    if ((rc = card_tokenizer(m->redis, card, &compact, err)) != OK)
        goto out;
    if ((s = calloc(1, sizeof(*s))) == NULL) {
        rc = error_set(err, ERR_MEM, "models: no memory for a tokenizer");
        goto out;
    }
    if ((rc = tokenizer_from_compact(&s->tokenizer, compact.data, compact.len, card->id, err)) !=
        OK)
        goto out;
    atomic_init(&s->refs, 1);
    memcpy(s->digest, card->tokenizer, sizeof(s->digest));
    *out = s;
    s = NULL;
out:
    free(s);
    buf_free(&compact);
    return rc;
}

/* From what is there already, or anew. Only the thread changes the list, so it reads it freely. */
static int make_model(struct held_model **out, struct models *m, const struct model_card *card,
                      struct error *err)
{
    struct shared_tokenizer *shared = NULL;
    int rc;

    *out = NULL;
    for (size_t i = 0; i < m->n; i++)
        if (is_same_card(&m->list[i]->model.card, card)) {
            model_hold(&m->list[i]->model);
            *out = m->list[i];
            return OK;
        }
    for (size_t i = 0; i < m->n && shared == NULL; i++)
        if (strcmp(m->list[i]->shared->digest, card->tokenizer) == 0) {
            shared = m->list[i]->shared;
            atomic_fetch_add(&shared->refs, 1);
        }
    if (shared == NULL && (rc = load_tokenizer(&shared, m, card, err)) != OK)
        return rc;
    if ((*out = calloc(1, sizeof(**out))) == NULL) {
        shared_release(shared);
        return error_set(err, ERR_MEM, "models: no memory for %s", card->id);
    }
    atomic_init(&(*out)->refs, 1);
    (*out)->shared = shared;
    (*out)->model.card = *card;
    (*out)->model.tokenizer = shared->tokenizer;
    queue_base((*out)->model.base, card->id, card->weights, card->compute);
    if (!is_known(m, card))
        log_info("model", "id=%s weights=%.12s compute=%s states=%d width=%d", card->id,
                 card->weights, card->compute, card->n_states, card->width);
    return OK;
}

static bool is_rejected(const struct models *m, const struct model_card *card)
{
    for (size_t i = 0; i < m->n_rejected; i++)
        if (is_same_card(&m->rejected[i], card))
            return true;
    return false;
}

/* The models of those cards that can be used; returns how many. */
static size_t make_models(struct held_model *list[CARD_MAX], struct models *m,
                          const struct model_card *cards, size_t n_cards)
{
    struct model_card rejected[CARD_MAX];
    size_t n = 0, n_rejected = 0;

    for (size_t i = 0; i < n_cards; i++) {
        struct error why = {0};
        if (is_rejected(m, &cards[i])) {
            rejected[n_rejected++] = cards[i];
        } else if (make_model(&list[n], m, &cards[i], &why) == OK) {
            n++;
        } else { /* the others are served all the same */
            log_warn("model_unusable", "id=%s why=\"%s\"", cards[i].id, why.text);
            if (why.code == ERR_FORMAT)
                rejected[n_rejected++] = cards[i];
        }
    }
    memcpy(m->rejected, rejected, n_rejected * sizeof(rejected[0]));
    m->n_rejected = n_rejected;
    return n;
}

/* Logs a trouble that is not what was said last; "" is none. */
static void say_once(char said[SAID_SIZE], const char *text, const char *event)
{
    if (strcmp(said, text) != 0 && text[0] != '\0')
        log_warn(event, "why=\"%s\"", text);
    snprintf(said, SAID_SIZE, "%s", text);
}

static int read_cards(struct models *m, struct error *err)
{
    struct model_card *cards = calloc(CARD_MAX, sizeof(*cards));
    struct held_model *list[CARD_MAX], *old[CARD_MAX];
    char left_out[sizeof(m->left_out)];
    size_t n_cards = 0, n, n_old;
    int rc;

    if (cards == NULL)
        return error_set(err, ERR_MEM, "models: no memory for the cards");
    if ((rc = card_list(m->redis, cards, CARD_MAX, &n_cards, left_out, sizeof(left_out), err)) !=
        OK)
        goto out;
    say_once(m->left_out, left_out, "cards_left_out");
    n = make_models(list, m, cards, n_cards);
    pthread_mutex_lock(&m->lock);
    n_old = m->n;
    memcpy(old, m->list, n_old * sizeof(old[0]));
    memcpy(m->list, list, n * sizeof(list[0]));
    m->n = n;
    pthread_mutex_unlock(&m->lock);
    for (size_t i = 0; i < n_old; i++)
        model_release(&old[i]->model);
    metric_set(&counters[C_MODELS], (int64_t)n);
    atomic_store(&m->last_seen_ns, clock_now_ns());
out:
    free(cards);
    return rc;
}

/* ---- measuring the queues ---- */

/* Those of models that are gone; the others' connections stay open. */
static void close_queues(struct models *m)
{
    size_t n_left = 0;

    for (size_t i = 0; i < m->n_queues; i++) {
        size_t k = 0;
        while (k < m->n && strcmp(m->list[k]->model.base, m->queues[i].base) != 0)
            k++;
        if (k < m->n)
            m->queues[n_left++] = m->queues[i];
        else
            queue_close(m->queues[i].queue);
    }
    m->n_queues = n_left;
}

/* close_queues() came before, so there is room: each open one is a model's. */
static int measure_one(struct queue_depth *out, struct models *m, const char *base,
                       struct error *err)
{
    struct measured_queue *slot;
    size_t i = 0;
    int rc;

    while (i < m->n_queues && strcmp(m->queues[i].base, base) != 0)
        i++;
    slot = &m->queues[i];
    if (i == m->n_queues) {
        if ((rc = queue_open(&slot->queue, m->options.queue_url, base, m->options.timeout_ms,
                             err)) != OK)
            return rc;
        memcpy(slot->base, base, sizeof(slot->base));
        m->n_queues++;
    }
    return queue_depth(slot->queue, out, err);
}

/* Q away: what was measured before stays. */
static int measure(struct models *m, struct error *err)
{
    struct model_depth depths[CARD_MAX];
    char unmeasured[SAID_SIZE] = "";
    size_t n = 0, len = 0;

    close_queues(m);
    for (size_t i = 0; i < m->n; i++) {
        const struct model *model = &m->list[i]->model;
        struct error why = {0};
        int rc = measure_one(&depths[n].depth, m, model->base, &why);
        if (rc == ERR_IO)
            return error_set(err, rc, "%s", why.text);
        if (rc != OK) { /* the others are measured all the same */
            if (len < sizeof(unmeasured))
                len += (size_t)snprintf(unmeasured + len, sizeof(unmeasured) - len, "%s%s: %s",
                                        len > 0 ? "; " : "", model->card.id, why.text);
            continue;
        }
        memcpy(depths[n].id, model->card.id, sizeof(depths[n].id));
        memcpy(depths[n].weights, model->card.weights, sizeof(depths[n].weights));
        memcpy(depths[n].compute, model->card.compute, sizeof(depths[n].compute));
        n++;
    }
    say_once(m->unmeasured, unmeasured, "queues_unmeasured");
    m->measured_ns = clock_now_ns();
    pthread_mutex_lock(&m->lock);
    memcpy(m->depths, depths, n * sizeof(depths[0]));
    m->n_depths = n;
    pthread_mutex_unlock(&m->lock);
    return OK;
}

/* ---- the thread ---- */

static void refresh(struct models *m)
{
    const struct model *list[CARD_MAX];
    struct error err = {0};
    bool away = read_cards(m, &err) != OK;
    size_t n;

    if (!away && (m->measured_ns == 0 || clock_ms_since(m->measured_ns) >= m->options.measure_ms))
        away = measure(m, &err) != OK;
    if (away && !m->was_away)
        log_warn("queue_away", "why=\"%s\"", err.text);
    if (!away && m->was_away)
        log_info("queue_back", "models=%zu", m->n);
    m->was_away = away;
    if (m->options.seen == NULL)
        return;
    n = models_list(m, list);
    m->options.seen(m->options.seen_arg, list, n);
    for (size_t i = 0; i < n; i++)
        model_release(list[i]);
}

static void *run(void *arg)
{
    struct models *m = arg;
    bool stopping;

    do {
        int64_t until_ns = clock_now_ns() + m->options.refresh_ms * INT64_C(1000000);

        pthread_mutex_lock(&m->lock);
        while (!m->stopping && clock_cond_wait(&m->stop, &m->lock, until_ns))
            ;
        stopping = m->stopping;
        pthread_mutex_unlock(&m->lock);
        if (!stopping)
            refresh(m);
    } while (!stopping);
    return NULL;
}

int models_start(struct models **out, const struct models_options *options, struct error *err)
{
    struct models *m = calloc(1, sizeof(*m));
    int rc;

    *out = NULL;
    if (m == NULL)
        return error_set(err, ERR_MEM, "models: no memory");
    m->options = *options;
    pthread_mutex_init(&m->lock, NULL);
    clock_cond_init(&m->stop);
    if ((rc = redis_open(&m->redis, options->queue_url, options->timeout_ms, err)) != OK)
        goto out;
    refresh(m);
    if (pthread_create(&m->thread, NULL, run, m) != 0) {
        rc = error_set(err, ERR_MEM, "models: cannot start their thread");
        goto out;
    }
    m->started = true;
    *out = m;
    m = NULL;
out:
    models_stop(m);
    return rc;
}

void models_stop(struct models *m)
{
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_broadcast(&m->stop);
    pthread_mutex_unlock(&m->lock);
    if (m->started)
        pthread_join(m->thread, NULL);
    for (size_t i = 0; i < m->n; i++)
        model_release(&m->list[i]->model);
    for (size_t i = 0; i < m->n_queues; i++)
        queue_close(m->queues[i].queue);
    redis_close(m->redis);
    pthread_cond_destroy(&m->stop);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- looking them up ---- */

size_t models_list(struct models *m, const struct model *out[CARD_MAX])
{
    size_t n;

    pthread_mutex_lock(&m->lock);
    n = m->n;
    for (size_t i = 0; i < n; i++) {
        out[i] = &m->list[i]->model;
        model_hold(out[i]);
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

bool models_find(struct models *m, const char *name, const struct model **out, struct problem *p)
{
    const struct model *list[CARD_MAX];
    size_t n = models_list(m, list);
    bool several = false;

    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        if (name == NULL && *out != NULL && strcmp((*out)->card.id, list[i]->card.id) != 0)
            several = true;
        if (*out == NULL && (name == NULL || strcmp(list[i]->card.id, name) == 0)) {
            *out = list[i];
            model_hold(*out);
        }
    }
    for (size_t i = 0; i < n; i++)
        model_release(list[i]);
    if (*out != NULL && !several)
        return true;
    model_release(*out);
    *out = NULL;
    if (several)
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "'model' is needed: %zu models are served, /v1/models lists them", n);
    if (n == 0) {
        p->retry_after_s = 5;
        return problem_set(p, PROBLEM_NO_MODEL,
                           "no engine has registered a model yet; start prompt-encoder-engine on "
                           "the same --redis-queue");
    }
    return problem_set(p, PROBLEM_UNKNOWN_MODEL, "there is no model '%s'; /v1/models lists them",
                       name);
}

size_t models_depths(struct models *m, struct model_depth out[CARD_MAX])
{
    size_t n;

    pthread_mutex_lock(&m->lock);
    n = m->n_depths;
    memcpy(out, m->depths, n * sizeof(out[0]));
    pthread_mutex_unlock(&m->lock);
    return n;
}

int64_t models_last_seen_ns(const struct models *m)
{
    return atomic_load(&m->last_seen_ns);
}
