#include "kernels/matrix_parts.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BLOCK = 256 }; /* numbers in a block of any type that is decoded */

/* Numbers in a row as it is stored. */
static int stored_columns(const struct matrix_part *part, int K)
{
    return part->stored_columns > 0 ? part->stored_columns : K;
}

int matrix_parts_rows(int *N, const struct matrix_part *parts, int n_parts, int K,
                      struct error *err)
{
    *N = 0;
    for (int i = 0; i < n_parts; i++) {
        const struct dtype_info *type = dtype_info(parts[i].type);
        int stored = stored_columns(&parts[i], K);
        if (!type->is_number || stored % (int)type->block != 0)
            return error_set(err, ERR_INPUT, "matrix: rows of %d numbers cannot be stored as %s",
                             stored, type->name);
        if (parts[i].first_column < 0 || parts[i].first_column > stored - K)
            return error_set(err, ERR_INPUT, "matrix: columns %d to %d of rows of %d numbers",
                             parts[i].first_column, parts[i].first_column + K - 1, stored);
        *N += parts[i].rows;
    }
    return OK;
}

/* Rows that lie together from row `row` of the stack on, n_rows at most. */
struct run {
    const char *from; /* the first row as it is stored */
    enum dtype type;
    size_t row_bytes; /* of a stored row */
    size_t first;     /* number of it that is taken first */
    bool is_whole;    /* all are taken */
    int n_rows;
};

/* About to be read, most often from a mapped file: asked for at once, and not a few pages at a
 * fault. A system that does not take the hint reads them anyway. */
static void announce(const char *from, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skew = (uintptr_t)from % page;

    posix_madvise((void *)(uintptr_t)(from - skew), skew + bytes, POSIX_MADV_WILLNEED);
}

/* Of rows that are not taken whole the rest stays unread. */
static void announce_run(const struct run *run, int K)
{
    const struct dtype_info *type = dtype_info(run->type);
    size_t first = run->first / type->block;
    size_t end = (run->first + (size_t)K + type->block - 1) / type->block;

    if (run->is_whole) {
        announce(run->from, (size_t)run->n_rows * run->row_bytes);
        return;
    }
    for (int i = 0; i < run->n_rows; i++)
        announce(run->from + (size_t)i * run->row_bytes + first * type->bytes,
                 (end - first) * type->bytes);
}

static struct run find_run(const struct matrix_part *parts, int n_parts, int K, int row, int n_rows)
{
    struct run run = {0};

    for (int i = 0; i < n_parts; i++) {
        const struct dtype_info *type = dtype_info(parts[i].type);
        int here = parts[i].rows - row, stored = stored_columns(&parts[i], K);

        if (here <= 0) { /* the part lies before the first row */
            row -= parts[i].rows;
            continue;
        }
        run.type = parts[i].type;
        run.row_bytes = stored / type->block * type->bytes;
        run.from = (const char *)parts[i].data + (size_t)row * run.row_bytes;
        run.first = (size_t)parts[i].first_column;
        run.is_whole = stored == K;
        run.n_rows = here < n_rows ? here : n_rows;
        announce_run(&run, K);
        break;
    }
    return run;
}

/* The n numbers from number `first` of a row on. A block of which only a part is taken is decoded
 * aside. */
static void decode_some(float *to, const char *row, enum dtype type, size_t first, size_t n)
{
    size_t block = dtype_info(type)->block, bytes = dtype_info(type)->bytes;
    float aside[MAX_BLOCK];

    assert(block <= MAX_BLOCK);
    while (n > 0) {
        const char *from = row + first / block * bytes;
        size_t skip = first % block, now = n / block * block;

        if (skip == 0 && now > 0) {
            dtype_decode(to, from, type, now);
        } else {
            now = block - skip < n ? block - skip : n;
            dtype_decode(aside, from, type, block);
            memcpy(to, aside + skip, now * sizeof(*to));
        }
        to += now;
        first += now;
        n -= now;
    }
}

void matrix_parts_convert(void *to, enum dtype type, float *scratch,
                          const struct matrix_part *parts, int n_parts, int K, int row, int n_rows)
{
    size_t size = dtype_info(type)->bytes, row_bytes = (size_t)K * size;

    while (n_rows > 0) {
        struct run run = find_run(parts, n_parts, K, row, n_rows);
        if (run.type == type && run.is_whole)
            memcpy(to, run.from, (size_t)run.n_rows * row_bytes);
        for (int i = 0; i < run.n_rows && !(run.type == type && run.is_whole); i++) {
            const char *from = run.from + (size_t)i * run.row_bytes;
            char *row_to = (char *)to + (size_t)i * row_bytes;
            if (run.type == type) {
                memcpy(row_to, from + run.first * size, row_bytes);
                continue;
            }
            decode_some(scratch, from, run.type, run.first, (size_t)K);
            dtype_encode(row_to, scratch, type, (size_t)K);
        }
        to = (char *)to + (size_t)run.n_rows * row_bytes;
        row += run.n_rows;
        n_rows -= run.n_rows;
    }
}

void matrix_parts_decode(float *to, const struct matrix_part *parts, int n_parts, int K, int row,
                         int n_rows)
{
    while (n_rows > 0) {
        struct run run = find_run(parts, n_parts, K, row, n_rows);
        for (int i = 0; i < run.n_rows; i++)
            decode_some(to + (size_t)i * K, run.from + (size_t)i * run.row_bytes, run.type,
                        run.first, (size_t)K);
        to += (size_t)run.n_rows * K;
        row += run.n_rows;
        n_rows -= run.n_rows;
    }
}
