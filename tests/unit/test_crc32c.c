/* test_crc32c.c - CRC-32C by instruction and by table, against the bits' definition. */
#include <stdint.h>

#include "base/clock.h"
#include "base/crc32c.c" /* for the table, which this machine may not choose */
#include "tests/check.h"

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *p, size_t size)
{
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void fill(uint8_t *out, size_t size)
{
    uint32_t x = 12345;

    for (size_t i = 0; i < size; i++) {
        x = x * 1664525 + 1013904223;
        out[i] = (uint8_t)(x >> 24);
    }
}

/* RFC 3720, B.4 */
static void known_answers(void)
{
    uint8_t bytes[32];

    CHECK_INT(crc32c(0, "123456789", 9), 0xe3069283);
    CHECK_INT(crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof(bytes));
    CHECK_INT(crc32c(0, bytes, sizeof(bytes)), 0x8a9136aa);
    memset(bytes, 0xff, sizeof(bytes));
    CHECK_INT(crc32c(0, bytes, sizeof(bytes)), 0x62a8ab43);
}

static void both_ways_agree_with_the_definition(void)
{
    static const size_t sizes[] = {0,  1,    7,    8,    9,    23,   24,    25,
                                   63, 1000, 8191, 8192, 8193, 8215, 24577, 100003};
    static uint8_t bytes[100100];

    fill(bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t offset = 0; offset < 9; offset += 4) {
            uint32_t want = bit_by_bit(7, bytes + offset, sizes[i]);

            CHECK_INT(crc32c(7, bytes + offset, sizes[i]), want);
            CHECK_INT(~by_table(~7u, bytes + offset, sizes[i]), want);
        }
}

static void parts_combine(void)
{
    static uint8_t bytes[50000];
    const size_t cuts[] = {0, 1, 17, 8192, 49999, 50000};
    uint32_t whole;

    fill(bytes, sizeof(bytes));
    whole = crc32c(0, bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        size_t rest = sizeof(bytes) - cuts[i];
        uint32_t a = crc32c(0, bytes, cuts[i]), b = crc32c(0, bytes + cuts[i], rest);

        CHECK_INT(crc32c_combine(a, b, rest), whole);
        CHECK_INT(crc32c(a, bytes + cuts[i], rest), whole);
    }
}

static void speed(void)
{
    const size_t size = 12 << 20;
    uint8_t *bytes = malloc(size);
    int64_t start;
    double ms;

    CHECK(bytes != NULL);
    fill(bytes, size);
    start = clock_now_ns();
    CHECK(crc32c(0, bytes, size) != 0);
    ms = clock_ms_since(start);
    printf("     12 MB in %.2f ms, %.1f GB/s\n", ms, (double)size / ms / 1e6);
    free(bytes);
}

int main(void)
{
    RUN(known_answers);
    RUN(both_ways_agree_with_the_definition);
    RUN(parts_combine);
    RUN(speed);
    return check_result();
}
