/* http_parts.h - what http.c and exchange.c share: a server, its connections, its exchanges.
 *
 * http.c is called by libmicrohttpd, keeps the table of connections and watches it; exchange.c is
 * what handlers do with an exchange. */
#pragma once
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/listen.h"
#include "service/http.h"

enum {
    MAX_REQUESTS = 1000, /* of a connection */
    MAX_AGE_S = 600,     /* of a connection */
    BACKLOG = 1024,
    STREAM_BLOCK = 256 << 10,
    MEMORY_LIMIT = 32 << 10, /* of a connection's headers */
    SPARE_FILES = 256,
    MAX_HEADERS = 12,
    RETRY_AFTER_S = 2, /* where a problem says nothing better */
    WATCH_MS = 250,
    LOST_S = 5, /* between a wake and its call */
    LIVE_S = 10
};

enum phase { PHASE_HEADERS, PHASE_BODY, PHASE_WORK, PHASE_ANSWER };

struct connection {
    int fd;
    unsigned slot;
    uint32_t generation;
    bool ended; /* shut down by us */
    enum phase phase;
    int64_t opened_ns, since_ns; /* since: of the phase */
    int n_requests;
    struct exchange *exchange; /* the one under way, or NULL */
};

enum exchange_state { RUNNING, PARKED };

struct exchange {
    struct http *http;
    struct MHD_Connection *mhd;
    struct connection *connection;
    atomic_int refs;
    _Atomic int state;
    atomic_bool gone;
    _Atomic int64_t woken_ns;  /* not called back yet; 0: it was */
    _Atomic int64_t paused_ns; /* an answer that waits for its next bytes; 0: it does not */
    char request_id[65];
    const char *method;
    char *path;
    const char *route; /* for the log: the path itself may hold anything */
    int64_t start_ns;
    bool begun;
    size_t max_body;  /* bytes; 0: none is wanted */
    int64_t reserved; /* bytes of http->body_bytes that are this one's */
    struct buf body;
    void *data;
    /* the answer */
    struct {
        const char *name;
        char *value;
    } headers[MAX_HEADERS];
    size_t n_headers;
    bool abandoned;
    int status; /* 0: not answered */
    size_t length;
    _Atomic size_t sent;
    const char *cache;
    exchange_read_fn *read;
    void *read_arg;
};

struct http {
    struct http_options options;
    struct MHD_Daemon *daemon;
    struct listener listener;
    int epoll_fd;
    atomic_bool draining, stopping;
    _Atomic int64_t body_bytes, n_exchanges, n_parked, tick_ns;
    pthread_t watcher;
    bool watching;
    pthread_mutex_t lock; /* guards the table and the connections in it */
    struct connection **table;
    unsigned n_slots, next_slot;
    uint32_t generation;
    _Atomic uint64_t serial; /* of request ids that we make */
};

/* What the connection does from now on, for its deadlines. */
void exchange_set_phase(struct exchange *x, enum phase phase);
