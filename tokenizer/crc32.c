/* crc32.c - see crc32.h.
 *
 * Eight bytes a step through eight tables ("slicing by eight"): a byte at a time would take longer
 * than all the rest of loading a compact tokenizer. The tables are made on the stack for each call,
 * which costs microseconds and needs neither a file-level variable nor a page of constants. */
#include "tokenizer/crc32.h"

#define SLICES 8

static void tables_fill(uint32_t table[SLICES][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ (0xedb88320u & (0u - (c & 1)));
        table[0][i] = c;
    }
    for (int s = 1; s < SLICES; s++)
        for (int i = 0; i < 256; i++)
            table[s][i] = table[s - 1][i] >> 8 ^ table[0][table[s - 1][i] & 0xff];
}

uint32_t crc32_of(const void *data, size_t size)
{
    uint32_t table[SLICES][256], crc = 0xffffffffu;
    const uint8_t *p = data;

    tables_fill(table);
    for (; size >= SLICES; size -= SLICES, p += SLICES) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);

        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    for (; size > 0; size--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}
