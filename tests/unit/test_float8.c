/* E4M3 against its definition: sign, four bits of exponent about 7, three of mantissa, no infinity.
 */
#include "kernels/float8.h"

#include "tests/check.h"

/* What a byte stands for; 0x7f is NaN. */
static double value_of(int byte)
{
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

    return byte & 0x80 ? -size : size;
}

static void every_value_stays(void)
{
    for (int byte = 0; byte < 256; byte++) {
        float x = (float)value_of(byte), got = float8_round(x);
        if ((byte & 0x7f) == 0x7f)
            continue;
        CHECK(got == x && signbit(got) == signbit(x));
    }
    CHECK(value_of(0x7e) == 448.0);
}

/* Between two neighbours: to the nearer one, and from the middle to the even one. */
static void rounding_goes_to_the_nearest_and_ties_to_even(void)
{
    for (int byte = 0; byte < 0x7e; byte++) {
        double low = value_of(byte), high = value_of(byte + 1), middle = (low + high) / 2;
        double even = byte % 2 == 0 ? low : high;
        for (int sign = -1; sign <= 1; sign += 2) {
            CHECK(float8_round((float)(sign * middle)) == (float)(sign * even));
            CHECK(float8_round(nextafterf((float)(sign * middle), 0.0f)) == (float)(sign * low));
            CHECK(float8_round(nextafterf((float)(sign * middle), (float)(sign * 1000.0))) ==
                  (float)(sign * high));
        }
    }
}

static void what_is_too_large_is_the_largest_and_nan_stays(void)
{
    CHECK(float8_round(449.0f) == 448.0f);
    CHECK(float8_round(1e30f) == 448.0f);
    CHECK(float8_round(-INFINITY) == -448.0f);
    CHECK(isnan(float8_round(NAN)));
}

static void a_row_is_scaled_by_its_largest(void)
{
    float row[] = {-3.0f, 1.5f, 0.1f, 0.0f}, zeros[3] = {0}, tiny[] = {1e-38f, -1e-39f, 0.0f};
    float scale = float8_round_row(row, 4);

    CHECK(scale == 3.0f / 448.0f);
    CHECK(row[0] == -448.0f && row[1] == 224.0f && row[3] == 0.0f);
    CHECK(row[2] == 15.0f); /* 14.93: steps of one there */
    scale = float8_round_row(zeros, 3);
    CHECK(scale > 0.0f && zeros[0] == 0.0f && zeros[2] == 0.0f);
    scale = float8_round_row(tiny, 3);
    CHECK(isfinite(scale) && tiny[0] == 0.0f && tiny[1] == 0.0f);
}

/* What is no number must reach the check for it at the end of a pass. */
static void a_row_that_holds_no_number_shows_it(void)
{
    float with_nan[] = {1.0f, NAN}, infinite[] = {1.0f, INFINITY};
    float scale = float8_round_row(with_nan, 2);

    CHECK(scale == 1.0f / 448.0f && with_nan[0] == 448.0f && isnan(with_nan[1]));
    scale = float8_round_row(infinite, 2);
    CHECK(!isfinite(infinite[1] * scale));
}

static void only_matrices_of_sixteens_are_served(void)
{
    CHECK(float8_serves(16, 48));
    CHECK(!float8_serves(8, 48));
    CHECK(!float8_serves(16, 40));
}

int main(void)
{
    RUN(every_value_stays);
    RUN(rounding_goes_to_the_nearest_and_ties_to_even);
    RUN(what_is_too_large_is_the_largest_and_nan_stays);
    RUN(a_row_is_scaled_by_its_largest);
    RUN(a_row_that_holds_no_number_shows_it);
    RUN(only_matrices_of_sixteens_are_served);
    return check_result();
}
