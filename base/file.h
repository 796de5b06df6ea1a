/* file.h - files read whole through the page cache, and files written whole or not at all.
 *
 * A mapping is read-only and may be shared by any number of threads. A file that another program
 * cuts short while it is mapped ends the process with SIGBUS, as with every mmap: model files are
 * replaced by renaming, never rewritten in place. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Which file it is, and which writing of it: two that are the same hold the same bytes, unless the
 * clock stood still between two writings. */
struct file_identity {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns; /* Unix time: of the bytes, and of anything about it */
};

struct file_map {
    const uint8_t *data;           /* NULL when the file is empty */
    size_t size;                   /* bytes */
    struct file_identity identity; /* of what is mapped, whatever has its name by now */
};

/* ERR_IO: no such file, no permission, or not a regular file. */
int file_map_open(struct file_map *out, const char *path, struct error *err);
void file_map_close(struct file_map *map); /* a zeroed one is fine */

/* Appends all of a file, or of standard input for "-", to `out`; also of pipes. ERR_SIZE: it does
 * not fit `out`. */
int file_read(struct buf *out, const char *path, struct error *err);

/* A file that appears under its name, complete, at commit and not before. A symbolic link stays
 * one: what it leads to is replaced. A device or a pipe is written straight through. Where the
 * system has nameless files (O_TMPFILE) even a killed process leaves nothing behind. */
struct file_writer;
int file_writer_open(struct file_writer **out, const char *path, struct error *err);
int file_writer_append(struct file_writer *w, const void *data, size_t size, struct error *err);
/* Takes the file's name, over an older file of that name. `w` stays the caller's. */
int file_writer_commit(struct file_writer *w, struct error *err);
void file_writer_close(struct file_writer *w); /* drops what was not committed; NULL is fine */

/* All of it at once: a file that holds `text`. */
int file_write_text(const char *path, const char *text, struct error *err);

bool file_is_directory(const char *path);
bool file_exists(const char *path);
/* Of what lies at `path` now. ERR_IO: nothing does. */
int file_identify(struct file_identity *out, const char *path, struct error *err);
/* Makes a folder and those it lies in, for its owner alone, where they are missing. */
int file_make_folder(const char *path, struct error *err);
/* "dir/name" into `out`; ERR_SIZE when it does not fit. */
int file_join(char *out, size_t cap, const char *dir, const char *name, struct error *err);
