/* listen.h - addresses that programs listen on: HOST:PORT, [IPV6]:PORT, unix:PATH. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { LISTEN_TEXT_SIZE = 160 };

/* A listening, close-on-exec, non-blocking socket in *fd; `text` (of LISTEN_TEXT_SIZE) says where
 * it really is: with port 0 the port that was free. An old unix socket of that path is replaced
 * when nobody answers on it. *is_local (or NULL): loopback or a unix socket. ERR_INPUT: no such
 * form of address; ERR_IO: in use, no permission, no such host. */
int listen_open(int *fd, const char *address, int backlog, char *text, bool *is_local,
                struct error *err);
