/* crc32c.c - see crc32c.h.
 *
 * The crc32 instruction takes three cycles but may begin anew every cycle: a long run is cut in
 * three, whose checksums are computed side by side and then combined. Combining shifts a checksum
 * over zeros, a product of polynomials modulo the CRC's: a few microseconds whatever the length,
 * so neither tables nor blocks of a fixed size are needed. */
#include "base/crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u
#define SLICES     8

enum { THREE_FROM = 8192 }; /* bytes; below, combining costs more than it saves */

/* a * b modulo the polynomial. Bits are reflected: the highest is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if ((a & bit) != 0)
            product ^= b;
        b = (b & 1) != 0 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^(8 * size) modulo the polynomial, by squaring. */
static uint32_t power_of_bytes(size_t size)
{
    uint32_t result = 0x80000000u;     /* x^0 */
    uint32_t power = 0x80000000u >> 8; /* x^8 */

    for (; size > 0; size >>= 1) {
        if ((size & 1) != 0)
            result = multiply(power, result);
        power = multiply(power, power);
    }
    return result;
}

uint32_t crc32c_combine(uint32_t crc, uint32_t crc_of_rest, size_t size)
{
    return multiply(power_of_bytes(size), crc) ^ crc_of_rest;
}

/* Slicing by eight, its tables made for each call: see tokenizer/crc32.c. */
static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t size)
{
    uint32_t table[SLICES][256];

    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ (POLYNOMIAL & (0u - (c & 1)));
        table[0][i] = c;
    }
    for (int s = 1; s < SLICES; s++)
        for (int i = 0; i < 256; i++)
            table[s][i] = table[s - 1][i] >> 8 ^ table[0][table[s - 1][i] & 0xff];
    for (; size >= SLICES; size -= SLICES, p += SLICES) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);

        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; size > 0; size--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <nmmintrin.h>

static uint64_t word(const uint8_t *p)
{
    uint64_t w;

    memcpy(&w, p, sizeof(w));
    return w;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
                                                                 size_t size)
{
    uint64_t a = crc, b = 0, c = 0;

    if (size >= THREE_FROM) {
        size_t third = size / 24 * 8;

        for (size_t i = 0; i < third; i += 8) {
            a = _mm_crc32_u64(a, word(p + i));
            b = _mm_crc32_u64(b, word(p + third + i));
            c = _mm_crc32_u64(c, word(p + 2 * third + i));
        }
        a = crc32c_combine((uint32_t)a, (uint32_t)b, third);
        a = crc32c_combine((uint32_t)a, (uint32_t)c, third);
        p += 3 * third;
        size -= 3 * third;
    }
    for (; size >= 8; size -= 8, p += 8)
        a = _mm_crc32_u64(a, word(p));
    for (; size > 0; size--, p++)
        a = _mm_crc32_u8((uint32_t)a, *p);
    return (uint32_t)a;
}

static int has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2") != 0;
}

#else

#define by_instruction by_table

static int has_instruction(void)
{
    return 0;
}

#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    return ~(has_instruction() ? by_instruction(~crc, data, size) : by_table(~crc, data, size));
}
