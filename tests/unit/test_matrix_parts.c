/* test_matrix_parts.c - any rows of a stack of tensors, of types of their own, in any wanted type.
 */
#include "kernels/matrix_parts.h"
#include "tests/check.h"

enum { K = 64, N = 9, N_PARTS = 3 };

static struct error err;

static uint8_t f16[3 * K * 2 + 1], bf16s[2 * K * 2 + 1], q8[4 * K / 32 * 34];
static struct matrix_part parts[N_PARTS] = {
    {f16 + 1, DTYPE_F16, 3}, {bf16s + 1, DTYPE_BF16, 2}, {q8, DTYPE_Q8_0, 4}};
static float numbers[N * K]; /* what the parts hold */

static void fill(void)
{
    float values[4 * K];

    for (int i = 0; i < 4 * K; i++)
        values[i] = 0.37f * (float)(i % 29) - 3.0f;
    dtype_encode(f16 + 1, values, DTYPE_F16, 3 * K);
    dtype_encode(bf16s + 1, values, DTYPE_BF16, 2 * K);
    for (size_t i = 0; i < sizeof(q8); i++)
        q8[i] = (uint8_t)(i % 34 == 0 ? 0x12 : i % 34 == 1 ? 0x2c : 7 * i);
    dtype_decode(numbers, f16 + 1, DTYPE_F16, 3 * K);
    dtype_decode(numbers + 3 * K, bf16s + 1, DTYPE_BF16, 2 * K);
    dtype_decode(numbers + 5 * K, q8, DTYPE_Q8_0, 4 * K);
}

static void every_run_of_rows_comes_in_every_type(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    uint8_t got[N * K * 4 + 1], want[N * K * 4];
    float scratch[K];

    fill();
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (int row = 0; row <= N; row++)
            for (int n = 0; row + n <= N; n++) {
                size_t count = (size_t)n * K, bytes = count * dtype_info(types[t])->bytes;
                memset(got, 0x55, sizeof(got));
                matrix_parts_convert(got, types[t], scratch, parts, N_PARTS, K, row, n);
                dtype_encode(want, numbers + (size_t)row * K, types[t], count);
                CHECK(memcmp(got, want, bytes) == 0);
                CHECK_INT(got[bytes], 0x55); /* and no byte more */
            }
}

static void every_run_of_rows_is_decoded(void)
{
    float got[N * K + 1];

    fill();
    for (int row = 0; row <= N; row++)
        for (int n = 0; row + n <= N; n++) {
            got[n * K] = 55.0f;
            matrix_parts_decode(got, parts, N_PARTS, K, row, n);
            CHECK(memcmp(got, numbers + (size_t)row * K, (size_t)n * K * sizeof(float)) == 0);
            CHECK(got[n * K] == 55.0f);
        }
}

static void rows_of_broken_blocks_are_refused(void)
{
    int rows;

    CHECK_OK(matrix_parts_rows(&rows, parts, N_PARTS, K, &err));
    CHECK_INT(rows, N);
    CHECK_ERR(matrix_parts_rows(&rows, parts, N_PARTS, K + 2, &err), ERR_INPUT,
              "rows of 66 numbers cannot be stored as Q8_0");
}

int main(void)
{
    RUN(every_run_of_rows_comes_in_every_type);
    RUN(every_run_of_rows_is_decoded);
    RUN(rows_of_broken_blocks_are_refused);
    return check_result();
}
