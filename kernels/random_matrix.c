/* random_matrix.c - see random_matrix.h. */
#include "kernels/random_matrix.h"

#include <stdlib.h>

#include "kernels/random_number.h"

int random_matrix_create(const struct ops *ops, struct device *d, struct matrix **out, int N, int K,
                         float size, uint64_t seed, const struct column_cuts *cuts,
                         struct error *err)
{
    size_t n = (size_t)N * K;
    struct matrix_part part = {.type = DTYPE_F32, .rows = N};
    float *numbers;
    int rc;

    if (ops->matrix_random != NULL)
        return ops->matrix_random(d, out, N, K, size, seed, err);
    *out = NULL;
    if ((numbers = malloc(n * sizeof(float))) == NULL)
        return error_set(err, ERR_MEM, "random matrix: no memory for [%d, %d]", N, K);
    for (size_t i = 0; i < n; i++)
        numbers[i] = random_number(seed, i) * size;
    part.data = numbers;
    rc = ops->matrix_load(d, out, &part, 1, K, cuts, err);
    free(numbers);
    return rc;
}
