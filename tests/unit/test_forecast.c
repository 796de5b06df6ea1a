/* test_forecast.c - how long a batch will be computed. */
#include "engine/worker/forecast.h"
#include "tests/check.h"

static void nobody_knows_at_first(void)
{
    struct forecast f = {0};

    CHECK(forecast_ms(&f, 1, 61) == 0.0);
    forecast_note(&f, 1, 61, 13.0);
    CHECK(forecast_ms(&f, 1, 61) == 13.0);
    CHECK(forecast_ms(&f, 1, 32) == 13.0); /* of its kind: 32 to 63 tokens */
    CHECK(forecast_ms(&f, 1, 64) == 0.0);
    CHECK(forecast_ms(&f, 2, 61) == 0.0);
}

static void the_longest_of_late_counts(void)
{
    struct forecast f = {0};

    forecast_note(&f, 32, 2000, 266.0);
    forecast_note(&f, 33, 1500, 800.0);
    CHECK(forecast_ms(&f, 32, 2000) == 800.0);
    forecast_note(&f, 32, 2000, 266.0);
    CHECK(forecast_ms(&f, 32, 2000) > 700.0);
    for (int i = 0; i < 60; i++)
        forecast_note(&f, 32, 2000, 266.0);
    CHECK(forecast_ms(&f, 32, 2000) < 267.0);
}

static void any_size_has_its_place(void)
{
    struct forecast f = {0};

    forecast_note(&f, (size_t)-1, (size_t)-1, 1.0);
    CHECK(forecast_ms(&f, 128, (size_t)1 << 20) == 1.0);
    forecast_note(&f, 0, 0, 2.0);
    CHECK(forecast_ms(&f, 1, 1) == 2.0);
}

int main(void)
{
    RUN(nobody_knows_at_first);
    RUN(the_longest_of_late_counts);
    RUN(any_size_has_its_place);
    return check_result();
}
