#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { REDRAW_MS = 100 };

void progress_start(struct progress *p, const char *what)
{
    *p = (struct progress){
        .what = what, .terminal = isatty(STDERR_FILENO) != 0, .start_ns = clock_now_ns()};
}

void progress_update(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    struct progress *p = arg;

    p->bytes_total = bytes_total;
    if (!p->terminal || clock_ms_since(p->shown_ns) < REDRAW_MS)
        return;
    p->shown_ns = clock_now_ns();
    fprintf(stderr, "\r%s: %llu of %llu MB, %.1f s", p->what,
            (unsigned long long)(bytes_done / 1000000), (unsigned long long)(bytes_total / 1000000),
            clock_ms_since(p->start_ns) / 1000);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    double seconds = clock_ms_since(p->start_ns) / 1000;

    fprintf(stderr, "%s%s: %llu MB in %.2f s, %.2f GB/s\n", p->terminal ? "\r\033[K" : "", p->what,
            (unsigned long long)(p->bytes_total / 1000000), seconds,
            (double)p->bytes_total / 1e9 / seconds);
}

void progress_abort(struct progress *p)
{
    if (p->terminal && p->shown_ns != 0)
        fprintf(stderr, "\r\033[K");
}
