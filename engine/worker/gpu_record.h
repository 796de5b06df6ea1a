/* gpu_record.h - the file in which an engine notes its GPUs' failures: one that failed twice within
 * an hour is left out from then on, until somebody deletes its lines, or the file.
 *
 * A line a failure, the newest last; lines that begin with '#' are for people:
 *     2026-11-30T21:04:05Z GPU-6e1b3a10-... cuda: gpu 1: cudaEventQuery: an illegal memory access
 * One engine writes it at a time: each has a state folder of its own. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    GPU_RECORD_MAX = 64, /* failures that are kept: the newest */
    GPU_RECORD_NAME = 64,
    GPU_RECORD_TEXT = 192,
    GPU_RECORD_WITHIN_S = 3600
};

/* Plain data; of zeros it is empty. */
struct gpu_record {
    struct gpu_failure {
        int64_t time_s; /* since 1970 */
        char gpu[GPU_RECORD_NAME];
        char text[GPU_RECORD_TEXT];
    } failures[GPU_RECORD_MAX];
    int n;
};

/* Where there is no file, it is empty. ERR_IO; ERR_FORMAT names the line that is none. */
int gpu_record_read(struct gpu_record *out, const char *path, struct error *err);
/* `gpu`: a name without spaces. Of more than GPU_RECORD_MAX the oldest is forgotten. */
void gpu_record_add(struct gpu_record *r, int64_t time_s, const char *gpu, const char *text);
int gpu_record_write(const struct gpu_record *r, const char *path, struct error *err);

/* Those that are left out, each once, in the order of their failures; borrowed from the record.
 * Returns their number. */
int gpu_record_left_out(const struct gpu_record *r, const char *gpus[GPU_RECORD_MAX]);
