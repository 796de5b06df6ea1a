/* bench_encode.c - how long one prompt takes: numbers, not verdicts.
 *
 *     bench_encode MODEL THREADS TOKENS [float32|bfloat16] [RUNS]
 *
 * Loads the model, encodes one prompt of TOKENS ids again and again, all hidden states in float32,
 * and prints one JSON line: milliseconds (median, fastest, slowest), load time, peak resident
 * memory, and how much of it at the end is the process's own: the rest are pages of the mapped
 * model file, which the system may drop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/options.h"
#include "engine/engine.h"

enum { MAX_RUNS = 10000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* MB of memory that no file backs, by /proc/self/status. */
static long private_mb(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long kb = -1;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "RssAnon: %ld kB", &kb) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kb / 1024;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct engine_options options = {0};
    struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_result result;
    struct engine_prompt prompt;
    struct engine *engine = NULL;
    struct rusage usage;
    int64_t n_threads, n_tokens, runs = 15, start;
    int32_t ids[ENGINE_MAX_TOKENS] = {2};
    double ms[MAX_RUNS], load_ms;
    int rc = EXIT_FAILURE;

    if (argc < 4) {
        fprintf(stderr, "usage: bench_encode MODEL THREADS TOKENS [float32|bfloat16] [RUNS]\n");
        return EXIT_FAILURE;
    }
    if (options_parse_int(&n_threads, argv[2], 1, 1024, "THREADS", &err) != OK ||
        options_parse_int(&n_tokens, argv[3], 1, ENGINE_MAX_TOKENS, "TOKENS", &err) != OK ||
        (argc > 5 && options_parse_int(&runs, argv[5], 1, MAX_RUNS, "RUNS", &err) != OK))
        goto out;
    if (argc > 4 && strcmp(argv[4], "float32") != 0 && strcmp(argv[4], "bfloat16") != 0) {
        error_set(&err, ERR_INPUT, "'%s' is neither float32 nor bfloat16", argv[4]);
        goto out;
    }
    options.model = argv[1];
    options.n_threads = (int)n_threads;
    options.compute = argc > 4 && strcmp(argv[4], "bfloat16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    start = clock_now_ns();
    if (engine_open(&engine, &options, &err) != OK)
        goto out;
    load_ms = clock_ms_since(start);
    for (int i = 1; i < n_tokens; i++)
        ids[i] = (7919 * i) % engine_info(engine)->vocabulary;
    prompt = (struct engine_prompt){ids, (int)n_tokens, &request};
    for (int i = -2; i < runs; i++) { /* two to warm up */
        start = clock_now_ns();
        if (engine_encode(engine, &prompt, 1, &result, &err) != OK)
            goto out;
        if (i >= 0)
            ms[i] = clock_ms_since(start);
        engine_result_free(&result);
    }
    qsort(ms, (size_t)runs, sizeof(*ms), by_value);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"tokens\": %d, \"threads\": %d, \"compute\": \"%s\", \"median_ms\": %.2f, "
           "\"min_ms\": %.2f, \"max_ms\": %.2f, \"load_ms\": %.0f, \"peak_mb\": %ld, "
           "\"private_mb\": %ld}\n",
           (int)n_tokens, options.n_threads, options.compute == DTYPE_F32 ? "float32" : "bfloat16",
           ms[runs / 2], ms[0], ms[runs - 1], load_ms, usage.ru_maxrss / 1024, private_mb());
    rc = EXIT_SUCCESS;
out:
    if (err.code != OK)
        fprintf(stderr, "bench_encode: %s\n", err.text);
    engine_close(engine);
    return rc;
}
