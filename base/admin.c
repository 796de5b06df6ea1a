/* admin.c - see admin.h. libmicrohttpd with one thread of its own; answers are made on the spot. By
 * epoll, as select() ends at descriptor 1023, and a service has more connections than that. */
#include "base/admin.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/listen.h"

enum {
    MAX_CONNECTIONS = 32,
    TIMEOUT_S = 10,
    MAX_METRICS = 4 << 20, /* bytes */
    MAX_WHY = 256
};

struct admin {
    struct admin_callbacks callbacks;
    struct MHD_Daemon *daemon;
    struct listener listener;
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              const char *allow, const void *data, size_t size)
{
    /* MHD copies; it takes no const */
    union {
        const void *read_only;
        void *address;
    } body = {data};
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, body.address, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result rc;

    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (allow != NULL)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
    rc = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result answer_probe(struct MHD_Connection *connection,
                                    bool (*probe)(void *arg, char *why, size_t cap), void *arg)
{
    char why[MAX_WHY] = {0};
    bool good = probe(arg, why, sizeof(why) - 1); /* the last byte stays NUL */

    why[strlen(why)] = '\n';
    return answer(connection, good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                  "text/plain; charset=utf-8", NULL, why, strlen(why));
}

static enum MHD_Result answer_metrics(struct MHD_Connection *connection, struct admin *a)
{
    struct buf out = {.max = MAX_METRICS};
    struct error err = {0};
    enum MHD_Result rc;

    if (a->callbacks.metrics(a->callbacks.arg, &out, &err) != OK)
        rc = answer(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", NULL,
                    err.text, strlen(err.text));
    else
        rc = answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", NULL,
                    out.len > 0 ? out.data : "", out.len);
    buf_free(&out);
    return rc;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **state)
{
    static const char text[] = "text/plain; charset=utf-8";
    static int
        seen; /* only its address is used: the first call of a request has its headers alone */
    struct admin *a = arg;

    (void)version;
    (void)upload;
    if (*state == NULL) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) { /* a body means nothing here: drop it */
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(url, "/livez") != 0 && strcmp(url, "/readyz") != 0 && strcmp(url, "/metrics") != 0)
        return answer(connection, MHD_HTTP_NOT_FOUND, text, NULL, "no such page\n", 13);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, text, "GET, HEAD", "GET or HEAD\n",
                      12);
    if (strcmp(url, "/livez") == 0)
        return answer_probe(connection, a->callbacks.is_live, a->callbacks.arg);
    if (strcmp(url, "/readyz") == 0)
        return answer_probe(connection, a->callbacks.is_ready, a->callbacks.arg);
    return answer_metrics(connection, a);
}

int admin_start(struct admin **out, const char *address, const struct admin_callbacks *callbacks,
                struct error *err)
{
    struct admin *a;
    int rc;

    *out = NULL;
    if ((a = calloc(1, sizeof(*a))) == NULL)
        return error_set(err, ERR_MEM, "admin: no memory");
    a->callbacks = *callbacks;
    if ((rc = listen_open(&a->listener, address, MAX_CONNECTIONS, err)) != OK)
        goto out;
    a->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, a, MHD_OPTION_LISTEN_SOCKET,
        a->listener.fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    if (a->daemon == NULL) {
        rc = error_set(err, ERR_IO, "admin: cannot serve on %s", a->listener.text);
        goto out;
    }
    *out = a;
    a = NULL;
out:
    admin_stop(a);
    return rc;
}

void admin_stop(struct admin *a)
{
    if (a == NULL)
        return;
    listen_remove_file(&a->listener);
    if (a->daemon != NULL) {
        MHD_stop_daemon(a->daemon); /* closes the socket */
        a->listener.fd = -1;
    }
    listen_close(&a->listener);
    free(a);
}

const char *admin_address(const struct admin *a)
{
    return a->listener.text;
}
