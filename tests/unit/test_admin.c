/* test_admin.c - the listener beside every program: addresses, probes, metrics. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/admin.h"
#include "base/listen.h"
#include "tests/check.h"

static struct error err;
static bool live = true, ready;

static bool is_live(void *arg, char *why, size_t cap)
{
    (void)arg;
    snprintf(why, cap, "turning");
    return live;
}

static bool is_ready(void *arg, char *why, size_t cap)
{
    (void)arg;
    snprintf(why, cap, ready ? "ready" : "no queue yet");
    return ready;
}

static int metrics(void *arg, struct buf *out, struct error *why)
{
    return buf_printf(out, why, "pe_answer %d\n", *(int *)arg);
}

/* Sends `request` to a port of this machine, or to a unix socket, and reads all of the answer. */
static void ask(const char *address, const char *request, char *reply, size_t cap)
{
    size_t n = 0;
    ssize_t got;
    int fd;

    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        snprintf(to.sun_path, sizeof(to.sun_path), "%s", address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET};
        const char *colon = strrchr(address, ':');
        CHECK(colon != NULL);
        to.sin_port = htons((uint16_t)strtol(colon + 1, NULL, 10));
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    }
    CHECK(write(fd, request, strlen(request)) == (ssize_t)strlen(request));
    while (n < cap - 1 && (got = read(fd, reply + n, cap - 1 - n)) > 0)
        n += (size_t)got;
    reply[n] = '\0';
    close(fd);
}

static void probe(const char *address, const char *line, const char *status, const char *text)
{
    char request[256], reply[4096];

    snprintf(request, sizeof(request), "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", line);
    ask(address, request, reply, sizeof(reply));
    if (strstr(reply, status) == NULL || strstr(reply, text) == NULL)
        CHECK_FAIL("%s: want \"%s\" and \"%s\", got:\n%s", line, status, text, reply);
}

static void probes_and_metrics(void)
{
    int answer = 42;
    struct admin_callbacks callbacks = {&answer, is_live, is_ready, metrics};
    struct admin *a;

    CHECK_OK(admin_start(&a, "127.0.0.1:0", &callbacks, &err));
    CHECK(strncmp(admin_address(a), "127.0.0.1:", 10) == 0);
    CHECK(strcmp(admin_address(a), "127.0.0.1:0") != 0);
    probe(admin_address(a), "GET /livez", " 200 ", "turning\n");
    probe(admin_address(a), "GET /readyz", " 503 ", "no queue yet\n");
    ready = true;
    probe(admin_address(a), "GET /readyz", " 200 ", "ready\n");
    live = false;
    probe(admin_address(a), "HEAD /livez", " 503 ", "Content-Length: 8");
    probe(admin_address(a), "GET /metrics", "version=0.0.4", "pe_answer 42\n");
    probe(admin_address(a), "GET /nowhere", " 404 ", "no such page");
    probe(admin_address(a), "DELETE /livez", " 405 ", "Allow: GET, HEAD");
    admin_stop(a);
    admin_stop(NULL);
}

static void unix_sockets(void)
{
    int answer = 7;
    struct admin_callbacks callbacks = {&answer, is_live, is_ready, metrics};
    struct admin *a, *b;
    char address[160], path[128];

    snprintf(path, sizeof(path), "/tmp/test_admin.%ld", (long)getpid());
    snprintf(address, sizeof(address), "unix:%s", path);
    CHECK_OK(admin_start(&a, address, &callbacks, &err));
    probe(address, "GET /metrics", " 200 ", "pe_answer 7\n");
    CHECK_ERR(admin_start(&b, address, &callbacks, &err), ERR_IO, path);
    CHECK(strstr(err.text, "in use by another process") != NULL);
    CHECK(access(path, F_OK) == 0); /* the one refused left it alone */
    admin_stop(a);
    CHECK(access(path, F_OK) != 0);
}

/* As a process that was killed leaves it. */
static void leave_a_dead_socket(const char path[64])
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    CHECK(listen(fd, 1) == 0);
    close(fd);
    CHECK(access(path, F_OK) == 0);
}

static void files_of_unix_sockets(void)
{
    struct listener l, successor;
    char address[160], path[64], aside[160];

    snprintf(path, sizeof(path), "/tmp/test_listen.%ld", (long)getpid());
    snprintf(aside, sizeof(aside), "%s.aside", path);
    snprintf(address, sizeof(address), "unix:%s", path);
    leave_a_dead_socket(path);
    CHECK_OK(listen_open(&l, address, 8, &err));
    CHECK(l.is_local);
    listen_close(&l);
    CHECK(access(path, F_OK) != 0);
    /* somebody else's file has its place by now: it stays */
    CHECK_OK(listen_open(&l, address, 8, &err));
    CHECK(rename(path, aside) == 0);
    CHECK_OK(listen_open(&successor, address, 8, &err));
    listen_close(&l);
    CHECK(access(path, F_OK) == 0);
    listen_close(&successor);
    CHECK(access(path, F_OK) != 0);
    unlink(aside);
}

static void addresses(void)
{
    struct listener l, other;

    CHECK_OK(listen_open(&l, "127.0.0.1:0", 8, &err));
    CHECK(l.is_local);
    CHECK_ERR(listen_open(&other, l.text, 8, &err), ERR_IO, "Address already in use");
    listen_close(&other); /* nothing to close */
    listen_close(&l);
    CHECK_OK(listen_open(&other, l.text, 8, &err));
    listen_close(&other);
    CHECK_OK(listen_open(&l, "0.0.0.0:0", 8, &err));
    CHECK(!l.is_local);
    listen_close(&l);
    CHECK_ERR(listen_open(&l, "8080", 8, &err), ERR_INPUT, "'8080' is no address");
    CHECK_ERR(listen_open(&l, "localhost:http", 8, &err), ERR_INPUT, "no address");
    CHECK_ERR(listen_open(&l, "::1:80", 8, &err), ERR_INPUT, "in brackets");
    CHECK_ERR(listen_open(&l, "127.0.0.1:65536", 8, &err), ERR_INPUT, "0 to 65535");
    CHECK_ERR(listen_open(&l, ":80", 8, &err), ERR_INPUT, "host is missing");
    CHECK_ERR(listen_open(&l, "unix:", 8, &err), ERR_INPUT, "1 to");
    CHECK_ERR(listen_open(&l, "unix:/nowhere/x", 8, &err), ERR_IO, "No such file");
}

int main(void)
{
    RUN(probes_and_metrics);
    RUN(unix_sockets);
    RUN(files_of_unix_sockets);
    RUN(addresses);
    return check_result();
}
