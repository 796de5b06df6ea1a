/* redis.h - one connection to one Redis, by address, with time limits and reconnection.
 *
 * A connection belongs to one thread. After a failure of the connection it is closed, and the next
 * command opens it again; a command is never sent twice on its own, as its outcome would be
 * unknown. A server that goes away raises no SIGPIPE. */
#pragma once
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct redis;

/* `url`: redis://[user[:password]@]host[:port][/db] or unix:/path[?db=N][&user=..&password=..].
 * In user and password %XX stands for a byte. Nothing is connected yet. timeout_ms bounds
 * connecting and each wait for the server. ERR_INPUT: the address cannot be read, or is rediss://
 * (no TLS in this build); the password is never in the sentence. */
int redis_open(struct redis **out, const char *url, int timeout_ms, struct error *err);
void redis_close(struct redis *r); /* NULL is fine */

/* Sends a command of `argc` binary-safe words and gives its reply, which the caller frees
 * (freeReplyObject). An error reply (-ERR ...) is an error here too:
 * ERR_IO: not connected, refused, timed out, the connection broke, LOADING, READONLY, MASTERDOWN;
 * ERR_MEM: -OOM (the server's memory limit); ERR_BUSY: -NOREPLICAS, -BUSY, -MISCONF;
 * ERR_INPUT: any other error reply: our own mistake, or a permission. The text names address and
 * command (of several, the first), never its arguments. */
int redis_command(struct redis *r, redisReply **out, int argc, const char **argv,
                  const size_t *argv_len, struct error *err);
/* The same from a format of %s (text), %b (pointer and size_t) as hiredis has it. */
int redis_commandf(struct redis *r, redisReply **out, struct error *err, const char *fmt, ...);
/* Several commands in one round trip: append all, then read as many replies. After an error the
 * rest of the replies is gone. Arguments above 16 KB are sent from where they lie, at once. */
int redis_append(struct redis *r, int argc, const char **argv, const size_t *argv_len,
                 struct error *err);
int redis_read(struct redis *r, redisReply **out, struct error *err);

/* For the next command alone: a longer time limit, for BLPOP and XREAD BLOCK. */
void redis_next_timeout(struct redis *r, int timeout_ms);
int redis_timeout(const struct redis *r); /* what redis_open() was given */

/* What all connections of this process went through, by what they are for. */
enum redis_role { REDIS_QUEUE, REDIS_CACHE, REDIS_ROLES };
struct redis_totals {
    int64_t errors;     /* connections that failed, and commands refused for the server's own state:
                         * ERR_IO, ERR_MEM, ERR_BUSY; of ERR_INPUT only when logging in */
    int64_t reconnects; /* connections made again */
};
/* From any thread. */
struct redis_totals redis_totals(enum redis_role role);
/* Where this connection counts; REDIS_QUEUE until it is said. */
void redis_set_role(struct redis *r, enum redis_role role);

const char *redis_address(const struct redis *r); /* without user and password; for messages */
/* The server's words in its last error reply, cut before anything it quotes; "" before the first.
 */
const char *redis_refusal(const struct redis *r);
