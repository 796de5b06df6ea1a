/* ranks.h - what the tests of several ranks share: how many they try, prompts, and how far apart
 * two results are. */
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/check.h"

enum { N = 6, MAX = 300 };

static const int n_tokens[N] = {61, 1, MAX, 7, 128, 33};
static int rank_counts[] = {1, 2, 3, 4, 8};
static size_t n_counts = sizeof(rank_counts) / sizeof(rank_counts[0]);
static int32_t ids[N][MAX];

/* With "few" on the command line: for sanitizers, under which all take minutes. */
static inline void choose_counts(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "few") != 0)
        return;
    rank_counts[0] = 3;
    n_counts = 1;
}

static inline void fill_ids(const struct engine *e)
{
    for (int i = 0; i < N; i++)
        for (int t = 0; t < n_tokens[i]; t++)
            ids[i][t] = t == 0 ? 2 : (3 + 7919 * t + 104729 * i) % engine_info(e)->vocabulary;
}

/* Relative (Frobenius) error. */
static inline double relative(const float *want, const float *got, size_t n)
{
    double difference = 0.0, size = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / size);
}

/* The worst of any tensor. */
static inline double distance(const struct engine_result *a, const struct engine_result *b)
{
    double worst = 0.0;

    CHECK_INT(a->n_tensors, b->n_tensors);
    for (int k = 0; k < a->n_tensors; k++) {
        const struct engine_tensor *x = &a->tensors[k], *y = &b->tensors[k];
        CHECK_TEXT(x->name, y->name);
        CHECK_INT(x->bytes, y->bytes);
        if (x->dtype == DTYPE_F32)
            worst = fmax(worst, relative(x->data, y->data, x->bytes / sizeof(float)));
        else
            CHECK(memcmp(x->data, y->data, x->bytes) == 0);
    }
    return worst;
}
