/* test_matrix_parts.c - any rows of a stack of tensors, of types of their own, in any wanted type;
 * and any columns of one. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "kernels/matrix_parts.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/check.h"

enum { K = 64, N = 9, N_PARTS = 3 };

static struct error err;

static uint8_t f16[3 * K * 2 + 1], bf16s[2 * K * 2 + 1], q8[4 * K / 32 * 34];
static struct matrix_part parts[N_PARTS] = {{.data = f16 + 1, .type = DTYPE_F16, .rows = 3},
                                            {.data = bf16s + 1, .type = DTYPE_BF16, .rows = 2},
                                            {.data = q8, .type = DTYPE_Q8_0, .rows = 4}};
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

/* ---- columns ---- */

enum { WIDE = 512, ROWS = 3, MOST_BYTES = ROWS * WIDE * 4 };

static const enum dtype every_type[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0,
                                        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                        DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

/* Any bytes are numbers to the quantised types; scales are two of them, so that none is a NaN where
 * the second is no 0x7c or more. */
static void fill_type(uint8_t *bytes, enum dtype type)
{
    float values[ROWS * WIDE];

    if (dtype_info(type)->block == 1) {
        for (int i = 0; i < ROWS * WIDE; i++)
            values[i] = 0.11f * (float)(i % 211) - 9.0f;
        dtype_encode(bytes, values, type, ROWS * WIDE);
        return;
    }
    for (int i = 0; i < MOST_BYTES; i++)
        bytes[i] = (uint8_t)((i * 37 + i / 251) % 0x7b);
}

/* Columns from `first` on of every row, but for those before `row`, in every type. */
static void check_columns(const struct matrix_part *part, int first, int n, int row)
{
    static const enum dtype wanted[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static float all[ROWS * WIDE], want[ROWS * WIDE], scratch[WIDE];
    static float decoded[ROWS * WIDE + 1];
    static uint8_t got[MOST_BYTES + 1], encoded[MOST_BYTES];
    struct matrix_part some = *part;
    int n_rows = ROWS - row, rows;
    size_t count = (size_t)n_rows * n;

    some.stored_columns = WIDE;
    some.first_column = first;
    CHECK_OK(matrix_parts_rows(&rows, &some, 1, n, &err));
    CHECK_INT(rows, ROWS);
    dtype_decode(all, part->data, part->type, ROWS * WIDE);
    for (int i = 0; i < n_rows; i++)
        memcpy(want + i * n, all + (row + i) * WIDE + first, (size_t)n * sizeof(float));
    decoded[count] = 55.0f;
    matrix_parts_decode(decoded, &some, 1, n, row, n_rows);
    CHECK(memcmp(decoded, want, count * sizeof(float)) == 0);
    CHECK(decoded[count] == 55.0f);
    for (size_t t = 0; t < sizeof(wanted) / sizeof(wanted[0]); t++) {
        size_t bytes = count * dtype_info(wanted[t])->bytes;
        got[bytes] = 0x55;
        matrix_parts_convert(got, wanted[t], scratch, &some, 1, n, row, n_rows);
        dtype_encode(encoded, want, wanted[t], count);
        CHECK(memcmp(got, encoded, bytes) == 0);
        CHECK_INT(got[bytes], 0x55);
    }
}

/* At blocks' edges, inside one, across several. */
static void any_columns_of_every_type_can_be_taken(void)
{
    static const int firsts[] = {0, 1, 31, 32, 48, 255, 256, 300, 511};
    static const int counts[] = {1, 16, 32, 33, 200, 256, 257, 511, 512};
    static uint8_t bytes[MOST_BYTES];

    for (size_t t = 0; t < sizeof(every_type) / sizeof(every_type[0]); t++) {
        struct matrix_part part = {.data = bytes, .type = every_type[t], .rows = ROWS};
        fill_type(bytes, every_type[t]);
        for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
            for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++)
                for (int row = 0; row < ROWS && firsts[i] + counts[j] <= WIDE; row++)
                    check_columns(&part, firsts[i], counts[j], row);
    }
}

/* A page that nobody may read lies where the columns that are not taken are. */
static void columns_that_are_not_taken_are_not_read(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int columns = (int)(2 * page / sizeof(float)), half = columns / 2;
    char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct matrix_part part = {
        .data = memory, .type = DTYPE_F32, .rows = 2, .stored_columns = columns};
    float *got = malloc(2 * page);

    CHECK(memory != MAP_FAILED && got != NULL);
    memset(memory, 0x11, 4 * page);
    CHECK_INT(mprotect(memory + page, page, PROT_NONE), 0);
    CHECK_INT(mprotect(memory + 3 * page, page, PROT_NONE), 0);
    matrix_parts_decode(got, &part, 1, half, 0, 2);
    CHECK(memcmp(got, memory, page) == 0);
    CHECK(memcmp((char *)got + page, memory + 2 * page, page) == 0);
    free(got);
    munmap(memory, 4 * page);
}

static void columns_that_are_not_there_are_refused(void)
{
    struct matrix_part part = {
        .data = q8, .type = DTYPE_Q8_0, .rows = 4, .stored_columns = K, .first_column = 40};
    int rows;

    CHECK_OK(matrix_parts_rows(&rows, &part, 1, K - 40, &err));
    CHECK_ERR(matrix_parts_rows(&rows, &part, 1, K - 39, &err), ERR_INPUT,
              "columns 40 to 64 of rows of 64 numbers");
    part.stored_columns = K + 2;
    CHECK_ERR(matrix_parts_rows(&rows, &part, 1, 8, &err), ERR_INPUT,
              "rows of 66 numbers cannot be stored as Q8_0");
}

int main(void)
{
    RUN(every_run_of_rows_comes_in_every_type);
    RUN(every_run_of_rows_is_decoded);
    RUN(rows_of_broken_blocks_are_refused);
    RUN(any_columns_of_every_type_can_be_taken);
    RUN(columns_that_are_not_taken_are_not_read);
    RUN(columns_that_are_not_there_are_refused);
    return check_result();
}
