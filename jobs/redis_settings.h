/* redis_settings.h - the settings of both Redis roles, as engine, service and tool share them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

struct redis_settings {
    const char *queue, *cache; /* addresses; of the cache several, separated by commas */
    int durability;            /* see redis_settings_durability_is_assumed() */
    int64_t timeout_ms;        /* of one command */
};

/* Rows of a table of options. `at`: where the struct redis_settings lies in the program's settings.
 */
/* clang-format off: a row of two lines, as in the other tables */
#define REDIS_OPTIONS(at)                                                                          \
    {"redis-queue",                                                                                \
     0,                                                                                            \
     "PE_REDIS_QUEUE",                                                                             \
     OPT_TEXT,                                                                                     \
     (at) + offsetof(struct redis_settings, queue),                                                \
     "redis://127.0.0.1:6379",                                                                     \
     0,                                                                                            \
     0,                                                                                            \
     "URL",                                                                                        \
     "Redis of the jobs: durable, never evicts"},                                                  \
        {"redis-cache",                                                                            \
         0,                                                                                        \
         "PE_REDIS_CACHE",                                                                         \
         OPT_TEXT,                                                                                 \
         (at) + offsetof(struct redis_settings, cache),                                            \
         "redis://127.0.0.1:6380",                                                                 \
         0,                                                                                        \
         0,                                                                                        \
         "URL[,URL...]",                                                                           \
         "Redis of the results"},                                                                  \
        {"redis-durability",                                                                       \
         0,                                                                                        \
         "PE_REDIS_DURABILITY",                                                                    \
         OPT_CHOICE,                                                                               \
         (at) + offsetof(struct redis_settings, durability),                                       \
         "checked",                                                                                \
         0,                                                                                        \
         0,                                                                                        \
         "checked|assumed",                                                                        \
         "assumed: start though the queue's settings cannot be read"},                             \
    {                                                                                              \
        "redis-timeout-ms", 0, "PE_REDIS_TIMEOUT_MS", OPT_INT,                                     \
            (at) + offsetof(struct redis_settings, timeout_ms), "2000", 10, 60000, "N",            \
            "for one command"                                                                      \
    }
/* clang-format on */

/* A server that does not let its settings be read is taken at its word. */
bool redis_settings_durability_is_assumed(const struct redis_settings *s);

/* Whether both servers may do what they are for (queue_check_policy(), cache_check_policy()); what
 * is let through with a warning is logged. */
int redis_settings_check(const struct redis_settings *s, struct error *err);
