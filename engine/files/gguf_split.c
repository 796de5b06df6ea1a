/* gguf_split.c - see gguf_split.h.
 *
 * Which files there are follows from the first: its split.count, and its name, which must be as
 * gguf-split writes it. Nothing is looked for in the directory. */
#include "engine/files/gguf_split.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILES 1000

struct gguf_split {
    struct gguf **files;
    size_t n_files;         /* opened so far */
    struct tensor *tensors; /* of all files */
    const struct tensor **sorted;
    size_t n_tensors;
};

/* What `key` says, or `fallback` where it is absent. */
static int read_count(uint64_t *out, const struct gguf *g, const char *key, uint64_t fallback,
                      struct error *err)
{
    *out = fallback;
    return gguf_has(g, key) ? gguf_get_size(g, key, out, err) : OK;
}

/* The path of file `i` (from 0) of `n`, given that of the first. */
static int part_path(char *out, size_t cap, const char *first, size_t i, size_t n,
                     struct error *err)
{
    char suffix[40];
    size_t len = strlen(first), suffix_len;

    snprintf(suffix, sizeof(suffix), "-%05d-of-%05zu.gguf", 1, n);
    suffix_len = strlen(suffix);
    if (len < suffix_len || strcmp(first + len - suffix_len, suffix) != 0)
        return error_set(err, ERR_FORMAT,
                         "%s: split.count is %zu: give the first of its files, whose name ends in "
                         "%s",
                         tensor_file_name(first), n, suffix);
    len -= suffix_len;
    if (len + suffix_len >= cap || len > INT_MAX)
        return error_set(err, ERR_IO, "%s: the path is too long", first);
    snprintf(out, cap, "%.*s-%05zu-of-%05zu.gguf", (int)len, first, i + 1, n);
    return OK;
}

/* Opens the next file. It must say that it is file `i`; how many there are is left in *n. */
static int open_part(struct gguf_split *s, const char *path, uint64_t i, uint64_t *n,
                     struct error *err)
{
    struct gguf *g;
    uint64_t number;
    int rc;

    if ((rc = gguf_open(&g, path, err)) != OK)
        return rc;
    s->files[s->n_files++] = g;
    if ((rc = read_count(&number, g, "split.no", i, err)) != OK ||
        (rc = read_count(n, g, "split.count", 1, err)) != OK)
        return rc;
    if (*n < 1 || *n > MAX_FILES)
        return error_set(err, ERR_FORMAT, "%s: split.count is %" PRIu64 ", expected 1 to %d",
                         gguf_name(g), *n, MAX_FILES);
    if (number != i)
        return error_set(err, ERR_FORMAT, "%s: split.no is %" PRIu64 ", expected %" PRIu64,
                         gguf_name(g), number, i);
    return OK;
}

static int open_parts(struct gguf_split *s, const char *first, struct error *err)
{
    char path[PATH_MAX];
    uint64_t n, same;
    int rc;

    if ((s->files = calloc(MAX_FILES, sizeof(struct gguf *))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory", first);
    if ((rc = open_part(s, first, 0, &n, err)) != OK)
        return rc;
    for (uint64_t i = 1; i < n; i++) {
        if ((rc = part_path(path, sizeof(path), first, (size_t)i, (size_t)n, err)) != OK ||
            (rc = open_part(s, path, i, &same, err)) != OK)
            return rc;
        if (same != n)
            return error_set(err, ERR_FORMAT,
                             "%s: split.count is %" PRIu64 ", but %" PRIu64 " in the first file",
                             gguf_name(s->files[i]), same, n);
    }
    return OK;
}

/* One list of the tensors of all files, and one order of their names. */
static int index_tensors(struct gguf_split *s, struct error *err)
{
    const char *name = gguf_name(s->files[0]);
    uint64_t n = 0, stated;
    int rc;

    for (size_t f = 0; f < s->n_files; f++)
        n += gguf_n_tensors(s->files[f]); /* each has a place in its file: the sum is small */
    if ((rc = read_count(&stated, s->files[0], "split.tensors.count", n, err)) != OK)
        return rc;
    if (stated != n)
        return error_set(err, ERR_FORMAT,
                         "%s: split.tensors.count is %" PRIu64 ", but its files have %" PRIu64,
                         name, stated, n);
    if ((s->tensors = calloc((size_t)n + 1, sizeof(*s->tensors))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %" PRIu64 " tensors", name, n);
    for (size_t f = 0; f < s->n_files; f++)
        for (size_t i = 0; i < gguf_n_tensors(s->files[f]); i++)
            s->tensors[s->n_tensors++] = *gguf_tensor_at(s->files[f], i);
    return tensor_sort(&s->sorted, s->tensors, s->n_tensors, err);
}

int gguf_split_open(struct gguf_split **out, const char *path, struct error *err)
{
    struct gguf_split *s;
    int rc;

    *out = NULL;
    if ((s = calloc(1, sizeof(*s))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory", path);
    if ((rc = open_parts(s, path, err)) != OK || (rc = index_tensors(s, err)) != OK)
        goto out;
    *out = s;
    s = NULL; /* handed over */
out:
    gguf_split_close(s);
    return rc;
}

void gguf_split_close(struct gguf_split *s)
{
    if (s == NULL)
        return;
    for (size_t f = 0; f < s->n_files; f++)
        gguf_close(s->files[f]);
    free(s->files);
    free(s->sorted);
    free(s->tensors);
    free(s);
}

const struct gguf *gguf_split_first(const struct gguf_split *s)
{
    return s->files[0];
}

size_t gguf_split_n_files(const struct gguf_split *s)
{
    return s->n_files;
}

const struct gguf *gguf_split_file_at(const struct gguf_split *s, size_t i)
{
    return s->files[i];
}

size_t gguf_split_n_tensors(const struct gguf_split *s)
{
    return s->n_tensors;
}

const struct tensor *gguf_split_tensor_at(const struct gguf_split *s, size_t i)
{
    return i < s->n_tensors ? &s->tensors[i] : NULL;
}

const struct tensor *gguf_split_find(const struct gguf_split *s, const char *name)
{
    return tensor_find(s->sorted, s->n_tensors, name);
}
