/* log.h - one line per event on stderr.
 *
 *     log_info("model_loaded", "tensors=%d seconds=%.2f", n, s);
 *
 * The event's name comes first, key=value after it; never a prompt's text, never a secret.
 * Any thread may log: a line is written by one call and is never interleaved with another. */
#pragma once
#include "base/error.h"

enum log_level {
    LOG_ERROR, /* someone should look */
    LOG_WARN,  /* we coped */
    LOG_INFO,  /* one or two lines per job */
    LOG_DEBUG
};

/* Lines above `level` are dropped. The start-up default is LOG_INFO. */
void log_set_level(enum log_level level);

void log_write(enum log_level level, const char *event, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
