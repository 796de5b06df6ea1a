/* tensor.h - a tensor as a file holds it: a borrowed view, valid while its file is open. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "kernels/dtype.h"

#define TENSOR_MAX_DIMS 8

struct tensor {
    const char *name;
    enum dtype type;
    int n_dims;
    size_t shape[TENSOR_MAX_DIMS]; /* slowest dimension first, also for GGUF files */
    const void *data;              /* row-major, little-endian, at any alignment */
    size_t bytes;
    const char *file; /* the last part of its file's path, for messages */
};

/* A shape as messages print it: tensor_shape_text(2, shape).text is "[2048,1152]". */
struct tensor_shape_text {
    char text[TENSOR_MAX_DIMS * 21 + 3];
};
struct tensor_shape_text tensor_shape_text(int n_dims, const size_t *shape);

/* Whether a name from a file may be stored and printed: some bytes, no control characters. */
bool tensor_name_is_sound(const char *name, size_t len);

/* Whether a tensor of F32, F16 or BF16 holds no NaN and no infinity. Reads all of it. */
bool tensor_is_finite(const struct tensor *t);

/* `*out` becomes the `n` tensors in the order of their names; free() it, they stay where they are.
 * ERR_FORMAT when two have the same name. */
int tensor_sort(const struct tensor ***out, const struct tensor *tensors, size_t n,
                struct error *err);
/* NULL when there is none of that name. */
const struct tensor *tensor_find(const struct tensor *const *sorted, size_t n, const char *name);

/* The part of a path after its last slash. */
const char *tensor_file_name(const char *path);
