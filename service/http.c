/* http.c - see http.h; exchange.c has the other half.
 *
 * libmicrohttpd runs epoll threads and calls the functions here. Its own timeout counts inactivity,
 * which a client that sends a byte now and then never shows, and which one that reads slowly, but
 * fast enough, does show: a socket whose buffer is large takes no more bytes for a long time. So it
 * is off, and a thread of ours ends connections that take too long over their headers, their body,
 * reading the answer, or sending the next request: shutdown() under the table's lock, which the
 * connection's closing takes too, so the descriptor cannot have become another's. The same thread
 * wakes the exchanges whose clients left while they were parked. */
#define _GNU_SOURCE /* EPOLL_CLOEXEC */
#include "service/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/headers.h"
#include "service/http_parts.h"

/* ---- watching connections ---- */

/* The exchange of a slot, held; NULL when the slot has another connection by now. */
static struct exchange *exchange_at(struct http *h, uint64_t place)
{
    unsigned slot = (unsigned)(place >> 32);
    struct exchange *x = NULL;

    pthread_mutex_lock(&h->lock);
    if (slot < h->n_slots && h->table[slot] != NULL &&
        h->table[slot]->generation == (uint32_t)place && (x = h->table[slot]->exchange) != NULL)
        exchange_hold(x);
    pthread_mutex_unlock(&h->lock);
    return x;
}

/* A client that shut down its side is taken for gone: the job goes on, its answer is cacheable. */
static void end_gone(struct http *h, uint64_t place)
{
    struct exchange *x = exchange_at(h, place);

    if (x == NULL)
        return;
    if (atomic_load(&x->state) == PARKED) {
        atomic_store(&x->gone, true);
        count(C_CLIENTS_GONE, 1);
        exchange_wake(x);
    }
    exchange_release(x);
}

static bool is_too_slow(const struct http *h, const struct connection *c, int64_t now)
{
    double s = (double)(now - c->since_ns) / 1e9;
    const struct exchange *x = c->exchange;
    int64_t woken_ns = x == NULL ? 0 : atomic_load(&x->woken_ns);

    /* 0.9.75 can leave a connection that is to be processed unprocessed */
    if (woken_ns != 0 && now - woken_ns > LOST_S * INT64_C(1000000000)) {
        log_warn("connection_lost", "id=%s", x->request_id);
        return true;
    }
    switch (c->phase) {
    case PHASE_HEADERS:
        return s > (x == NULL && c->n_requests > 0 ? h->options.idle_s : h->options.header_s);
    case PHASE_BODY:
        return s > h->options.body_s;
    case PHASE_ANSWER:
        if (x == NULL || atomic_load(&x->paused_ns) != 0)
            return false;
        return s >
               h->options.answer_s + (double)atomic_load(&x->sent) / (double)h->options.min_rate;
    case PHASE_WORK:
        break;
    }
    return false;
}

static void end_slow(struct http *h)
{
    int64_t now = clock_now_ns();

    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < h->n_slots; i++) {
        struct connection *c = h->table[i];
        if (c == NULL || c->ended || !is_too_slow(h, c, now))
            continue;
        c->ended = true;
        count(C_TOO_SLOW, 1); /* who sees it closed finds it counted */
        shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->lock);
}

static void *watch(void *arg)
{
    struct http *h = arg;
    int64_t scanned_ns = 0;

    while (!atomic_load(&h->stopping)) {
        struct epoll_event events[64];
        int n = epoll_wait(h->epoll_fd, events, 64, WATCH_MS);
        for (int i = 0; i < n; i++)
            end_gone(h, events[i].data.u64);
        atomic_store(&h->tick_ns, clock_now_ns());
        if (clock_ms_since(scanned_ns) > 1000) {
            end_slow(h);
            scanned_ns = clock_now_ns();
        }
    }
    return NULL;
}

/* ---- requests, as libmicrohttpd calls ---- */

/* Before the headers are read: the exchange begins. */
static void *begin_exchange(void *arg, const char *uri, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http *h = arg;
    struct exchange *x;

    (void)uri;
    if (info == NULL || info->socket_context == NULL || (x = calloc(1, sizeof(*x))) == NULL)
        return NULL;
    atomic_init(&x->refs, 1);
    x->http = h;
    x->mhd = mhd;
    x->connection = info->socket_context;
    x->start_ns = clock_now_ns();
    atomic_fetch_add(&h->n_exchanges, 1);
    pthread_mutex_lock(&h->lock);
    x->connection->exchange = x;
    if (x->connection->n_requests++ > 0)
        x->connection->since_ns = x->start_ns; /* it idled before */
    pthread_mutex_unlock(&h->lock);
    return x;
}

static void end_exchange(void *arg, struct MHD_Connection *mhd, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *context;
    struct http *h = arg;

    (void)mhd;
    (void)code;
    if (x == NULL)
        return;
    *context = NULL;
    if (x->begun) {
        log_info("request", "id=%s method=%s route=%s status=%d bytes=%zu ms=%.1f cache=%s",
                 x->request_id, x->method, x->route == NULL ? "-" : x->route, x->status, x->length,
                 clock_ms_since(x->start_ns), x->cache == NULL ? "-" : x->cache);
        count_request(x->route, x->status);
        h->options.handler.end(h->options.handler.arg, x);
    }
    pthread_mutex_lock(&h->lock);
    x->connection->exchange = NULL;
    x->connection->phase = PHASE_HEADERS;
    x->connection->since_ns = clock_now_ns();
    pthread_mutex_unlock(&h->lock);
    atomic_fetch_sub(&h->body_bytes, x->reserved);
    atomic_fetch_sub(&h->n_exchanges, 1);
    exchange_release(x);
}

/* What is looked for in all headers at once. */
struct header_scan {
    int n_lengths, n_hosts;
    bool has_encoding, has_bad_name;
};

static enum MHD_Result scan_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    static const char allowed[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    struct header_scan *scan = arg;

    (void)kind;
    (void)value;
    scan->n_lengths += strcasecmp(name, "Content-Length") == 0;
    scan->n_hosts += strcasecmp(name, "Host") == 0;
    scan->has_encoding |= strcasecmp(name, "Transfer-Encoding") == 0;
    scan->has_bad_name |= name[0] == '\0' || name[strspn(name, allowed)] != '\0';
    return MHD_YES;
}

/* What would let two servers read one connection differently is refused here, and the connection
 * closed. *declared: Content-Length, 0 when it is not there. */
static bool check_framing(struct exchange *x, size_t *declared, struct problem *p)
{
    struct header_scan scan = {0};
    const char *length;

    *declared = 0;
    MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, scan_header, &scan);
    if (scan.has_encoding)
        return problem_set(p, PROBLEM_LENGTH_REQUIRED,
                           "Transfer-Encoding is not taken: send Content-Length");
    if (scan.n_lengths > 1 || scan.n_hosts > 1 || scan.has_bad_name)
        return problem_set(p, PROBLEM_BAD_REQUEST,
                           scan.has_bad_name    ? "a header's name has characters it must not have"
                           : scan.n_lengths > 1 ? "Content-Length is given twice"
                                                : "Host is given twice");
    if ((length = exchange_header(x, "Content-Length")) == NULL)
        return true;
    for (const char *c = length; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || *declared > SIZE_MAX / 20)
            return problem_set(p, PROBLEM_BAD_REQUEST, "Content-Length is no number of bytes");
        *declared = *declared * 10 + (size_t)(*c - '0');
    }
    return true;
}

/* Counts a body's bytes among those of all requests under way, until the exchange ends. */
static bool reserve_body(struct exchange *x, int64_t bytes)
{
    struct http *h = x->http;

    if (atomic_fetch_add(&h->body_bytes, bytes) + bytes > h->options.max_body_bytes) {
        atomic_fetch_sub(&h->body_bytes, bytes);
        return false;
    }
    x->reserved = bytes;
    return true;
}

static bool check_body(struct exchange *x, size_t declared, struct problem *p)
{
    if (x->max_body > 0 && exchange_header(x, "Content-Length") == NULL)
        return problem_set(p, PROBLEM_LENGTH_REQUIRED, "%s needs a body and its Content-Length",
                           x->method);
    if (declared > (x->max_body > 0 ? x->max_body : (size_t)MEMORY_LIMIT)) {
        problem_add_number(p, "bytes", (int64_t)(declared > INT64_MAX ? INT64_MAX : declared));
        problem_add_number(p, "limit", (int64_t)x->max_body);
        return problem_set(p, PROBLEM_BODY_TOO_LARGE,
                           "the body has %zu bytes, at most %zu are taken", declared, x->max_body);
    }
    if (!reserve_body(x, (int64_t)declared)) {
        p->retry_after_s = 1;
        return problem_set(p, PROBLEM_OVERLOADED, "too many requests are being read just now");
    }
    x->body.max = declared;
    return true;
}

static void make_request_id(struct exchange *x)
{
    const char *given = exchange_header(x, "X-Request-Id");

    if (given != NULL && headers_request_id_is_good(given))
        snprintf(x->request_id, sizeof(x->request_id), "%s", given);
    else
        snprintf(x->request_id, sizeof(x->request_id), "%08llx-%llx",
                 (unsigned long long)(x->start_ns / 1000000 & 0xffffffff),
                 (unsigned long long)atomic_fetch_add(&x->http->serial, 1));
}

static enum MHD_Result after_call(const struct exchange *x)
{
    return x->abandoned ? MHD_NO : MHD_YES;
}

/* A client's own word goes nowhere, the log least of all. */
static const char *known_method(const char *method)
{
    static const char *const known[] = {"GET",     "HEAD",  "POST",  "PUT",    "DELETE",
                                        "OPTIONS", "PATCH", "TRACE", "CONNECT"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i], method) == 0)
            return known[i];
    return "-";
}

/* The headers are there. */
static enum MHD_Result on_headers(struct exchange *x, const char *url, const char *method)
{
    struct http *h = x->http;
    struct problem p = {0};
    size_t declared;
    bool framed;

    make_request_id(x);
    x->method = known_method(method);
    if ((x->path = strdup(url)) == NULL)
        return MHD_NO;
    x->begun = true;
    exchange_set_phase(x, PHASE_BODY);
    if ((framed = check_framing(x, &declared, &p)))
        h->options.handler.begin(h->options.handler.arg, x);
    if (x->status == 0 && !x->abandoned && (!framed || !check_body(x, declared, &p)))
        exchange_answer_problem(x, &p);
    return after_call(x);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **context)
{
    struct exchange *x = *context;
    struct http *h = arg;

    (void)mhd;
    (void)version;
    if (x == NULL)
        return MHD_NO;
    if (!x->begun)
        return on_headers(x, url, method);
    if (*upload_size > 0) {
        /* an early answer, or a body nobody asked for: read and dropped */
        if (x->status == 0 && x->max_body > 0 &&
            buf_append(&x->body, upload, *upload_size, NULL) != OK)
            return MHD_NO;
        *upload_size = 0;
        return MHD_YES;
    }
    atomic_store(&x->woken_ns, 0);
    if (x->status != 0)
        return MHD_YES;
    if (atomic_load(&x->gone) || atomic_load(&h->stopping))
        return MHD_NO;
    exchange_set_phase(x, PHASE_WORK);
    h->options.handler.handle(h->options.handler.arg, x);
    return after_call(x);
}

/* ---- connections ---- */

static void open_connection(struct http *h, struct MHD_Connection *mhd, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct epoll_event nothing = {.events = EPOLLONESHOT};
    struct connection *c;

    if (info == NULL)
        return; /* its first request is refused */
    if ((c = calloc(1, sizeof(*c))) == NULL) {
        shutdown(info->connect_fd, SHUT_RDWR); /* else nobody would watch it */
        return;
    }
    c->fd = info->connect_fd;
    c->opened_ns = c->since_ns = clock_now_ns();
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < h->n_slots && *context == NULL; i++) {
        unsigned slot = (h->next_slot + i) % h->n_slots;
        if (h->table[slot] != NULL)
            continue;
        c->slot = slot;
        c->generation = ++h->generation;
        h->table[slot] = c;
        h->next_slot = slot + 1;
        *context = c;
    }
    pthread_mutex_unlock(&h->lock);
    if (*context == NULL) {
        shutdown(c->fd, SHUT_RDWR);
        free(c);
        return;
    }
    nothing.data.u64 = (uint64_t)c->slot << 32 | c->generation;
    if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, c->fd, &nothing) != 0)
        log_warn("watch_failed", "errno=%d", errno);
    count(C_CONNECTIONS, 1);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct connection *c = *context;
    struct http *h = arg;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = NULL;
        open_connection(h, mhd, context);
        return;
    }
    if (c == NULL)
        return;
    pthread_mutex_lock(&h->lock);
    h->table[c->slot] = NULL;
    pthread_mutex_unlock(&h->lock);
    epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    count(C_CONNECTIONS, -1);
    free(c);
    *context = NULL;
}

static void on_log(void *arg, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
static void on_log(void *arg, const char *fmt, va_list args)
{
    char text[256];

    (void)arg;
    /* it may quote a client's bytes: only the first line, and only for debugging */
    vsnprintf(text, sizeof(text), fmt, args);
    text[strcspn(text, "\r\n")] = '\0';
    log_debug("libmicrohttpd", "text=\"%s\"", text);
}

/* ---- life ---- */

/* A connection that cannot be accepted for want of files is worse than one refused at start. */
static int check_files(const struct http_options *options, struct error *err)
{
    rlim_t need = (rlim_t)options->max_connections + SPARE_FILES;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return OK;
    if (limit.rlim_cur < need && limit.rlim_max >= need) {
        limit.rlim_cur = need;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < need)
        return error_set(err, ERR_IO,
                         "http: %d connections need %llu open files, the limit is %llu: raise it "
                         "(ulimit -n) or lower --max-connections",
                         options->max_connections, (unsigned long long)need,
                         (unsigned long long)limit.rlim_cur);
    return OK;
}

static int start_daemon(struct http *h, struct error *err)
{
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, h, MHD_OPTION_LISTEN_SOCKET,
        h->listener.fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)h->options.n_threads,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->options.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_LIMIT, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_URI_LOG_CALLBACK, begin_exchange, h,
        MHD_OPTION_NOTIFY_COMPLETED, end_exchange, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        h, MHD_OPTION_END);
    if (h->daemon == NULL)
        return error_set(err, ERR_IO, "http: libmicrohttpd does not start on %s", h->listener.text);
    return OK;
}

int http_start(struct http **out, const struct http_options *options, struct error *err)
{
    struct http *h = calloc(1, sizeof(*h));
    int rc;

    *out = NULL;
    if (h == NULL)
        return error_set(err, ERR_MEM, "http: no memory");
    h->options = *options;
    h->listener.fd = h->epoll_fd = -1;
    h->n_slots = (unsigned)options->max_connections + 64;
    pthread_mutex_init(&h->lock, NULL);
    atomic_store(&h->tick_ns, clock_now_ns());
    if ((rc = check_files(options, err)) != OK ||
        (rc = listen_open(&h->listener, options->listen, BACKLOG, err)) != OK)
        goto out;
    if (options->must_be_local && !h->listener.is_local) {
        rc = error_set(err, ERR_INPUT,
                       "http: %s can be reached from other machines and there are no API keys: "
                       "listen on 127.0.0.1 or unix:PATH, or give --insecure-no-keys",
                       h->listener.text);
        goto out;
    }
    if ((h->table = calloc(h->n_slots, sizeof(*h->table))) == NULL) {
        rc = error_set(err, ERR_MEM, "http: no memory for %u connections", h->n_slots);
        goto out;
    }
    if ((h->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        pthread_create(&h->watcher, NULL, watch, h) != 0) {
        rc = error_set(err, ERR_MEM, "http: cannot watch connections");
        goto out;
    }
    h->watching = true;
    if ((rc = start_daemon(h, err)) != OK)
        goto out;
    *out = h;
    h = NULL;
out:
    http_stop(h);
    return rc;
}

const char *http_address(const struct http *h)
{
    return h->listener.text;
}

bool http_is_alive(struct http *h)
{
    return clock_ms_since(atomic_load(&h->tick_ns)) < LIVE_S * 1e3;
}

void http_begin_drain(struct http *h)
{
    atomic_store(&h->draining, true);
}

void http_drain(struct http *h, int ms)
{
    int64_t start_ns = clock_now_ns();

    atomic_store(&h->draining, true);
    listen_remove_file(&h->listener);
    if (MHD_quiesce_daemon(h->daemon) >= 0)
        listen_close(&h->listener);
    while (atomic_load(&h->n_exchanges) > 0 && clock_ms_since(start_ns) < ms)
        clock_pause_ms(10);
}

/* Whatever is parked is woken, again and again: an exchange may be parking just now. */
static void wake_all(struct http *h)
{
    do {
        for (unsigned i = 0; h->table != NULL && i < h->n_slots; i++) {
            struct exchange *x = NULL;
            pthread_mutex_lock(&h->lock);
            if (h->table[i] != NULL && (x = h->table[i]->exchange) != NULL)
                exchange_hold(x);
            pthread_mutex_unlock(&h->lock);
            if (x != NULL)
                exchange_wake(x);
            exchange_release(x);
        }
        if (atomic_load(&h->n_parked) > 0)
            clock_pause_ms(1);
    } while (atomic_load(&h->n_parked) > 0);
}

void http_stop(struct http *h)
{
    if (h == NULL)
        return;
    atomic_store(&h->stopping, true);
    listen_remove_file(&h->listener);
    if (h->daemon != NULL) {
        wake_all(h);
        MHD_stop_daemon(h->daemon);
        h->listener.fd = -1; /* libmicrohttpd closed it */
    }
    listen_close(&h->listener);
    if (h->watching)
        pthread_join(h->watcher, NULL);
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    pthread_mutex_destroy(&h->lock);
    free(h->table);
    free(h);
}
