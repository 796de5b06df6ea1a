/* test_embeddings.c - features and embeddings against the reference implementation's.
 *
 * gemma3-tiny with ltx-tiny-v1 and -v2 must give expected-gemma3-tiny.safetensors, gemma4-tiny with
 * ltx-tiny-v2-gemma4 must give expected-gemma4-tiny.safetensors. Bounds are those
 * of the numerics: float32 within 1e-4 of the reference (1e-5 is usual), 1e-6 whatever else is in
 * the batch; bf16 loses no more than 1.25 times what the reference loses in bf16. */
#include <jansson.h>
#include <math.h>

#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/files/safetensors.h"
#include "engine/ltx/ltx.h"
#include "tests/check.h"
#include "tests/safetensors_edit.h"

enum { N = 12, LONG_A = 8, LONG_B = 9, MODALITIES = 2 };

static const double BOUND = 1e-4;
static const char *const modality_names[MODALITIES] = {"video", "audio"};

static const struct portion whole_model = {.n_ranks = 1};
static struct error err;
static struct safetensors *expected;
static json_t *golden;
static json_t *losses; /* what the reference loses in bf16, by name; of golden */
static int32_t *ids[N];
static int n_ids[N];

/* Tests run with one pair after the other. */
static const char *gemma;    /* "gemma3-tiny" */
static const char *ltx_file; /* "ltx-tiny-v1" */
static const char *ltx;      /* "v1" or "v2": which extractor it has */

static const struct engine_request features = {.level = ENGINE_FEATURES};
static const struct engine_request embeddings = {.level = ENGINE_EMBEDDINGS};

static void golden_path(char *path, size_t cap, const char *name)
{
    snprintf(path, cap, "%s/golden/%s", PE_TESTS_DIR, name);
}

static void checkpoint_path(char *path, size_t cap)
{
    char name[64];

    snprintf(name, sizeof(name), "%s.safetensors", ltx_file);
    golden_path(path, cap, name);
}

/* Where a changed checkpoint is written: by process, as this program may run several times at once;
 * remove_scratch() removes all of them. */
static void scratch_path(char *path, size_t cap, const char *name)
{
    mkdir(PE_SCRATCH_DIR "/embeddings", 0755); /* may be there already */
    snprintf(path, cap, PE_SCRATCH_DIR "/embeddings/%s.%ld.safetensors", name, (long)getpid());
}

static const char *const scratch_names[] = {"one",     "other",      "video-only", "zero-bias",
                                            "no-bias", "gemma4",     "mutated",    "digest",
                                            "packed",  "connectors", "states"};

static void remove_scratch(void)
{
    char path[4096];

    for (size_t i = 0; i < sizeof(scratch_names) / sizeof(scratch_names[0]); i++) {
        scratch_path(path, sizeof(path), scratch_names[i]);
        unlink(path);
    }
}

static int try_model(struct engine **e, const char *model, const char *first, const char *second,
                     enum engine_backend backend, enum dtype compute, int max_batch_tokens)
{
    struct engine_options options = {.model = model,
                                     .ltx = {first, second},
                                     .backend = backend,
                                     .compute = compute,
                                     .n_threads = 2,
                                     .max_batch_tokens = max_batch_tokens};

    return engine_open(e, &options, &err);
}

static int try_engine(struct engine **e, const char *first, const char *second,
                      enum engine_backend backend, enum dtype compute, int max_batch_tokens)
{
    char model[4096];

    golden_path(model, sizeof(model), gemma);
    return try_model(e, model, first, second, backend, compute, max_batch_tokens);
}

static struct engine *open_engine(enum engine_backend backend, enum dtype compute,
                                  int max_batch_tokens)
{
    char checkpoint[4096];
    struct engine *e;

    checkpoint_path(checkpoint, sizeof(checkpoint));
    CHECK_OK(try_engine(&e, checkpoint, NULL, backend, compute, max_batch_tokens));
    return e;
}

static struct engine_prompt prompt_of(int i, const struct engine_request *request)
{
    return (struct engine_prompt){ids[i], n_ids[i], request};
}

static const struct tensor *expect(int prompt, const char *what)
{
    const struct tensor *t;
    char name[64];

    snprintf(name, sizeof(name), "%d.%s.%s", prompt, ltx, what);
    t = safetensors_find(expected, name);
    if (t == NULL)
        CHECK_FAIL("%s: not in the expected values", name);
    return t;
}

static const struct engine_tensor *tensor_of(const struct engine_result *r, const char *name)
{
    for (int i = 0; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].name, name) == 0)
            return &r->tensors[i];
    CHECK_FAIL("%s: not in the result", name);
    return NULL;
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

static double tensor_distance(const struct engine_tensor *a, const struct engine_tensor *b)
{
    CHECK_INT(a->bytes, b->bytes);
    CHECK(a->dtype == DTYPE_F32 && b->dtype == DTYPE_F32);
    return relative_error(a->data, b->data, a->bytes / sizeof(float));
}

/* The stored rows of the 1024. */
static double rows_error(const struct engine_result *r, int prompt, int modality)
{
    const struct engine_tensor *got = tensor_of(r, modality_names[modality]);
    const struct tensor *want = expect(prompt, modality_names[modality]);
    const struct tensor *at = expect(prompt, "rows");
    size_t W = got->shape[1], n = want->shape[0];
    float *rows = malloc(n * W * sizeof(float));
    double result;

    CHECK(rows != NULL && got->dtype == DTYPE_F32);
    CHECK_INT(got->shape[0], ENGINE_ROWS);
    CHECK_INT(want->shape[1], W);
    for (size_t i = 0; i < n; i++) {
        int64_t row;
        memcpy(&row, (const char *)at->data + i * sizeof(row), sizeof(row));
        memcpy(rows + i * W, (const float *)got->data + (size_t)row * W, W * sizeof(float));
    }
    result = relative_error(rows, want->data, n * W);
    free(rows);
    return result;
}

/* All 1024 rows, each times its weight: one wrong row anywhere shows. */
static double mix_error(const struct engine_result *r, int prompt, int modality)
{
    const struct engine_tensor *got = tensor_of(r, modality_names[modality]);
    const struct tensor *weights = safetensors_find(expected, "row_mix_weights");
    const struct tensor *want;
    char name[32];
    size_t W = got->shape[1];
    float *mix = malloc(W * sizeof(float));
    double result;

    snprintf(name, sizeof(name), "%s_row_mix", modality_names[modality]);
    want = expect(prompt, name);
    CHECK(mix != NULL && weights != NULL);
    CHECK_INT(want->shape[0], W);
    for (size_t d = 0; d < W; d++) {
        double sum = 0.0;
        for (size_t row = 0; row < ENGINE_ROWS; row++)
            sum += (double)((const float *)weights->data)[row] *
                   (double)((const float *)got->data)[row * W + d];
        mix[d] = (float)sum;
    }
    result = relative_error(mix, want->data, W);
    free(mix);
    return result;
}

static double features_error(const struct engine_result *r, int prompt, int modality)
{
    const struct engine_tensor *got;
    const struct tensor *want;
    char name[32];

    snprintf(name, sizeof(name), "%s_features", modality_names[modality]);
    got = tensor_of(r, name);
    want = expect(prompt, name);
    CHECK_INT(got->shape[0], r->n_tokens);
    CHECK_INT(got->shape[1], want->shape[1]);
    CHECK_INT(got->bytes, want->bytes);
    return relative_error(got->data, want->data, got->bytes / sizeof(float));
}

static double checked(double error, double bound, int prompt, const char *what)
{
    if (!(error <= bound))
        CHECK_FAIL("prompt %d: %s: relative error %.2e, bound %.2e", prompt, what, error, bound);
    return error;
}

static double check_embeddings(const struct engine_result *r, int prompt)
{
    const struct engine_tensor *mask = tensor_of(r, "mask");
    double worst = 0.0;

    CHECK_INT(r->n_tensors, 3);
    CHECK(mask->dtype == DTYPE_I64 && mask->n_dims == 1 && mask->shape[0] == ENGINE_ROWS);
    for (int i = 0; i < ENGINE_ROWS; i++)
        CHECK_INT(((const int64_t *)mask->data)[i], 1);
    for (int m = 0; m < MODALITIES; m++) {
        worst = fmax(worst, checked(rows_error(r, prompt, m), BOUND, prompt, "rows"));
        worst = fmax(worst, checked(mix_error(r, prompt, m), BOUND, prompt, "row mix"));
    }
    return worst;
}

static double check_features(const struct engine_result *r, int prompt)
{
    double worst = 0.0;

    CHECK_INT(r->n_tensors, 2);
    if (prompt == LONG_A || prompt == LONG_B) /* not among the expected values */
        return worst;
    for (int m = 0; m < MODALITIES; m++)
        worst = fmax(worst, checked(features_error(r, prompt, m), BOUND, prompt, "features"));
    return worst;
}

/* Both of the prompts in `order` in one call, each against the reference. */
static void encode_and_check(struct engine *e, const int *order, int n)
{
    struct engine_prompt prompts[2 * N] = {0};
    struct engine_result results[2 * N];
    double worst = 0.0;

    for (int i = 0; i < n; i++) {
        prompts[2 * i] = prompt_of(order[i], &embeddings);
        prompts[2 * i + 1] = prompt_of(order[i], &features);
    }
    CHECK_OK(engine_encode(e, prompts, 2 * n, results, &err));
    for (int i = 0; i < n; i++) {
        worst = fmax(worst, check_embeddings(&results[2 * i], order[i]));
        worst = fmax(worst, check_features(&results[2 * i + 1], order[i]));
        engine_result_free(&results[2 * i]);
        engine_result_free(&results[2 * i + 1]);
    }
    if (n > 1)
        printf("     %s, %d prompts: worst relative error %.1e\n", ltx_file, n, worst);
}

static const int in_order[N] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, LONG_A, LONG_B};
static const int shuffled[N] = {4, 11, 0, 7, 2, 10, 5, 1, 3, 6, LONG_B, LONG_A};
/* every prompt costs 1024 rows: builds without a fast matmul, as the thread sanitizer's, take four
 */
static const int n_run = PE_HAVE_ONEDNN ? N : 4;

static void as_the_reference(void)
{
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 4096);

    for (int j = 0; j < n_run; j++)
        encode_and_check(e, &in_order[j], 1);
    encode_and_check(e, in_order, n_run);
    encode_and_check(e, shuffled, n_run);
    engine_close(e);
}

/* ---- batches ---- */

/* Every tensor of `got` is that of `want`, to 1e-6. */
static void check_same(const struct engine_result *got, const struct engine_result *want,
                       const char *what)
{
    CHECK_INT(got->n_tensors, want->n_tensors);
    for (int i = 0; i < want->n_tensors; i++) {
        double e;
        CHECK_TEXT(got->tensors[i].name, want->tensors[i].name);
        if (want->tensors[i].dtype == DTYPE_I64)
            continue;
        e = tensor_distance(&got->tensors[i], &want->tensors[i]);
        if (!(e <= 1e-6))
            CHECK_FAIL("%s: %s: %.1e off the prompt alone", what, want->tensors[i].name, e);
    }
}

static void alone_as_in_any_batch(void)
{
    static const struct engine_request *const levels[] = {&embeddings, &features};

    for (int level = 0; level < 2; level++) {
        struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 4096);
        struct engine_prompt prompts[N];
        struct engine_result alone[N], batch[N];
        for (int j = 0; j < n_run; j++) {
            prompts[j] = prompt_of(shuffled[j], levels[level]);
            CHECK_OK(engine_encode(e, &prompts[j], 1, &alone[j], &err));
        }
        CHECK_OK(engine_encode(e, prompts, n_run, batch, &err));
        for (int j = 0; j < n_run; j++) {
            check_same(&batch[j], &alone[j], "shuffled");
            engine_result_free(&batch[j]);
            engine_result_free(&alone[j]);
        }
        engine_close(e);
    }
}

/* Prompts of one length, two of them the same, in one pass; more than go through a connector
 * together. */
static void batches_of_one_length(void)
{
    static const int from[] = {2, 3, 4, 2, 10};
    enum { LENGTH = 9, B = 5 };
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 4096);
    struct engine_prompt prompts[B];
    struct engine_result alone[B], batch[B];

    for (int b = 0; b < B; b++) {
        prompts[b] = (struct engine_prompt){ids[from[b]], LENGTH, &embeddings};
        CHECK_OK(engine_encode(e, &prompts[b], 1, &alone[b], &err));
    }
    CHECK_OK(engine_encode(e, prompts, B, batch, &err));
    check_embeddings(&batch[4], 10); /* the one that has nine tokens anyway */
    for (int b = 0; b < B; b++)
        check_same(&batch[b], &alone[b], "one length");
    CHECK(tensor_distance(&batch[0].tensors[0], &batch[3].tensors[0]) == 0.0);
    CHECK(tensor_distance(&batch[0].tensors[0], &batch[1].tensors[0]) > 1e-3);
    for (int b = 0; b < B; b++) {
        engine_result_free(&alone[b]);
        engine_result_free(&batch[b]);
    }
    engine_close(e);
}

/* A batch larger than a pass, whose passes have room for one prompt in the connectors. */
static void small_passes(void)
{
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 0);

    encode_and_check(e, shuffled, n_run);
    engine_close(e);
}

/* One call with all levels, types and choices of modalities: each gets what it asked for, and what
 * it would get alone. */
static void levels_mix_in_a_batch(void)
{
    static const int layers[] = {3};
    static const struct engine_request requests[] = {
        {.level = ENGINE_EMBEDDINGS, .modalities = ENGINE_AUDIO},
        {.level = ENGINE_HIDDEN_STATES, .layers = layers, .n_layers = 1},
        {.level = ENGINE_FEATURES, .modalities = ENGINE_VIDEO},
        {.level = ENGINE_HIDDEN_STATES},
        {.level = ENGINE_EMBEDDINGS, .modalities = ENGINE_VIDEO | ENGINE_AUDIO},
        {.level = ENGINE_FEATURES, .modalities = ENGINE_AUDIO, .dtype = DTYPE_BF16},
        {.level = ENGINE_EMBEDDINGS, .modalities = ENGINE_VIDEO, .dtype = DTYPE_F16},
    };
    static const char *const names[][4] = {
        {"audio", "mask"},          {"hidden_states"},  {"video_features"}, {"hidden_states"},
        {"video", "audio", "mask"}, {"audio_features"}, {"video", "mask"},
    };
    enum { B = sizeof(requests) / sizeof(requests[0]) };
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 4096);
    struct engine_prompt prompts[B];
    struct engine_result results[B], alone, whole;

    for (int b = 0; b < B; b++)
        prompts[b] = prompt_of(b < 2 ? 2 : 10, &requests[b]);
    CHECK_OK(engine_encode(e, prompts, B, results, &err));
    for (int b = 0; b < B; b++) {
        int n = 0;
        while (names[b][n] != NULL)
            n++;
        CHECK_INT(results[b].n_tensors, n);
        for (int i = 0; i < n; i++)
            CHECK_TEXT(results[b].tensors[i].name, names[b][i]);
        for (int i = 0; i < n; i++)
            CHECK_INT(results[b].tensors[i].dtype,
                      strcmp(names[b][i], "mask") == 0 ? DTYPE_I64 : requests[b].dtype);
        CHECK_INT(results[b].n_tokens, prompts[b].n);
        if (requests[b].dtype != DTYPE_F32)
            continue;
        CHECK_OK(engine_encode(e, &prompts[b], 1, &alone, &err));
        check_same(&results[b], &alone, "mixed");
        engine_result_free(&alone);
    }
    CHECK_INT(results[1].tensors[0].shape[0], 1);
    CHECK_INT(results[3].tensors[0].shape[0], 8);
    /* the narrow types hold the same numbers, rounded */
    CHECK_OK(engine_encode(e, &(struct engine_prompt){ids[10], n_ids[10], &embeddings}, 1, &whole,
                           &err));
    for (size_t i = 0; i < 1000; i++) {
        float want = ((const float *)whole.tensors[0].data)[i], got;
        dtype_decode(&got, (const char *)results[6].tensors[0].data + 2 * i, DTYPE_F16, 1);
        CHECK(fabsf(got - want) <= 1e-3f * fabsf(want) + 1e-6f);
    }
    CHECK_INT(results[6].tensors[0].bytes * 2, whole.tensors[0].bytes);
    engine_result_free(&whole);
    for (int b = 0; b < B; b++)
        engine_result_free(&results[b]);
    engine_close(e);
}

/* More prompts of one modality than of the other, and of neither the same. */
static void check_modalities_apart(struct engine *e)
{
    static const struct engine_request video = {.level = ENGINE_EMBEDDINGS,
                                                .modalities = ENGINE_VIDEO};
    static const struct engine_request audio = {.level = ENGINE_EMBEDDINGS,
                                                .modalities = ENGINE_AUDIO};
    static const struct engine_request *const requests[] = {&video, &audio, &audio, &embeddings,
                                                            &audio, &audio, &audio};
    static const int from[] = {2, 0, 10, 3, 2, 3, 1};
    enum { B = sizeof(from) / sizeof(from[0]) };
    struct engine_prompt prompts[B];
    struct engine_result results[B];

    for (int b = 0; b < B; b++)
        prompts[b] = prompt_of(from[b], requests[b]);
    CHECK_OK(engine_encode(e, prompts, B, results, &err));
    for (int b = 0; b < B; b++) {
        for (int m = 0; m < MODALITIES; m++)
            if (requests[b] == &embeddings || (m == 0) == (requests[b] == &video)) {
                checked(rows_error(&results[b], from[b], m), BOUND, from[b], "rows, apart");
                checked(mix_error(&results[b], from[b], m), BOUND, from[b], "row mix, apart");
            }
        engine_result_free(&results[b]);
    }
}

static void modalities_apart(void)
{
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 4096);

    check_modalities_apart(e);
    engine_close(e);
}

/* ---- other backends, other types ---- */

static void loop_nests(void)
{
    static const int one[] = {10};
    struct engine *e = open_engine(ENGINE_LOOPS, DTYPE_F32, 0);

    encode_and_check(e, one, 1);
    engine_close(e);
}

/* Whether the backend can be opened here; else says why not. */
static bool is_here(enum engine_backend backend, enum dtype compute)
{
    char checkpoint[4096];
    struct engine *probe;

    checkpoint_path(checkpoint, sizeof(checkpoint));
    err = (struct error){0};
    if (try_engine(&probe, checkpoint, NULL, backend, compute, 0) == ERR_INPUT) {
        printf("     SKIPPED: %s\n", err.text);
        return false;
    }
    engine_close(probe);
    return true;
}

static double loss(int prompt, const char *what, const char *suffix)
{
    char name[64];

    snprintf(name, sizeof(name), "%d.%s.%s%s", prompt, ltx, what, suffix);
    CHECK(json_is_number(json_object_get(losses, name)));
    return json_number_value(json_object_get(losses, name));
}

/* What is lost over the stored rows, against the reference's float32, and over all rows, against
 * our own float32, which is within 1e-5 of it. */
static void check_bfloat16(enum engine_backend backend)
{
    struct engine *exact = open_engine(ENGINE_CPU, DTYPE_F32, 0);
    struct engine *e = open_engine(backend, DTYPE_BF16, 0);
    double worst_rows = 0.0, worst = 0.0;

    for (int j = 0; j < n_run; j++) {
        struct engine_prompt prompt = prompt_of(in_order[j], &embeddings);
        struct engine_result want, got;
        CHECK_OK(engine_encode(exact, &prompt, 1, &want, &err));
        CHECK_OK(engine_encode(e, &prompt, 1, &got, &err));
        for (int m = 0; m < MODALITIES; m++) {
            double rows = rows_error(&got, in_order[j], m);
            double all = tensor_distance(&got.tensors[m], &want.tensors[m]);
            double rows_limit = loss(in_order[j], modality_names[m], "_rows");
            double limit = loss(in_order[j], modality_names[m], "");
            checked(rows, 1.25 * rows_limit, in_order[j], "bf16, stored rows");
            checked(all, 1.25 * limit, in_order[j], "bf16, all rows");
            worst_rows = fmax(worst_rows, rows / rows_limit);
            worst = fmax(worst, all / limit);
        }
        engine_result_free(&want);
        engine_result_free(&got);
    }
    printf(
        "     %s: at most %.2f of what the reference loses over the stored rows, %.2f over all\n",
        ltx_file, worst_rows, worst);
    engine_close(e);
    engine_close(exact);
}

static void cpu_bfloat16(void)
{
    if (is_here(ENGINE_CPU, DTYPE_BF16))
        check_bfloat16(ENGINE_CPU);
}

static void cuda(void)
{
    struct engine *e;

    if (!is_here(ENGINE_CUDA, DTYPE_F32))
        return;
    e = open_engine(ENGINE_CUDA, DTYPE_F32, 4096);
    /* what comes again and again is recorded, then replayed: with other prompts in between */
    for (int again = 0; again < 4; again++) {
        for (int j = 0; j < n_run; j++)
            encode_and_check(e, &in_order[j], 1);
        encode_and_check(e, again % 2 == 0 ? shuffled : in_order, n_run);
        check_modalities_apart(e);
    }
    engine_close(e);
    check_bfloat16(ENGINE_CUDA);
}

/* ---- other files ---- */

static void check_some(const char *first, const char *second)
{
    static const int some[] = {2, 0};
    struct engine *e;

    CHECK_OK(try_engine(&e, first, second, ENGINE_CPU, DTYPE_F32, 0));
    encode_and_check(e, some, 2);
    engine_close(e);
}

/* Projection and connectors apart, and the same numbers as float32 in another order. */
static void other_files(void)
{
    char from[4096], one[4096], other[4096];
    struct edit f;
    size_t n;

    checkpoint_path(from, sizeof(from));
    scratch_path(one, sizeof(one), "one");
    scratch_path(other, sizeof(other), "other");
    edit_load(&f, from);
    edit_remove(&f, "text_embedding_projection.");
    edit_write(&f, one, 0);
    edit_free(&f);
    edit_load(&f, from);
    edit_remove(&f, "model.diffusion_model.");
    edit_set_metadata(&f, "config", NULL);
    edit_write(&f, other, 0);
    edit_free(&f);
    check_some(one, other);
    check_some(other, one);
    edit_load(&f, from);
    for (int i = 0; i < f.n; i++)
        edit_floats(&f, f.tensors[i].name, &n);
    for (int i = 0; i < f.n / 2; i++) {
        struct edit_tensor t = f.tensors[i];
        f.tensors[i] = f.tensors[f.n - 1 - i];
        f.tensors[f.n - 1 - i] = t;
    }
    edit_write(&f, one, 1);
    edit_free(&f);
    check_some(one, NULL);
}

/* LTX-2.5's way: Gemma and the projection packed in one file, the connectors in another; the packed
 * file is then both the model and an LTX file. */
static void packed_with_its_projection(void)
{
    static const int some[] = {2, 0};
    char from[4096], packed[4096], connectors[4096], digest[2][ENGINE_DIGEST_SIZE];
    struct edit f, g;
    struct engine *e;

    golden_path(from, sizeof(from), "gemma4-tiny-te-single-file.safetensors");
    edit_load(&g, from);
    checkpoint_path(from, sizeof(from));
    edit_load(&f, from);
    edit_move(&g, &f, "text_embedding_projection.");
    scratch_path(packed, sizeof(packed), "packed");
    scratch_path(connectors, sizeof(connectors), "connectors");
    edit_write(&g, packed, 0);
    edit_write(&f, connectors, 0);
    for (int order = 0; order < 2; order++) {
        CHECK_OK(try_model(&e, packed, order == 0 ? packed : connectors,
                           order == 0 ? connectors : packed, ENGINE_CPU, DTYPE_F32, 0));
        encode_and_check(e, some, 2);
        CHECK_OK(engine_weights_digest(e, digest[order], &err));
        engine_close(e);
    }
    CHECK_TEXT(digest[1], digest[0]);
    CHECK_ERR(try_model(&e, packed, connectors, NULL, ENGINE_CPU, DTYPE_F32, 0), ERR_FORMAT,
              ".safetensors: no tensors text_embedding_projection.*: the projection is missing");
    /* the projection that is used decides the digest, not the one beside it in the packed file */
    edit_free(&f);
    edit_load(&f, from);
    edit_floats(&f, "text_embedding_projection.video_aggregate_embed.bias", &(size_t){0})[3] += 1;
    edit_write(&f, connectors, 0);
    CHECK_OK(try_model(&e, packed, connectors, packed, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(engine_weights_digest(e, digest[1], &err));
    engine_close(e);
    CHECK(strcmp(digest[0], digest[1]) != 0);
    edit_free(&f);
    edit_free(&g);
}

/* Each Gemma with the checkpoint that was made for the other. */
static void another_gemma_is_named(void)
{
    char model[4096], other[4096];
    struct engine *e;

    golden_path(model, sizeof(model), "gemma3-tiny");
    golden_path(other, sizeof(other), "ltx-tiny-v2-gemma4.safetensors");
    CHECK_ERR(try_model(&e, model, other, NULL, ENGINE_CPU, DTYPE_F32, 0), ERR_INPUT,
              "ltx-tiny-v2-gemma4.safetensors needs a Gemma of gemma_version gemma4-12b-ltx-v1, "
              "but this one is a gemma3 without");
    golden_path(model, sizeof(model), "gemma4-tiny");
    golden_path(other, sizeof(other), "ltx-tiny-v2.safetensors");
    CHECK_ERR(try_model(&e, model, other, NULL, ENGINE_CPU, DTYPE_F32, 0), ERR_INPUT,
              "needs a Gemma of model_type gemma3, but this one is a gemma4 of gemma_version "
              "gemma4-12b-ltx-v1");
}

static void without_audio(void)
{
    static const struct engine_request audio = {.level = ENGINE_EMBEDDINGS,
                                                .modalities = ENGINE_AUDIO};
    struct engine_prompt prompt = prompt_of(2, &embeddings), wrong = prompt_of(2, &audio);
    char from[4096], to[4096];
    struct engine_result r;
    struct engine *e;
    struct edit f;

    checkpoint_path(from, sizeof(from));
    scratch_path(to, sizeof(to), "video-only");
    edit_load(&f, from);
    edit_remove(&f, "model.diffusion_model.audio_");
    if (strcmp(ltx, "v2") == 0)
        edit_remove(&f, "text_embedding_projection.audio_");
    edit_write(&f, to, 0);
    edit_free(&f);
    CHECK_OK(try_engine(&e, to, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_INT(engine_info(e)->audio_width, 0);
    CHECK_OK(engine_encode(e, &prompt, 1, &r, &err));
    CHECK_INT(r.n_tensors, 2); /* video and mask */
    checked(rows_error(&r, 2, 0), BOUND, 2, "rows");
    engine_result_free(&r);
    CHECK_ERR(engine_encode(e, &wrong, 1, &r, &err), ERR_INPUT,
              "prompt 0: audio is wanted, and this LTX checkpoint is video-only");
    engine_close(e);
}

/* Weights of Gemma that hold a NaN: no result, and a sentence that names the tensor; as the files
 * of a Gemma are large, it is found when it does harm. */
static void a_nan_is_no_answer(void)
{
    static const char *const names[] = {"language_model.model.layers.3.mlp.up_proj.weight",
                                        "language_model.model.embed_tokens.weight"};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const enum engine_level levels[] = {ENGINE_HIDDEN_STATES, ENGINE_FEATURES,
                                               ENGINE_EMBEDDINGS};
    char from[4096], folder[4096], to[4200], command[8400], checkpoint[4096];
    struct engine_result r[2];
    struct engine *e;
    struct edit f;

    golden_path(from, sizeof(from), "gemma3-tiny");
    checkpoint_path(checkpoint, sizeof(checkpoint));
    scratch_path(folder, sizeof(folder), "nan");
    snprintf(to, sizeof(to), "%s/model.safetensors", folder);
    snprintf(command, sizeof(command), "cp -r %s %s", from, folder);
    CHECK(system(command) == 0);
    for (int k = 0; k < 2; k++) {
        static const bf16 nan_bits = 0x7fc0;
        struct engine_request requests[3];
        struct edit_tensor *t;
        golden_path(from, sizeof(from), "gemma3-tiny/model.safetensors");
        edit_load(&f, from);
        t = edit_find(&f, names[k]);
        CHECK_INT(t->type, DTYPE_BF16);
        /* a number of the row of the first prompt's last token; in the other, just some number */
        memcpy(t->data + (size_t)(k == 0 ? 5 : ids[2][n_ids[2] - 1]) * t->shape[1] * 2, &nan_bits,
               2);
        edit_write(&f, to, 0);
        edit_free(&f);
        CHECK_OK(try_model(&e, folder, checkpoint, NULL, ENGINE_CPU, DTYPE_F32, 0));
        for (int i = 0; i < 3; i++) {
            static const int32_t bos[] = {2};
            requests[i] = (struct engine_request){.dtype = types[i], .level = levels[i]};
            struct engine_prompt both[] = {{bos, 1, &requests[i]}, prompt_of(2, &requests[i])};
            char want[256];
            snprintf(want, sizeof(want), "model.safetensors: %s holds a NaN", names[k]);
            CHECK_ERR(engine_encode(e, both, 2, r, &err), ERR_FORMAT, want);
            CHECK(strncmp(err.text, k == 0 ? "prompt 0: a NaN in" : "prompt 1: a NaN in", 18) == 0);
            CHECK(r[0].n_tensors == 0 && r[1].n_tensors == 0);
        }
        engine_close(e);
    }
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0);
}

/* Settings that no fixture has: any number of blocks, a feed-forward without bias, one register. */
static void no_blocks_and_no_biases(void)
{
    struct engine_prompt prompts[] = {prompt_of(2, &embeddings), prompt_of(2, &features)};
    char from[4096], with_zeros[4096], without[4096];
    struct engine_result r[2], s[2];
    struct engine *a, *b;
    struct edit f;
    size_t W;

    checkpoint_path(from, sizeof(from));
    scratch_path(with_zeros, sizeof(with_zeros), "zero-bias");
    scratch_path(without, sizeof(without), "no-bias");
    /* a bias of zeros is no bias */
    edit_load(&f, from);
    for (int i = 0; i < f.n; i++)
        if (strstr(f.tensors[i].name, ".ff.") != NULL && f.tensors[i].n_dims == 1)
            memset(f.tensors[i].data, 0, f.tensors[i].bytes);
    edit_write(&f, with_zeros, 0);
    for (int i = f.n - 1; i >= 0; i--)
        if (strstr(f.tensors[i].name, ".ff.") != NULL && f.tensors[i].n_dims == 1) {
            char name[256];
            snprintf(name, sizeof(name), "%s", f.tensors[i].name);
            edit_remove(&f, name);
        }
    edit_set_config(&f, "connector_ff_bias", "false");
    edit_write(&f, without, 0);
    CHECK_OK(try_engine(&a, with_zeros, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(try_engine(&b, without, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(engine_encode(a, prompts, 2, r, &err));
    CHECK_OK(engine_encode(b, prompts, 2, s, &err));
    check_same(&s[0], &r[0], "no bias");
    for (int i = 0; i < 2; i++) {
        engine_result_free(&r[i]);
        engine_result_free(&s[i]);
    }
    engine_close(a);
    engine_close(b);
    /* without blocks what is left is the last norm, of features and registers */
    edit_remove(&f, "model.diffusion_model.video_embeddings_connector.transformer_1d_blocks.");
    edit_remove(&f, "model.diffusion_model.audio_embeddings_connector.transformer_1d_blocks.");
    edit_set_config(&f, "connector_num_layers", "0");
    edit_set_config(&f, "audio_connector_num_layers", NULL);
    edit_find(&f, "model.diffusion_model.audio_embeddings_connector.learnable_registers")
        ->shape[0] = 1;
    W = edit_find(&f, "model.diffusion_model.audio_embeddings_connector.learnable_registers")
            ->shape[1];
    edit_find(&f, "model.diffusion_model.audio_embeddings_connector.learnable_registers")->bytes =
        W * 2;
    edit_write(&f, without, 0);
    edit_free(&f);
    CHECK_OK(try_engine(&a, without, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(engine_encode(a, prompts, 2, r, &err));
    for (int m = 0; m < MODALITIES; m++) {
        const float *in = r[1].tensors[m].data, *out = r[0].tensors[m].data;
        size_t width = r[1].tensors[m].shape[1], n = (size_t)n_ids[2];
        for (size_t row = 0; row < n; row++) {
            double sum = 0.0, factor;
            for (size_t d = 0; d < width; d++)
                sum += (double)in[row * width + d] * (double)in[row * width + d];
            factor = 1.0 / sqrt(sum / (double)width + 1e-6);
            for (size_t d = 0; d < width; d++)
                CHECK(fabs((double)in[row * width + d] * factor - (double)out[row * width + d]) <
                      1e-5);
        }
        /* one register is everywhere; of 128, row n is not row n + 1 but row n + 128 */
        CHECK((memcmp(out + n * width, out + (n + 1) * width, width * sizeof(float)) == 0) ==
              (m == 1));
        CHECK(memcmp(out + n * width, out + (n + 128) * width, width * sizeof(float)) == 0);
    }
    for (int i = 0; i < 2; i++)
        engine_result_free(&r[i]);
    engine_close(a);
}

/* ---- what must be caught ---- */

/* The same checkpoint with its numbers moved so that right code computes what wrong code would of
 * the real one. */
static void hidden_major_read_as_state_major(struct edit *f, int n)
{
    enum { S = 8, D = 128 };

    (void)n;
    for (int i = 0; i < f->n; i++) {
        const struct edit_tensor *t = &f->tensors[i];
        float *values, *copy;
        size_t count;
        if (t->n_dims != 2 || t->shape[1] != (size_t)S * D)
            continue;
        values = edit_floats(f, t->name, &count);
        copy = malloc(count * sizeof(float));
        CHECK(copy != NULL);
        memcpy(copy, values, count * sizeof(float));
        for (size_t row = 0; row < count / (S * D); row++)
            for (size_t s = 0; s < S; s++)
                for (size_t d = 0; d < D; d++)
                    values[row * S * D + d * S + s] = copy[row * S * D + s * D + d];
        free(copy);
    }
}

static void missing_scale(struct edit *f, int n)
{
    (void)n;
    for (int i = 0; i < f->n; i++) {
        size_t count, rows = f->tensors[i].shape[0];
        float *values;
        if (strstr(f->tensors[i].name, "aggregate_embed.weight") == NULL)
            continue;
        values = edit_floats(f, f->tensors[i].name, &count);
        for (size_t k = 0; k < count; k++)
            values[k] /= (float)sqrt((double)rows / 128);
    }
}

/* Row p takes register (p - n) mod 128. */
static void registers_counted_from_the_prompt(struct edit *f, int n)
{
    for (int m = 0; m < MODALITIES; m++) {
        char name[128];
        struct edit_tensor *t;
        uint8_t *moved;
        size_t row;
        snprintf(name, sizeof(name),
                 "model.diffusion_model.%s_embeddings_connector."
                 "learnable_registers",
                 modality_names[m]);
        t = edit_find(f, name);
        row = t->bytes / 128;
        moved = malloc(t->bytes);
        CHECK(moved != NULL);
        for (size_t r = 0; r < 128; r++)
            memcpy(moved + r * row, t->data + (r + 128 - (size_t)(n % 128)) % 128 * row, row);
        free(t->data);
        t->data = moved;
    }
}

static void no_change(struct edit *f, int n)
{
    (void)f;
    (void)n;
}

/* The largest error of a prompt's embeddings, as as_the_reference() measures it. */
static double embeddings_error(const struct engine_result *r, int prompt)
{
    double worst = 0.0;

    for (int m = 0; m < MODALITIES; m++)
        worst = fmax(worst, fmax(rows_error(r, prompt, m), mix_error(r, prompt, m)));
    return worst;
}

static void wrong_weights_would_be_caught(void)
{
    static const struct {
        const char *name;
        void (*change)(struct edit *, int n);
        bool v1_too;
    } cases[] = {
        {"no change", no_change, true},
        {"hidden-major read as state-major", hidden_major_read_as_state_major, true},
        {"registers from p - n", registers_counted_from_the_prompt, true},
        {"missing sqrt scale", missing_scale, false},
    };
    static const int prompts[] = {2, 4};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t j = 0; j < sizeof(prompts) / sizeof(prompts[0]); j++) {
            struct engine_prompt prompt = prompt_of(prompts[j], &embeddings);
            char from[4096], to[4096];
            struct engine_result r;
            struct engine *e;
            struct edit f;
            double error;
            if (!cases[i].v1_too && strcmp(ltx, "v1") == 0)
                continue;
            checkpoint_path(from, sizeof(from));
            scratch_path(to, sizeof(to), "mutated");
            edit_load(&f, from);
            cases[i].change(&f, prompt.n);
            edit_write(&f, to, 0);
            edit_free(&f);
            CHECK_OK(try_engine(&e, to, NULL, ENGINE_CPU, DTYPE_F32, 0));
            CHECK_OK(engine_encode(e, &prompt, 1, &r, &err));
            error = embeddings_error(&r, prompts[j]);
            if (j == 0)
                printf("     %s, %s: %.1e\n", ltx, cases[i].name, error);
            CHECK(i == 0 ? error <= BOUND : error > 10 * BOUND);
            engine_result_free(&r);
            engine_close(e);
        }
}

/* Hidden states of the reference itself, through the extractor and the connectors alone; with the
 * rows of each state reversed or not. */
struct direct {
    int prompt, modality;
    double error;
};

static int on_rows(void *arg, int b, const float *rows, int first, int n, struct error *error)
{
    struct direct *d = arg;
    const struct tensor *want = expect(d->prompt, modality_names[d->modality]);
    struct engine_result r = {.n_tensors = 1};

    (void)error;
    CHECK_INT(b, 1);
    CHECK(first == 0 && n == ENGINE_ROWS);
    r.tensors[0] = (struct engine_tensor){.name = modality_names[d->modality],
                                          .shape = {ENGINE_ROWS, want->shape[1]}};
    /* borrowed, and only read */
    r.tensors[0].data = malloc(ENGINE_ROWS * want->shape[1] * sizeof(float));
    CHECK(r.tensors[0].data != NULL);
    memcpy(r.tensors[0].data, rows, ENGINE_ROWS * want->shape[1] * sizeof(float));
    d->error = fmax(rows_error(&r, d->prompt, d->modality), mix_error(&r, d->prompt, d->modality));
    free(r.tensors[0].data);
    return OK;
}

static void from_the_reference_s_states(void)
{
    struct device_options options = {.act = DTYPE_F32, .n_threads = 2};
    const bool both[] = {true, true};
    const struct ops *ops = ops_cpu();
    const struct tensor *states = safetensors_find(expected, "2.hidden_states");
    struct ltx_checkpoint *checkpoint;
    struct ltx_weights *weights;
    struct ltx *x;
    struct device *device;
    char from[4096];
    const char *paths[] = {from};
    /* before it another prompt, of one token: the prompt's rows are found in the pack */
    int n = n_ids[2], only[] = {1};
    int32_t begin[] = {0, 1, n + 1};
    size_t D = 128;
    float *h;

    CHECK(states != NULL);
    checkpoint_path(from, sizeof(from));
    CHECK_OK(ops->open(&device, &options, &err));
    CHECK_OK(ltx_checkpoint_open(&checkpoint, paths, 1, &err));
    CHECK_OK(ltx_weights_load(&weights, checkpoint, 8, (int)D, &whole_model, ops, device, DTYPE_F32,
                              NULL, NULL, &err));
    ltx_checkpoint_close(checkpoint);
    CHECK_OK(ltx_create(&x, weights, device, 0, 1, DTYPE_F32, 64, &err));
    h = calloc((size_t)(n + 1) * D, sizeof(float));
    CHECK(h != NULL);
    for (int reversed = 0; reversed < 2; reversed++) {
        CHECK_OK(ltx_begin(x, begin, 2, both, false, &err));
        for (int s = 0; s < 8; s++) {
            const float *state = (const float *)states->data + (size_t)s * n * D;
            for (int t = 0; t < n; t++)
                memcpy(h + (size_t)(t + 1) * D, state + (size_t)(reversed ? n - 1 - t : t) * D,
                       D * sizeof(float));
            CHECK_OK(ltx_add_state(x, h, &err));
        }
        for (int m = 0; m < MODALITIES; m++) {
            struct direct d = {.prompt = 2, .modality = m};
            CHECK_OK(ltx_embed(x, (enum ltx_modality)m, only, 1, on_rows, &d, &err));
            printf("     %s, %s%s: %.1e\n", ltx, modality_names[m], reversed ? ", reversed" : "",
                   d.error);
            CHECK(reversed ? d.error > 10 * BOUND : d.error <= BOUND);
        }
    }
    free(h);
    ltx_free(x);
    ltx_weights_free(weights);
    ops->close(device);
}

/* Features of prompt 2, of its first states and zeros for those left of n_states; to the caller. */
static float *features_of_states(const char *path, int n_states, int n_first, size_t *count)
{
    enum { D = 128 };
    struct device_options options = {.act = DTYPE_F32, .n_threads = 2};
    const struct tensor *states = safetensors_find(expected, "2.hidden_states");
    const struct ops *ops = ops_cpu();
    const bool both[] = {true, true};
    const int32_t begin[] = {0, n_ids[2]};
    size_t T = (size_t)n_ids[2], widths[MODALITIES];
    struct ltx_checkpoint *checkpoint;
    struct ltx_weights *weights;
    struct device *device;
    struct ltx *x;
    float *zeros = calloc(T * D, sizeof(float)), *out;

    CHECK(states != NULL && zeros != NULL);
    CHECK_OK(ops->open(&device, &options, &err));
    CHECK_OK(ltx_checkpoint_open(&checkpoint, &path, 1, &err));
    CHECK_OK(ltx_weights_load(&weights, checkpoint, n_states, D, &whole_model, ops, device,
                              DTYPE_F32, NULL, NULL, &err));
    ltx_checkpoint_close(checkpoint);
    CHECK_OK(ltx_create(&x, weights, device, 0, 1, DTYPE_F32, 64, &err));
    CHECK_OK(ltx_begin(x, begin, 1, both, false, &err));
    for (int i = 0; i < n_states; i++)
        CHECK_OK(ltx_add_state(
            x, i < n_first ? (const float *)states->data + (size_t)i * T * D : zeros, &err));
    *count = 0;
    for (int m = 0; m < MODALITIES; m++)
        *count += T * (widths[m] = (size_t)weights->config.connectors[m].W);
    CHECK((out = malloc(*count * sizeof(float))) != NULL);
    memcpy(out, ltx_features(x, LTX_VIDEO), T * widths[LTX_VIDEO] * sizeof(float));
    memcpy(out + T * widths[LTX_VIDEO], ltx_features(x, LTX_AUDIO),
           T * widths[LTX_AUDIO] * sizeof(float));
    free(zeros);
    ltx_free(x);
    ltx_weights_free(weights);
    ops->close(device);
    return out;
}

/* Some states go through one product, and the last product takes what is left: a checkpoint without
 * its last states makes what the whole one makes when those are zeros. */
static void any_number_of_states(void)
{
    enum { ALL = 8 };
    char from[4096], to[4096];

    checkpoint_path(from, sizeof(from));
    scratch_path(to, sizeof(to), "states");
    for (int S = 1; S < ALL; S++) {
        float *got, *want;
        struct edit f;
        size_t n, m;
        edit_load(&f, from);
        for (int i = 0; i < f.n; i++) {
            struct edit_tensor *t = &f.tensors[i];
            float *values;
            if (strncmp(t->name, "text_embedding_projection.", 26) != 0 || t->n_dims != 2)
                continue;
            values = edit_floats(&f, t->name, &n);
            for (size_t k = 0; k < n; k++) /* number d of state s is column d * ALL + s */
                if (k % ALL < (size_t)S)
                    values[k / ALL * (size_t)S + k % ALL] = values[k];
            t->shape[1] = t->shape[1] / ALL * (size_t)S;
            t->bytes = t->bytes / ALL * (size_t)S;
        }
        edit_write(&f, to, 0);
        edit_free(&f);
        got = features_of_states(to, S, S, &n);
        want = features_of_states(from, ALL, S, &m);
        CHECK_INT(n, m);
        if (!(relative_error(got, want, n) <= 1e-6))
            CHECK_FAIL("%d states: %.1e off", S, relative_error(got, want, n));
        free(got);
        free(want);
    }
}

/* ---- requests and models that do not fit ---- */

static void wrong_requests_are_named(void)
{
    static const int layer[] = {1};
    static const struct {
        struct engine_request request;
        const char *words;
    } cases[] = {
        {{.level = ENGINE_FEATURES, .layers = layer, .n_layers = 1},
         "layers are chosen of hidden_states, not of features"},
        {{.level = ENGINE_EMBEDDINGS, .modalities = 4}, "there are no modalities 0x4"},
        {{.level = (enum engine_level)3}, "there is no level 3"},
        {{.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_Q8_0}, "F32, F16 or BF16, not Q8_0"},
    };
    struct engine *e = open_engine(ENGINE_CPU, DTYPE_F32, 0), *without;
    struct engine_prompt prompt = prompt_of(1, &embeddings);
    struct engine_result r;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_ERR(engine_check_request(engine_info(e), &cases[i].request, &err), ERR_INPUT,
                  cases[i].words);
    CHECK_INT(engine_info(e)->extractor, strcmp(ltx, "v1") == 0 ? 1 : 2);
    CHECK_INT(engine_info(e)->video_width, strcmp(ltx, "v1") == 0 ? 128 : 192);
    CHECK_INT(engine_info(e)->audio_width, strcmp(ltx, "v1") == 0 ? 128 : 64);
    CHECK_OK(try_engine(&without, NULL, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_ERR(engine_encode(without, &prompt, 1, &r, &err), ERR_INPUT,
              "prompt 0: embeddings need an LTX checkpoint, and this model has none");
    CHECK(engine_info(e)->weights_bytes > engine_info(without)->weights_bytes);
    engine_close(without);
    engine_close(e);
}

static void wrong_checkpoints_are_named(void)
{
    char from[4096], to[4096], model[4096];
    const char *const paths[ENGINE_MAX_LTX] = {to};
    struct engine_info info;
    struct engine *e;
    struct edit f;

    checkpoint_path(from, sizeof(from));
    scratch_path(to, sizeof(to), "gemma4");
    golden_path(model, sizeof(model), "gemma3-tiny");
    edit_load(&f, from);
    edit_set_metadata(&f, "gemma_source_checkpoint", "{\"gemma_version\":\"gemma4-12b-ltx-v1\"}");
    edit_write(&f, to, 0);
    CHECK_ERR(try_engine(&e, to, NULL, ENGINE_CPU, DTYPE_F32, 0), ERR_INPUT,
              "safetensors needs a Gemma of gemma_version gemma4-12b-ltx-v1, but this one "
              "is a gemma3 without");
    CHECK_OK(engine_read_info(&info, model, &err));
    CHECK_ERR(engine_add_ltx_info(&info, paths, &err), ERR_INPUT, "gemma4-12b-ltx-v1");
    edit_set_metadata(&f, "gemma_source_checkpoint", NULL);
    edit_write(&f, to, 0);
    CHECK_OK(engine_add_ltx_info(&info, paths, &err));
    CHECK(info.video_width > 0 && info.audio_width > 0 && info.extractor > 0);
    info.width = 64; /* another Gemma */
    CHECK_ERR(engine_add_ltx_info(&info, paths, &err), ERR_FORMAT, "made for another Gemma");
    edit_remove(&f, "text_embedding_projection.");
    edit_write(&f, to, 0);
    edit_free(&f);
    CHECK_ERR(try_engine(&e, to, NULL, ENGINE_CPU, DTYPE_F32, 0), ERR_FORMAT,
              "the projection is missing");
}

/* The digest covers what decides embeddings: the text side's tensors and settings, and nothing of
 * the video model. */
static void digests_cover_the_checkpoint(void)
{
    char from[4096], to[4096], plain[ENGINE_DIGEST_SIZE], whole[ENGINE_DIGEST_SIZE];
    char other[ENGINE_DIGEST_SIZE];
    struct engine *e;
    struct edit f;
    size_t n;

    checkpoint_path(from, sizeof(from));
    scratch_path(to, sizeof(to), "digest");
    CHECK_OK(try_engine(&e, NULL, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(engine_weights_digest(e, plain, &err));
    engine_close(e);
    CHECK_OK(try_engine(&e, from, NULL, ENGINE_CPU, DTYPE_F32, 0));
    CHECK_OK(engine_weights_digest(e, whole, &err));
    engine_close(e);
    CHECK(strcmp(plain, whole) != 0);
    for (int change = 0; change < 3; change++) {
        edit_load(&f, from);
        if (change == 1)
            edit_floats(&f, "model.diffusion_model.video_embeddings_connector.learnable_registers",
                        &n)[5] += 1.0f;
        if (change == 2)
            edit_set_config(&f, "connector_positional_embedding_max_pos", "[2048]");
        edit_write(&f, to, 100); /* a video model of 100 bytes */
        edit_free(&f);
        CHECK_OK(try_engine(&e, to, NULL, ENGINE_CPU, DTYPE_F32, 0));
        CHECK_OK(engine_weights_digest(e, other, &err));
        CHECK_INT(strcmp(other, whole) == 0, change == 0);
        engine_close(e);
    }
}

static void progress_fn(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;

    CHECK(done >= last[0] && done <= total);
    last[0] = done;
    last[1] = total;
}

/* Both files are one load to whoever watches it, and steps rise with the connectors. */
static void progress_is_of_both(void)
{
    struct engine_prompt prompt = prompt_of(1, &embeddings);
    uint64_t last[2] = {0}, steps;
    char model[4096], checkpoint[4096];
    struct engine_options options = {.model = model,
                                     .ltx = {checkpoint},
                                     .n_threads = 1,
                                     .progress = progress_fn,
                                     .progress_arg = last};
    struct engine_result r;
    struct engine *e;

    golden_path(model, sizeof(model), "gemma3-tiny");
    checkpoint_path(checkpoint, sizeof(checkpoint));
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK(last[0] > 0 && last[0] == last[1]);
    steps = engine_steps(e);
    CHECK_OK(engine_encode(e, &prompt, 1, &r, &err));
    CHECK_INT(engine_steps(e) - steps, 7 + 2 + 2);
    engine_result_free(&r);
    engine_close(e);
}

/* Takes the reference's numbers of a Gemma of golden/ with an LTX checkpoint. */
static void use_reference(const char *model, const char *file, const char *extractor)
{
    char name[64], path[4096];
    json_error_t why;
    json_t *lists;

    gemma = model;
    ltx_file = file;
    ltx = extractor;
    json_decref(golden);
    safetensors_close(expected);
    snprintf(name, sizeof(name), "expected-%s.json", model);
    golden_path(path, sizeof(path), name);
    if ((golden = json_load_file(path, 0, &why)) == NULL) {
        printf("%s: %s\n", path, why.text);
        exit(EXIT_FAILURE);
    }
    losses = json_object_get(golden, "reference_bf16_relative_error");
    lists = json_object_get(golden, "token_ids");
    for (size_t i = 0; i < N; i++) {
        json_t *list = json_array_get(lists, i);
        free(ids[i]);
        n_ids[i] = (int)json_array_size(list);
        if ((ids[i] = calloc((size_t)n_ids[i] + 1, sizeof(int32_t))) == NULL)
            exit(EXIT_FAILURE);
        for (int t = 0; t < n_ids[i]; t++)
            ids[i][t] = (int32_t)json_integer_value(json_array_get(list, (size_t)t));
    }
    snprintf(name, sizeof(name), "expected-%s.safetensors", model);
    golden_path(path, sizeof(path), name);
    if (safetensors_open(&expected, path, &err) != OK) {
        printf("%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    printf("%s with %s\n", model, file);
}

static void run_with_gemma3(void)
{
    RUN(as_the_reference);
    RUN(alone_as_in_any_batch);
    RUN(batches_of_one_length);
    RUN(small_passes);
    RUN(levels_mix_in_a_batch);
    RUN(modalities_apart);
    RUN(loop_nests);
    RUN(cpu_bfloat16);
    RUN(cuda);
    RUN(other_files);
    RUN(without_audio);
    RUN(a_nan_is_no_answer);
    RUN(no_blocks_and_no_biases);
    RUN(wrong_weights_would_be_caught);
    RUN(from_the_reference_s_states);
    RUN(any_number_of_states);
    RUN(wrong_requests_are_named);
    RUN(wrong_checkpoints_are_named);
    RUN(digests_cover_the_checkpoint);
    RUN(progress_is_of_both);
}

static void run_all(void)
{
    if (ONLY_THREADS) { /* each of these takes minutes there */
        use_reference("gemma3-tiny", "ltx-tiny-v2", "v2");
        RUN(levels_mix_in_a_batch);
        return;
    }
    use_reference("gemma3-tiny", "ltx-tiny-v1", "v1");
    run_with_gemma3();
    use_reference("gemma3-tiny", "ltx-tiny-v2", "v2");
    run_with_gemma3();
    use_reference("gemma4-tiny", "ltx-tiny-v2-gemma4", "v2");
    RUN(as_the_reference);
    RUN(alone_as_in_any_batch);
    RUN(small_passes);
    RUN(loop_nests);
    RUN(cpu_bfloat16);
    RUN(cuda);
    RUN(other_files);
    RUN(without_audio);
    RUN(packed_with_its_projection);
    RUN(another_gemma_is_named);
}

int main(void)
{
    setenv("XDG_CACHE_HOME", PE_SCRATCH_DIR "/cache", 1); /* where digests are kept */
    if (n_run < N)
        printf("SKIPPED all but %d prompts: this build has no oneDNN\n", n_run);
    run_all();
    remove_scratch();
    safetensors_close(expected);
    json_decref(golden);
    for (int i = 0; i < N; i++)
        free(ids[i]);
    return check_result();
}
