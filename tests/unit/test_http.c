/* test_http.c - the HTTP layer by itself: a handler of our own, clients that send bytes. */
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "service/counters.h"
#include "service/http.h"
#include "tests/check.h"

enum {
    STREAM_BYTES = 4 << 20, /* more than the sockets hold */
    MAX_BODIES = 1000,
    IDLE_S = 1,
    HEADER_S = 2,
    ANSWER_S = 3,
    MIN_RATE = 1 << 20
};

static struct error err;
static struct http *server;
static char path[64], method[16];
static atomic_int n_ended;

/* ---- the handler: the path says what it does ---- */

static void begin(void *arg, struct exchange *x)
{
    const char *what = exchange_path(x);

    (void)arg;
    snprintf(method, sizeof(method), "%s", exchange_method(x));
    exchange_note_route(x, what[1] == 's' ? "/small" : NULL);
    if (strcmp(what, "/abandon") == 0)
        exchange_abandon(x);
    exchange_take_body(x, strcmp(what, "/body") == 0 ? 10 * MAX_BODIES : 0);
}

static long read_stream(void *arg, size_t position, void *out, size_t cap)
{
    size_t n = position + cap > STREAM_BYTES ? STREAM_BYTES - position : cap;

    (void)arg;
    memset(out, 'x', n);
    return (long)n;
}

static void handle(void *arg, struct exchange *x)
{
    const char *what = exchange_path(x);

    (void)arg;
    exchange_add_header(x, "Vary", "Accept");
    if (strcmp(what, "/304") == 0)
        exchange_answer_headers(x, 304, 12345);
    else if (strcmp(what, "/204") == 0)
        exchange_answer(x, 204, NULL, "", 0);
    else if (strcmp(what, "/stream") == 0)
        exchange_answer_stream(x, 200, "text/plain", STREAM_BYTES, read_stream, NULL);
    else
        exchange_answer(x, 200, "text/plain", "hello", 5);
}

static void end(void *arg, struct exchange *x)
{
    (void)arg;
    (void)x;
    atomic_fetch_add(&n_ended, 1);
}

static struct http *start(const char *cors_origin)
{
    char address[160];
    struct http *h;

    snprintf(path, sizeof(path), "/tmp/test_http.%ld", (long)getpid());
    snprintf(address, sizeof(address), "unix:%s", path);
    const struct http_options options = {.listen = address,
                                         .must_be_local = true,
                                         .n_threads = 1,
                                         .max_connections = 32,
                                         .max_body_bytes = MAX_BODIES,
                                         .header_s = HEADER_S,
                                         .body_s = 2,
                                         .idle_s = IDLE_S,
                                         .answer_s = ANSWER_S,
                                         .min_rate = MIN_RATE,
                                         .cors_origin = cors_origin,
                                         .handler = {NULL, begin, handle, end}};
    CHECK_OK(http_start(&h, &options, &err));
    return h;
}

/* ---- the client ---- */

static int dial(const char *request)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct timeval patience = {20, 0};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    CHECK(send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request));
    return fd;
}

/* All that comes until the server closes, in bytes; the first of them as text. */
static size_t drain(int fd, char *reply, size_t cap)
{
    static char piece[64 << 10];
    size_t n = 0, total = 0;
    ssize_t got;

    while ((got = read(fd, piece, sizeof(piece))) > 0) {
        size_t take = (size_t)got < cap - 1 - n ? (size_t)got : cap - 1 - n;
        memcpy(reply + n, piece, take);
        n += take;
        total += (size_t)got;
    }
    reply[n] = '\0';
    close(fd);
    return total;
}

#define GET(what)   "GET " what " HTTP/1.1\r\nHost: x\r\n\r\n"
#define CLOSE(what) "GET " what " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

/* ---- tests ---- */

/* RFC 9110 8.6: a 304 has the length that the 200 would have, or none. */
static void answers_without_a_body(void)
{
    char reply[4096];
    const char *second;

    drain(dial(GET("/304") CLOSE("/small")), reply, sizeof(reply));
    CHECK(strncmp(reply, "HTTP/1.1 304 ", 13) == 0);
    CHECK(strstr(reply, "Content-Length: 0") == NULL);
    second = strstr(reply, "\r\n\r\nHTTP/1.1 200 "); /* nothing came between the two */
    CHECK(second != NULL);
    CHECK(strstr(reply, "Content-Length: 12345\r\n") < second);
    CHECK(strstr(second, "\r\n\r\nhello") != NULL);

    drain(dial(GET("/204") CLOSE("/small")), reply, sizeof(reply));
    CHECK(strncmp(reply, "HTTP/1.1 204 ", 13) == 0);
    second = strstr(reply, "\r\n\r\nHTTP/1.1 200 ");
    CHECK(second != NULL && strstr(reply, "Content-Length") > second);

    drain(dial("HEAD /small HTTP/1.1\r\nHost: x\r\n\r\n"
               "HEAD /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
          reply, sizeof(reply));
    CHECK(strstr(reply, "Content-Length: 5\r\n") != NULL);
    CHECK(strstr(reply, "Content-Length: 4194304\r\n") != NULL);
    CHECK(strstr(reply, "hello") == NULL && strstr(reply, "xx") == NULL);
}

static void post(const char *what, int length, const char *status)
{
    char request[11 * MAX_BODIES + 200], reply[4096];
    int n =
        snprintf(request, sizeof(request),
                 "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n",
                 what, length);

    memset(request + n, 'x', (size_t)length);
    request[n + length] = '\0';
    drain(dial(request), reply, sizeof(reply));
    if (strstr(reply, status) == NULL)
        CHECK_FAIL("%s: want \"%s\", got:\n%s", what, status, reply);
}

/* What an exchange that came to nothing had announced makes no room for others. */
static void bytes_of_bodies_are_counted(void)
{
    int ended = atomic_load(&n_ended);

    post("/body", MAX_BODIES, " 200 ");
    post("/body", MAX_BODIES + 1, " 503 ");
    for (int i = 0; i < 3; i++)
        post("/abandon", 900, "");
    for (int i = 0; i < 200 && atomic_load(&n_ended) < ended + 5; i++)
        clock_pause_ms(10);
    post("/body", MAX_BODIES + 1, " 503 ");
    post("/body", 10 * MAX_BODIES + 1, " 413 ");
    post("/body", MAX_BODIES, " 200 "); /* all of it came back */
}

static void methods(void)
{
    char reply[4096];

    drain(dial("PATCH /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), reply,
          sizeof(reply));
    CHECK_TEXT(method, "PATCH");
    drain(dial("GE\x1b[31mT /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), reply,
          sizeof(reply));
    CHECK_TEXT(method, "-");
    drain(dial("get /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), reply,
          sizeof(reply));
    CHECK_TEXT(method, "-");
}

/* Reading nothing for longer than a connection may idle is no offence, as long as the whole answer
 * is taken in its time. */
static void a_slow_reader_gets_all(void)
{
    char reply[4096];
    int fd = dial(CLOSE("/stream"));

    clock_pause_ms(IDLE_S * 1000 + 1500);
    CHECK(drain(fd, reply, sizeof(reply)) > STREAM_BYTES);
}

static void a_reader_that_stops_is_cut_off(void)
{
    int64_t start_ns = clock_now_ns();
    char reply[4096];
    int fd = dial(CLOSE("/stream"));

    while (metric_value(&counters[C_TOO_SLOW]) == 0 && clock_ms_since(start_ns) < 15000)
        clock_pause_ms(20);
    CHECK(clock_ms_since(start_ns) > ANSWER_S * 1e3);
    CHECK(clock_ms_since(start_ns) < (ANSWER_S + 3) * 1e3);
    CHECK(drain(fd, reply, sizeof(reply)) < STREAM_BYTES);
}

/* The library's own timeout is off: these are all there is. */
static void connections_that_say_nothing_end(void)
{
    static const struct {
        const char *request;
        int limit_s;
    } cases[] = {{GET("/small"), IDLE_S},
                 {GET("/small") "GET /sm", IDLE_S},
                 {"", HEADER_S},
                 {"GET /sm", HEADER_S},
                 {"GET /small HTTP/1.1\r\nHost", HEADER_S},
                 {GET("/small") "GET /small HTTP/1.1\r\nHost", HEADER_S}};
    enum { N = sizeof(cases) / sizeof(cases[0]) };
    int64_t start_ns = clock_now_ns();
    char reply[4096];
    int fds[N];

    for (int i = 0; i < N; i++)
        fds[i] = dial(cases[i].request);
    for (int i = 0; i < N; i++) {
        double ms;
        drain(fds[i], reply, sizeof(reply));
        ms = clock_ms_since(start_ns);
        /* they are looked at once a second */
        if (ms < cases[i].limit_s * 1e3 || ms > (cases[i].limit_s + 2) * 1e3)
            CHECK_FAIL("\"%s\" was left for %.0f ms", cases[i].request, ms);
    }
}

static void origins(void)
{
    char reply[4096];
    struct http *h;

    drain(dial(CLOSE("/small")), reply, sizeof(reply));
    CHECK(strstr(reply, "Access-Control") == NULL && strstr(reply, "Origin") == NULL);
    http_stop(server);
    server = NULL;
    h = start("https://a.example");
    drain(dial(CLOSE("/small")), reply, sizeof(reply));
    CHECK(strstr(reply, "Access-Control-Allow-Origin: https://a.example\r\n") != NULL);
    CHECK(strstr(reply, "Access-Control-Expose-Headers: X-Request-Id, X-Cache, ETag, Location, "
                        "Retry-After, Server-Timing\r\n") != NULL);
    CHECK(strstr(reply, "Vary: Accept\r\n") != NULL && strstr(reply, "Vary: Origin\r\n") != NULL);
    http_stop(h);
    h = start("*");
    drain(dial(CLOSE("/small")), reply, sizeof(reply));
    CHECK(strstr(reply, "Access-Control-Allow-Origin: *\r\n") != NULL);
    CHECK(strstr(reply, "Vary: Origin") == NULL);
    http_drain(h, 1000);
    CHECK(access(path, F_OK) != 0); /* a successor may listen from now on */
    http_stop(h);
}

int main(void)
{
    server = start(NULL);
    RUN(answers_without_a_body);
    RUN(bytes_of_bodies_are_counted);
    RUN(methods);
    RUN(a_slow_reader_gets_all);
    RUN(a_reader_that_stops_is_cut_off);
    RUN(connections_that_say_nothing_end);
    RUN(origins);
    http_stop(server);
    return check_result();
}
