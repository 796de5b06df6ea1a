#include "kernels/matrix_parts.h"

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

void matrix_parts_decode(float *to, const struct matrix_part *parts, int n_parts, int K, int row,
                         int n_rows)
{
    for (int i = 0; i < n_parts && n_rows > 0; i++) {
        const struct dtype_info *type = dtype_info(parts[i].type);
        int here = parts[i].rows - row;

        if (here <= 0) { /* the part lies before the first row */
            row -= parts[i].rows;
            continue;
        }
        if (here > n_rows)
            here = n_rows;
        dtype_decode(to,
                     (const char *)parts[i].data + (size_t)row * (K / type->block) * type->bytes,
                     parts[i].type, (size_t)here * K);
        to += (size_t)here * K;
        n_rows -= here;
        row = 0;
    }
}
