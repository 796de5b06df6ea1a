/* dtype.c - see dtype.h.
 *
 * One function decodes one block of a kind. They are written for reading, against the layouts and
 * the order of operations of ggml-quants.c (dequantize_row_*): a product that is rounded there is
 * rounded here, so the values agree bit for bit. That rests on -ffp-contract=off: a fused
 * multiply-add would round once where ggml rounds twice.
 *
 * Blocks lie at any alignment: multi-byte fields are put together from bytes. */
#include "kernels/dtype.h"

#include <assert.h>
#include <string.h>

#include "base/size.h"

static const struct dtype_info infos[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4, true},
    [DTYPE_F16] = {"F16", 1, 2, true},
    [DTYPE_BF16] = {"BF16", 1, 2, true},
    [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},
    [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},
    [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, true},
    [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, true},
    [DTYPE_F64] = {"F64", 1, 8, false},
    [DTYPE_I64] = {"I64", 1, 8, false},
    [DTYPE_I32] = {"I32", 1, 4, false},
    [DTYPE_I16] = {"I16", 1, 2, false},
    [DTYPE_I8] = {"I8", 1, 1, false},
    [DTYPE_U8] = {"U8", 1, 1, false},
    [DTYPE_BOOL] = {"BOOL", 1, 1, false},
    [DTYPE_U64] = {"U64", 1, 8, false},
    [DTYPE_U32] = {"U32", 1, 4, false},
    [DTYPE_U16] = {"U16", 1, 2, false},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, false},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 1, 1, false},
    [DTYPE_Q8_1] = {"Q8_1", 32, 36, false},
    [DTYPE_Q2_K] = {"Q2_K", 256, 84, false},
    [DTYPE_Q3_K] = {"Q3_K", 256, 110, false},
    [DTYPE_Q8_K] = {"Q8_K", 256, 292, false},
    [DTYPE_IQ1_S] = {"IQ1_S", 256, 50, false},
    [DTYPE_IQ1_M] = {"IQ1_M", 256, 56, false},
    [DTYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66, false},
    [DTYPE_IQ2_XS] = {"IQ2_XS", 256, 74, false},
    [DTYPE_IQ2_S] = {"IQ2_S", 256, 82, false},
    [DTYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98, false},
    [DTYPE_IQ3_S] = {"IQ3_S", 256, 110, false},
    [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, false},
    [DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, false},
    [DTYPE_TQ1_0] = {"TQ1_0", 256, 54, false},
    [DTYPE_TQ2_0] = {"TQ2_0", 256, 66, false},
    [DTYPE_MXFP4] = {"MXFP4", 32, 17, false},
};

static float float_from_bits(uint32_t bits)
{
    union {
        uint32_t bits;
        float value;
    } u = {bits};

    return u.value;
}

static uint32_t bits_from_float(float x)
{
    union {
        float value;
        uint32_t bits;
    } u = {x};

    return u.bits;
}

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = (uint32_t)(h & 0x7fffu) << 13;
    /* 112 is 127 - 15, between the two biases; twice that takes what has the largest exponent on to
     * the largest of a float32 */
    uint32_t normal = magnitude + ((magnitude >= 31u << 23 ? 224u : 112u) << 23);
    /* zero or subnormal: magnitude * 2^-24, exact: 2^-14 is added to it, and taken away */
    float subnormal = float_from_bits(magnitude + (113u << 23)) - 0x1p-14f;

    return float_from_bits(sign | (magnitude < 1u << 23 ? bits_from_float(subnormal) : normal));
}

static uint16_t f16_from_float(float x)
{
    uint32_t bits = bits_from_float(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t mantissa, shift, half, rest;

    if (magnitude > 0x7f800000u) /* NaN: quiet, with what fits of its payload */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520, half way from the largest F16 to the next step */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* 2^-14: normal. A carry out of the mantissa is right. */
        uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
    }
    if (magnitude < 0x33000000u) /* below 2^-25, half of the smallest subnormal */
        return sign;
    mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    shift = 126 - (magnitude >> 23); /* units of 2^-24 are left; 14..24 */
    half = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1);
    if (rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1)))
        half++;
    return (uint16_t)(sign | half);
}

static void decode_f32(float *dst, const uint8_t *src)
{
    *dst = float_from_bits(load_u32(src));
}

static void decode_f16(float *dst, const uint8_t *src)
{
    *dst = f16_to_float(load_u16(src));
}

static void decode_bf16(float *dst, const uint8_t *src)
{
    *dst = bf16_to_float(load_u16(src));
}

/* f16 d; int8 q[32] */
static void decode_q8_0(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src));

    for (int i = 0; i < 32; i++)
        dst[i] = (float)(int8_t)src[2 + i] * d;
}

/* f16 d; 32 nibbles, the low ones first: 0..15 in the low halves, 16..31 in the high */
static void decode_q4_0(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src));
    const uint8_t *q = src + 2;

    for (int i = 0; i < 16; i++) {
        dst[i] = (float)((q[i] & 15) - 8) * d;
        dst[i + 16] = (float)((q[i] >> 4) - 8) * d;
    }
}

/* f16 d, m; nibbles as in Q4_0 */
static void decode_q4_1(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src)), m = f16_to_float(load_u16(src + 2));
    const uint8_t *q = src + 4;

    for (int i = 0; i < 16; i++) {
        dst[i] = (float)(q[i] & 15) * d + m;
        dst[i + 16] = (float)(q[i] >> 4) * d + m;
    }
}

/* f16 d; u32 with the fifth bit of each; nibbles as in Q4_0 */
static void decode_q5_0(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src));
    const uint32_t high = load_u32(src + 2);
    const uint8_t *q = src + 6;

    for (int i = 0; i < 16; i++) {
        int low_half = (q[i] & 15) | (int)(high >> i & 1) << 4;
        int high_half = (q[i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
        dst[i] = (float)(low_half - 16) * d;
        dst[i + 16] = (float)(high_half - 16) * d;
    }
}

/* f16 d, m; the rest as in Q5_0 */
static void decode_q5_1(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src)), m = f16_to_float(load_u16(src + 2));
    const uint32_t high = load_u32(src + 4);
    const uint8_t *q = src + 8;

    for (int i = 0; i < 16; i++) {
        int low_half = (q[i] & 15) | (int)(high >> i & 1) << 4;
        int high_half = (q[i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
        dst[i] = (float)low_half * d + m;
        dst[i + 16] = (float)high_half * d + m;
    }
}

/* The 6-bit scale and minimum of sub-block `j` of a Q4_K or Q5_K block, packed in 12 bytes:
 * four low-six pairs, then the last four split between nibbles and the spare top bits
 * (get_scale_min_k4 in ggml-quants.c). */
static void k_scale(const uint8_t *packed, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *min = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
}

/* f16 d, dmin; 12 bytes of scales; nibbles: of each 32 bytes the low halves, then the high */
static void decode_q4_k(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src)), dmin = f16_to_float(load_u16(src + 2));
    const uint8_t *q = src + 16;

    for (int j = 0; j < 8; j++) {
        int scale, min;
        float step, base;

        k_scale(src + 4, j, &scale, &min);
        step = d * (float)scale;
        base = dmin * (float)min;
        for (int i = 0; i < 32; i++)
            dst[32 * j + i] = step * (float)(q[32 * (j / 2) + i] >> 4 * (j % 2) & 15) - base;
    }
}

/* f16 d, dmin; 12 bytes of scales; 32 bytes of fifth bits, bit j for sub-block j; nibbles */
static void decode_q5_k(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src)), dmin = f16_to_float(load_u16(src + 2));
    const uint8_t *high = src + 16, *q = src + 48;

    for (int j = 0; j < 8; j++) {
        int scale, min;
        float step, base;

        k_scale(src + 4, j, &scale, &min);
        step = d * (float)scale;
        base = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int low = q[32 * (j / 2) + i] >> 4 * (j % 2) & 15;
            dst[32 * j + i] = step * (float)(low | (high[i] >> j & 1) << 4) - base;
        }
    }
}

/* 128 bytes of low nibbles, 64 bytes of upper bit pairs, int8 scale[16], f16 d. Each half of the
 * block is four runs of 32: run r takes its nibbles from bytes 32*(r%2).. (high halves for r >= 2)
 * and its bits from pair r of the 32 upper bytes. */
static void decode_q6_k(float *dst, const uint8_t *src)
{
    const float d = f16_to_float(load_u16(src + 208));

    for (int half = 0; half < 2; half++) {
        const uint8_t *low = src + 64 * half, *high = src + 128 + 32 * half;
        const uint8_t *scales = src + 192 + 8 * half;

        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 32; i++) {
                int q = low[32 * (r % 2) + i] >> 4 * (r / 2) & 15;
                float step = d * (float)(int8_t)scales[2 * r + i / 16];

                q |= (high[i] >> 2 * r & 3) << 4;
                dst[128 * half + 32 * r + i] = step * (float)(q - 32);
            }
    }
}

const struct dtype_info *dtype_info(enum dtype type)
{
    assert((unsigned)type < DTYPE_COUNT);
    return &infos[type];
}

bool dtype_bytes(size_t *out, enum dtype type, size_t n)
{
    const struct dtype_info *info = dtype_info(type);

    return n % info->block == 0 && size_mul(out, n / info->block, info->bytes);
}

/* Inlined into each case below, so that the plain kinds become simple loops. */
static inline void decode_blocks(float *dst, const uint8_t *src, enum dtype type, size_t n,
                                 void (*decode)(float *, const uint8_t *))
{
    const size_t block = infos[type].block, bytes = infos[type].bytes;

    for (size_t b = 0; b < n / block; b++)
        decode(dst + b * block, src + b * bytes);
}

void dtype_decode(float *dst, const void *src, enum dtype type, size_t n)
{
    assert(dtype_info(type)->is_number && n % infos[type].block == 0);
    switch (type) {
    case DTYPE_F32:
        decode_blocks(dst, src, DTYPE_F32, n, decode_f32);
        break;
    case DTYPE_F16:
        decode_blocks(dst, src, DTYPE_F16, n, decode_f16);
        break;
    case DTYPE_BF16:
        decode_blocks(dst, src, DTYPE_BF16, n, decode_bf16);
        break;
    case DTYPE_Q8_0:
        decode_blocks(dst, src, DTYPE_Q8_0, n, decode_q8_0);
        break;
    case DTYPE_Q4_0:
        decode_blocks(dst, src, DTYPE_Q4_0, n, decode_q4_0);
        break;
    case DTYPE_Q4_1:
        decode_blocks(dst, src, DTYPE_Q4_1, n, decode_q4_1);
        break;
    case DTYPE_Q5_0:
        decode_blocks(dst, src, DTYPE_Q5_0, n, decode_q5_0);
        break;
    case DTYPE_Q5_1:
        decode_blocks(dst, src, DTYPE_Q5_1, n, decode_q5_1);
        break;
    case DTYPE_Q4_K:
        decode_blocks(dst, src, DTYPE_Q4_K, n, decode_q4_k);
        break;
    case DTYPE_Q5_K:
        decode_blocks(dst, src, DTYPE_Q5_K, n, decode_q5_k);
        break;
    case DTYPE_Q6_K:
        decode_blocks(dst, src, DTYPE_Q6_K, n, decode_q6_k);
        break;
    default:
        break; /* is_number is false: the assertion above */
    }
}

/* All ones where it is a NaN, else 0: what loops can do to many numbers at once. */
static inline uint32_t nan_mask(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : 0;
}

bool dtype_encode(void *dst, const float *src, enum dtype type, size_t n)
{
    uint8_t *restrict out = dst; /* of any alignment */
    const float *restrict in = src;
    uint32_t nans = 0;

    assert(type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16);
    for (size_t i = 0; i < n && type == DTYPE_F32; i++) {
        uint32_t bits = bits_from_float(in[i]);
        memcpy(out + 4 * i, &bits, sizeof(bits));
        nans |= nan_mask(bits);
    }
    for (size_t i = 0; i < n && type == DTYPE_F16; i++) {
        uint16_t x = f16_from_float(in[i]);
        memcpy(out + 2 * i, &x, sizeof(x));
        nans |= nan_mask(bits_from_float(in[i]));
    }
    for (size_t i = 0; i < n && type == DTYPE_BF16; i++) {
        uint32_t bits = bits_from_float(in[i]), nan = nan_mask(bits);
        uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, kept = bits >> 16 | 0x40u;
        uint16_t x = (uint16_t)((nan & kept) | (~nan & rounded)); /* bf16_from_float() */
        memcpy(out + 2 * i, &x, sizeof(x));
        nans |= nan;
    }
    return nans == 0;
}
