/* forecast.h - how long a batch will be computed, judged by those before.
 *
 * A table by the number of jobs and of tokens, in powers of two. Of one kind of batches the longest
 * of late counts, as they differ: who expects too much stages a batch too late and loses a
 * millisecond, who expects too little keeps jobs from engines that would begin sooner. Plain data,
 * zero-initialised; belongs to one thread. */
#pragma once
#include <stddef.h>

enum { FORECAST_TOKENS = 21, FORECAST_JOBS = 8 };

struct forecast {
    double ms[FORECAST_TOKENS][FORECAST_JOBS]; /* 0: none yet */
};

void forecast_note(struct forecast *f, size_t n_jobs, size_t n_tokens, double ms);
/* Milliseconds; 0: nobody knows. */
double forecast_ms(const struct forecast *f, size_t n_jobs, size_t n_tokens);
