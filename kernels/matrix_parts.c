#include "kernels/matrix_parts.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int matrix_parts_rows(int *N, const struct matrix_part *parts, int n_parts, int K,
                      struct error *err)
{
    *N = 0;
    for (int i = 0; i < n_parts; i++) {
        const struct dtype_info *type = dtype_info(parts[i].type);
        if (!type->is_number || K % (int)type->block != 0)
            return error_set(err, ERR_INPUT, "matrix: rows of %d numbers cannot be stored as %s", K,
                             type->name);
        *N += parts[i].rows;
    }
    return OK;
}

/* The rows that lie together from row `row` of the stack on, n_rows at most. */
struct run {
    const char *from;
    enum dtype type;
    size_t row_bytes;
    int n_rows;
};

/* They are about to be read, most often from a mapped file: asked for at once, and not a few pages
 * at a fault. A system that does not take the hint reads them anyway. */
static void announce(const struct run *run)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skew = (uintptr_t)run->from % page;

    posix_madvise((void *)(uintptr_t)(run->from - skew),
                  skew + (size_t)run->n_rows * run->row_bytes, POSIX_MADV_WILLNEED);
}

static struct run find_run(const struct matrix_part *parts, int n_parts, int K, int row, int n_rows)
{
    struct run run = {0};

    for (int i = 0; i < n_parts; i++) {
        const struct dtype_info *type = dtype_info(parts[i].type);
        int here = parts[i].rows - row;

        if (here <= 0) { /* the part lies before the first row */
            row -= parts[i].rows;
            continue;
        }
        run.type = parts[i].type;
        run.row_bytes = K / type->block * type->bytes;
        run.from = (const char *)parts[i].data + (size_t)row * run.row_bytes;
        run.n_rows = here < n_rows ? here : n_rows;
        announce(&run);
        break;
    }
    return run;
}

void matrix_parts_convert(void *to, enum dtype type, float *scratch,
                          const struct matrix_part *parts, int n_parts, int K, int row, int n_rows)
{
    size_t row_bytes = (size_t)K * dtype_info(type)->bytes;

    while (n_rows > 0) {
        struct run run = find_run(parts, n_parts, K, row, n_rows);
        if (run.type == type)
            memcpy(to, run.from, (size_t)run.n_rows * row_bytes);
        for (int i = 0; i < run.n_rows && run.type != type; i++) {
            dtype_decode(scratch, run.from + (size_t)i * run.row_bytes, run.type, (size_t)K);
            dtype_encode((char *)to + (size_t)i * row_bytes, scratch, type, (size_t)K);
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
        dtype_decode(to, run.from, run.type, (size_t)run.n_rows * K);
        to += (size_t)run.n_rows * K;
        row += run.n_rows;
        n_rows -= run.n_rows;
    }
}
