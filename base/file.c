/* file.c - see file.h.
 *
 * The writer prefers a nameless file: it is linked to a temporary name beside the target and
 * renamed over it at commit, so the target is at every moment the old file or the new one. Where
 * the file system has no O_TMPFILE, the temporary name exists from the start and close() removes
 * it. */
#define _GNU_SOURCE /* O_TMPFILE */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TEMP_ROOM = 48, /* for what a temporary name adds */
    TEMP_TRIES = 100
};

struct file_writer {
    int fd;
    bool is_direct;      /* `path` is a device, a pipe or a socket: written as it is */
    bool has_temp;       /* `temp` exists in the directory */
    char path[PATH_MAX]; /* the file itself, not a symbolic link to it */
    char temp[PATH_MAX];
};

static struct file_identity identity_of(const struct stat *st)
{
    return (struct file_identity){
        .device = (uint64_t)st->st_dev,
        .inode = (uint64_t)st->st_ino,
        .size = (uint64_t)st->st_size,
        .modified_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .changed_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
    };
}

int file_map_open(struct file_map *out, const char *path, struct error *err)
{
    struct stat st;
    void *data;
    int fd, rc = OK;

    *out = (struct file_map){0};
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0) {
        rc = error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = error_set(err, ERR_IO, "%s: is %s, expected a file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
        goto out;
    }
    out->identity = identity_of(&st);
    if (st.st_size == 0)
        goto out; /* mmap refuses an empty file; to us it is one of no bytes */
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        rc = error_set(err, ERR_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                       strerror(errno));
        *out = (struct file_map){0};
        goto out;
    }
    out->data = data;
    out->size = (size_t)st.st_size;
out:
    close(fd);
    return rc;
}

void file_map_close(struct file_map *map)
{
    union {
        const uint8_t *read_only;
        void *address;
    } mapped = {map->data}; /* munmap takes no const */

    if (map->data != NULL)
        munmap(mapped.address, map->size);
    *map = (struct file_map){0};
}

int file_read(struct buf *out, const char *path, struct error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC), rc = OK;
    char piece[65536];
    ssize_t n;

    if (fd < 0)
        return error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    while ((n = read(fd, piece, sizeof(piece))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
            break;
        }
        if ((rc = buf_append(out, piece, (size_t)n, NULL)) != OK) {
            rc = error_set(err, rc == ERR_SIZE ? ERR_SIZE : ERR_MEM,
                           "%s: more than %zu bytes, or no memory for them", path, out->max);
            break;
        }
    }
    if (!is_stdin)
        close(fd);
    return rc;
}

bool file_is_directory(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int file_identify(struct file_identity *out, const char *path, struct error *err)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    *out = identity_of(&st);
    return OK;
}

int file_make_folder(const char *path, struct error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);

    if (len >= sizeof(part))
        return error_set(err, ERR_SIZE, "%.100s...: the path is too long", path);
    for (size_t i = 1; i <= len; i++)
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, 0700) != 0 && errno != EEXIST)
                return error_set(err, ERR_IO, "%s: %s", part, strerror(errno));
        }
    if (!file_is_directory(path))
        return error_set(err, ERR_IO, "%s: is no directory", path);
    return OK;
}

int file_join(char *out, size_t cap, const char *dir, const char *name, struct error *err)
{
    int n = snprintf(out, cap, "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= cap)
        return error_set(err, ERR_SIZE, "%.100s...: the path is longer than %zu bytes", dir, cap);
    return OK;
}

/* The directory that `path` lies in. */
static int parent_of(char *out, size_t cap, const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);

    if (len >= cap)
        return error_set(err, ERR_SIZE, "%.100s...: the path is longer than %zu bytes", path, cap);
    memcpy(out, slash == NULL ? "." : path, len);
    out[len] = '\0';
    return OK;
}

/* The name that `path` stands for: itself, or what a symbolic link leads to. */
static int resolve(char out[PATH_MAX], const char *path, struct error *err)
{
    struct stat st;

    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        if (realpath(path, out) == NULL)
            return error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
        return OK;
    }
    if (strlen(path) >= PATH_MAX - TEMP_ROOM)
        return error_set(err, ERR_SIZE, "%.100s...: the path is too long", path);
    memcpy(out, path, strlen(path) + 1);
    return OK;
}

/* The n-th temporary name of this process for the file. */
static void temp_name(struct file_writer *w, int n)
{
    size_t len = strlen(w->path);

    memcpy(w->temp, w->path, len);
    snprintf(w->temp + len, sizeof(w->temp) - len, ".%ld.%d.tmp", (long)getpid(), n);
}

static int open_temp(struct file_writer *w, const char *dir, struct error *err)
{
    w->fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (w->fd >= 0 && access("/proc/self/fd", X_OK) == 0)
        return OK;
    if (w->fd >= 0) { /* without /proc a nameless file can get no name */
        close(w->fd);
        w->fd = -1;
    } else if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
        return error_set(err, ERR_IO, "%s: cannot write in %s: %s", w->path, dir, strerror(errno));
    }
    for (int n = 0; n < TEMP_TRIES; n++) {
        temp_name(w, n);
        w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0 || errno != EEXIST)
            break;
    }
    if (w->fd < 0)
        return error_set(err, ERR_IO, "%s: cannot write in %s: %s", w->path, dir, strerror(errno));
    w->has_temp = true;
    return OK;
}

int file_writer_open(struct file_writer **out, const char *path, struct error *err)
{
    struct file_writer *w = NULL;
    char dir[PATH_MAX];
    struct stat st;
    int rc;

    *out = NULL;
    if (file_is_directory(path))
        return error_set(err, ERR_IO, "%s: is a directory, expected a file to write", path);
    if ((w = calloc(1, sizeof(*w))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory to write it", path);
    w->fd = -1;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        w->is_direct = true;
        snprintf(w->path, sizeof(w->path), "%s", path);
        if ((w->fd = open(path, O_WRONLY | O_CLOEXEC)) < 0) {
            rc = error_set(err, ERR_IO, "%s: cannot write: %s", path, strerror(errno));
            goto out;
        }
    } else if ((rc = resolve(w->path, path, err)) != OK ||
               (rc = parent_of(dir, sizeof(dir), w->path, err)) != OK ||
               (rc = open_temp(w, dir, err)) != OK) {
        goto out;
    }
    rc = OK;
    *out = w;
    w = NULL;
out:
    file_writer_close(w);
    return rc;
}

int file_writer_append(struct file_writer *w, const void *data, size_t size, struct error *err)
{
    const char *next = data;

    while (size > 0) {
        ssize_t n = write(w->fd, next, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, ERR_IO, "%s: write failed: %s", w->path, strerror(errno));
        next += n;
        size -= (size_t)n;
    }
    return OK;
}

/* Gives a nameless file its temporary name. */
static int name_temp(struct file_writer *w, struct error *err)
{
    char self[64];

    snprintf(self, sizeof(self), "/proc/self/fd/%d", w->fd);
    for (int n = 0; n < TEMP_TRIES; n++) {
        temp_name(w, n);
        if (linkat(AT_FDCWD, self, AT_FDCWD, w->temp, AT_SYMLINK_FOLLOW) == 0) {
            w->has_temp = true;
            return OK;
        }
        if (errno != EEXIST)
            break;
    }
    return error_set(err, ERR_IO, "%s: cannot name it: %s", w->path, strerror(errno));
}

int file_writer_commit(struct file_writer *w, struct error *err)
{
    int rc;

    if (!w->is_direct && !w->has_temp && (rc = name_temp(w, err)) != OK)
        return rc;
    /* on the disk before it has the name: after a power cut it is the old file or the new one */
    if (!w->is_direct && fsync(w->fd) != 0)
        return error_set(err, ERR_IO, "%s: write failed: %s", w->path, strerror(errno));
    rc = close(w->fd); /* a full disk may show only here */
    w->fd = -1;
    if (rc != 0)
        return error_set(err, ERR_IO, "%s: write failed: %s", w->path, strerror(errno));
    if (w->is_direct)
        return OK;
    if (rename(w->temp, w->path) != 0)
        return error_set(err, ERR_IO, "%s: cannot rename: %s", w->path, strerror(errno));
    w->has_temp = false;
    return OK;
}

void file_writer_close(struct file_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->has_temp)
        unlink(w->temp);
    free(w);
}

int file_write_text(const char *path, const char *text, struct error *err)
{
    struct file_writer *w;
    int rc;

    if ((rc = file_writer_open(&w, path, err)) != OK)
        return rc;
    if ((rc = file_writer_append(w, text, strlen(text), err)) == OK)
        rc = file_writer_commit(w, err);
    file_writer_close(w);
    return rc;
}
