#include "engine/engine_settings.h"

#include "base/cores.h"
#include "tests/check.h"

static struct error err;

struct settings {
    const char *other;
    struct engine_settings engine;
};
static const struct option options[] = {
    ENGINE_OPTIONS(offsetof(struct settings, engine)),
    {0},
};
static const struct program program = {"test", "", "", options};

static int parse(struct settings *s, int argc, const char *const *argv)
{
    char *words[16];
    int n_rest;
    bool help;

    *s = (struct settings){0};
    words[0] = (char[]){"test"};
    for (int i = 0; i < argc; i++)
        words[i + 1] = (char *)(uintptr_t)argv[i];
    return options_parse(&program, s, argc + 1, words, &n_rest, &help, &err);
}

static void options_reach_the_engine(void)
{
    struct engine_options o;
    struct settings s;

    CHECK_OK(parse(&s, 1, (const char *const[]){"--model=a"}));
    o = engine_settings_options(&s.engine);
    CHECK_TEXT(o.model, "a");
    CHECK(o.ltx[0] == NULL && o.ltx[1] == NULL);
    CHECK(o.backend == ENGINE_CPU && o.compute == DTYPE_F32);
    CHECK_INT(o.n_threads, cores_available());
    CHECK_TEXT(engine_settings_backend(&s.engine), "cpu");
    CHECK_TEXT(engine_settings_compute(&s.engine), "float32");
    CHECK_OK(parse(&s, 7,
                   (const char *const[]){"-m", "a", "--backend=loops", "--compute", "bfloat16",
                                         "--threads", "3"}));
    o = engine_settings_options(&s.engine);
    CHECK(o.backend == ENGINE_LOOPS && o.compute == DTYPE_BF16);
    CHECK_INT(o.n_threads, 3);
    CHECK_TEXT(engine_settings_backend(&s.engine), "loops");
    CHECK_TEXT(engine_settings_compute(&s.engine), "bfloat16");
    CHECK_OK(parse(&s, 1, (const char *const[]){"--compute=float8"}));
    CHECK(engine_settings_options(&s.engine).compute == DTYPE_F8_E4M3);
    CHECK_TEXT(engine_settings_compute(&s.engine), "float8");
    CHECK_ERR(parse(&s, 1, (const char *const[]){"--compute=fp8"}), ERR_INPUT,
              "--compute: 'fp8' is none of float32|bfloat16|float8");
    CHECK_OK(parse(&s, 2, (const char *const[]){"--ltx=b", "--ltx=c"}));
    o = engine_settings_options(&s.engine);
    CHECK_TEXT(o.ltx[0], "b");
    CHECK_TEXT(o.ltx[1], "c");
    CHECK_OK(parse(&s, 2, (const char *const[]){"--backend", "cuda"}));
    CHECK(engine_settings_options(&s.engine).backend == ENGINE_CUDA);
    CHECK_ERR(engine_settings_check(&s.engine, &err), ERR_INPUT, "no model: give --model PATH");
}

static void what_ranks_hold_is_an_option(void)
{
    struct engine_options o;
    struct settings s;

    CHECK_OK(parse(&s, 1, (const char *const[]){"--model=a"}));
    o = engine_settings_options(&s.engine);
    CHECK(o.residency == ENGINE_RESIDENCY_AUTO && o.shard_by == ENGINE_BY_TENSOR);
    CHECK_OK(parse(&s, 2, (const char *const[]){"--residency=sharded", "--shard-by=layer"}));
    o = engine_settings_options(&s.engine);
    CHECK(o.residency == ENGINE_RESIDENCY_SHARDED && o.shard_by == ENGINE_BY_LAYER);
    CHECK_TEXT(engine_residency_name(o.residency), "sharded");
    CHECK_TEXT(engine_shard_by_name(o.shard_by), "layer");
    CHECK_OK(parse(&s, 1, (const char *const[]){"--residency=replicated"}));
    o = engine_settings_options(&s.engine);
    CHECK(o.residency == ENGINE_RESIDENCY_REPLICATED);
    CHECK_TEXT(engine_residency_name(o.residency), "replicated");
    CHECK_ERR(parse(&s, 1, (const char *const[]){"--residency=half"}), ERR_INPUT,
              "--residency: 'half' is none of auto|replicated|sharded");
    CHECK_ERR(parse(&s, 1, (const char *const[]){"--shard-by=row"}), ERR_INPUT,
              "--shard-by: 'row' is none of tensor|layer");
}

static void check_id(const char *path, const char *id, const char *want)
{
    const struct engine_settings s = {.model = path, .model_id = id};
    char got[ENGINE_MODEL_ID_SIZE];

    CHECK_OK(engine_settings_check(&s, &err));
    CHECK_OK(engine_settings_model_id(got, &s, &err));
    CHECK_TEXT(got, want);
}

static void a_model_is_called_by_its_path_or_its_id(void)
{
    static const char long_id[] =
        "0123456789012345678901234567890123456789012345678901234567890123";
    const struct engine_settings root = {.model = "///"}, no_name = {.model = "/"},
                                 long_path = {.model = long_id},
                                 long_name = {.model = "a", .model_id = long_id},
                                 bad_name = {.model = "a", .model_id = "a b"};

    check_id("/models/gemma-3-270m-q4_k_m.gguf", NULL, "gemma-3-270m-q4_k_m");
    check_id("gemma.gguf", NULL, "gemma");
    check_id("models/gemma//", NULL, "gemma");
    check_id("a.safetensors", NULL, "a.safetensors");
    check_id("/x/\xc3\xa9t\xc3\xa9 (1)", NULL, "--t----1-"); /* bytes, not characters */
    check_id(".gguf", NULL, ".gguf");
    check_id(long_id + 1, NULL, long_id + 1);
    check_id("whatever", "mine_1.0-x", "mine_1.0-x");
    check_id("/", "mine", "mine");
    CHECK_ERR(engine_settings_check(&root, &err), ERR_INPUT, "a name with --model-id");
    CHECK_ERR(engine_settings_check(&no_name, &err), ERR_INPUT, "a name with --model-id");
    CHECK_ERR(engine_settings_check(&long_path, &err), ERR_INPUT, "a name with --model-id");
    CHECK_ERR(engine_settings_check(&long_name, &err), ERR_INPUT, "longer than 63 characters");
    CHECK_ERR(engine_settings_check(&bad_name, &err), ERR_INPUT, "'a b' is not of A-Z");
}

int main(void)
{
    RUN(options_reach_the_engine);
    RUN(what_ranks_hold_is_an_option);
    RUN(a_model_is_called_by_its_path_or_its_id);
    return check_result();
}
