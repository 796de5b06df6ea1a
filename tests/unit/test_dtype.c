/* Stored numbers against the gguf package's values (tests/golden/make_quant.py), and every F16. */
#include "kernels/dtype.h"

#include <math.h>

#include "base/file.h"
#include "tests/check.h"

static struct error err;

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint16_t encoded(float x, enum dtype type)
{
    uint16_t out;

    dtype_encode(&out, &x, type, 1);
    return out;
}

static void quantised_kinds_match_gguf_bit_for_bit(void)
{
    static const enum dtype kinds[] = {DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0,
                                       DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct dtype_info *info = dtype_info(kinds[k]);
        struct file_map map;
        char path[1024];
        uint32_t n_blocks;
        size_t bytes, n;
        float *got;

        snprintf(path, sizeof(path), PE_TESTS_DIR "/golden/quant-%s.bin", info->name);
        CHECK_OK(file_map_open(&map, path, &err));
        memcpy(&n_blocks, map.data, 4);
        n = n_blocks * info->block;
        CHECK(dtype_bytes(&bytes, kinds[k], n));
        CHECK_INT(map.size, 4 + bytes + 4 * n);
        got = calloc(n, sizeof(float));
        CHECK(got != NULL);
        dtype_decode(got, map.data + 4, kinds[k], n);
        for (size_t i = 0; i < n; i++) {
            float want;

            memcpy(&want, map.data + 4 + bytes + 4 * i, 4);
            if (bits_of(got[i]) != bits_of(want))
                CHECK_FAIL("%s: value %zu: got %a, want %a", info->name, i, (double)got[i],
                           (double)want);
        }
        free(got);
        file_map_close(&map);
    }
}

static void every_f16_decodes_exactly_and_encodes_back(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t half = (uint16_t)h;
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        double want;
        float got;

        dtype_decode(&got, &half, DTYPE_F16, 1);
        if (exponent == 31 && mantissa != 0) {
            CHECK(isnan(got));
            CHECK((encoded(got, DTYPE_F16) & 0x7fffu) > 0x7c00u);
            continue;
        }
        if (exponent == 31)
            want = (double)INFINITY;
        else if (exponent == 0)
            want = ldexp(mantissa, -24);
        else
            want = ldexp(1024 + mantissa, exponent - 25);
        if (h & 0x8000u)
            want = -want;
        CHECK(bits_of(got) == bits_of((float)want));
        CHECK_INT(encoded(got, DTYPE_F16), half);
    }
}

/* Between two neighbours a and b: just below half way gives a, just above gives b, and half way
 * the even one. */
static void rounding_goes_to_the_nearest_and_ties_to_even(enum dtype type, uint32_t first,
                                                          uint32_t last)
{
    for (uint32_t h = first; h < last; h++) {
        uint16_t a = (uint16_t)h, b = (uint16_t)(h + 1), even = (h & 1) ? b : a;
        float low, high, middle;

        dtype_decode(&low, &a, type, 1);
        dtype_decode(&high, &b, type, 1);
        middle = (float)(((double)low + (double)high) / 2); /* exact: one more bit is needed */
        CHECK_INT(encoded(middle, type), even);
        CHECK_INT(encoded(nextafterf(middle, low), type), a);
        CHECK_INT(encoded(nextafterf(middle, high), type), b);
        CHECK_INT(encoded(-middle, type), even | 0x8000u);
    }
}

static void f16_rounds_to_nearest_even(void)
{
    rounding_goes_to_the_nearest_and_ties_to_even(DTYPE_F16, 0, 0x7bff);
    CHECK_INT(encoded(65519.996f, DTYPE_F16), 0x7bff);
    CHECK_INT(encoded(65520.0f, DTYPE_F16), 0x7c00);
    CHECK_INT(encoded(-1e30f, DTYPE_F16), 0xfc00);
    CHECK_INT(encoded(1e-30f, DTYPE_F16), 0);
    CHECK_INT(encoded(float_of(1), DTYPE_F16), 0);
}

static void bf16_rounds_to_nearest_even(void)
{
    rounding_goes_to_the_nearest_and_ties_to_even(DTYPE_BF16, 0, 0x7f7f);
    CHECK_INT(encoded(float_of(0x7f7fffff), DTYPE_BF16), 0x7f80); /* too large: infinity */
    CHECK_INT(encoded(INFINITY, DTYPE_BF16), 0x7f80);
    CHECK((encoded(float_of(0x7f800001), DTYPE_BF16) & 0x7fffu) > 0x7f80u); /* a NaN stays one */
    CHECK((encoded(float_of(0xff800001), DTYPE_F16) & 0x7fffu) > 0x7c00u);
}

static void encoding_tells_of_a_nan_wherever_it_is(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    enum { N = 37 };
    uint8_t bytes[N * 4 + 1];

    for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
        float values[N];
        for (int i = 0; i < N; i++)
            values[i] = i % 3 == 0 ? INFINITY : i % 3 == 1 ? -INFINITY : 65000.0f * (float)(i - 9);
        CHECK(dtype_encode(bytes + 1, values, types[k], N)); /* too large is no NaN */
        CHECK(dtype_encode(bytes + 1, values, types[k], 0));
        for (int i = 0; i < N; i++) {
            float number = values[i];
            values[i] = i % 2 == 0 ? (float)NAN : float_of(0xff800001);
            CHECK(!dtype_encode(bytes + 1, values, types[k], N));
            CHECK(dtype_encode(bytes + 1, values, types[k], (size_t)i)); /* before it: none */
            values[i] = number;
        }
    }
}

static void f32_passes_through_at_any_alignment(void)
{
    const float want[2] = {-0.0f, 3.14159f};
    uint8_t bytes[9];
    float got[2];

    dtype_encode(bytes + 1, want, DTYPE_F32, 2);
    dtype_decode(got, bytes + 1, DTYPE_F32, 2);
    CHECK(memcmp(got, want, sizeof(got)) == 0);
}

static void sizes_are_whole_blocks_and_do_not_overflow(void)
{
    size_t bytes = 7;

    CHECK(dtype_bytes(&bytes, DTYPE_Q6_K, 512));
    CHECK_INT(bytes, 420);
    CHECK(!dtype_bytes(&bytes, DTYPE_Q4_K, 255));
    CHECK(!dtype_bytes(&bytes, DTYPE_F32, SIZE_MAX / 2));
    CHECK_INT(bytes, 420);
    CHECK(dtype_bytes(&bytes, DTYPE_Q8_0, 0));
    CHECK_INT(bytes, 0);
}

static void every_kind_has_a_name_and_a_size(void)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);

        CHECK(info->name != NULL && info->block > 0 && info->bytes > 0);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(info->name, dtype_info((enum dtype)j)->name) != 0);
    }
}

int main(void)
{
    RUN(quantised_kinds_match_gguf_bit_for_bit);
    RUN(every_f16_decodes_exactly_and_encodes_back);
    RUN(f16_rounds_to_nearest_even);
    RUN(bf16_rounds_to_nearest_even);
    RUN(encoding_tells_of_a_nan_wherever_it_is);
    RUN(f32_passes_through_at_any_alignment);
    RUN(sizes_are_whole_blocks_and_do_not_overflow);
    RUN(every_kind_has_a_name_and_a_size);
    return check_result();
}
