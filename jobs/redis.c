/* redis.c - see redis.h.
 *
 * hiredis connects and reads. Sending is ours: hiredis copies each argument twice, moves the rest
 * of its buffer after each partial write, and writes in a way that raises SIGPIPE. Here small
 * arguments are gathered, and a large one goes from the caller's memory straight to the socket. */
#include "jobs/redis.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include "base/buf.h"

enum {
    PORT = 6379,
    GATHER = 16 << 10,  /* a larger argument is sent from where it lies */
    UNSENT = 256 << 10, /* more than this does not wait for redis_read() */
    COMMAND_SIZE = 64
};

struct redis {
    char *address;
    char *host, *path; /* one of them */
    char *user, *password;
    int port, database;
    int timeout_ms, next_timeout_ms;
    int socket_timeout_ms; /* what the socket has now */
    redisContext *context; /* NULL: not connected */
    struct buf unsent;
    size_t n_pending; /* commands appended, replies not read */
    char command[COMMAND_SIZE];
    char refusal[128];
    enum redis_role role;
    bool was_connected;
};

/* Counted and never decided upon, so the rule against variables of a whole file gives way. */
static struct {
    _Atomic int64_t errors, reconnects;
} totals[REDIS_ROLES];

static void count_error(const struct redis *r)
{
    atomic_fetch_add_explicit(&totals[r->role].errors, 1, memory_order_relaxed);
}

/* ---- addresses ---- */

/* The address is never repeated: a slip of the pen may make a password of any part of it. */
static int bad_url(struct error *err, const char *what)
{
    return error_set(err, ERR_INPUT,
                     "redis address: %s; expected redis://[user[:password]@]host[:port][/db] or "
                     "unix:/path[?db=N&user=..&password=..]",
                     what);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `len` bytes with %XX undone, as a new text in *out. */
static int decode(char **out, const char *text, size_t len, struct error *err)
{
    size_t n = 0;
    char *copy;

    free(*out);
    if ((*out = copy = malloc(len + 1)) == NULL)
        return error_set(err, ERR_MEM, "redis address: no memory");
    for (size_t i = 0; i < len; i++) {
        int c = (unsigned char)text[i];

        if (c == '%') {
            int high = len - i > 2 ? hex_digit(text[i + 1]) : -1;
            int low = len - i > 2 ? hex_digit(text[i + 2]) : -1;

            if (high < 0 || low < 0 || (high | low) == 0)
                return bad_url(err, "a % is not followed by two hex digits");
            c = high << 4 | low;
            i += 2;
        }
        copy[n++] = (char)c;
    }
    copy[n] = '\0';
    return OK;
}

static bool read_number(int *out, const char *text, size_t len, int min, int max)
{
    int n = 0;

    if (len == 0 || len > 5)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        n = n * 10 + (text[i] - '0');
    }
    *out = n;
    return n >= min && n <= max;
}

static int read_database(struct redis *r, const char *text, size_t len, struct error *err)
{
    if (!read_number(&r->database, text, len, 0, 99999))
        return bad_url(err, "the database is no number");
    return OK;
}

static int read_user(struct redis *r, const char *text, size_t len, struct error *err)
{
    const char *colon = memchr(text, ':', len);
    size_t user_len = colon != NULL ? (size_t)(colon - text) : len;
    int rc;

    if (user_len > 0 && (rc = decode(&r->user, text, user_len, err)) != OK)
        return rc;
    if (colon == NULL)
        return decode(&r->password, "", 0, err); /* a user without a password may exist */
    return decode(&r->password, colon + 1, len - user_len - 1, err);
}

static int read_tcp(struct redis *r, const char *text, struct error *err)
{
    size_t len = strcspn(text, "/"), user_len = 0, host_len;
    const char *database = text + len, *host, *after;
    int rc;

    for (size_t i = 0; i < len; i++)
        if (text[i] == '@') /* the last one, so that a careless password still works */
            user_len = i + 1;
    if (user_len > 0 && (rc = read_user(r, text, user_len - 1, err)) != OK)
        return rc;
    host = text + user_len;
    len -= user_len;
    if (*host == '[') { /* IPv6 */
        const char *end = memchr(host, ']', len);

        if (end == NULL)
            return bad_url(err, "a [ without its ]");
        host++;
        host_len = (size_t)(end - host);
        after = end + 1;
        len -= host_len + 2;
    } else {
        const char *colon = memchr(host, ':', len);

        host_len = colon != NULL ? (size_t)(colon - host) : len;
        after = host + host_len;
        len -= host_len;
    }
    if (host_len == 0 || strcspn(host, "?#%\\ ") < host_len)
        return bad_url(err, "there is no host");
    if (len > 0 && (*after != ':' || !read_number(&r->port, after + 1, len - 1, 1, 65535)))
        return bad_url(err, "the port is not a number from 1 to 65535");
    if (database[0] == '/' && database[1] != '\0' &&
        (rc = read_database(r, database + 1, strlen(database + 1), err)) != OK)
        return rc;
    return decode(&r->host, host, host_len, err);
}

static int read_unix(struct redis *r, const char *text, struct error *err)
{
    size_t len = strcspn(text, "?");
    const char *option = text[len] == '?' ? text + len + 1 : NULL;
    int rc;

    if (text[0] != '/')
        return bad_url(err, "the socket's path does not begin with /");
    if ((rc = decode(&r->path, text, len, err)) != OK)
        return rc;
    while (option != NULL) {
        size_t size = strcspn(option, "&");

        if (strncmp(option, "db=", 3) == 0)
            rc = read_database(r, option + 3, size - 3, err);
        else if (strncmp(option, "user=", 5) == 0)
            rc = decode(&r->user, option + 5, size - 5, err);
        else if (strncmp(option, "password=", 9) == 0)
            rc = decode(&r->password, option + 9, size - 9, err);
        else
            rc = bad_url(err, "after the ? only db=, user= and password= are known");
        if (rc != OK)
            return rc;
        option = option[size] == '&' ? option + size + 1 : NULL;
    }
    if (r->user != NULL && r->password == NULL)
        return decode(&r->password, "", 0, err);
    return OK;
}

static int read_url(struct redis *r, const char *url, struct error *err)
{
    struct buf address = {.max = 4096};
    int rc;

    for (const char *p = url; *p != '\0'; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return bad_url(err, "it contains a space or a control character");
    r->port = PORT;
    if (strncmp(url, "redis://", 8) == 0)
        rc = read_tcp(r, url + 8, err);
    else if (strncmp(url, "unix:", 5) == 0)
        rc = read_unix(r, url + 5, err);
    else if (strncmp(url, "rediss://", 9) == 0)
        rc = error_set(err, ERR_INPUT,
                       "redis address: rediss:// needs TLS, which this build does not have; use "
                       "a local stunnel and unix: or redis://");
    else
        rc = bad_url(err, "it begins with neither redis:// nor unix:");
    if (rc != OK)
        return rc;
    if (r->path != NULL)
        rc = buf_printf(&address, err, "unix:%s", r->path);
    else
        rc = buf_printf(&address, err, strchr(r->host, ':') != NULL ? "[%s]:%d" : "%s:%d", r->host,
                        r->port);
    if (rc == OK && r->database != 0)
        rc = buf_printf(&address, err, r->path != NULL ? "?db=%d" : "/%d", r->database);
    r->address = address.data; /* handed over */
    return rc;
}

int redis_open(struct redis **out, const char *url, int timeout_ms, struct error *err)
{
    struct redis *r;
    int rc;

    *out = NULL;
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return error_set(err, ERR_MEM, "redis: no memory");
    r->timeout_ms = timeout_ms;
    r->unsent.max = (size_t)1 << 30;
    if ((rc = read_url(r, url, err)) != OK) {
        redis_close(r);
        return rc;
    }
    *out = r;
    return OK;
}

static void disconnect(struct redis *r)
{
    if (r->context != NULL)
        redisFree(r->context);
    r->context = NULL;
    r->n_pending = 0;
    r->next_timeout_ms = 0;
    buf_free(&r->unsent);
}

void redis_close(struct redis *r)
{
    if (r == NULL)
        return;
    disconnect(r);
    free(r->address);
    free(r->host);
    free(r->path);
    free(r->user);
    free(r->password);
    free(r);
}

struct redis_totals redis_totals(enum redis_role role)
{
    return (struct redis_totals){
        .errors = atomic_load_explicit(&totals[role].errors, memory_order_relaxed),
        .reconnects = atomic_load_explicit(&totals[role].reconnects, memory_order_relaxed)};
}

void redis_set_role(struct redis *r, enum redis_role role)
{
    r->role = role;
}

const char *redis_address(const struct redis *r)
{
    return r->address;
}

const char *redis_refusal(const struct redis *r)
{
    return r->refusal;
}

int redis_timeout(const struct redis *r)
{
    return r->timeout_ms;
}

void redis_next_timeout(struct redis *r, int timeout_ms)
{
    r->next_timeout_ms = timeout_ms;
}

/* ---- sending ---- */

static int broken(struct redis *r, struct error *err, const char *why)
{
    int rc = error_set(err, ERR_IO, "redis at %s: %s: %s", r->address, r->command, why);

    count_error(r);
    disconnect(r);
    return rc;
}

static int too_slow(struct redis *r, struct error *err)
{
    char why[64];

    snprintf(why, sizeof(why), "no answer in %d ms", r->socket_timeout_ms);
    return broken(r, err, why);
}

static int set_timeout(struct redis *r, int timeout_ms, struct error *err)
{
    struct timeval tv = {timeout_ms / 1000, timeout_ms % 1000 * 1000};

    if (r->socket_timeout_ms == timeout_ms)
        return OK;
    if (redisSetTimeout(r->context, tv) != REDIS_OK)
        return broken(r, err, r->context->errstr);
    r->socket_timeout_ms = timeout_ms;
    return OK;
}

/* All that is unsent, then `len` bytes from the caller's memory. */
static int send_now(struct redis *r, const void *data, size_t len, struct error *err)
{
    const char *unsent = r->unsent.data;
    size_t unsent_len = r->unsent.len;

    while (unsent_len + len > 0) {
        struct iovec parts[2] = {
            {.iov_base = (void *)(uintptr_t)unsent, .iov_len = unsent_len},
            {.iov_base = (void *)(uintptr_t)data, .iov_len = len},
        };
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = len > 0 ? 2 : 1};
        ssize_t n = sendmsg(r->context->fd, &message, MSG_NOSIGNAL);
        size_t sent, first;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return too_slow(r, err);
        if (n < 0)
            return broken(r, err, strerror(errno));
        sent = (size_t)n;
        first = sent < unsent_len ? sent : unsent_len;
        if (first > 0) {
            unsent += first;
            unsent_len -= first;
        }
        if (sent > first) { /* `data` may be NULL when there is none */
            data = (const char *)data + (sent - first);
            len -= sent - first;
        }
    }
    r->unsent.len = 0; /* the memory is kept for the next command */
    return OK;
}

static void name_command(struct redis *r, int argc, const char **argv, const size_t *argv_len)
{
    int n = (int)(argv_len != NULL ? argv_len[0] : strlen(argv[0]));

    if (r->n_pending > 0)
        return; /* the first one names the row */
    /* a function's name is part of the command */
    if (argc > 1 && n == 5 && memcmp(argv[0], "FCALL", 5) == 0)
        snprintf(r->command, sizeof(r->command), "FCALL %.*s",
                 (int)(argv_len != NULL ? argv_len[1] : strlen(argv[1])), argv[1]);
    else
        snprintf(r->command, sizeof(r->command), "%.*s", n, argv[0]);
}

static int append(struct redis *r, int argc, const char **argv, const size_t *argv_len,
                  struct error *err)
{
    int rc;

    name_command(r, argc, argv, argv_len);
    if ((rc = buf_printf(&r->unsent, err, "*%d\r\n", argc)) != OK)
        goto out;
    for (int i = 0; i < argc; i++) {
        size_t len = argv_len != NULL ? argv_len[i] : strlen(argv[i]);

        if ((rc = buf_printf(&r->unsent, err, "$%zu\r\n", len)) != OK)
            goto out;
        if (len > GATHER)
            rc = send_now(r, argv[i], len, err);
        else
            rc = buf_append(&r->unsent, argv[i], len, err);
        if (rc != OK || (rc = buf_append(&r->unsent, "\r\n", 2, err)) != OK)
            goto out;
    }
    r->n_pending++;
    if (r->unsent.len > UNSENT)
        rc = send_now(r, NULL, 0, err);
out:
    if (rc != OK)
        disconnect(r); /* half a command may be on its way */
    return rc;
}

/* ---- receiving ---- */

static int receive(struct redis *r, redisReply **out, struct error *err)
{
    void *reply = NULL;

    errno = 0;
    if (redisGetReply(r->context, &reply) == REDIS_OK) {
        *out = reply;
        r->n_pending--;
        return OK;
    }
    if (r->context->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK))
        return too_slow(r, err);
    if (r->context->err == REDIS_ERR_OOM) {
        disconnect(r);
        return error_set(err, ERR_MEM, "redis: no memory for a reply");
    }
    return broken(r, err, r->context->errstr);
}

static bool begins(const char *text, const char *word)
{
    size_t len = strlen(word);

    return strncmp(text, word, len) == 0 && (text[len] == ' ' || text[len] == '\0');
}

static enum err_code code_of_refusal(const char *text)
{
    static const char *const away[] = {"LOADING", "READONLY", "MASTERDOWN"};
    static const char *const busy[] = {"NOREPLICAS", "BUSY", "MISCONF"};

    for (size_t i = 0; i < sizeof(away) / sizeof(away[0]); i++)
        if (begins(text, away[i]))
            return ERR_IO;
    for (size_t i = 0; i < sizeof(busy) / sizeof(busy[0]); i++)
        if (begins(text, busy[i]))
            return ERR_BUSY;
    return begins(text, "OOM") ? ERR_MEM : ERR_INPUT;
}

/* Keeps the server's words up to the first quote: what Redis repeats of a command's arguments, it
 * puts in quotes. */
static void keep_refusal(struct redis *r, const char *text)
{
    size_t n = 0;

    while (n < sizeof(r->refusal) - 1 && (unsigned char)text[n] >= ' ' &&
           strchr("'\"`", text[n]) == NULL) {
        r->refusal[n] = text[n];
        n++;
    }
    while (n > 0 && r->refusal[n - 1] == ' ')
        n--;
    r->refusal[n] = '\0';
}

static int refused(struct redis *r, const char *text, struct error *err)
{
    enum err_code code = code_of_refusal(text);

    if (code != ERR_INPUT) /* which some callers ask for, to learn what a server can do */
        count_error(r);
    keep_refusal(r, text);
    error_set(err, code, "redis at %s: %s: %s", r->address, r->command, r->refusal);
    /* what else was asked in this row is thrown away, so that the next command reads its own */
    while (code != ERR_IO && r->n_pending > 0) {
        redisReply *rest;

        if (receive(r, &rest, NULL) != OK)
            break;
        freeReplyObject(rest);
    }
    if (code == ERR_IO)
        disconnect(r); /* another server may be the one to ask */
    return (int)code;
}

int redis_read(struct redis *r, redisReply **out, struct error *err)
{
    redisReply *reply;
    int rc;

    *out = NULL;
    if (r->context == NULL || r->n_pending == 0)
        return error_set(err, ERR_IO, "redis at %s: no reply is due", r->address);
    if (r->unsent.len > 0 && (rc = send_now(r, NULL, 0, err)) != OK)
        return rc;
    if ((rc = receive(r, &reply, err)) != OK)
        return rc;
    if (r->n_pending == 0)
        r->next_timeout_ms = 0;
    if (reply->type == REDIS_REPLY_ERROR) {
        rc = refused(r, reply->str, err);
        freeReplyObject(reply);
        return rc;
    }
    *out = reply;
    return OK;
}

/* ---- connecting ---- */

static int ask(struct redis *r, int argc, const char **argv, struct error *err)
{
    redisReply *reply;
    int rc;

    if ((rc = append(r, argc, argv, NULL, err)) != OK || (rc = redis_read(r, &reply, err)) != OK)
        return rc;
    freeReplyObject(reply);
    return OK;
}

static int log_in(struct redis *r, struct error *err)
{
    const char *named[] = {"AUTH", r->user, r->password}, *unnamed[] = {"AUTH", r->password};
    char number[16];
    const char *select[] = {"SELECT", number};
    int rc = OK;

    snprintf(number, sizeof(number), "%d", r->database);
    if (r->password != NULL)
        rc = r->user != NULL ? ask(r, 3, named, err) : ask(r, 2, unnamed, err);
    if (rc == OK && r->database != 0)
        rc = ask(r, 2, select, err);
    return rc;
}

static int connect_now(struct redis *r, struct error *err)
{
    struct timeval tv = {r->timeout_ms / 1000, r->timeout_ms % 1000 * 1000};
    int next_timeout_ms = r->next_timeout_ms, rc;

    snprintf(r->command, sizeof(r->command), "connecting");
    r->context = r->path != NULL ? redisConnectUnixWithTimeout(r->path, tv)
                                 : redisConnectWithTimeout(r->host, r->port, tv);
    if (r->context == NULL)
        return error_set(err, ERR_MEM, "redis at %s: no memory to connect", r->address);
    if (r->context->err != 0)
        return broken(r, err, r->context->errstr);
    if (fcntl(r->context->fd, F_SETFD, FD_CLOEXEC) != 0)
        return broken(r, err, strerror(errno));
    if (r->path == NULL)
        redisEnableKeepAlive(r->context); /* a peer that vanished while nobody asked */
    r->socket_timeout_ms = -1;
    if ((rc = set_timeout(r, r->timeout_ms, err)) != OK)
        return rc;
    if ((rc = log_in(r, err)) != OK) {
        if (rc == ERR_INPUT)
            count_error(r);
        disconnect(r);
        return rc;
    }
    if (r->was_connected)
        atomic_fetch_add_explicit(&totals[r->role].reconnects, 1, memory_order_relaxed);
    r->was_connected = true;
    r->next_timeout_ms = next_timeout_ms;
    return OK;
}

/* A server may have closed an idle connection, in a restart for example. Noticed here, before
 * anything is sent, it costs nobody an error. */
static bool is_stale(const struct redis *r)
{
    char byte;
    ssize_t n = recv(r->context->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Connected, and the socket as patient as this command asks. */
static int prepare(struct redis *r, struct error *err)
{
    int rc;

    if (r->n_pending > 0)
        return OK;
    if (r->context != NULL && is_stale(r)) {
        int next_timeout_ms = r->next_timeout_ms;

        disconnect(r);
        r->next_timeout_ms = next_timeout_ms;
    }
    if (r->context == NULL && (rc = connect_now(r, err)) != OK)
        return rc;
    return set_timeout(r, r->next_timeout_ms > 0 ? r->next_timeout_ms : r->timeout_ms, err);
}

int redis_append(struct redis *r, int argc, const char **argv, const size_t *argv_len,
                 struct error *err)
{
    int rc;

    if ((rc = prepare(r, err)) != OK)
        return rc;
    return append(r, argc, argv, argv_len, err);
}

int redis_command(struct redis *r, redisReply **out, int argc, const char **argv,
                  const size_t *argv_len, struct error *err)
{
    int rc;

    *out = NULL;
    if ((rc = redis_append(r, argc, argv, argv_len, err)) != OK)
        return rc;
    return redis_read(r, out, err);
}

int redis_commandf(struct redis *r, redisReply **out, struct error *err, const char *fmt, ...)
{
    const char *word = fmt;
    size_t word_len = strcspn(fmt, " ");
    char *command = NULL;
    va_list args;
    int len, rc;

    *out = NULL;
    va_start(args, fmt);
    len = redisvFormatCommand(&command, fmt, args);
    va_end(args);
    if (len < 0)
        return error_set(err, len == -1 ? ERR_MEM : ERR_INPUT, "redis: cannot format a command");
    if ((rc = prepare(r, err)) != OK)
        goto out;
    name_command(r, 1, &word, &word_len);
    if ((rc = send_now(r, command, (size_t)len, err)) != OK)
        goto out;
    r->n_pending++;
    rc = redis_read(r, out, err);
out:
    free(command);
    return rc;
}
