#include "service/delivery.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/formats/answer.h"
#include "service/formats/json_text.h"
#include "service/trouble.h"

enum { ETAG_SIZE = JOB_ID_SIZE + 32, IDS_SIZE = JOB_GROUP_MAX * JOB_ID_SIZE + 32 };

struct delivery {
    struct exchange *exchange;
    struct ticket *ticket;
    enum answer_format format;
    int negative_index;
    struct layout layout;
    /* of the sending: where it stands, and what it waits for */
    size_t prompt, missing_offset;
    bool broken;
};

/* Waits for a piece. By itself on the heap, as the delivery may end before it is told; frees
 * itself then. */
struct wait {
    struct result_reader reader;
    struct exchange *exchange; /* held */
};

/* ---- sending tensors ---- */

static long read_tensors(void *arg, size_t prompt, size_t offset, const uint8_t **data)
{
    struct delivery *d = arg;
    struct ticket_prompt *p = &d->ticket->prompts[prompt];
    long n;

    for (; d->prompt < prompt; d->prompt++) { /* what was sent takes no more memory */
        result_release(d->ticket->prompts[d->prompt].result);
        d->ticket->prompts[d->prompt].result = NULL;
    }
    n = result_read(p->result, NULL, offset, data);
    d->missing_offset = offset;
    d->broken = n < 0;
    return n;
}

static void end_wait(void *arg)
{
    struct wait *w = arg;

    exchange_wake(w->exchange);
    exchange_release(w->exchange);
    free(w);
}

static long read_answer(void *arg, size_t position, void *out, size_t cap)
{
    struct delivery *d = arg;
    const uint8_t *data;
    struct wait *w;
    long n;

    if (d->ticket->send_failed) {
        log_warn("answer_cut", "id=%s why=\"a result was lost and came back different\"",
                 exchange_request_id(d->exchange));
        return -1;
    }
    if ((n = layout_read(&d->layout, position, out, cap, read_tensors, d)) > 0)
        return n;
    if (d->broken) {
        ticket_repair(d->ticket, d->prompt);
        return 0;
    }
    if (n < 0)
        return -1;
    if ((w = calloc(1, sizeof(*w))) == NULL)
        return -1;
    w->reader = (struct result_reader){.wake = end_wait, .arg = w};
    w->exchange = d->exchange;
    exchange_hold(w->exchange);
    exchange_park(d->exchange);
    if (result_read(d->ticket->prompts[d->prompt].result, &w->reader, d->missing_offset, &data) !=
        0)
        end_wait(w); /* it came meanwhile */
    return 0;
}

/* ---- tensors ---- */

void delivery_describe(struct answer_prompt *out, const struct cache_header *h)
{
    *out = (struct answer_prompt){
        .n_tokens = h->n_tokens, .truncated = h->truncated, .n_tensors = h->n_tensors};
    for (int i = 0; i < h->n_tensors && i < ANSWER_MAX_TENSORS; i++) {
        const struct cache_tensor *from = &h->tensors[i];
        struct answer_tensor *to = &out->tensors[i];
        memcpy(to->name, from->name, sizeof(to->name));
        memcpy(to->dtype, from->dtype, sizeof(to->dtype));
        to->n_dims = from->n_dims;
        for (int k = 0; k < from->n_dims && k < ANSWER_MAX_DIMS; k++)
            to->shape[k] = from->shape[k];
        to->bytes = from->bytes;
    }
}

static int make_layout(struct delivery *d, const struct answer *a, struct error *err)
{
    switch (d->format) {
    case FORMAT_JSON:
        return layout_json(&d->layout, a, err);
    case FORMAT_NPY:
        return layout_npy(&d->layout, a, err);
    case FORMAT_SAFETENSORS:
    case FORMAT_COUNT:
        break;
    }
    return layout_safetensors(&d->layout, a, err);
}

static void answer_not_acceptable(struct exchange *x, const struct error *err)
{
    struct problem p = {0};

    problem_set(&p, err->code == ERR_SIZE ? PROBLEM_RESULT_TOO_LARGE : PROBLEM_NOT_ACCEPTABLE, "%s",
                err->text);
    exchange_answer_problem(x, &p);
}

static void add_cache_header(struct exchange *x, struct ticket *t)
{
    const char *word = "hit";

    if (t->kind != TICKET_ENCODE && t->kind != TICKET_LOOKUP)
        return;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->n; i++) {
        const struct ticket_prompt *p = t->prompts[i].first;
        if (p->was_missing && !p->joined)
            word = "miss";
        else if (p->was_missing && strcmp(word, "hit") == 0)
            word = "joined";
    }
    pthread_mutex_unlock(&t->lock);
    exchange_add_header(x, "X-Cache", "%s", word);
    exchange_note_cache(x, word);
}

/* How the first prompt that was computed for this request, or while it waited, was computed. */
static const char *route_of(const struct ticket *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->prompts[i].first->was_missing)
            return result_header(t->prompts[i].result)->route;
    return "";
}

static void add_timing(struct exchange *x, const struct ticket *t)
{
    const char *route = route_of(t);
    const struct {
        const char *name;
        double ms;
    } times[] = {{"tokenize", t->times.tokenize}, {"lookup", t->times.lookup},
                 {"queue", t->times.queue},       {"encode", t->times.encode},
                 {"fetch", t->times.fetch},       {"total", clock_ms_since(exchange_start_ns(x))}};
    char text[400] = "", encoded[128] = "";
    size_t len = 0;

    if (t->kind != TICKET_ENCODE)
        return;
    if (route[0] != '\0')
        snprintf(encoded, sizeof(encoded), ";desc=\"%s\"", route);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (times[i].ms >= 0)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s;dur=%.2f%s",
                                    len > 0 ? ", " : "", times[i].name, times[i].ms,
                                    strcmp(times[i].name, "encode") == 0 ? encoded : "");
    exchange_add_header(x, "Server-Timing", "%s", text);
}

/* The answer of one prompt has a name; true when the client has it already and was told so. */
static bool handle_etag(struct delivery *d)
{
    struct exchange *x = d->exchange;
    struct ticket *t = d->ticket;
    char etag[ETAG_SIZE];

    exchange_add_header(x, "Vary", "Accept");
    if (t->n != 1 || d->negative_index >= 0)
        return false;
    snprintf(etag, sizeof(etag), "\"%s.%08x.%s\"", t->prompts[0].id,
             (unsigned)result_header(t->prompts[0].result)->crc32c, format_name(d->format));
    exchange_add_header(x, "ETag", "%s", etag);
    if (t->kind != TICKET_LOOKUP || !headers_match_etag(exchange_header(x, "If-None-Match"), etag))
        return false;
    exchange_answer_headers(x, 304, d->layout.bytes);
    return true;
}

/* Whether one metadata can speak of both. */
static bool is_alike(const struct cache_header *a, const struct cache_header *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->weights, b->weights) == 0 &&
           strcmp(a->tokenizer, b->tokenizer) == 0 &&
           strcmp(a->gemma_version, b->gemma_version) == 0 && strcmp(a->output, b->output) == 0 &&
           strcmp(a->layers, b->layers) == 0 && strcmp(a->modalities, b->modalities) == 0 &&
           strcmp(a->extractor, b->extractor) == 0 && strcmp(a->ltx_version, b->ltx_version) == 0;
}

static void answer_tensors(struct delivery *d)
{
    struct answer_prompt prompts[JOB_GROUP_MAX];
    struct exchange *x = d->exchange;
    struct ticket *t = d->ticket;
    const struct cache_header *first = result_header(t->prompts[0].result);
    struct error err = {0};

    for (size_t i = 0; i < t->n; i++) {
        const struct cache_header *h = result_header(t->prompts[i].result);
        if (!is_alike(h, first)) {
            struct problem p = {0};
            problem_set(&p, PROBLEM_INVALID_FIELD,
                        "these jobs have different models, weights, outputs, layers or modalities; "
                        "ask for each by itself");
            exchange_answer_problem(x, &p);
            return;
        }
        delivery_describe(&prompts[i], h);
    }
    const struct answer answer = {.model = first->model,
                                  .weights = first->weights,
                                  .tokenizer = first->tokenizer,
                                  .gemma_version = first->gemma_version,
                                  .output = first->output,
                                  .layers = first->layers,
                                  .modalities = first->modalities,
                                  .extractor = first->extractor,
                                  .ltx_version = first->ltx_version,
                                  .negative_index = d->negative_index,
                                  .n_prompts = t->n,
                                  .prompts = prompts};
    if (make_layout(d, &answer, &err) != OK) {
        answer_not_acceptable(x, &err);
        return;
    }
    if (handle_etag(d))
        return;
    add_cache_header(x, t);
    add_timing(x, t);
    exchange_answer_stream(x, 200, format_media_type(d->format), d->layout.bytes, read_answer, d);
}

/* ---- states ---- */

static const char *const state_names[] = {
    [JOB_NONE] = "unknown",    [JOB_WAITING] = "waiting",    [JOB_DELAYED] = "delayed",
    [JOB_LEASED] = "running",  [JOB_DONE] = "done",          [JOB_DEAD] = "failed",
    [JOB_EXPIRED] = "expired", [JOB_CANCELLED] = "cancelled"};

static void join_ids(char out[IDS_SIZE], const struct ticket *t)
{
    size_t len = 0;

    for (size_t i = 0; i < t->n; i++)
        len +=
            (size_t)snprintf(out + len, IDS_SIZE - len, "%s%s", i > 0 ? "," : "", t->prompts[i].id);
}

/* "/v1/jobs/<ids>" and what follows. */
static void write_job_path(char *out, size_t cap, const struct delivery *d, const char *tail)
{
    char ids[IDS_SIZE], query[40] = "";

    join_ids(ids, d->ticket);
    if (d->negative_index >= 0)
        snprintf(query, sizeof(query), "?negative_index=%d", d->negative_index);
    snprintf(out, cap, "/v1/jobs/%s%s%s", ids, tail, query);
}

static int write_states(struct buf *out, const struct delivery *d, struct error *err)
{
    const struct ticket *t = d->ticket;
    char text[IDS_SIZE + 64];
    int rc;

    join_ids(text, t);
    if ((rc = buf_printf(out, err, "{\"id\":\"%s\",\"jobs\":[", text)) != OK)
        return rc;
    for (size_t i = 0; i < t->n; i++) {
        const struct ticket_prompt *p = t->prompts[i].first;
        const struct job_status *s = &p->status;
        if ((rc = buf_printf(out, err, "%s{\"id\":\"%s\",\"state\":\"%s\"", i > 0 ? "," : "", p->id,
                             state_names[s->state])) != OK ||
            (p->model != NULL &&
             (rc = buf_printf(out, err, ",\"model\":\"%s\"", p->model->card.id)) != OK) ||
            (s->state == JOB_WAITING && s->place >= 0 &&
             (rc = buf_printf(out, err, ",\"place\":%" PRId64, s->place)) != OK) ||
            (s->state != JOB_NONE &&
             (rc = buf_printf(out, err, ",\"attempt\":%d", s->attempt)) != OK) ||
            (s->enqueued_ms != 0 &&
             (rc = buf_printf(out, err, ",\"enqueued_ms\":%" PRId64, s->enqueued_ms)) != OK) ||
            (s->finished_ms != 0 &&
             (rc = buf_printf(out, err, ",\"finished_ms\":%" PRId64, s->finished_ms)) != OK))
            return rc;
        if (s->error[0] != '\0' && ((rc = buf_printf(out, err, ",\"error\":")) != OK ||
                                    (rc = json_text_append(out, s->error, err)) != OK))
            return rc;
        if ((rc = buf_printf(out, err, "}")) != OK)
            return rc;
    }
    write_job_path(text, sizeof(text), d, "/result");
    return buf_printf(out, err, "],\"result\":\"%s\"}\n", text);
}

static void answer_states(struct delivery *d)
{
    struct buf body = {.max = 64 << 10};
    struct error err = {0};

    pthread_mutex_lock(&d->ticket->lock); /* a job that ends just now */
    write_states(&body, d, &err);
    pthread_mutex_unlock(&d->ticket->lock);
    if (err.code != OK)
        exchange_abandon(d->exchange);
    else
        exchange_answer(d->exchange, 200, "application/json", body.data, body.len);
    buf_free(&body);
}

static void answer_accepted(struct delivery *d)
{
    char ids[IDS_SIZE], job[IDS_SIZE + 64], result[IDS_SIZE + 64];
    struct buf body = {.max = 16 << 10};
    struct exchange *x = d->exchange;

    join_ids(ids, d->ticket);
    write_job_path(job, sizeof(job), d, "");
    write_job_path(result, sizeof(result), d, "/result");
    if (buf_printf(&body, NULL, "{\"id\":\"%s\",\"job\":\"%s\",\"result\":\"%s\"}\n", ids, job,
                   result) != OK) {
        exchange_abandon(x);
        return;
    }
    exchange_add_header(x, "Location", "%s", job);
    exchange_add_header(x, "Retry-After", "%d", ticket_retry_after(d->ticket));
    add_cache_header(x, d->ticket);
    exchange_answer(x, 202, "application/json", body.data, body.len);
    buf_free(&body);
}

/* ---- life ---- */

bool delivery_begin(struct exchange *x, struct ticket *t, enum answer_format format,
                    int negative_index)
{
    struct delivery *d = calloc(1, sizeof(*d));

    if (d == NULL) {
        ticket_close(t);
        return false;
    }
    d->exchange = x;
    d->ticket = t;
    d->format = format;
    d->negative_index = negative_index;
    exchange_set_data(x, d);
    ticket_start(t);
    return true;
}

void delivery_answer(struct delivery *d)
{
    bool states = d->ticket->kind == TICKET_STATUS || d->ticket->kind == TICKET_CANCEL;

    switch (d->ticket->outcome) {
    case TICKET_WORKING: /* woken by nothing of ours: cannot be */
        exchange_abandon(d->exchange);
        break;
    case TICKET_READY:
        if (states)
            answer_states(d);
        else
            answer_tensors(d);
        break;
    case TICKET_PENDING:
        if (states)
            answer_states(d);
        else
            answer_accepted(d);
        break;
    case TICKET_FAILED:
        exchange_answer_problem(d->exchange, &d->ticket->problem);
        break;
    }
    if (d->ticket->kind == TICKET_ENCODE)
        metric_observe(&counters[C_ENCODE_SECONDS],
                       clock_ms_since(exchange_start_ns(d->exchange)) / 1e3);
}

void delivery_free(struct delivery *d)
{
    if (d == NULL)
        return;
    ticket_close(d->ticket);
    layout_free(&d->layout);
    free(d);
}
