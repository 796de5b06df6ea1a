/* tensor.c - see tensor.h. */
#include "engine/files/tensor.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tensor_shape_text tensor_shape_text(int n_dims, const size_t *shape)
{
    struct tensor_shape_text out;
    size_t len = 0;

    out.text[len++] = '[';
    for (int i = 0; i < n_dims && i < TENSOR_MAX_DIMS; i++)
        len += (size_t)snprintf(out.text + len, sizeof(out.text) - len, i > 0 ? ",%zu" : "%zu",
                                shape[i]);
    out.text[len++] = ']';
    out.text[len] = '\0';
    return out;
}

bool tensor_name_is_sound(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return len > 0;
}

/* Exponents of all ones are what NaN and infinities have, and nothing else. A piece at a time is
 * copied to where it is aligned, so that the loops can be vectors. */
bool tensor_is_finite(const struct tensor *t)
{
    enum { PIECE = 4096 };
    union {
        uint16_t halves[PIECE / 2];
        uint32_t words[PIECE / 4];
    } piece;
    uint16_t half = t->type == DTYPE_F16 ? 0x7c00 : 0x7f80;
    uint32_t bad = 0;

    for (size_t at = 0; at < t->bytes && bad == 0; at += PIECE) {
        size_t n = t->bytes - at < PIECE ? t->bytes - at : PIECE;
        memset(&piece, 0, sizeof(piece));
        memcpy(&piece, (const char *)t->data + at, n);
        if (t->type == DTYPE_F32)
            for (int i = 0; i < PIECE / 4; i++)
                bad |= (piece.words[i] & 0x7f800000u) == 0x7f800000u;
        else
            for (int i = 0; i < PIECE / 2; i++)
                bad |= (piece.halves[i] & half) == half;
    }
    return bad == 0;
}

static int compare_names(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

int tensor_sort(const struct tensor ***out, const struct tensor *tensors, size_t n,
                struct error *err)
{
    const struct tensor **sorted;

    *out = NULL;
    if ((sorted = calloc(n > 0 ? n : 1, sizeof(*sorted))) == NULL)
        return error_set(err, ERR_MEM, "tensors: no memory for an index of %zu", n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &tensors[i];
    if (n > 0)
        qsort(sorted, n, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            int rc = error_set(err, ERR_FORMAT, "%s: %s: there are two tensors of this name",
                               sorted[i]->file, sorted[i]->name);
            free(sorted);
            return rc;
        }
    *out = sorted;
    return OK;
}

const struct tensor *tensor_find(const struct tensor *const *sorted, size_t n, const char *name)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, sorted[middle]->name);

        if (order == 0)
            return sorted[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *tensor_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}
