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
    int n_layers, layers[REQUEST_MAX_LAYERS]; /* written out */
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

static bool check_output(const struct work *w, struct problem *p)
{
    const struct model_card *card = &w->model->card;

    if (w->request.output != OUTPUT_HIDDEN_STATES)
        return problem_set(p, PROBLEM_OUTPUT_UNAVAILABLE,
                           "'%s' serves no %s: that needs an LTX checkpoint; start its engine with "
                           "--ltx PATH",
                           card->id, request_output_name(w->request.output));
    if (!card->has_hidden_states)
        return problem_set(p, PROBLEM_OUTPUT_UNAVAILABLE, "'%s' serves no hidden_states", card->id);
    return true;
}

static bool check_layers(struct work *w, struct problem *p)
{
    const struct request *r = &w->request;
    int n_states = w->model->card.n_states;

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

static bool too_large(struct problem *p, const char *what, size_t bytes, size_t limit,
                      size_t n_layers_that_fit)
{
    problem_add_number(p, "bytes", (int64_t)bytes);
    problem_add_number(p, "limit", (int64_t)limit);
    problem_add_number(p, "layers_that_fit", (int64_t)n_layers_that_fit);
    if (n_layers_that_fit == 0)
        return problem_set(p, PROBLEM_RESULT_TOO_LARGE,
                           "%s would have %zu bytes, at most %zu are sent, and not one layer fits",
                           what, bytes, limit);
    return problem_set(p, PROBLEM_RESULT_TOO_LARGE,
                       "%s would have %zu bytes, at most %zu are sent: ask for %zu layers or fewer",
                       what, bytes, limit, n_layers_that_fit);
}

/* Bytes of `n_tokens` tokens: of one layer, and of the ids. */
static bool sizes_of(const struct work *w, size_t n_tokens, size_t *layer, size_t *all)
{
    return size_mul(layer, n_tokens, (size_t)w->model->card.width) &&
           size_mul(layer, *layer, request_dtype_bytes(w->request.dtype)) &&
           size_mul(all, *layer, (size_t)w->n_layers) &&
           size_add(all, *all, n_tokens * sizeof(int32_t));
}

static bool check_sizes(const struct work *w, struct problem *p)
{
    const struct service *s = w->service;
    size_t n_tokens = 0, layer = 0, all = 0;

    for (size_t i = 0; i < w->request.n_prompts; i++) {
        size_t ids = w->tokens[i].n * sizeof(int32_t);
        n_tokens += w->tokens[i].n;
        if (!sizes_of(w, w->tokens[i].n, &layer, &all))
            return problem_set(p, PROBLEM_RESULT_TOO_LARGE, "a result's size overflows");
        if (all > s->max_prompt_bytes) {
            char what[48];
            snprintf(what, sizeof(what), "prompt %zu's result", i);
            return too_large(p, what, all, s->max_prompt_bytes,
                             s->max_prompt_bytes < ids ? 0 : (s->max_prompt_bytes - ids) / layer);
        }
    }
    if (!sizes_of(w, n_tokens, &layer, &all))
        return problem_set(p, PROBLEM_RESULT_TOO_LARGE, "the answer's size overflows");
    size_t limit = w->format == FORMAT_JSON && s->max_request_bytes > ANSWER_JSON_MAX
                       ? (size_t)ANSWER_JSON_MAX
                       : s->max_request_bytes;
    if (all > limit)
        return too_large(
            p, w->format == FORMAT_JSON ? "the answer in JSON" : "the answer", all, limit,
            limit < n_tokens * sizeof(int32_t) ? 0 : (limit - n_tokens * sizeof(int32_t)) / layer);
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
        rc = key_make(
            out->id, &w->service->secret,
            &(struct key_parts){.tenant = w->service->key_tenant,
                                .model = card->id,
                                .weights = card->weights,
                                .compute = card->compute,
                                .tokenizer = card->tokenizer,
                                .output = request_output_name(w->request.output),
                                .layers = w->layers,
                                .n_layers = w->n_layers,
                                .modalities = request_modalities_name(w->request.modalities),
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
        !check_layers(w, &p) || !check_format(w, &p) ||
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
