/* float8.h - rows of numbers in E4M3 with one scale each, which is what products read in float8
 * (kernels/ops.h). A processor has no use for the bytes: here a number stays a float, rounded to
 * what the byte could hold. E4M3 values are exact in bf16. Pure; any thread. Private to kernels/.
 */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define FLOAT8_MAX 448.0f
/* Rows of less than this are as good as zero; dividing by the scales of two of them stays finite.
 */
#define FLOAT8_LEAST 1e-12f

/* Whether a matrix [N, K] is E4M3 at all; others are kept in bf16, as the tensor cores' products
 * read 16 numbers at a time and no model has a large matrix of another shape. */
static inline bool float8_serves(int N, int K)
{
    return N % 16 == 0 && K % 16 == 0;
}

/* The scale of a row whose largest number is `largest`: it becomes FLOAT8_MAX. */
static inline float float8_scale(float largest)
{
    return (largest > FLOAT8_LEAST ? largest : FLOAT8_LEAST) / FLOAT8_MAX;
}

/* The nearest of E4M3, ties to even; too large becomes FLOAT8_MAX, NaN stays one. */
static inline float float8_round(float x)
{
    union {
        float value;
        uint32_t bits;
    } u = {x};
    const float fixed = 0x1p14f; /* a float of this size has steps of 2^-9, E4M3's smallest */
    float size = fabsf(x);

    if (size >= FLOAT8_MAX)
        return copysignf(FLOAT8_MAX, x);
    if (size < 0x1p-6f)
        return copysignf(size + fixed - fixed, x);
    if (size == size) /* to three bits after the leading one; may carry into the exponent */
        u.bits = (u.bits + 0x7ffffu + (u.bits >> 20 & 1u)) & ~0xfffffu;
    return u.value;
}

/* Rounds a row in place, to be multiplied by the scale that it returns. */
static inline float float8_round_row(float *row, int K)
{
    float largest = 0.0f, scale, inverse;

    for (int k = 0; k < K; k++)
        largest = fabsf(row[k]) > largest ? fabsf(row[k]) : largest;
    scale = float8_scale(largest);
    inverse = 1.0f / scale;
    for (int k = 0; k < K; k++)
        row[k] = float8_round(row[k] * inverse);
    return scale;
}
