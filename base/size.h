/* size.h - sizes that come from a file or the network, multiplied and added without overflow.
 * Each returns false when the result does not fit; *out is then untouched. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool size_mul(size_t *out, size_t a, size_t b)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool size_add(size_t *out, size_t a, size_t b)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}
