/* exchange.c - an exchange as its handler sees it: the request, parking, the answer.
 *
 * libmicrohttpd's suspend and resume carry the waiting, under four rules: an exchange is suspended
 * first and published after; it is resumed exactly once (a state that changes from PARKED to
 * RUNNING decides who does it); a suspended connection neither times out nor notices that the
 * client left, so a thread of http.c watches the parked sockets; and no connection may be suspended
 * when the daemon stops. */
#define _GNU_SOURCE /* EPOLLRDHUP, explicit_bzero */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/http_parts.h"

/* ---- exchanges ---- */

void exchange_hold(struct exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void exchange_release(struct exchange *x)
{
    if (x == NULL || atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    for (size_t i = 0; i < x->n_headers; i++)
        free(x->headers[i].value);
    if (x->body.data != NULL)
        explicit_bzero(x->body.data, x->body.len); /* prompts */
    buf_free(&x->body);
    free(x->path);
    free(x);
}

const char *exchange_method(const struct exchange *x)
{
    return x->method;
}

const char *exchange_path(const struct exchange *x)
{
    return x->path;
}

const char *exchange_header(struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

const char *exchange_query(struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

bool exchange_has_cors(const struct exchange *x)
{
    return x->http->options.cors_origin != NULL;
}

const char *exchange_request_id(const struct exchange *x)
{
    return x->request_id;
}

int64_t exchange_start_ns(const struct exchange *x)
{
    return x->start_ns;
}

void exchange_take_body(struct exchange *x, size_t max_bytes)
{
    x->max_body = max_bytes;
}

const char *exchange_body(const struct exchange *x, size_t *len)
{
    *len = x->body.len;
    return x->body.data == NULL ? "" : x->body.data;
}

void exchange_set_data(struct exchange *x, void *data)
{
    x->data = data;
}

void *exchange_data(const struct exchange *x)
{
    return x->data;
}

void exchange_set_phase(struct exchange *x, enum phase phase)
{
    pthread_mutex_lock(&x->http->lock);
    x->connection->phase = phase;
    x->connection->since_ns = clock_now_ns();
    pthread_mutex_unlock(&x->http->lock);
}

/* ---- parking ---- */

void exchange_park(struct exchange *x)
{
    struct connection *c = x->connection;
    struct epoll_event watch = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                .data.u64 = (uint64_t)c->slot << 32 | c->generation};

    MHD_suspend_connection(x->mhd);
    atomic_fetch_add(&x->http->n_parked, 1);
    count(C_PARKED, 1);
    atomic_store(&x->state, PARKED); /* before the watch: it must not find a running exchange */
    if (epoll_ctl(x->http->epoll_fd, EPOLL_CTL_MOD, c->fd, &watch) != 0)
        log_warn("watch_failed", "errno=%d", errno);
    if (atomic_load(&x->http->stopping))
        exchange_wake(x);
}

void exchange_wake(struct exchange *x)
{
    int parked = PARKED;

    if (!atomic_compare_exchange_strong(&x->state, &parked, RUNNING))
        return;
    atomic_fetch_sub(&x->http->n_parked, 1);
    count(C_PARKED, -1);
    atomic_store(&x->woken_ns, clock_now_ns());
    MHD_resume_connection(x->mhd);
}

/* ---- answers ---- */

void exchange_add_header(struct exchange *x, const char *name, const char *fmt, ...)
{
    struct buf value = {.max = 8192};
    char text[2048];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof(text) || x->n_headers == MAX_HEADERS ||
        buf_append(&value, text, (size_t)n, NULL) != OK) {
        log_error("header_lost", "id=%s name=%s", x->request_id, name);
        return;
    }
    x->headers[x->n_headers].name = name;
    x->headers[x->n_headers++].value = value.data; /* handed over */
}

void exchange_note_route(struct exchange *x, const char *route)
{
    x->route = route;
}

void exchange_note_cache(struct exchange *x, const char *cache)
{
    x->cache = cache;
}

static bool should_close(const struct exchange *x, int status)
{
    const struct connection *c = x->connection;

    return status >= 400 || atomic_load(&x->http->draining) || c->n_requests >= MAX_REQUESTS ||
           clock_ms_since(c->opened_ns) > MAX_AGE_S * 1e3;
}

/* What lets a page of that origin read the answer: also a problem's. */
static void add_cors(const struct exchange *x, struct MHD_Response *response)
{
    const char *origin = x->http->options.cors_origin;

    if (origin == NULL)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers",
                            "X-Request-Id, X-Cache, ETag, Location, Retry-After, Server-Timing");
    if (strcmp(origin, "*") != 0)
        MHD_add_response_header(response, "Vary", "Origin");
}

/* Takes `response`. */
static void queue_response(struct exchange *x, int status, const char *content_type, size_t len,
                           struct MHD_Response *response)
{
    if (response == NULL) {
        log_error("no_memory", "id=%s", x->request_id);
        x->abandoned = true;
        return;
    }
    if (content_type != NULL)
        MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "X-Request-Id", x->request_id);
    for (size_t i = 0; i < x->n_headers; i++)
        MHD_add_response_header(response, x->headers[i].name, x->headers[i].value);
    add_cors(x, response);
    if (should_close(x, status))
        MHD_add_response_header(response, "Connection", "close");
    x->status = status;
    x->length = len;
    exchange_set_phase(x, PHASE_ANSWER);
    if (MHD_queue_response(x->mhd, (unsigned)status, response) != MHD_YES)
        x->abandoned = true;
    MHD_destroy_response(response);
}

void exchange_answer(struct exchange *x, int status, const char *content_type, const void *data,
                     size_t len)
{
    atomic_store(&x->sent, len); /* all of it is libmicrohttpd's now */
    queue_response(
        x, status, content_type, len,
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)data, MHD_RESPMEM_MUST_COPY));
}

/* Of an answer without a body: libmicrohttpd takes its length from it and asks for nothing. */
static ssize_t read_nothing(void *arg, uint64_t position, char *out, size_t cap)
{
    (void)arg;
    (void)position;
    (void)out;
    (void)cap;
    return MHD_CONTENT_READER_END_WITH_ERROR;
}

void exchange_answer_headers(struct exchange *x, int status, size_t len)
{
    queue_response(x, status, NULL, 0,
                   MHD_create_response_from_callback(len, STREAM_BLOCK, read_nothing, NULL, NULL));
}

/* What the client waited for us does not count against it. */
static void end_pause(struct exchange *x)
{
    int64_t paused_ns = atomic_exchange(&x->paused_ns, 0);

    atomic_store(&x->woken_ns, 0);
    if (paused_ns == 0)
        return;
    pthread_mutex_lock(&x->http->lock);
    x->connection->since_ns += clock_now_ns() - paused_ns;
    pthread_mutex_unlock(&x->http->lock);
}

static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t cap)
{
    struct exchange *x = arg;
    long n;

    end_pause(x);
    if (atomic_load(&x->gone) || atomic_load(&x->http->stopping))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    atomic_store(&x->paused_ns, clock_now_ns()); /* before it can be parked and woken */
    if ((n = x->read(x->read_arg, (size_t)position, out, cap)) != 0)
        atomic_store(&x->paused_ns, 0);
    if (n < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    atomic_fetch_add(&x->sent, (size_t)n);
    return n;
}

void exchange_answer_stream(struct exchange *x, int status, const char *content_type, size_t len,
                            exchange_read_fn *read, void *arg)
{
    x->read = read;
    x->read_arg = arg;
    queue_response(x, status, content_type, len,
                   MHD_create_response_from_callback(len, STREAM_BLOCK, read_stream, x, NULL));
}

void exchange_answer_problem(struct exchange *x, const struct problem *p)
{
    int status = problem_status(p->kind);
    int retry_after_s = p->retry_after_s;
    struct buf body = {.max = 8192};

    if (retry_after_s == 0 && (status == 429 || status == 503))
        retry_after_s = RETRY_AFTER_S;
    if (problem_write(&body, p, x->request_id, NULL) != OK) {
        exchange_abandon(x);
        return;
    }
    if (retry_after_s > 0)
        exchange_add_header(x, "Retry-After", "%d", retry_after_s);
    exchange_answer(x, status, "application/problem+json", body.data, body.len);
    buf_free(&body);
}

void exchange_abandon(struct exchange *x)
{
    x->abandoned = true;
}
