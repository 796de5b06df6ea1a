/* redis_policy.h - the settings of a server that decide whether it may carry jobs or results.
 *
 * Only for the queue and the cache. CONFIG GET says all; where it is refused (managed Redis), INFO
 * says most of it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct redis;

/* Of what could not be read the text is empty, the number -1. */
struct redis_policy {
    char maxmemory_policy[32];
    char appendonly[8];   /* yes, no */
    char appendfsync[16]; /* always, everysec, no */
    int64_t maxmemory;    /* bytes; 0: no limit */
    int version;          /* the first number of it: 7 */
};

/* A refusal only leaves gaps; ERR_IO and the like are failures. */
int redis_policy_read(struct redis_policy *out, struct redis *r, struct error *err);

/* "redis at A: SETTING is IS, a ROLE needs NEEDS: CONFIG SET SETTING SET", as ERR_FORMAT. When
 * `is` is empty: OK with a sentence in `warning` if `assumed`, ERR_FORMAT that says so otherwise.
 */
int redis_policy_object(const struct redis *r, const char *role, const char *setting,
                        const char *is, const char *needs, const char *set, bool assumed,
                        char *warning, size_t warning_cap, struct error *err);
