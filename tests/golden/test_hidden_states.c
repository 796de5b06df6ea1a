/* test_hidden_states.c - whole forward passes against the reference implementation's.
 *
 * gemma3-tiny, gemma4-tiny and the variants that make_models.py writes of them (other file formats,
 * other spellings of the config) must give expected-<model>.safetensors. Bounds are those of the
 * numerics: float32 within 1e-4 of the reference (1e-5 is usual), 1e-6 whatever else is in the
 * batch; bf16 loses no more than 1.25 times what the reference loses in bf16. */
#include <jansson.h>
#include <math.h>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/files/safetensors.h"
#include "tests/check.h"
#include "tokenizer/tokenizer.h"

enum { N = 12, MAX_STATES = 8, LONG_A = 8, LONG_B = 9 };

static struct error err;
static char *texts[N];
/* the model under test, and what the reference says of it (use_reference) */
static const char *tiny;
static struct safetensors *expected;
static double bf16_error[N][MAX_STATES]; /* what the reference loses; NAN where not given */

static json_t *load_json(const char *name)
{
    char path[4096];
    json_error_t why;
    json_t *j;

    snprintf(path, sizeof(path), "%s/golden/%s", PE_TESTS_DIR, name);
    if ((j = json_load_file(path, 0, &why)) == NULL) {
        printf("%s: %s\n", path, why.text);
        exit(EXIT_FAILURE);
    }
    return j;
}

static const struct engine_request all_float = {.dtype = DTYPE_F32};

struct model {
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct token_list tokens[N];
    struct engine_prompt prompts[N];
};

static struct model model_open(const char *path, enum engine_backend backend, enum dtype compute,
                               int n_threads, int max_batch_tokens)
{
    struct engine_options options = {.model = path,
                                     .backend = backend,
                                     .compute = compute,
                                     .n_threads = n_threads,
                                     .max_batch_tokens = max_batch_tokens};
    struct model m = {0};

    CHECK_OK(engine_open(&m.engine, &options, &err));
    CHECK_OK(engine_load_tokenizer(&m.tokenizer, path, &err));
    for (int i = 0; i < N; i++) {
        CHECK_OK(tokenizer_encode(m.tokenizer, texts[i], strlen(texts[i]), ENGINE_MAX_TOKENS,
                                  &m.tokens[i], &err));
        m.prompts[i] = (struct engine_prompt){m.tokens[i].ids, (int)m.tokens[i].n, &all_float};
    }
    return m;
}

static void model_close(struct model *m)
{
    for (int i = 0; i < N; i++)
        token_list_free(&m->tokens[i]);
    tokenizer_free(m->tokenizer);
    engine_close(m->engine);
}

static double relative_error(const float *got, const float *want, size_t n)
{
    double difference = 0.0, size = 0.0;

    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / size);
}

static int n_states(const struct engine_result *r)
{
    return (int)r->tensors[0].shape[0];
}

/* [states, tokens, width] */
static const float *states_of(const struct engine_result *r)
{
    CHECK_TEXT(r->tensors[0].name, "hidden_states");
    CHECK(r->tensors[0].dtype == DTYPE_F32);
    return r->tensors[0].data;
}

/* The expected rows of one state beside ours: all tokens, or 0, 1, n/2, n-1 of the long prompts. */
static double state_error(const struct engine_result *r, int prompt, int state)
{
    bool is_long = prompt == LONG_A || prompt == LONG_B;
    const struct tensor *want;
    char name[64];
    float *rows;
    int n = r->n_tokens, at[4] = {0, 1, n / 2, n - 1};
    size_t D = r->tensors[0].shape[2], n_rows = is_long ? 4 : (size_t)n;
    double result;

    snprintf(name, sizeof(name), "%d.hidden_states%s", prompt, is_long ? "_rows" : "");
    want = safetensors_find(expected, name);
    CHECK(want != NULL && want->type == DTYPE_F32);
    CHECK_INT(want->shape[0], n_states(r));
    CHECK_INT(want->shape[1], n_rows);
    CHECK_INT(want->shape[2], D);
    rows = malloc(n_rows * D * sizeof(float));
    CHECK(rows != NULL);
    for (size_t i = 0; i < n_rows; i++)
        memcpy(rows + i * D, states_of(r) + ((size_t)state * n + (is_long ? (size_t)at[i] : i)) * D,
               D * sizeof(float));
    result =
        relative_error(rows, (const float *)want->data + (size_t)state * n_rows * D, n_rows * D);
    free(rows);
    return result;
}

static double check_result_against(const struct engine_result *r, int prompt, double bound)
{
    double worst = 0.0;

    for (int s = 0; s < n_states(r); s++) {
        double e = state_error(r, prompt, s);
        if (!(e <= bound))
            CHECK_FAIL("prompt %d, state %d: relative error %.2e, bound %.0e", prompt, s, e, bound);
        worst = fmax(worst, e);
    }
    return worst;
}

/* Encodes `n` prompts (in the order given), each against the reference; keeps the results if
 * `kept` is there. */
static void encode_and_check(struct model *m, const int *order, int n, double bound,
                             struct engine_result *kept)
{
    struct engine_prompt prompts[N] = {{0}};
    struct engine_result results[N];
    double worst = 0.0;

    for (int i = 0; i < n; i++)
        prompts[i] = m->prompts[order[i]];
    CHECK_OK(engine_encode(m->engine, prompts, n, results, &err));
    for (int i = 0; i < n; i++) {
        worst = fmax(worst, check_result_against(&results[i], order[i], bound));
        if (kept != NULL)
            kept[order[i]] = results[i];
        else
            engine_result_free(&results[i]);
    }
    if (n > 1)
        printf("     %d prompts: worst relative error %.1e\n", n, worst);
}

/* The two prompts of 1024 tokens come last: builds whose matmul is the loop nest leave them out. */
static const int in_order[N] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, LONG_A, LONG_B};
static const int shuffled[N] = {4, 11, 0, 7, 2, 10, 5, 1, 3, 6, LONG_B, LONG_A};
static const int n_run = PE_HAVE_ONEDNN ? N : N - 2;

static void tiny_path(char *path, size_t cap)
{
    snprintf(path, cap, "%s/golden/%s", PE_TESTS_DIR, tiny);
}

static void alone_batched_and_in_any_order(void)
{
    struct engine_result alone[N], batched[N], reordered[N];
    struct model m;
    char path[4096];

    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_CPU, DTYPE_F32, 2, 4096);
    for (int j = 0; j < n_run; j++)
        encode_and_check(&m, &in_order[j], 1, 1e-4, alone);
    encode_and_check(&m, in_order, n_run, 1e-4, batched);
    encode_and_check(&m, shuffled, n_run, 1e-4, reordered);
    for (int j = 0; j < n_run; j++) {
        int i = in_order[j];
        size_t n = alone[i].tensors[0].shape[1] * alone[i].tensors[0].shape[2];
        for (int s = 0; s < n_states(&alone[i]);
             s++) { /* a large state must not hide a small one */
            const float *one = states_of(&alone[i]) + s * n;
            double a = relative_error(states_of(&batched[i]) + s * n, one, n);
            double b = relative_error(states_of(&reordered[i]) + s * n, one, n);
            if (!(a <= 1e-6 && b <= 1e-6))
                CHECK_FAIL("prompt %d, state %d: batched %.1e, reordered %.1e off the prompt alone",
                           i, s, a, b);
        }
        engine_result_free(&alone[i]);
        engine_result_free(&batched[i]);
        engine_result_free(&reordered[i]);
    }
    model_close(&m);
}

/* A batch larger than a pass is taken in several. */
static void small_passes(void)
{
    struct model m;
    char path[4096];

    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_CPU, DTYPE_F32, 1, 0);
    encode_and_check(&m, shuffled, n_run, 1e-4, NULL);
    model_close(&m);
}

static void loop_nests(void)
{
    static const int some[] = {2, 7, 0, 4};
    struct model m;
    char path[4096];

    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_LOOPS, DTYPE_F32, 2, 0);
    encode_and_check(&m, some, 4, 1e-4, NULL);
    model_close(&m);
}

/* Whether the backend can be opened here; else says why not. */
static bool is_here(enum engine_backend backend, enum dtype compute)
{
    struct engine_options options = {.backend = backend, .compute = compute, .n_threads = 1};
    struct engine *probe;
    char path[4096];

    tiny_path(path, sizeof(path));
    options.model = path;
    err = (struct error){0};
    if (engine_open(&probe, &options, &err) == ERR_INPUT) {
        printf("     SKIPPED: %s\n", err.text);
        return false;
    }
    engine_close(probe);
    return true;
}

static void check_bfloat16(enum engine_backend backend)
{
    struct engine_result results[N];
    struct model m;
    char path[4096];
    double worst = 0.0;
    int n_checked = 0;

    tiny_path(path, sizeof(path));
    m = model_open(path, backend, DTYPE_BF16, 2, 4096);
    for (int j = 0; j < n_run; j++) {
        int i = in_order[j];
        CHECK_OK(engine_encode(m.engine, &m.prompts[i], 1, &results[i], &err));
        for (int s = 0; s < n_states(&results[i]); s++) {
            double e = state_error(&results[i], i, s), limit = bf16_error[i][s];
            if (isnan(limit) || limit == 0.0)
                continue;
            if (!(e <= 1.25 * limit))
                CHECK_FAIL("prompt %d, state %d: %.2e, the reference loses %.2e", i, s, e, limit);
            worst = fmax(worst, e / limit);
            n_checked++;
        }
        engine_result_free(&results[i]);
    }
    CHECK(n_checked > N);
    printf("     %d states: at most %.2f of what the reference loses\n", n_checked, worst);
    model_close(&m);
}

static void cpu_bfloat16(void)
{
    if (is_here(ENGINE_CPU, DTYPE_BF16))
        check_bfloat16(ENGINE_CPU);
}

static void cuda(void)
{
    struct model m;
    char path[4096];

    if (!is_here(ENGINE_CUDA, DTYPE_F32))
        return;
    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_CUDA, DTYPE_F32, 1, 4096);
    for (int j = 0; j < n_run; j++)
        encode_and_check(&m, &in_order[j], 1, 1e-4, NULL);
    encode_and_check(&m, shuffled, n_run, 1e-4, NULL);
    model_close(&m);
    check_bfloat16(ENGINE_CUDA);
}

/* One call, three prompts that want different things: each gets what it would alone. */
static void chosen_layers_and_types(void)
{
    static const int layers[] = {7, 0, 3};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct engine_request requests[3];
    struct engine_prompt prompts[4];
    struct engine_result all, some[4];
    struct model m;
    char path[4096];

    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_CPU, DTYPE_F32, 2, 0);
    CHECK_OK(engine_encode(m.engine, &m.prompts[2], 1, &all, &err));
    for (int t = 0; t < 3; t++) {
        requests[t] =
            (struct engine_request){.layers = layers, .n_layers = t + 1, .dtype = types[t]};
        prompts[t] = (struct engine_prompt){m.prompts[2].ids, m.prompts[2].n, &requests[t]};
    }
    prompts[3] = m.prompts[4];
    CHECK_OK(engine_encode(m.engine, prompts, 4, some, &err));
    CHECK_INT(n_states(&some[3]), 8);
    engine_result_free(&some[3]);
    for (int t = 0; t < 3; t++) {
        CHECK_INT(n_states(&some[t]), t + 1);
        size_t state = all.tensors[0].shape[1] * all.tensors[0].shape[2],
               size = dtype_info(types[t])->bytes;
        CHECK_INT(some[t].tensors[0].bytes, (size_t)(t + 1) * state * size);
        float *got = malloc(state * sizeof(float)), *want = malloc(state * sizeof(float));
        void *stored = malloc(state * size);
        CHECK(got != NULL && want != NULL && stored != NULL);
        for (int i = 0; i <= t; i++) {
            dtype_encode(stored, states_of(&all) + (size_t)layers[i] * state, types[t], state);
            dtype_decode(want, stored, types[t], state);
            dtype_decode(got, (const char *)some[t].tensors[0].data + (size_t)i * state * size,
                         types[t], state);
            double e = relative_error(got, want, state);
            if (!(e <= (t == 0 ? 1e-6 : 1e-4))) /* the other types may round another way */
                CHECK_FAIL("type %d, layer %d: %.1e off", t, layers[i], e);
        }
        free(got);
        free(want);
        free(stored);
        engine_result_free(&some[t]);
    }
    engine_result_free(&all);
    model_close(&m);
}

static void wrong_requests_are_named(void)
{
    static const int eighth[] = {8}, thirds[] = {3, 3};
    static const struct engine_request beyond = {.layers = eighth, .n_layers = 1};
    static const struct engine_request twice = {.layers = thirds, .n_layers = 2};
    static const struct engine_request quantised = {.dtype = DTYPE_Q4_K};
    static const int32_t ids[] = {2, 1408};
    struct engine_result some;
    struct model m;
    char path[4096];

    tiny_path(path, sizeof(path));
    m = model_open(path, ENGINE_CPU, DTYPE_F32, 1, 0);
    CHECK_ERR(engine_encode(m.engine, &(struct engine_prompt){ids, 1, &beyond}, 1, &some, &err),
              ERR_INPUT, "prompt 0: layer 8 is out of range: this model has 0 to 7");
    CHECK_ERR(engine_encode(m.engine, &(struct engine_prompt){ids, 1, &twice}, 1, &some, &err),
              ERR_INPUT, "layer 3 is wanted twice");
    CHECK_ERR(engine_encode(m.engine, &(struct engine_prompt){ids, 1, &quantised}, 1, &some, &err),
              ERR_INPUT, "results can be F32, F16 or BF16, not Q4_K");
    CHECK_ERR(engine_encode(m.engine, &(struct engine_prompt){ids, 2, &all_float}, 1, &some, &err),
              ERR_INPUT, "prompt 0: token 1 is 1408");
    CHECK_ERR(engine_encode(m.engine, &(struct engine_prompt){ids, 0, &all_float}, 1, &some, &err),
              ERR_INPUT, "prompt 0: 0 tokens, expected 1 to 1024");
    model_close(&m);
}

static void digests_are_of_the_weights(void)
{
    char path[4096], gemma3[ENGINE_DIGEST_SIZE], other[ENGINE_DIGEST_SIZE];
    struct engine_options options = {.model = path, .n_threads = 3};
    static const char *const same = "sharded", *const different = "f32";
    struct engine *e;

    tiny_path(path, sizeof(path));
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_OK(engine_weights_digest(e, gemma3, &err));
    CHECK_INT(strspn(gemma3, "0123456789abcdef"), 64);
    engine_close(e);
    snprintf(path, sizeof(path), "%s/models/%s", PE_SCRATCH_DIR, same);
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_OK(engine_weights_digest(e, other, &err));
    CHECK_TEXT(other, gemma3);
    engine_close(e);
    snprintf(path, sizeof(path), "%s/models/%s", PE_SCRATCH_DIR, different);
    options.n_threads = 1;
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_OK(engine_weights_digest(e, other, &err));
    CHECK(strcmp(other, gemma3) != 0);
    engine_close(e);
}

/* Variants that make_models.py wrote, each to the reference's numbers. */
static void check_variants(const char *const *variants, size_t n_variants)
{
    for (size_t v = 0; v < n_variants; v++) {
        struct model m;
        char path[4096];
        snprintf(path, sizeof(path), "%s/models/%s", PE_SCRATCH_DIR, variants[v]);
        printf("     %s\n", variants[v]);
        m = model_open(path, ENGINE_CPU, DTYPE_F32, 2, 4096);
        encode_and_check(&m, in_order, n_run, 1e-4, NULL);
        model_close(&m);
    }
}

/* Every variant that says the same model in another way. */
static void other_files(void)
{
    static const char *const variants[] = {"sharded", "text-only", "new-rope", "f32"};

    check_variants(variants, sizeof(variants) / sizeof(variants[0]));
}

static void other_files_of_gemma4(void)
{
    static const char *const variants[] = {"sharded4", "text-only4", "global4"};

    check_variants(variants, sizeof(variants) / sizeof(variants[0]));
}

/* Two models' results for every prompt, all states; the ids are those of `a`. */
static void check_same(struct model *a, struct model *b, double bound)
{
    struct engine_result x, y;

    for (int j = 0; j < n_run; j++) {
        int i = in_order[j];
        double e;
        CHECK_OK(engine_encode(a->engine, &a->prompts[i], 1, &x, &err));
        CHECK_OK(engine_encode(b->engine, &a->prompts[i], 1, &y, &err));
        size_t bytes = x.tensors[0].bytes;
        CHECK_INT(y.tensors[0].bytes, bytes);
        if (bound == 0.0 && memcmp(states_of(&x), states_of(&y), bytes) != 0)
            CHECK_FAIL("prompt %d: not the same bits", i);
        e = relative_error(states_of(&x), states_of(&y), bytes / sizeof(float));
        if (!(e <= bound))
            CHECK_FAIL("prompt %d: %.1e apart", i, e);
        engine_result_free(&x);
        engine_result_free(&y);
    }
}

/* One file for everything: the directory's ids and its numbers, to the bit. */
static void check_packed(const char *const *files, size_t n_files)
{
    struct model directory, packed;
    char path[4096];

    tiny_path(path, sizeof(path));
    directory = model_open(path, ENGINE_CPU, DTYPE_F32, 2, 0);
    for (size_t f = 0; f < n_files; f++) {
        printf("     %s\n", files[f]);
        packed = model_open(files[f], ENGINE_CPU, DTYPE_F32, 2, 0);
        for (int i = 0; i < N; i++) {
            CHECK_INT(packed.tokens[i].n, directory.tokens[i].n);
            CHECK(memcmp(packed.tokens[i].ids, directory.tokens[i].ids,
                         packed.tokens[i].n * sizeof(int32_t)) == 0);
        }
        check_same(&packed, &directory, 0.0);
        model_close(&packed);
    }
    model_close(&directory);
}

static void packed_files(void)
{
    static const char *const files[] = {PE_SCRATCH_DIR "/models/packed3.safetensors"};

    check_packed(files, sizeof(files) / sizeof(files[0]));
}

static void packed_files_of_gemma4(void)
{
    static const char *const files[] = {PE_TESTS_DIR
                                        "/golden/gemma4-tiny-te-single-file.safetensors",
                                        PE_SCRATCH_DIR "/models/packed4-flat.safetensors",
                                        PE_SCRATCH_DIR "/models/packed4-hf.safetensors"};

    check_packed(files, sizeof(files) / sizeof(files[0]));
}

static struct model variant_open(const char *name, int max_batch_tokens)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/models/%s", PE_SCRATCH_DIR, name);
    return model_open(path, ENGINE_CPU, DTYPE_F32, 2, max_batch_tokens);
}

/* GGUF: ids come from the directory's tokenizer (a vocabulary of scores cannot mirror every rank of
 * this model's invented merges). One file states the attention scale, the other leaves it to the
 * head width, as real converters do, and is the model of qscale64. */
static void gguf_files(void)
{
    struct model directory = variant_open("qscale64", 0);
    struct model gguf = variant_open("tiny-keylength.gguf", 0);

    check_same(&directory, &gguf, 1e-6); /* 1 + w is rounded once more in the file */
    model_close(&gguf);
    gguf = variant_open("tiny.gguf", 4096);
    memcpy(gguf.prompts, directory.prompts, sizeof(gguf.prompts));
    encode_and_check(&gguf, in_order, n_run, 1e-4, NULL);
    model_close(&gguf);
    model_close(&directory);
}

/* Types mixed as quantised files mix them, fewer rows than tokens; and the same cut in three. */
static void mixed_gguf_files(void)
{
    struct model values = variant_open("mixed-values", 0), gguf = variant_open("mixed.gguf", 0);
    struct model split = variant_open("mixed-00001-of-00003.gguf", 0);
    char whole[ENGINE_DIGEST_SIZE], parts[ENGINE_DIGEST_SIZE];

    CHECK_TEXT(engine_info(split.engine)->format, "gguf v3, 3 files");
    check_same(&values, &gguf, 1e-6); /* as above */
    check_same(&gguf, &split, 0.0);
    CHECK_OK(engine_weights_digest(gguf.engine, whole, &err));
    CHECK_OK(engine_weights_digest(split.engine, parts, &err));
    CHECK_TEXT(parts, whole);
    model_close(&split);
    model_close(&gguf);
    model_close(&values);
}

/* Takes the reference's numbers of a model of golden/. */
static void use_reference(const char *model)
{
    char name[64], path[4096];
    json_t *golden, *losses;

    tiny = model;
    snprintf(name, sizeof(name), "expected-%s.json", model);
    golden = load_json(name);
    losses = json_object_get(golden, "reference_bf16_relative_error");
    for (int i = 0; i < N; i++) {
        bool is_long = i == LONG_A || i == LONG_B;
        char key[40];
        const json_t *states;
        snprintf(key, sizeof(key), "%d.hidden_states%s", i, is_long ? "_rows" : "");
        states = json_object_get(losses, key);
        for (size_t s = 0; s < MAX_STATES; s++) {
            json_t *value = json_array_get(states, s);
            bf16_error[i][s] = value == NULL ? (double)NAN : json_number_value(value);
        }
    }
    json_decref(golden);
    safetensors_close(expected);
    snprintf(path, sizeof(path), "%s/golden/expected-%s.safetensors", PE_TESTS_DIR, model);
    if (safetensors_open(&expected, path, &err) != OK) {
        printf("%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    printf("%s\n", model);
}

int main(void)
{
    json_t *prompts = load_json("prompts.json");

    setenv("XDG_CACHE_HOME", PE_SCRATCH_DIR "/cache", 1); /* where digests are kept */
    for (int i = 0; i < N; i++)
        texts[i] = strdup(json_string_value(json_array_get(prompts, (size_t)i)));
    json_decref(prompts);
    if (n_run < N)
        printf("SKIPPED the two prompts of 1024 tokens: matmul is the loop nest in this build\n");
    use_reference("gemma3-tiny");
    RUN(alone_batched_and_in_any_order);
    RUN(small_passes);
    RUN(loop_nests);
    RUN(cpu_bfloat16);
    RUN(cuda);
    RUN(chosen_layers_and_types);
    RUN(wrong_requests_are_named);
    RUN(digests_are_of_the_weights);
    RUN(other_files);
    RUN(packed_files);
    RUN(gguf_files);
    RUN(mixed_gguf_files);
    use_reference("gemma4-tiny");
    RUN(alone_batched_and_in_any_order);
    RUN(small_passes);
    RUN(loop_nests);
    RUN(cpu_bfloat16);
    RUN(cuda);
    RUN(other_files_of_gemma4);
    RUN(packed_files_of_gemma4);
    safetensors_close(expected);
    for (int i = 0; i < N; i++)
        free(texts[i]);
    return check_result();
}
