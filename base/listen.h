/* listen.h - addresses that programs listen on: HOST:PORT, [IPV6]:PORT, unix:PATH. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/error.h"

enum { LISTEN_TEXT_SIZE = 160 };

struct listener {
    int fd;                      /* listening, close-on-exec, non-blocking; -1: none */
    char text[LISTEN_TEXT_SIZE]; /* where it really is: with port 0 the port that was free */
    bool is_local;               /* loopback or a unix socket */
    struct stat file;            /* private: a unix socket's, to know it again */
};

/* On failure there is nothing to close, and listen_close() does nothing. An old unix socket of that
 * path is replaced when nobody answers on it. ERR_INPUT: no such form of address; ERR_IO: in use,
 * no permission, no such host. */
int listen_open(struct listener *l, const char *address, int backlog, struct error *err);
/* Takes a unix socket's file away, if it is still this one's. To be called while the socket is
 * open: until then nobody takes the file for a dead process's and puts another one in its place. */
void listen_remove_file(struct listener *l);
/* Both, the file first. For a socket that somebody else closes (`fd` is set to -1 then) the file
 * has to go before. */
void listen_close(struct listener *l);
