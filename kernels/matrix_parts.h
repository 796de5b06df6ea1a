/* matrix_parts.h - rows of a weight matrix that come from several tensors, or columns of one, for
 * every backend's matrix_load. Only what is taken is read. Pure; any thread. Private to kernels/.
 */
#pragma once
#include "kernels/ops.h"

/* Sum of the parts' rows; ERR_INPUT when a stored row is no whole number of a part's blocks, or has
 * no such columns. */
int matrix_parts_rows(int *N, const struct matrix_part *parts, int n_parts, int K,
                      struct error *err);

/* Rows row .. row + n_rows - 1 of the stacked parts as numbers of `type` (F32, F16 or BF16) at `to`
 * [n_rows, K]. `scratch` [K]. */
void matrix_parts_convert(void *to, enum dtype type, float *scratch,
                          const struct matrix_part *parts, int n_parts, int K, int row, int n_rows);

/* Rows row .. row + n_rows - 1 of the stacked parts as float32 at `to` [n_rows, K]. */
void matrix_parts_decode(float *to, const struct matrix_part *parts, int n_parts, int K, int row,
                         int n_rows);
