#include "service/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "service/delivery.h"
#include "service/encode.h"
#include "service/formats/json_text.h"
#include "service/models.h"
#include "service/openapi.h"
#include "service/ticket.h"

enum {
    ALLOW_SIZE = 80,
    PREFLIGHT_S = 7200 /* that a browser remembers the answer; none remembers it longer */
};

enum accepts { ACCEPTS_TENSORS, ACCEPTS_JSON, ACCEPTS_YAML };

struct route {
    const char *path; /* "*" stands for one or several ids */
    const char *method;
    enum accepts accepts;
    bool has_body;
    void (*handle)(const struct service *s, struct exchange *x);
};

/* ---- what the small ones do ---- */

#define DTYPES "\"dtypes\":[\"bfloat16\",\"float16\",\"float32\"]"

/* Their shapes follow: hidden_states [layers, tokens, width], features [tokens, a width],
 * embeddings [rows, a width]. */
static int write_outputs(struct buf *out, const struct model_card *card, struct error *err)
{
    char widths[96];
    int rc = OK;

    snprintf(widths, sizeof(widths), "\"video_width\":%d", card->video_width);
    if (card->audio_width > 0)
        snprintf(widths + strlen(widths), sizeof(widths) - strlen(widths), ",\"audio_width\":%d",
                 card->audio_width);
    if (card->has_hidden_states)
        rc = buf_printf(out, err, "\"hidden_states\":{\"layers\":%d,\"width\":%d," DTYPES "}",
                        card->n_states, card->width);
    if (rc == OK && card->extractor > 0)
        rc = buf_printf(out, err,
                        "%s\"features\":{%s," DTYPES "},\"embeddings\":{\"rows\":%d,%s," DTYPES "}",
                        card->has_hidden_states ? "," : "", widths, card->rows, widths);
    return rc;
}

/* Which Gemma and which LTX it is, as far as they say so. */
static int write_versions(struct buf *out, const struct model_card *card, struct error *err)
{
    int rc = OK;

    if (card->gemma_version[0] != '\0' &&
        ((rc = buf_printf(out, err, ",\"gemma_version\":")) != OK ||
         (rc = json_text_append(out, card->gemma_version, err)) != OK))
        return rc;
    if (card->extractor > 0)
        rc = buf_printf(out, err, ",\"extractor\":\"v%d\"", card->extractor);
    if (rc != OK || card->ltx_version[0] == '\0')
        return rc;
    if ((rc = buf_printf(out, err, ",\"ltx_version\":")) != OK)
        return rc;
    return json_text_append(out, card->ltx_version, err);
}

static int write_model(struct buf *out, const struct model_card *card, struct error *err)
{
    int rc;

    if ((rc = buf_printf(out, err, "{\"id\":\"%s\",\"architecture\":", card->id)) != OK ||
        (rc = json_text_append(out, card->architecture, err)) != OK ||
        (rc = buf_printf(out, err, ",\"engine_version\":")) != OK ||
        (rc = json_text_append(out, card->engine_version, err)) != OK ||
        (rc = buf_printf(out, err,
                         ",\"weights\":\"%s\",\"compute\":\"%s\",\"tokenizer\":\"%s\","
                         "\"max_tokens\":%d,\"vocabulary\":%d,\"registered_ms\":%" PRId64
                         ",\"seen_ms\":%" PRId64 ",\"live\":%s",
                         card->weights, card->compute, card->tokenizer, card->max_tokens,
                         card->vocabulary, card->registered_ms, card->seen_ms,
                         card->is_live ? "true" : "false")) != OK ||
        (card->is_live && (rc = buf_printf(out, err, ",\"residence\":\"%s\"",
                                           card->is_asleep ? "asleep" : "awake")) != OK))
        return rc;
    if ((rc = write_versions(out, card, err)) != OK ||
        (rc = buf_printf(out, err, ",\"default_output\":\"%s\",\"outputs\":{",
                         request_output_name(encode_default_output(card)))) != OK ||
        (rc = write_outputs(out, card, err)) != OK)
        return rc;
    return buf_printf(out, err, "}}");
}

static void handle_models(const struct service *s, struct exchange *x)
{
    const struct model *list[CARD_MAX];
    struct buf body = {.max = 256 << 10};
    size_t n = models_list(s->models, list);
    struct error err = {0};
    int rc = buf_printf(&body, &err, "{\"models\":[");

    for (size_t i = 0; i < n; i++) {
        if (rc == OK && i > 0)
            rc = buf_append(&body, ",", 1, &err);
        if (rc == OK)
            rc = write_model(&body, &list[i]->card, &err);
        model_release(list[i]);
    }
    if (rc == OK && buf_printf(&body, &err, "]}\n") == OK)
        exchange_answer(x, 200, "application/json", body.data, body.len);
    else
        exchange_abandon(x);
    buf_free(&body);
}

static void handle_openapi(const struct service *s, struct exchange *x)
{
    (void)s;
    exchange_answer(x, 200, "application/yaml", openapi_text, openapi_size);
}

/* ---- routes with ids ---- */

/* Splits "a,b,c" from a path, up to a '/' or its end. 0: there is something else. */
static size_t read_ids(const char *text, char ids[JOB_GROUP_MAX][JOB_ID_SIZE])
{
    size_t n = 0;

    for (;;) {
        size_t len = strcspn(text, ",/");
        if (n == JOB_GROUP_MAX || !key_is_good(text, len))
            return 0;
        memcpy(ids[n], text, len);
        ids[n++][len] = '\0';
        if (text[len] != ',')
            return n;
        text += len + 1;
    }
}

/* `negative_index` of the query: the last prompt, as in the answer that it came from. */
static bool read_negative_index(int *out, struct exchange *x, size_t n, struct problem *p)
{
    const char *text = exchange_query(x, "negative_index");
    int64_t value;

    *out = -1;
    if (text == NULL)
        return true;
    if (options_parse_int(&value, text, 0, JOB_GROUP_MAX - 1, "negative_index", NULL) != OK ||
        value != (int64_t)n - 1)
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "negative_index must be that of the last job, %zu", n - 1);
    *out = (int)value;
    return true;
}

static void begin_by_ids(const struct service *s, struct exchange *x, enum ticket_kind kind,
                         const char *ids_text)
{
    char ids[JOB_GROUP_MAX][JOB_ID_SIZE];
    size_t n = read_ids(ids_text, ids);
    enum answer_format format = FORMAT_SAFETENSORS;
    struct problem p = {0};
    struct prefer prefer;
    struct ticket *t;
    int negative;

    if (n == 0 || (kind == TICKET_LOOKUP && n != 1)) {
        problem_set(&p, kind == TICKET_LOOKUP ? PROBLEM_RESULT_NOT_FOUND : PROBLEM_JOB_NOT_FOUND,
                    "this is not the form of a %s", kind == TICKET_LOOKUP ? "key" : "job's id");
    } else if (read_negative_index(&negative, x, n, &p)) {
        if (kind == TICKET_LOOKUP || kind == TICKET_RESULT)
            headers_choose_format(&format, exchange_header(x, "Accept"));
        headers_read_prefer(&prefer, exchange_header(x, "Prefer"));
        if ((t = ticket_new(s, x, kind, n, NULL)) != NULL) {
            for (size_t i = 0; i < n; i++)
                memcpy(t->prompts[i].id, ids[i], sizeof(ids[i]));
            t->wait_s = prefer.wait_s < 0 || prefer.respond_async ? 0
                        : prefer.wait_s > s->max_wait_s           ? s->max_wait_s
                                                                  : prefer.wait_s;
            if (kind == TICKET_CANCEL || kind == TICKET_LOOKUP)
                t->wait_s = 0;
        }
        if (t != NULL && delivery_begin(x, t, format, negative))
            return;
        problem_set(&p, PROBLEM_OVERLOADED, "the service has no memory left");
    }
    exchange_answer_problem(x, &p);
}

static void handle_result(const struct service *s, struct exchange *x)
{
    begin_by_ids(s, x, TICKET_LOOKUP, exchange_path(x) + strlen("/v1/results/"));
}

static void handle_status(const struct service *s, struct exchange *x)
{
    begin_by_ids(s, x, TICKET_STATUS, exchange_path(x) + strlen("/v1/jobs/"));
}

static void handle_job_result(const struct service *s, struct exchange *x)
{
    begin_by_ids(s, x, TICKET_RESULT, exchange_path(x) + strlen("/v1/jobs/"));
}

static void handle_cancel(const struct service *s, struct exchange *x)
{
    begin_by_ids(s, x, TICKET_CANCEL, exchange_path(x) + strlen("/v1/jobs/"));
}

/* ---- the table ---- */

/* HEAD is served wherever GET is. */
static const struct route routes[] = {
    {"/v1/encode", "POST", ACCEPTS_TENSORS, true, encode_handle},
    {"/v1/tokenize", "POST", ACCEPTS_JSON, true, tokenize_handle},
    {"/v1/jobs/*", "GET", ACCEPTS_JSON, false, handle_status},
    {"/v1/jobs/*", "DELETE", ACCEPTS_JSON, false, handle_cancel},
    {"/v1/jobs/*/result", "GET", ACCEPTS_TENSORS, false, handle_job_result},
    {"/v1/results/*", "GET", ACCEPTS_TENSORS, false, handle_result},
    {"/v1/models", "GET", ACCEPTS_JSON, false, handle_models},
    {"/openapi.yaml", "GET", ACCEPTS_YAML, false, handle_openapi},
};
enum { N_ROUTES = sizeof(routes) / sizeof(routes[0]) };

static bool path_matches(const char *pattern, const char *path)
{
    size_t len = strcspn(pattern, "*"), id;

    if (pattern[len] == '\0')
        return strcmp(pattern, path) == 0;
    if (strncmp(pattern, path, len) != 0)
        return false;
    id = strcspn(path + len, "/");
    return id > 0 && strcmp(pattern + len + 1, path + len + id) == 0;
}

/* *found: the path's pattern, NULL when there is none; it may have other methods alone. */
static const struct route *find_route(const char *path, const char *method, const char **found)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;

    *found = NULL;
    for (int i = 0; i < N_ROUTES; i++) {
        if (!path_matches(routes[i].path, path))
            continue;
        *found = routes[i].path;
        if (strcmp(routes[i].method, wanted) == 0)
            return &routes[i];
    }
    return NULL;
}

/* The methods of a path that is there. */
static void list_methods(char allow[ALLOW_SIZE], const struct exchange *x)
{
    size_t len = 0;

    for (int i = 0; i < N_ROUTES; i++)
        if (path_matches(routes[i].path, exchange_path(x)))
            len += (size_t)snprintf(allow + len, ALLOW_SIZE - len, "%s%s%s", len > 0 ? ", " : "",
                                    routes[i].method,
                                    strcmp(routes[i].method, "GET") == 0 ? ", HEAD" : "");
    if (exchange_has_cors(x))
        snprintf(allow + len, ALLOW_SIZE - len, ", OPTIONS");
}

/* A browser asks before it lets a page send JSON, or anything but GET. */
static void answer_preflight(struct exchange *x)
{
    char allow[ALLOW_SIZE];

    list_methods(allow, x);
    exchange_add_header(x, "Allow", "%s", allow);
    exchange_add_header(x, "Access-Control-Allow-Methods", "%s", allow);
    exchange_add_header(x, "Access-Control-Allow-Headers",
                        "Content-Type, Accept, Prefer, X-Request-Id, If-None-Match");
    exchange_add_header(x, "Access-Control-Max-Age", "%d", PREFLIGHT_S);
    exchange_answer(x, 204, NULL, "", 0);
}

static void answer_method_not_allowed(struct exchange *x)
{
    struct problem p = {0};
    char allow[ALLOW_SIZE];

    list_methods(allow, x);
    exchange_add_header(x, "Allow", "%s", allow);
    problem_set(&p, PROBLEM_METHOD_NOT_ALLOWED, "this route takes %s", allow);
    exchange_answer_problem(x, &p);
}

static bool check_accept(const struct route *route, struct exchange *x, struct problem *p)
{
    const char *accept = exchange_header(x, "Accept");
    enum answer_format format;

    switch (route->accepts) {
    case ACCEPTS_TENSORS:
        return headers_choose_format(&format, accept) ||
               problem_set(p, PROBLEM_NOT_ACCEPTABLE,
                           "this route answers application/safetensors, application/json or "
                           "application/x-npy");
    case ACCEPTS_JSON:
        return headers_accept(accept, "application/json") ||
               problem_set(p, PROBLEM_NOT_ACCEPTABLE, "this route answers application/json");
    case ACCEPTS_YAML:
        return headers_accept(accept, "application/yaml") ||
               problem_set(p, PROBLEM_NOT_ACCEPTABLE, "this route answers application/yaml");
    }
    return true;
}

static void begin(void *arg, struct exchange *x)
{
    const struct service *s = arg;
    const struct route *route;
    struct problem p = {0};
    const char *path;

    route = find_route(exchange_path(x), exchange_method(x), &path);
    if (path != NULL)
        exchange_note_route(x, path);
    if (route == NULL && path != NULL) {
        if (strcmp(exchange_method(x), "OPTIONS") == 0 && exchange_has_cors(x))
            answer_preflight(x);
        else
            answer_method_not_allowed(x);
        return;
    }
    if (route == NULL) {
        problem_set(&p, PROBLEM_NOT_FOUND, "there is nothing here; /openapi.yaml lists the routes");
        exchange_answer_problem(x, &p);
        return;
    }
    if (!check_accept(route, x, &p) ||
        (route->has_body && exchange_header(x, "Content-Length") != NULL &&
         !headers_body_is_json(exchange_header(x, "Content-Type")) &&
         !problem_set(&p, PROBLEM_UNSUPPORTED_MEDIA_TYPE,
                      "Content-Type must be application/json, in UTF-8")))
        exchange_answer_problem(x, &p);
    else
        exchange_take_body(x, route->has_body ? s->max_body_bytes : 0);
}

static void handle(void *arg, struct exchange *x)
{
    const struct route *route;
    const char *path;

    if (exchange_data(x) != NULL) {
        delivery_answer(exchange_data(x));
        return;
    }
    route = find_route(exchange_path(x), exchange_method(x), &path);
    route->handle(arg, x);
}

static void end(void *arg, struct exchange *x)
{
    (void)arg;
    delivery_free(exchange_data(x));
    exchange_set_data(x, NULL);
}

struct http_handler routes_handler(struct service *s)
{
    return (struct http_handler){s, begin, handle, end};
}
