#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static _Atomic int max_level = LOG_INFO;

void log_set_level(enum log_level level)
{
    atomic_store(&max_level, (int)level);
}

void log_write(enum log_level level, const char *event, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    char line[1024];
    struct timespec now;
    struct tm utc;
    va_list args;
    size_t len;
    int n;

    if ((int)level > atomic_load(&max_level))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    len = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    n = snprintf(line + len, sizeof(line) - len, ".%03ldZ %s %s ", now.tv_nsec / 1000000,
                 names[level], event);
    len += n > 0 ? (size_t)n : 0;
    if (len < sizeof(line)) {
        va_start(args, fmt);
        n = vsnprintf(line + len, sizeof(line) - len, fmt, args);
        va_end(args);
        len += n > 0 ? (size_t)n : 0;
    }
    if (len > sizeof(line) - 2)
        len = sizeof(line) - 2; /* a longer line is cut; its newline is not */
    line[len++] = '\n';
    /* one write: lines of several threads stay whole. Nothing can be done when stderr is gone. */
    if (write(STDERR_FILENO, line, len) < 0)
        return;
}
