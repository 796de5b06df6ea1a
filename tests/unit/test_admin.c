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
    CHECK_ERR(admin_start(&b, address, &callbacks, &err), ERR_IO, "in use by another process");
    admin_stop(a);
    CHECK_OK(admin_start(&a, address, &callbacks, &err)); /* over the file that was left */
    admin_stop(a);
    unlink(path);
}

static void addresses(void)
{
    char text[LISTEN_TEXT_SIZE], again[LISTEN_TEXT_SIZE];
    bool is_local;
    int fd, other;

    CHECK_OK(listen_open(&fd, "127.0.0.1:0", 8, text, &is_local, &err));
    CHECK(is_local);
    CHECK_ERR(listen_open(&other, text, 8, again, NULL, &err), ERR_IO, "Address already in use");
    close(fd);
    CHECK_OK(listen_open(&fd, "0.0.0.0:0", 8, text, &is_local, &err));
    CHECK(!is_local);
    close(fd);
    CHECK_ERR(listen_open(&fd, "8080", 8, text, NULL, &err), ERR_INPUT, "'8080' is no address");
    CHECK_ERR(listen_open(&fd, "localhost:http", 8, text, NULL, &err), ERR_INPUT, "no address");
    CHECK_ERR(listen_open(&fd, "::1:80", 8, text, NULL, &err), ERR_INPUT, "in brackets");
    CHECK_ERR(listen_open(&fd, ":80", 8, text, NULL, &err), ERR_INPUT, "host is missing");
    CHECK_ERR(listen_open(&fd, "unix:", 8, text, NULL, &err), ERR_INPUT, "1 to");
    CHECK_ERR(listen_open(&fd, "unix:/nowhere/x", 8, text, NULL, &err), ERR_IO, "No such file");
}

int main(void)
{
    RUN(probes_and_metrics);
    RUN(unix_sockets);
    RUN(addresses);
    return check_result();
}
