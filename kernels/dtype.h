/* dtype.h - how numbers are stored: plain floats and the blocked quantised kinds of GGUF files.
 *
 * A quantised row is a run of blocks; a block holds `block` numbers in `bytes` bytes. The layouts
 * are ggml's (ggml-common.h: block_q8_0 and so on), little-endian. Everything here is pure and may
 * be called from any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef uint16_t bf16; /* the upper half of a float32 */

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q8_0,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    /* stored in files beside the weights, never computed with */
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    /* GGUF kinds known by name and size only, so that such a file can be inspected */
    DTYPE_Q8_1,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q8_K,
    DTYPE_IQ1_S,
    DTYPE_IQ1_M,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ2_S,
    DTYPE_IQ3_XXS,
    DTYPE_IQ3_S,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_TQ1_0,
    DTYPE_TQ2_0,
    DTYPE_MXFP4,
    DTYPE_COUNT
};

struct dtype_info {
    const char *name; /* as files and messages spell it: "F32", "Q4_K" */
    size_t block;     /* numbers in a block; 1 for the plain kinds */
    size_t bytes;     /* bytes of a block */
    bool is_number;   /* dtype_decode() reads it */
};

/* Never NULL for a value below DTYPE_COUNT. */
const struct dtype_info *dtype_info(enum dtype type);

/* Bytes of `n` numbers. false when n is no whole number of blocks or the product overflows. */
bool dtype_bytes(size_t *out, enum dtype type, size_t n);

/* `n` numbers at `src` (any alignment) as float32 at `dst`. Needs is_number and n % block == 0.
 * Exact for F32, F16 and BF16; for the quantised kinds the float32 product of scale and integer,
 * as ggml's dequantize_row_* computes it. */
void dtype_decode(float *dst, const void *src, enum dtype type, size_t n);

/* `n` floats as F32, F16 or BF16 at `dst` (any alignment), rounded to nearest even; NaN stays NaN,
 * too large becomes an infinity; the two do not overlap. False: there was a NaN among them. */
bool dtype_encode(void *dst, const float *src, enum dtype type, size_t n);

static inline float bf16_to_float(bf16 x)
{
    union {
        uint32_t bits;
        float value;
    } u = {(uint32_t)x << 16};

    return u.value;
}

static inline bf16 bf16_from_float(float x)
{
    union {
        float value;
        uint32_t bits;
    } u = {x};

    if ((u.bits & 0x7fffffffu) > 0x7f800000u)
        return (bf16)((u.bits >> 16) | 0x40u); /* NaN: rounding must not make it an infinity */
    return (bf16)((u.bits + 0x7fffu + ((u.bits >> 16) & 1u)) >> 16);
}
