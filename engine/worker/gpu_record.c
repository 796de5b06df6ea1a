#define _DEFAULT_SOURCE /* timegm */
#include "engine/worker/gpu_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/file.h"

enum { FILE_MAX = 1 << 20 };

static const char head[] =
    "# Failures of this engine's GPUs. One that failed twice within an hour is left out;\n"
    "# delete its lines, or this file, and start the engine again to use it again.\n";

/* "2026-11-30T21:04:05Z GPU-.. text"; the text may be missing. */
static bool read_line(struct gpu_failure *out, const char *line, size_t len)
{
    char copy[GPU_RECORD_NAME + GPU_RECORD_TEXT + 32], zone = 0;
    struct tm time = {0};
    int at = 0;

    if (len >= sizeof(copy))
        return false;
    memcpy(copy, line, len);
    copy[len] = '\0';
    *out = (struct gpu_failure){0};
    if (sscanf(copy, "%4d-%2d-%2dT%2d:%2d:%2d%c %63s%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
               &time.tm_hour, &time.tm_min, &time.tm_sec, &zone, out->gpu, &at) != 8 ||
        zone != 'Z' || (copy[at] != ' ' && copy[at] != '\0'))
        return false;
    time.tm_year -= 1900;
    time.tm_mon--;
    out->time_s = timegm(&time);
    snprintf(out->text, sizeof(out->text), "%.*s", GPU_RECORD_TEXT - 1,
             copy[at] == ' ' ? copy + at + 1 : "");
    return true;
}

int gpu_record_read(struct gpu_record *out, const char *path, struct error *err)
{
    struct buf text = {.max = FILE_MAX};
    const char *line, *end;
    int n_lines = 0, rc;

    *out = (struct gpu_record){0};
    if (!file_exists(path))
        return OK;
    if ((rc = file_read(&text, path, err)) != OK || text.len == 0)
        goto out;
    for (line = text.data; line < text.data + text.len; line = end + 1) {
        struct gpu_failure f;
        size_t left = (size_t)(text.data + text.len - line);
        if ((end = memchr(line, '\n', left)) == NULL)
            end = line + left;
        n_lines++;
        if (end == line || *line == '#')
            continue;
        if (!read_line(&f, line, (size_t)(end - line))) {
            rc =
                error_set(err, ERR_FORMAT, "%s: line %d: no time and name of a GPU", path, n_lines);
            goto out;
        }
        gpu_record_add(out, f.time_s, f.gpu, f.text);
    }
out:
    buf_free(&text);
    return rc;
}

void gpu_record_add(struct gpu_record *r, int64_t time_s, const char *gpu, const char *text)
{
    struct gpu_failure *f;

    if (r->n == GPU_RECORD_MAX)
        memmove(r->failures, r->failures + 1, (size_t)--r->n * sizeof(r->failures[0]));
    f = &r->failures[r->n++];
    *f = (struct gpu_failure){.time_s = time_s};
    snprintf(f->gpu, sizeof(f->gpu), "%s", gpu);
    snprintf(f->text, sizeof(f->text), "%s", text);
    for (char *c = f->gpu; *c != '\0'; c++)
        if (*c == ' ' || *c == '\n')
            *c = '-';
    for (char *c = f->text; *c != '\0'; c++)
        if (*c == '\n')
            *c = ' ';
}

int gpu_record_write(const struct gpu_record *r, const char *path, struct error *err)
{
    struct buf text = {.max = FILE_MAX};
    int rc = buf_printf(&text, err, "%s", head);

    for (int i = 0; i < r->n && rc == OK; i++) {
        const struct gpu_failure *f = &r->failures[i];
        time_t seconds = (time_t)f->time_s;
        struct tm time;
        char stamp[32];
        gmtime_r(&seconds, &time);
        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &time);
        rc = buf_printf(&text, err, "%s %s %s\n", stamp, f->gpu, f->text);
    }
    if (rc == OK)
        rc = file_write_text(path, text.data, err);
    buf_free(&text);
    return rc;
}

static bool failed_twice(const struct gpu_record *r, const char *gpu)
{
    for (int i = 0; i < r->n; i++)
        for (int k = i + 1; k < r->n; k++)
            if (strcmp(r->failures[i].gpu, gpu) == 0 && strcmp(r->failures[k].gpu, gpu) == 0 &&
                llabs(r->failures[k].time_s - r->failures[i].time_s) <= GPU_RECORD_WITHIN_S)
                return true;
    return false;
}

int gpu_record_left_out(const struct gpu_record *r, const char *gpus[GPU_RECORD_MAX])
{
    int n = 0;

    for (int i = 0; i < r->n; i++) {
        const char *gpu = r->failures[i].gpu;
        bool known = false;
        for (int k = 0; k < n; k++)
            known |= strcmp(gpus[k], gpu) == 0;
        if (!known && failed_twice(r, gpu))
            gpus[n++] = gpu;
    }
    return n;
}
