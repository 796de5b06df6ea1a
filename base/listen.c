#define _GNU_SOURCE /* SOCK_CLOEXEC, SOCK_NONBLOCK */
#include "base/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Whether a unix socket's file is left from a process that died: nobody listens. Any other failure
 * (no permission, a full backlog) says that somebody may. */
static bool is_dead(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool dead;

    if (fd < 0)
        return false;
    dead = connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
           errno == ECONNREFUSED;
    close(fd);
    return dead;
}

static int listen_unix(struct listener *l, const char *path, int backlog, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    bool bound = false;
    struct stat st;
    int fd;

    if (path[0] == '\0' || strlen(path) >= sizeof(address.sun_path))
        return error_set(err, ERR_INPUT, "unix:%s: a socket's path has 1 to %zu bytes", path,
                         sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (stat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return error_set(err, ERR_IO, "unix:%s: there is a file that is no socket", path);
        if (!is_dead(&address))
            return error_set(err, ERR_IO, "unix:%s: in use by another process", path);
        unlink(path);
    }
    if ((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0 ||
        !(bound = bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0) ||
        /* who may connect is who may write to it: not everyone, whatever the umask says */
        chmod(path, 0660) != 0 || listen(fd, backlog) != 0 || lstat(path, &l->file) != 0) {
        int why = errno;
        if (bound)
            unlink(path);
        if (fd >= 0)
            close(fd);
        return error_set(err, ERR_IO, "unix:%s: cannot listen: %s", path, strerror(why));
    }
    snprintf(l->text, sizeof(l->text), "unix:%s", path);
    l->is_local = true;
    l->fd = fd;
    return OK;
}

/* HOST:PORT or [IPV6]:PORT into two texts. */
static int split_address(char host[128], char port[8], const char *address, struct error *err)
{
    const char *colon = strrchr(address, ':'), *from = address, *to = colon;

    if (colon == NULL || strlen(colon + 1) == 0 || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return error_set(err, ERR_INPUT, "'%s' is no address: HOST:PORT, [IPV6]:PORT or unix:PATH",
                         address);
    if (strlen(colon + 1) == 5 && strcmp(colon + 1, "65535") > 0) /* getaddrinfo() would cut it */
        return error_set(err, ERR_INPUT, "'%s': a port is 0 to 65535", address);
    if (from[0] == '[' && to > from && to[-1] == ']') {
        from++;
        to--;
    } else if (memchr(from, ':', (size_t)(to - from)) != NULL) {
        return error_set(err, ERR_INPUT, "'%s': an IPv6 address stands in brackets", address);
    }
    if (to == from || to - from >= 128)
        return error_set(err, ERR_INPUT, "'%s': the host is missing or too long", address);
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    snprintf(port, 8, "%s", colon + 1);
    return OK;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)address;
        return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    }
    return false;
}

/* Where a TCP socket really listens. */
static void tcp_text(int fd, const char *host, char *text)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof(bound);
    char port[8] = "?";

    if (getsockname(fd, (struct sockaddr *)&bound, &len) == 0)
        getnameinfo((const struct sockaddr *)&bound, len, NULL, 0, port, sizeof(port),
                    NI_NUMERICSERV);
    snprintf(text, LISTEN_TEXT_SIZE, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

static int listen_tcp(struct listener *l, const char *address, int backlog, struct error *err)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[128], port[8];
    int fd = -1, rc, why = 0, one = 1;

    if ((rc = split_address(host, port, address, err)) != OK)
        return rc;
    if ((rc = getaddrinfo(host, port, &hints, &found)) != 0)
        return error_set(err, ERR_IO, "%s: %s", address, gai_strerror(rc));
    for (struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
            bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0) {
            l->is_local = is_loopback(a->ai_addr);
            break;
        }
        why = errno;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return error_set(err, ERR_IO, "%s: cannot listen: %s", address, strerror(why));
    tcp_text(fd, host, l->text);
    l->fd = fd;
    return OK;
}

int listen_open(struct listener *l, const char *address, int backlog, struct error *err)
{
    *l = (struct listener){.fd = -1};
    return strncmp(address, "unix:", 5) == 0 ? listen_unix(l, address + 5, backlog, err)
                                             : listen_tcp(l, address, backlog, err);
}

void listen_remove_file(struct listener *l)
{
    const char *path = l->text + strlen("unix:");
    struct stat st;

    /* while the socket is open its inode is not given to another file */
    if (l->file.st_nlink > 0 && lstat(path, &st) == 0 && st.st_dev == l->file.st_dev &&
        st.st_ino == l->file.st_ino)
        unlink(path);
    l->file = (struct stat){0};
}

void listen_close(struct listener *l)
{
    listen_remove_file(l);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}
