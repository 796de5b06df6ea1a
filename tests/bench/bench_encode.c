/* bench_encode.c - how long an encode takes: numbers, not verdicts.
 *
 *     bench_encode MODEL THREADS TOKENS [float32|bfloat16] [RUNS] [LTX]
 *     bench_encode MODEL THREADS - [float32|bfloat16]
 *
 * Loads the model, encodes one prompt of TOKENS ids again and again, all hidden states in float32
 * (with an LTX checkpoint: embeddings), and prints one JSON line: milliseconds (median, fastest,
 * slowest), load time, peak resident memory, and how much of it at the end is the process's own:
 * the rest are pages of the mapped model file, which the system may drop.
 *
 * With `-` it plays against others (bench_peers.py): every line of stdin, `TOKENS PROMPTS`, is one
 * call of PROMPTS such prompts, answered with its milliseconds and the Frobenius norm of the last
 * prompt's last state, which shows that all players compute the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/options.h"
#include "engine/engine.h"

enum { MAX_RUNS = 10000, MAX_PROMPTS = 64 };

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

static double last_state_norm(const struct engine_tensor *t)
{
    size_t n = t->shape[1] * t->shape[2];
    const float *state = (const float *)t->data + (t->shape[0] - 1) * n;
    double sum = 0.0;

    for (size_t i = 0; i < n; i++)
        sum += (double)state[i] * (double)state[i];
    return sqrt(sum);
}

/* One call of n_prompts equal prompts; *norm (NULL: not wanted) as told above. */
static int encode(struct engine *engine, int n_tokens, int n_prompts, double *ms, double *norm,
                  struct error *err)
{
    bool has_ltx = engine_info(engine)->extractor > 0;
    struct engine_request request = {.dtype = DTYPE_F32,
                                     .level = has_ltx ? ENGINE_EMBEDDINGS : ENGINE_HIDDEN_STATES};
    struct engine_result results[MAX_PROMPTS];
    struct engine_prompt prompts[MAX_PROMPTS];
    int32_t ids[ENGINE_MAX_TOKENS] = {2};
    int64_t start;
    int rc;

    for (int i = 1; i < n_tokens; i++)
        ids[i] = (7919 * i) % engine_info(engine)->vocabulary;
    for (int i = 0; i < n_prompts; i++)
        prompts[i] = (struct engine_prompt){ids, n_tokens, &request};
    start = clock_now_ns();
    if ((rc = engine_encode(engine, prompts, n_prompts, results, err)) != OK)
        return rc;
    *ms = clock_ms_since(start);
    if (norm != NULL)
        *norm = last_state_norm(&results[n_prompts - 1].tensors[0]);
    for (int i = 0; i < n_prompts; i++)
        engine_result_free(&results[i]);
    return OK;
}

static int play(struct engine *engine, struct error *err)
{
    int n_tokens, n_prompts, rc;
    double ms, norm;
    char line[64];

    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (sscanf(line, "%d %d", &n_tokens, &n_prompts) != 2 || n_tokens < 1 ||
            n_tokens > ENGINE_MAX_TOKENS || n_prompts < 1 || n_prompts > MAX_PROMPTS)
            return error_set(err, ERR_INPUT, "not TOKENS PROMPTS: %s", line);
        if ((rc = encode(engine, n_tokens, n_prompts, &ms, &norm, err)) != OK)
            return rc;
        printf("%.3f %.6g\n", ms, norm);
        fflush(stdout);
    }
    return OK;
}

static int repeat(struct engine *engine, const struct engine_options *options, int n_tokens,
                  int runs, double load_ms, struct error *err)
{
    double ms[MAX_RUNS], warm_up;
    struct rusage usage;
    int rc;

    for (int i = -2; i < runs; i++)
        if ((rc = encode(engine, n_tokens, 1, i < 0 ? &warm_up : &ms[i], NULL, err)) != OK)
            return rc;
    qsort(ms, (size_t)runs, sizeof(*ms), by_value);
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"tokens\": %d, \"threads\": %d, \"compute\": \"%s\", \"median_ms\": %.2f, "
           "\"min_ms\": %.2f, \"max_ms\": %.2f, \"load_ms\": %.0f, \"peak_mb\": %ld, "
           "\"private_mb\": %ld}\n",
           n_tokens, options->n_threads, options->compute == DTYPE_F32 ? "float32" : "bfloat16",
           ms[runs / 2], ms[0], ms[runs - 1], load_ms, usage.ru_maxrss / 1024, private_mb());
    return OK;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct engine_options options = {0};
    struct engine *engine = NULL;
    int64_t n_threads, n_tokens = 0, runs = 15, start;
    bool plays;
    int rc = EXIT_FAILURE;

    if (argc < 4) {
        fprintf(stderr, "usage: bench_encode MODEL THREADS TOKENS|- [float32|bfloat16] [RUNS] "
                        "[LTX]\n");
        return EXIT_FAILURE;
    }
    plays = strcmp(argv[3], "-") == 0;
    if (options_parse_int(&n_threads, argv[2], 1, 1024, "THREADS", &err) != OK ||
        (!plays &&
         options_parse_int(&n_tokens, argv[3], 1, ENGINE_MAX_TOKENS, "TOKENS", &err) != OK) ||
        (argc > 5 && options_parse_int(&runs, argv[5], 1, MAX_RUNS, "RUNS", &err) != OK))
        goto out;
    if (argc > 4 && strcmp(argv[4], "float32") != 0 && strcmp(argv[4], "bfloat16") != 0) {
        error_set(&err, ERR_INPUT, "'%s' is neither float32 nor bfloat16", argv[4]);
        goto out;
    }
    options.model = argv[1];
    options.ltx[0] = argc > 6 ? argv[6] : NULL;
    options.n_threads = (int)n_threads;
    options.compute = argc > 4 && strcmp(argv[4], "bfloat16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    start = clock_now_ns();
    if (engine_open(&engine, &options, &err) != OK)
        goto out;
    if ((plays ? play(engine, &err)
               : repeat(engine, &options, (int)n_tokens, (int)runs, clock_ms_since(start), &err)) ==
        OK)
        rc = EXIT_SUCCESS;
out:
    if (err.code != OK)
        fprintf(stderr, "bench_encode: %s\n", err.text);
    engine_close(engine);
    return rc;
}
