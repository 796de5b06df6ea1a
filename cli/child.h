/* child.h - one program that `prompt-encoder up` starts, watches and stops.
 *
 * A child gets a process group of its own (Ctrl-C reaches it only through us, in our order), dies
 * with us whatever kills us, and writes its messages to a log file. Used by one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum { CHILD_MAX_ARGS = 48, CHILD_ARG_BYTES = 8192 };

struct child {
    const char *name; /* "engine" */
    char *argv[CHILD_MAX_ARGS + 1];
    int argc;
    char words[CHILD_ARG_BYTES]; /* what argv points into */
    size_t words_len;
    char log[512]; /* path */
    int keeps;     /* a descriptor that it gets too, as a lock that lives as long; 0: none */
    pid_t pid;     /* 0: not running */
    int64_t started_ns, restart_at_ns;
    int n_deaths; /* in a row, each within a minute of its start */
};

/* Adds a word to the command line: a text, or flag and value. ERR_SIZE: too many. */
int child_arg(struct child *c, struct error *err, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Starts it; its messages go to the end of its log. ERR_IO: no such program; the sentence says
 * which. */
int child_start(struct child *c, struct error *err);

/* A log of more than max_bytes begins anew, also under a running child; what it held becomes
 * "<log>.1", over what that held. What is written in between may be lost. */
int child_rotate_log(const struct child *c, int64_t max_bytes, struct error *err);

/* Whether it ended since it was asked last. Then *how says in what way, for a message: the last
 * line of its log, or the signal that killed it. Reaps it. */
bool child_has_ended(struct child *c, char *how, size_t cap);
/* Notes when one that ended may start again: at once after a long life, later and later after
 * short ones. */
void child_ended(struct child *c);

/* SIGTERM, up to grace_ms for it to end, then SIGKILL. Reaps it. */
void child_stop(struct child *c, int grace_ms);

/* The last line of its log, for a message; "" when there is none. */
void child_last_words(const struct child *c, char *out, size_t cap);
