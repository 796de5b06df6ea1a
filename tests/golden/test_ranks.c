/* test_ranks.c - an engine of several ranks gives what one rank gives, in either strategy.
 *
 * That one rank gives what the reference gives is test_hidden_states' and test_embeddings', and
 * `verify` does the same for any number of ranks (tests/cli/test_cli_ranks.py). */
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "engine/engine.h"
#include "engine/engine_private.h"
#include "tests/golden/ranks.h"

static struct error err;

static const char *path(const char *name)
{
    static char paths[4][4096];
    static int next;
    char *p = paths[next++ % 4];

    snprintf(p, sizeof(paths[0]), "%s/golden/%s", PE_TESTS_DIR, name);
    return p;
}

static struct engine *open_ranks(const char *model, const char *ltx, enum engine_backend backend,
                                 enum dtype compute, int n_ranks, enum engine_strategy strategy)
{
    struct engine_options options = {
        .model = path(model),
        .ltx = {ltx != NULL ? path(ltx) : NULL},
        .backend = backend,
        .compute = compute,
        .n_ranks = n_ranks,
        .strategy = strategy,
        .n_threads = 2,
    };
    struct engine *e;

    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_INT(engine_info(e)->n_ranks, n_ranks);
    return e;
}

/* What the prompts of a batch want, by turns. */
static const struct engine_request requests[] = {
    {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32},
    {.level = ENGINE_HIDDEN_STATES, .dtype = DTYPE_F32},
    {.level = ENGINE_FEATURES, .dtype = DTYPE_F32},
};

static void encode(struct engine *e, int first, int n, bool only_states,
                   struct engine_result *results)
{
    struct engine_prompt prompts[N];

    for (int i = 0; i < n; i++)
        prompts[i] =
            (struct engine_prompt){ids[first + i], n_tokens[first + i],
                                   only_states ? &requests[1] : &requests[(first + i) % 3]};
    CHECK_OK(engine_encode(e, prompts, n, results, &err));
}

/* All prompts together, and each alone. */
static void check_ranks(const char *model, const char *ltx, enum engine_backend backend,
                        enum dtype compute, double bound)
{
    struct engine *one = open_ranks(model, ltx, backend, compute, 1, ENGINE_AUTO);
    struct engine_result want[N];

    fill_ids(one);
    encode(one, 0, N, ltx == NULL, want);
    for (size_t i = 0; i < n_counts; i++)
        for (int strategy = ENGINE_SHARDED; strategy <= ENGINE_REPLICATED; strategy++) {
            struct engine *e = open_ranks(model, ltx, backend, compute, rank_counts[i],
                                          (enum engine_strategy)strategy);
            struct engine_result got[N];
            double worst = 0.0, by_batch = 0.0;
            encode(e, 0, N, ltx == NULL, got);
            for (int p = 0; p < N; p++) {
                struct engine_result alone;
                encode(e, p, 1, ltx == NULL, &alone);
                worst = fmax(worst, distance(&want[p], &got[p]));
                by_batch = fmax(by_batch, distance(&got[p], &alone));
                engine_result_free(&got[p]);
                engine_result_free(&alone);
            }
            printf("     %d ranks, %s: %.1e; alone or together: %.1e\n", rank_counts[i],
                   engine_strategy_name((enum engine_strategy)strategy), worst, by_batch);
            CHECK(worst <= bound);
            CHECK(by_batch <= 1e-6);
            engine_close(e);
        }
    for (int p = 0; p < N; p++)
        engine_result_free(&want[p]);
    engine_close(one);
}

static void gemma3_and_v2(void)
{
    check_ranks("gemma3-tiny", "ltx-tiny-v2.safetensors", ENGINE_CPU, DTYPE_F32, 1e-5);
}

static void gemma3_and_v1(void)
{
    check_ranks("gemma3-tiny", "ltx-tiny-v1.safetensors", ENGINE_CPU, DTYPE_F32, 1e-5);
}

static void gemma4_and_v2(void)
{
    check_ranks("gemma4-tiny", "ltx-tiny-v2-gemma4.safetensors", ENGINE_CPU, DTYPE_F32, 1e-5);
}

static void loop_nests(void)
{
    check_ranks("gemma3-tiny", NULL, ENGINE_LOOPS, DTYPE_F32, 1e-5);
}

/* Ranks that compute begin with an upload, and there each waits for the other. */
static atomic_int uploading;

static int upload_beside_another(struct device *d, void *to, const void *from, size_t bytes,
                                 struct error *e)
{
    int64_t start_ns = clock_now_ns();

    atomic_fetch_add(&uploading, 1);
    while (atomic_load(&uploading) < 2)
        if (clock_ms_since(start_ns) > 20000)
            return error_set(e, ERR_TIME, "the other rank does not compute meanwhile");
    return ops_cpu()->upload(d, to, from, bytes, e);
}

/* Two prompts, two ranks: each has one, at the same time; one prompt: both have it. */
static void a_pair_runs_side_by_side(void)
{
    struct ops ops = *ops_cpu();
    struct engine *e =
        open_ranks("gemma3-tiny", "ltx-tiny-v2.safetensors", ENGINE_CPU, DTYPE_F32, 2, ENGINE_AUTO);
    struct engine_result results[2];
    const struct engine_route *route = engine_last_route(e);

    fill_ids(e);
    ops.upload = upload_beside_another;
    e->ranks[0]->ops = e->ranks[1]->ops = &ops;
    encode(e, 0, 2, false, results);
    e->ranks[0]->ops = e->ranks[1]->ops = ops_cpu();
    CHECK(route->strategy == ENGINE_REPLICATED);
    CHECK_INT(route->ranks[0].n_prompts, 1);
    CHECK_INT(route->ranks[1].n_prompts, 1);
    CHECK(route->ranks[0].begin_ms < route->ranks[1].end_ms);
    CHECK(route->ranks[1].begin_ms < route->ranks[0].end_ms);
    for (int i = 0; i < 2; i++) {
        CHECK(route->ranks[i].end_ms <= route->ms);
        engine_result_free(&results[i]);
    }
    encode(e, 0, 1, false, results);
    CHECK(route->strategy == ENGINE_SHARDED);
    CHECK_TEXT(route->reason, "one_prompt");
    CHECK_INT(route->ranks[0].n_prompts, 1);
    CHECK_INT(route->ranks[1].n_prompts, 1);
    CHECK_INT(route->ranks[2].n_prompts, 0);
    engine_result_free(&results[0]);
    engine_close(e);
}

/* Ranks of a CPU have one copy of the weights, and what they share of a pass are views. */
static void weights_are_there_once(void)
{
    struct engine *one =
        open_ranks("gemma3-tiny", "ltx-tiny-v2.safetensors", ENGINE_CPU, DTYPE_F32, 1, ENGINE_AUTO);
    size_t bytes = engine_info(one)->weights_bytes;

    engine_close(one);
    for (size_t i = 1; i < n_counts; i++) {
        struct engine *e = open_ranks("gemma3-tiny", "ltx-tiny-v2.safetensors", ENGINE_CPU,
                                      DTYPE_F32, rank_counts[i], ENGINE_AUTO);
        CHECK_INT(engine_info(e)->weights_bytes, bytes);
        for (int r = 0; r < rank_counts[i]; r++)
            CHECK(e->ranks[r]->replica == e->ranks[0]->replica);
        engine_close(e);
    }
}

static void check_measured(const char *routes)
{
    struct engine_options options = {.model = path("gemma3-tiny"),
                                     .n_ranks = 2,
                                     .n_threads = 2,
                                     .max_batch_tokens = 64,
                                     .strategy = ENGINE_MEASURED,
                                     .routes = routes};
    const struct engine_route *route;
    struct engine_result result;
    struct engine *e;
    double seconds;

    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_OK(engine_warm(e, &seconds, &err));
    fill_ids(e);
    encode(e, 0, 1, true, &result);
    route = engine_last_route(e);
    CHECK_TEXT(route->reason, "measured");
    CHECK(route->predicted_ms > 0.0 && route->ms > 0.0);
    engine_result_free(&result);
    engine_close(e);
}

/* Times are measured once, and found again. */
static void measured_times_are_kept(void)
{
    char routes[4096];
    struct file_identity first, second;

    snprintf(routes, sizeof(routes), PE_SCRATCH_DIR "/routes.%ld", (long)getpid());
    check_measured(routes);
    CHECK_OK(file_identify(&first, routes, &err));
    check_measured(routes);
    CHECK_OK(file_identify(&second, routes, &err));
    CHECK_INT(first.modified_ns, second.modified_ns);
    unlink(routes);
}

static void too_many_ranks_are_refused(void)
{
    struct engine_options options = {.model = "random:gemma-3-tiny", .n_ranks = 9};
    struct engine *e;

    CHECK_ERR(engine_open(&e, &options, &err), ERR_INPUT, "engine: 9 ranks, at most 8");
    CHECK(e == NULL);
}

int main(int argc, char **argv)
{
    choose_counts(argc, argv);
    RUN(gemma3_and_v2);
    RUN(gemma3_and_v1);
    RUN(gemma4_and_v2);
    RUN(loop_nests);
    RUN(a_pair_runs_side_by_side);
    RUN(weights_are_there_once);
    RUN(measured_times_are_kept);
    RUN(too_many_ranks_are_refused);
    return check_result();
}
