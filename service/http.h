/* http.h - HTTP/1.1 over libmicrohttpd: connections, their deadlines, and parking.
 *
 * A request and its answer are an exchange. The handler is called on HTTP threads, where nothing
 * may block: what takes time parks the exchange, gives the work to other threads, and is called
 * again after one of them woke it. All that is known of libmicrohttpd is in http.c. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "service/problem.h"

struct http;
struct exchange;

struct http_handler {
    void *arg;
    /* The headers are there: answer already (a body is not read then), or set how long a body may
     * be with exchange_take_body(). */
    void (*begin)(void *arg, struct exchange *x);
    /* The request is whole, or the exchange was woken: answer, or park and hand on. */
    void (*handle)(void *arg, struct exchange *x);
    /* The answer was sent, or the client is gone; *x is not to be used by the handler after it. */
    void (*end)(void *arg, struct exchange *x);
};

struct http_options {
    const char *listen; /* HOST:PORT, [IPV6]:PORT or unix:PATH */
    bool must_be_local; /* another address is refused */
    int n_threads;
    int max_connections;
    int64_t max_body_bytes; /* of all requests under way */
    /* Deadlines, in seconds: for a request's headers, for its body, between requests. An answer has
     * answer_s and a second more for each min_rate bytes that its reader took. */
    int header_s, body_s, idle_s, answer_s;
    int64_t min_rate;
    const char *cors_origin; /* whose pages may read the answers; "*": all; NULL: none */
    struct http_handler handler;
};

/* ERR_INPUT: the address, or that it is not local; ERR_IO: cannot listen, too few files allowed. */
int http_start(struct http **out, const struct http_options *options, struct error *err);
const char *http_address(const struct http *h);
/* From now on each answer closes its connection. */
void http_begin_drain(struct http *h);
/* No new connections; waits up to `ms` for the exchanges under way. */
void http_drain(struct http *h, int ms);
void http_stop(struct http *h);     /* ends all connections; NULL is fine */
bool http_is_alive(struct http *h); /* its threads go round */

/* ---- the request ---- */

const char *exchange_method(const struct exchange *x); /* "-": none that we know */
const char *exchange_path(const struct exchange *x);
const char *exchange_header(struct exchange *x, const char *name); /* NULL: not there */
const char *exchange_query(struct exchange *x, const char *name);  /* NULL: not there */
bool exchange_has_cors(const struct exchange *x);                  /* there is a cors_origin */
const char *exchange_request_id(const struct exchange *x);
int64_t exchange_start_ns(const struct exchange *x);
void exchange_take_body(struct exchange *x, size_t max_bytes); /* 0: none is wanted */
const char *exchange_body(const struct exchange *x, size_t *len);
/* What the handler keeps with it. */
void exchange_set_data(struct exchange *x, void *data);
void *exchange_data(const struct exchange *x);

/* ---- waiting ---- */

/* On the HTTP thread, before anybody is told of the exchange; then nothing else may be done with it
 * there. */
void exchange_park(struct exchange *x);
/* From any thread that holds it; when it is not parked, nothing happens. */
void exchange_wake(struct exchange *x);
void exchange_hold(struct exchange *x);
void exchange_release(struct exchange *x);

/* ---- the answer ---- */

/* `name` is borrowed for good. */
void exchange_add_header(struct exchange *x, const char *name, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* For the log and the metrics; borrowed for good. */
void exchange_note_route(struct exchange *x, const char *route);
void exchange_note_cache(struct exchange *x, const char *cache); /* for the log; borrowed */
void exchange_answer(struct exchange *x, int status, const char *content_type, const void *data,
                     size_t len);
/* The headers of an answer with `len` bytes, of which none are sent: 304. */
void exchange_answer_headers(struct exchange *x, int status, size_t len);
/* Gives up to `cap` bytes of the answer from `position` on: their number; 0: none yet, and it has
 * parked the exchange; -1: it failed, the connection ends. */
typedef long exchange_read_fn(void *arg, size_t position, void *out, size_t cap);
void exchange_answer_stream(struct exchange *x, int status, const char *content_type, size_t len,
                            exchange_read_fn *read, void *arg);
void exchange_answer_problem(struct exchange *x, const struct problem *p);
/* Answered with nothing: the connection ends. */
void exchange_abandon(struct exchange *x);
