/* bench_sleep.c - what it takes an engine to sleep and to wake: numbers, and whether it gives the
 * same bits after.
 *
 *     bench_sleep MODEL LTX [float32|bfloat16|float8] [RANKS]
 *
 * Encodes a prompt to embeddings, again and again until its pass is recorded, then sleeps and wakes
 * a few times, then opens a second engine on the same weights. One line a step; the last says
 * whether all was as it should be, and so does the exit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_private.h"

enum { TIMES = 4, TOKENS = 61 };

static const struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_BF16};

/* GB that are free on the first rank's device. */
static double free_gb(const struct engine *e)
{
    struct device_memory memory = {0};

    e->ops->memory(e->ranks[0]->device, &memory, NULL);
    return (double)memory.free / 1e9;
}

static int encode(struct engine *e, struct engine_result *out, struct error *err)
{
    struct engine_prompt prompt = {.n = TOKENS, .request = &request};
    int32_t ids[TOKENS];

    for (int t = 0; t < TOKENS; t++)
        ids[t] = (2 + 7919 * t) % engine_info(e)->vocabulary;
    prompt.ids = ids;
    return engine_encode(e, &prompt, 1, out, err);
}

/* Encodes, and says whether that gave what is wanted; what was given first is wanted. */
static int check(struct engine *e, struct engine_result *want, bool *same, struct error *err)
{
    struct engine_result got;
    int rc = encode(e, &got, err);

    if (rc != OK)
        return rc;
    if (want->n_tensors == 0) {
        *want = got;
        return OK;
    }
    for (int i = 0; i < want->n_tensors; i++)
        *same &= memcmp(got.tensors[i].data, want->tensors[i].data, want->tensors[i].bytes) == 0;
    engine_result_free(&got);
    return OK;
}

/* Of the first tensors, relative (Frobenius). */
static double distance(const struct engine_result *a, const struct engine_result *b)
{
    size_t n = a->tensors[0].bytes / sizeof(bf16);
    const bf16 *x = a->tensors[0].data, *y = b->tensors[0].data;
    double difference = 0.0, size = 0.0;

    for (size_t i = 0; i < n; i++) {
        double got = (double)bf16_to_float(x[i]), want = (double)bf16_to_float(y[i]);
        difference += (got - want) * (got - want);
        size += want * want;
    }
    return sqrt(difference / size);
}

static int sleep_and_wake(struct engine *e, struct engine_result *want, bool *same,
                          struct error *err)
{
    double awake_gb = free_gb(e), asleep_gb, wake_s;
    int64_t start_ns = clock_now_ns();
    double sleep_s;
    int rc;

    if ((rc = engine_sleep(e, err)) != OK)
        return rc;
    sleep_s = clock_ms_since(start_ns) / 1e3;
    asleep_gb = free_gb(e);
    if ((rc = engine_wake(e, &wake_s, err)) != OK || (rc = check(e, want, same, err)) != OK)
        return rc;
    printf("asleep in %.3f s, %.2f GB more free; awake in %.3f s (%.1f GB/s); then %.2f ms, %s\n",
           sleep_s, asleep_gb - awake_gb, wake_s,
           (double)engine_info(e)->weights_bytes / 1e9 / wake_s, engine_last_route(e)->ms,
           *same ? "the same" : "OTHER BITS");
    return OK;
}

static int run(const struct engine_options *options, bool *same, struct error *err)
{
    struct engine_options second_options = *options;
    struct engine *e = NULL, *second = NULL;
    struct engine_result want = {0}, second_want = {0};
    double before_gb, seconds;
    int64_t start_ns;
    int rc;

    if ((rc = engine_open(&e, options, err)) != OK || (rc = engine_warm(e, &seconds, err)) != OK)
        goto out;
    for (int i = 0; i < 4; i++)
        if ((rc = check(e, &want, same, err)) != OK)
            goto out;
    printf("%d ranks, weights %.2f GB, warmed in %.2f s, %.2f GB free, %.2f ms, %s\n",
           engine_info(e)->n_ranks, (double)engine_info(e)->weights_bytes / 1e9, seconds,
           free_gb(e), engine_last_route(e)->ms, *same ? "the same" : "OTHER BITS");
    for (int i = 0; i < TIMES; i++)
        if ((rc = sleep_and_wake(e, &want, same, err)) != OK)
            goto out;
    second_options.share = e;
    before_gb = free_gb(e);
    start_ns = clock_now_ns();
    if ((rc = engine_open(&second, &second_options, err)) != OK)
        goto out;
    printf("a second engine: open in %.2f s, takes %.2f GB, %s weights\n",
           clock_ms_since(start_ns) / 1e3, before_gb - free_gb(second),
           engine_info(second)->shares_weights ? "shares" : "HAS ITS OWN");
    *same &= engine_info(second)->shares_weights;
    /* it has timed its products for itself, and may add up in another order */
    if ((rc = check(second, &second_want, same, err)) != OK)
        goto out;
    printf("its results are %.1e from the first one's\n", distance(&second_want, &want));
    *same &= distance(&second_want, &want) < 0.01;
    engine_close(e);
    e = NULL;
    rc = sleep_and_wake(second, &second_want, same, err);
out:
    engine_result_free(&second_want);
    engine_result_free(&want);
    engine_close(second);
    engine_close(e);
    return rc;
}

int main(int argc, char **argv)
{
    struct engine_options options = {.backend = ENGINE_CUDA, .compute = DTYPE_BF16, .sleeps = true};
    struct error err = {0};
    bool same = true;

    if (argc < 3) {
        fprintf(stderr, "usage: bench_sleep MODEL LTX [float32|bfloat16|float8] [RANKS]\n");
        return EXIT_FAILURE;
    }
    options.model = argv[1];
    options.ltx[0] = argv[2];
    if (argc > 3)
        options.compute = strcmp(argv[3], "float32") == 0  ? DTYPE_F32
                          : strcmp(argv[3], "float8") == 0 ? DTYPE_F8_E4M3
                                                           : DTYPE_BF16;
    options.n_ranks = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 1;
    if (run(&options, &same, &err) != OK) {
        fprintf(stderr, "bench_sleep: %s\n", err.text);
        return EXIT_FAILURE;
    }
    printf("%s\n", same ? "all as it should be" : "NOT THE SAME");
    return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
