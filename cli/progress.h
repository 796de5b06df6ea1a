/* progress.h - how far a load is, on stderr: one line that rewrites itself on a terminal, a plain
 * line at the end elsewhere. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading model.gguf" */
    bool terminal;
    int64_t start_ns, shown_ns;
    uint64_t bytes_total;
};

void progress_start(struct progress *p, const char *what);
/* An engine_progress_fn; `arg` is the struct progress. */
void progress_update(void *arg, uint64_t bytes_done, uint64_t bytes_total);
void progress_end(struct progress *p);
/* Instead, when the load failed: takes the line off the terminal, so that an error stands alone. */
void progress_abort(struct progress *p);
