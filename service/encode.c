#define _GNU_SOURCE /* explicit_bzero */
#include "service/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "jobs/payload.h"
#include "service/counters.h"
#include "service/delivery.h"
#include "service/formats/answer.h"
#include "service/models.h"
#include "service/request.h"
#include "service/ticket.h"
#include "service/trouble.h"

enum { BYPASS_TTL_S = 60 };

/* A request on its way. */
struct work {
    const struct service *service;
    struct exchange *exchange;
    struct request request;
    const struct model *model;
    enum answer_format format;
    struct prefer prefer;
    struct token_list tokens[REQUEST_MAX_PROMPTS];
    int n_layers, layers[REQUEST_MAX_LAYERS]; /* of hidden states, written out */
    unsigned modalities;                      /* of the other levels, likewise */
    double tokenize_ms;
};

static void work_free(struct work *w)
{
    for (size_t i = 0; i < w->request.n_prompts; i++) {
        if (w->tokens[i].ids != NULL) /* as good as the prompt */
            explicit_bzero(w->tokens[i].ids, w->tokens[i].n * sizeof(w->tokens[i].ids[0]));
        token_list_free(&w->tokens[i]);
    }
    request_free(&w->request);
    model_release(w->model);
    free(w);
}

/* ---- checks ---- */

enum request_output encode_default_output(const struct model_card *card)
{
    return card->extractor > 0 ? OUTPUT_EMBEDDINGS : OUTPUT_HIDDEN_STATES;
}

static bool check_output(struct work *w, struct problem *p)
{
    const struct model_card *card = &w->model->card;
    struct request *r = &w->request;

    if (!request_settle_output(r, encode_default_output(card), p))
        return false;
    if (r->output != OUTPUT_HIDDEN_STATES && card->extractor == 0)
        return problem_set(p, PROBLEM_OUTPUT_UNAVAILABLE,
                           "'%s' serves no %s: that needs an LTX checkpoint; start its engine with "
                           "--ltx PATH",
                           card->id, request_output_name(r->output));
    if (r->output == OUTPUT_HIDDEN_STATES && !card->has_hidden_states)
        return problem_set(p, PROBLEM_OUTPUT_UNAVAILABLE, "'%s' serves no hidden_states", card->id);
    return true;
}

static bool check_modalities(struct work *w, struct problem *p)
{
    const struct model_card *card = &w->model->card;

    if (w->request.output == OUTPUT_HIDDEN_STATES)
        return true;
    w->modalities = w->request.modalities;
    if (w->modalities == 0)
        w->modalities = card->audio_width > 0 ? MODALITY_VIDEO | MODALITY_AUDIO : MODALITY_VIDEO;
    if ((w->modalities & MODALITY_AUDIO) != 0 && card->audio_width == 0)
        return problem_set(p, PROBLEM_OUTPUT_UNAVAILABLE,
                           "'modalities': '%s' has no audio: its LTX checkpoint is video-only",
                           card->id);
    return true;
}

static bool check_layers(struct work *w, struct problem *p)
{
    const struct request *r = &w->request;
    int n_states = w->model->card.n_states;

    if (r->output != OUTPUT_HIDDEN_STATES)
        return true;
    if (n_states > REQUEST_MAX_LAYERS)
        return problem_set(p, PROBLEM_INTERNAL, "the model has too many layers");
    w->n_layers = r->n_layers > 0 ? r->n_layers : n_states;
    for (int i = 0; i < w->n_layers; i++) {
        w->layers[i] = r->n_layers > 0 ? r->layers[i] : i;
        if (w->layers[i] >= n_states)
            return problem_set(p, PROBLEM_INVALID_FIELD,
                               "'layers': %d is out of range, this model has 0 to %d", w->layers[i],
                               n_states - 1);
    }
    return true;
}

static bool tokenize(struct work *w, size_t limit, struct problem *p)
{
    int64_t start_ns = clock_now_ns();

    for (size_t i = 0; i < w->request.n_prompts; i++) {
        const struct request_prompt *prompt = &w->request.prompts[i];
        struct error err = {0};
        if (tokenizer_encode(w->model->tokenizer, prompt->text, prompt->len, limit, &w->tokens[i],
                             &err) != OK) {
            trouble_describe(p, &err, TROUBLE_HERE, exchange_request_id(w->exchange));
            return false;
        }
        if (w->request.overflow_is_error && w->tokens[i].n < w->tokens[i].n_uncut) {
            problem_add_number(p, "prompt", (int64_t)i);
            problem_add_number(p, "tokens", (int64_t)w->tokens[i].n_uncut);
            problem_add_number(p, "limit", (int64_t)limit);
            return problem_set(p, PROBLEM_PROMPT_TOO_LONG,
                               "prompt %zu has %zu tokens, the model reads %zu", i,
                               w->tokens[i].n_uncut, limit);
        }
    }
    w->tokenize_ms = clock_ms_since(start_ns);
    metric_observe(&counters[C_TOKENIZE_SECONDS], w->tokenize_ms / 1e3);
    return true;
}

static bool too_large(struct problem *p, const struct work *w, const char *what, size_t bytes,
                      size_t limit, size_t n_layers_that_fit)
{
    problem_add_number(p, "bytes", (int64_t)bytes);
    problem_add_number(p, "limit", (int64_t)limit);
    if (w->request.output != OUTPUT_HIDDEN_STATES)
        return problem_set(p, PROBLEM_RESULT_TOO_LARGE,
                           "%s would have %zu bytes, at most %zu are sent: ask for fewer prompts, "
                           "for one modality or for a smaller dtype",
                           what, bytes, limit);
    problem_add_number(p, "layers_that_fit", (int64_t)n_layers_that_fit);
    if (n_layers_that_fit == 0)
        return problem_set(p, PROBLEM_RESULT_TOO_LARGE,
                           "%s would have %zu bytes, at most %zu are sent, and not one layer fits",
                           what, bytes, limit);
    return problem_set(p, PROBLEM_RESULT_TOO_LARGE,
                       "%s would have %zu bytes, at most %zu are sent: ask for %zu layers or fewer",
                       what, bytes, limit, n_layers_that_fit);
}

/* Bytes of one or several prompts' results. */
struct sizes {
    size_t beside; /* ids and masks */
    size_t unit;   /* a hidden state; or a level's tensors together */
    size_t all;
};

/* What the result of `n_tokens` tokens has; false: more than can be counted. */
static bool sizes_of(struct sizes *out, const struct work *w, size_t n_tokens)
{
    const struct model_card *card = &w->model->card;
    size_t width = (size_t)card->width, rows = n_tokens, n_units = 1, mask = 0;

    if (w->request.output == OUTPUT_HIDDEN_STATES) {
        n_units = (size_t)w->n_layers;
    } else { /* the card's numbers are below 2^30 */
        width = ((w->modalities & MODALITY_VIDEO) != 0 ? (size_t)card->video_width : 0) +
                ((w->modalities & MODALITY_AUDIO) != 0 ? (size_t)card->audio_width : 0);
        if (w->request.output == OUTPUT_EMBEDDINGS) {
            rows = (size_t)card->rows;
            mask = rows * sizeof(int64_t);
        }
    }
    out->beside = n_tokens * sizeof(int32_t) + mask;
    return size_mul(&out->unit, rows, width) &&
           size_mul(&out->unit, out->unit, request_dtype_bytes(w->request.dtype)) &&
           size_mul(&out->all, out->unit, n_units) && size_add(&out->all, out->all, out->beside);
}

static size_t layers_that_fit(const struct sizes *s, size_t limit)
{
    return limit < s->beside ? 0 : (limit - s->beside) / s->unit;
}

static bool check_sizes(const struct work *w, struct problem *p)
{
    const struct service *s = w->service;
    size_t limit = w->format == FORMAT_JSON && s->max_request_bytes > ANSWER_JSON_MAX
                       ? (size_t)ANSWER_JSON_MAX
                       : s->max_request_bytes;
    struct sizes total = {0};

    for (size_t i = 0; i < w->request.n_prompts; i++) {
        struct sizes one;
        if (!sizes_of(&one, w, w->tokens[i].n) || !size_add(&total.unit, total.unit, one.unit) ||
            !size_add(&total.all, total.all, one.all))
            return problem_set(p, PROBLEM_RESULT_TOO_LARGE, "the answer's size overflows");
        total.beside += one.beside;
        if (one.all > s->max_prompt_bytes) {
            char what[48];
            snprintf(what, sizeof(what), "prompt %zu's result", i);
            return too_large(p, w, what, one.all, s->max_prompt_bytes,
                             layers_that_fit(&one, s->max_prompt_bytes));
        }
    }
    if (total.all > limit)
        return too_large(p, w, w->format == FORMAT_JSON ? "the answer in JSON" : "the answer",
                         total.all, limit, layers_that_fit(&total, limit));
    return true;
}

/* What the format cannot hold is known before it is computed. */
static bool check_format(const struct work *w, struct problem *p)
{
    if (w->format != FORMAT_NPY)
        return true;
    if (w->request.n_prompts != 1)
        return problem_set(p, PROBLEM_NOT_ACCEPTABLE,
                           "npy holds one tensor, so it takes one prompt, not %zu",
                           w->request.n_prompts);
    if (w->modalities == (MODALITY_VIDEO | MODALITY_AUDIO))
        return problem_set(p, PROBLEM_NOT_ACCEPTABLE,
                           "npy holds one tensor, so it takes one modality: ask for \"modalities\" "
                           "[\"video\"] or [\"audio\"]");
    if (w->request.dtype == DTYPE_NAME_BFLOAT16)
        return problem_set(p, PROBLEM_NOT_ACCEPTABLE,
                           "npy has no type for bfloat16; ask for dtype float16 or float32");
    return true;
}

/* ---- the ticket ---- */

static int fill_prompt(struct ticket_prompt *out, const struct work *w, size_t index,
                       struct error *err)
{
    const struct model_card *card = &w->model->card;
    const struct token_list *tokens = &w->tokens[index];
    const char *text = w->request.prompts[index].text;
    size_t len = w->request.prompts[index].len;
    struct payload *payload;
    int rc;

    tokenizer_strip(&text, &len);
    if (w->request.cache == CACHE_BYPASS)
        rc = key_make_random(out->id, err);
    else
        rc = key_make(out->id, &w->service->secret,
                      &(struct key_parts){.tenant = w->service->key_tenant,
                                          .model = card->id,
                                          .weights = card->weights,
                                          .compute = card->compute,
                                          .tokenizer = card->tokenizer,
                                          .output = request_output_name(w->request.output),
                                          .layers = w->layers,
                                          .n_layers = w->n_layers,
                                          .modalities = request_modalities_name(w->modalities),
                                          .dtype = request_dtype_name(w->request.dtype),
                                          .token_limit = card->max_tokens,
                                          .prompt = text,
                                          .prompt_len = len},
                      err);
    if (rc != OK)
        return rc;
    if ((payload = calloc(1, sizeof(*payload))) == NULL)
        return error_set(err, ERR_MEM, "encode: no memory for a payload");
    snprintf(payload->output, sizeof(payload->output), "%s",
             request_output_name(w->request.output));
    snprintf(payload->dtype, sizeof(payload->dtype), "%s", request_dtype_name(w->request.dtype));
    payload->n_layers = w->n_layers;
    memcpy(payload->layers, w->layers, (size_t)w->n_layers * sizeof(w->layers[0]));
    snprintf(payload->modalities, sizeof(payload->modalities), "%s",
             request_modalities_name(w->modalities));
    payload->truncated = tokens->n < tokens->n_uncut;
    payload->ttl_s = w->request.cache == CACHE_BYPASS ? BYPASS_TTL_S : 0;
    payload->n_ids = (int)tokens->n;
    payload->ids = tokens->ids; /* borrowed */
    out->n_tokens = (int)tokens->n;
    out->payload = (struct buf){.max = PAYLOAD_MAX_BYTES, .is_secret = true};
    rc = payload_write(&out->payload, payload, err);
    free(payload);
    return rc;
}

static bool begin_ticket(struct work *w, struct problem *p)
{
    const struct service *s = w->service;
    struct ticket *t = ticket_new(s, w->exchange, TICKET_ENCODE, w->request.n_prompts, w->model);
    int negative = w->request.has_negative ? (int)w->request.n_prompts - 1 : -1;
    struct error err = {0};

    if (t == NULL)
        return problem_set(p, PROBLEM_OVERLOADED, "the service has no memory left");
    t->cache = w->request.cache;
    t->wait_s = w->prefer.wait_s < 0               ? s->wait_s
                : w->prefer.wait_s > s->max_wait_s ? s->max_wait_s
                                                   : w->prefer.wait_s;
    t->respond_async = w->prefer.respond_async || t->wait_s == 0;
    t->times.tokenize = w->tokenize_ms;
    for (size_t i = 0; i < w->request.n_prompts; i++)
        if (fill_prompt(&t->prompts[i], w, i, &err) != OK) {
            ticket_close(t);
            trouble_describe(p, &err, TROUBLE_HERE, exchange_request_id(w->exchange));
            return false;
        }
    return delivery_begin(w->exchange, t, w->format, negative) ||
           problem_set(p, PROBLEM_OVERLOADED, "the service has no memory left");
}

static struct work *new_work(const struct service *s, struct exchange *x, struct problem *p)
{
    struct work *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        problem_set(p, PROBLEM_OVERLOADED, "the service has no memory left");
        exchange_answer_problem(x, p);
        return NULL;
    }
    w->service = s;
    w->exchange = x;
    return w;
}

void encode_handle(const struct service *s, struct exchange *x)
{
    struct problem p = {0};
    struct work *w = new_work(s, x, &p);
    const char *body;
    size_t len;

    if (w == NULL)
        return;
    body = exchange_body(x, &len);
    headers_choose_format(&w->format, exchange_header(x, "Accept")); /* checked before */
    headers_read_prefer(&w->prefer, exchange_header(x, "Prefer"));
    if (!request_parse_encode(&w->request, body, len, &p) ||
        !models_find(s->models, w->request.model, &w->model, &p) || !check_output(w, &p) ||
        !check_layers(w, &p) || !check_modalities(w, &p) || !check_format(w, &p) ||
        !tokenize(w, (size_t)w->model->card.max_tokens, &p) || !check_sizes(w, &p) ||
        !begin_ticket(w, &p))
        exchange_answer_problem(x, &p);
    work_free(w);
}

/* ---- tokenize ---- */

static int write_tokens(struct buf *out, const struct work *w, struct error *err)
{
    int limit = w->model->card.max_tokens;
    int rc;

    if ((rc = buf_printf(out, err, "{\"model\":\"%s\",\"limit\":%d,\"prompts\":[",
                         w->model->card.id, limit)) != OK)
        return rc;
    for (size_t i = 0; i < w->request.n_prompts; i++) {
        const struct token_list *tokens = &w->tokens[i];
        if ((rc = buf_printf(out, err,
                             "%s{\"count\":%zu,\"uncut_count\":%zu,\"truncated\":%s,\"ids\":[",
                             i > 0 ? "," : "", tokens->n, tokens->n_uncut,
                             tokens->n < tokens->n_uncut ? "true" : "false")) != OK)
            return rc;
        for (size_t k = 0; k < tokens->n; k++)
            if ((rc = buf_printf(out, err, "%s%d", k > 0 ? "," : "", (int)tokens->ids[k])) != OK)
                return rc;
        if ((rc = buf_printf(out, err, "]}")) != OK)
            return rc;
    }
    return buf_printf(out, err, "]}\n");
}

void tokenize_handle(const struct service *s, struct exchange *x)
{
    struct buf body = {.max = 4 << 20};
    struct problem p = {0};
    struct error err = {0};
    struct work *w = new_work(s, x, &p);
    const char *text;
    size_t len;

    if (w == NULL)
        return;
    text = exchange_body(x, &len);
    if (!request_parse_tokenize(&w->request, text, len, &p) ||
        !models_find(s->models, w->request.model, &w->model, &p) ||
        !tokenize(w, (size_t)w->model->card.max_tokens, &p)) {
        exchange_answer_problem(x, &p);
    } else if (write_tokens(&body, w, &err) != OK) {
        trouble_describe(&p, &err, TROUBLE_HERE, exchange_request_id(x));
        exchange_answer_problem(x, &p);
    } else {
        exchange_answer(x, 200, "application/json", body.data, body.len);
    }
    buf_free(&body);
    work_free(w);
}
