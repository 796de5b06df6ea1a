#include "jobs/redis_settings.h"

#include <string.h>

#include "base/log.h"
#include "jobs/cache.h"
#include "jobs/queue.h"

enum { CHECKED, ASSUMED }; /* the words of --redis-durability */

bool redis_settings_durability_is_assumed(const struct redis_settings *s)
{
    return s->durability == ASSUMED;
}

int redis_settings_check(const struct redis_settings *s, struct error *err)
{
    bool assumed = redis_settings_durability_is_assumed(s);
    bool shared = strcmp(s->queue, s->cache) == 0;
    char warning[512] = "";
    int rc;

    rc = queue_check_policy(s->queue, assumed, shared, warning, sizeof(warning), err);
    if (rc == OK && warning[0] != '\0')
        log_warn("redis_policy", "text=\"%s\"", warning);
    warning[0] = '\0';
    if (rc == OK)
        rc = cache_check_policy(s->cache, assumed, shared, warning, sizeof(warning), err);
    if (rc == OK && warning[0] != '\0')
        log_warn("redis_policy", "text=\"%s\"", warning);
    return rc;
}
