/* random_matrix.h - a resident matrix of random numbers, for measuring without a model. Used by the
 * thread that owns the device. */
#pragma once
#include "kernels/ops.h"

/* [N, K] of random_number(seed, n * K + k) * size, rounded to act; by ops->matrix_random, or made
 * on the host and loaded. `cuts` and errors as matrix_load. */
int random_matrix_create(const struct ops *ops, struct device *d, struct matrix **out, int N, int K,
                         float size, uint64_t seed, const struct column_cuts *cuts,
                         struct error *err);
