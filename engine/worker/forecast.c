#include "engine/worker/forecast.h"

static size_t class_of(size_t n, size_t n_classes)
{
    size_t class = 0;

    while (n > 1 && class + 1 < n_classes) {
        n /= 2;
        class ++;
    }
    return class;
}

void forecast_note(struct forecast *f, size_t n_jobs, size_t n_tokens, double ms)
{
    double *at = &f->ms[class_of(n_tokens, FORECAST_TOKENS)][class_of(n_jobs, FORECAST_JOBS)];
    double faded = *at + (ms - *at) / 8.0; /* one that was slow once is forgotten by and by */

    *at = ms > faded ? ms : faded;
}

double forecast_ms(const struct forecast *f, size_t n_jobs, size_t n_tokens)
{
    return f->ms[class_of(n_tokens, FORECAST_TOKENS)][class_of(n_jobs, FORECAST_JOBS)];
}
