/* encode.c - prompt-encoder encode: prompts to tensors in this process, without Redis or HTTP.
 *
 * The file it writes is what the service answers to the same prompts. What can be wrong with the
 * command line is found before the model loads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/prompts.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"
#include "service/formats/answer.h"

enum {
    DEFAULT_PASS = 2048,      /* tokens in a pass: enough to fill the cores */
    MAX_TOKENIZER = 64 << 20, /* bytes of its compact form */
    MAX_SHOWN = 60            /* bytes of a prompt in the summary */
};

struct settings {
    struct engine_settings engine;
    const char *prompts, *layers, *modalities, *out;
    int output, dtype; /* output -1: as far as the model goes */
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    ENGINE_OPTIONS(FIELD(engine)),
    {"prompts", 0, NULL, OPT_TEXT, FIELD(prompts), NULL, 0, 0, "FILE.json",
     "a JSON list of strings, instead of arguments; -: standard input"},
    {"output", 0, NULL, OPT_CHOICE, FIELD(output), NULL, 0, 0, "hidden_states|features|embeddings",
     "what to compute; default: embeddings with --ltx, else hidden_states"},
    {"layers", 0, NULL, OPT_TEXT, FIELD(layers), NULL, 0, 0, "0,12,..",
     "which hidden states, 0: the embeddings; default: all"},
    {"modalities", 0, NULL, OPT_TEXT, FIELD(modalities), NULL, 0, 0, "video,audio",
     "which features or embeddings; default: all that the model has"},
    {"dtype", 0, NULL, OPT_CHOICE, FIELD(dtype), "bfloat16", 0, 0, "bfloat16|float16|float32",
     "type of the result"},
    {"out", 'o', NULL, OPT_TEXT, FIELD(out), NULL, 0, 0, "FILE.safetensors",
     "where to write the tensors"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder encode",
    .usage = "--model PATH [options] PROMPT...",
    .about =
        "Encodes prompts and shows tokens, shapes and a few numbers; with -o also writes the\n"
        "tensors, of prompt i: p<i>.hidden_states [states, tokens, width], or p<i>.video_features\n"
        "and p<i>.audio_features [tokens, width], or p<i>.video and p<i>.audio [1024, width] with\n"
        "p<i>.mask [1024]; and p<i>.token_ids [tokens].",
    .options = options,
};

static const enum dtype result_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};

/* "0,12,18" to numbers. */
static int parse_layers(int *layers, int *n_layers, const char *text, struct error *err)
{
    *n_layers = 0;
    while (text != NULL) {
        char one[16];
        int64_t value;
        int rc;

        if (*n_layers > ENGINE_MAX_LAYERS || !options_next_item(one, sizeof(one), &text))
            return error_set(err, ERR_INPUT, "--layers: '%s' is no list of layers", text);
        if ((rc = options_parse_int(&value, one, 0, ENGINE_MAX_LAYERS, "--layers", err)) != OK)
            return rc;
        layers[(*n_layers)++] = (int)value;
    }
    return OK;
}

/* "video,audio" in either order, or one of them, to bits. */
static int parse_modalities(unsigned *modalities, const char *text, struct error *err)
{
    *modalities = 0;
    while (text != NULL) {
        const char *rest = text;
        char word[8];
        unsigned one = !options_next_item(word, sizeof(word), &text) ? 0u
                       : strcmp(word, "video") == 0                  ? ENGINE_VIDEO
                       : strcmp(word, "audio") == 0                  ? ENGINE_AUDIO
                                                                     : 0u;
        if (one == 0)
            return error_set(err, ERR_INPUT, "--modalities: '%s' is neither video nor audio", rest);
        if ((*modalities & one) != 0)
            return error_set(err, ERR_INPUT, "--modalities: %s is wanted twice",
                             one == ENGINE_VIDEO ? "video" : "audio");
        *modalities |= one;
    }
    return OK;
}

/* What the flags ask for; whether the model has it is checked later. */
static int read_request(struct engine_request *request, int *layers, const struct settings *s,
                        struct error *err)
{
    int rc;

    *request = (struct engine_request){.layers = layers, .dtype = result_types[s->dtype]};
    request->level = s->output >= 0        ? (enum engine_level)s->output
                     : s->engine.ltx.n > 0 ? ENGINE_EMBEDDINGS
                                           : ENGINE_HIDDEN_STATES;
    if ((rc = parse_layers(layers, &request->n_layers, s->layers, err)) != OK ||
        (rc = parse_modalities(&request->modalities, s->modalities, err)) != OK)
        return rc;
    if (request->level != ENGINE_HIDDEN_STATES && s->engine.ltx.n == 0)
        return error_set(err, ERR_INPUT, "--output %s needs an LTX checkpoint: give --ltx PATH",
                         engine_level_name(request->level));
    if (request->level == ENGINE_HIDDEN_STATES && request->modalities != 0)
        return error_set(err, ERR_INPUT, "--modalities goes with --output features or embeddings");
    return OK;
}

/* Of the model's headers alone. */
static int check_request(const struct settings *s, const struct engine_request *request,
                         struct error *err)
{
    struct engine_options opened = engine_settings_options(&s->engine);
    struct engine_info info;
    int rc;

    if ((rc = engine_read_info(&info, s->engine.model, err)) != OK ||
        (rc = engine_add_ltx_info(&info, opened.ltx, err)) != OK)
        return rc;
    return engine_check_request(&info, request, err);
}

/* Room for all prompts, up to a full pass; each alone fits, as it has at most ENGINE_MAX_TOKENS. */
static int tokens_per_pass(const struct prompts *prompts)
{
    size_t total = 0;

    for (size_t i = 0; i < prompts->n; i++)
        total += prompts->tokens[i].n;
    return total < DEFAULT_PASS ? (int)total : DEFAULT_PASS;
}

/* ---- the file ---- */

/* What the formats need to know of prompt and result, and the list of layers as text. */
static int describe(struct answer_prompt *described, struct buf *layers,
                    const struct prompts *prompts, const struct engine_result *results,
                    const struct engine_request *request, struct error *err)
{
    int rc = OK;

    for (size_t i = 0; i < prompts->n; i++) {
        const struct engine_result *r = &results[i];
        const struct token_list *tokens = &prompts->tokens[i];
        struct answer_prompt *d = &described[i];
        d->n_tokens = (int)tokens->n;
        d->truncated = tokens->n < tokens->n_uncut;
        for (int k = 0; k < r->n_tensors; k++) {
            const struct engine_tensor *from = &r->tensors[k];
            struct answer_tensor *to = &d->tensors[k];
            snprintf(to->name, sizeof(to->name), "%s", from->name);
            snprintf(to->dtype, sizeof(to->dtype), "%s", dtype_info(from->dtype)->name);
            to->n_dims = from->n_dims;
            memcpy(to->shape, from->shape, sizeof(from->shape));
            to->bytes = from->bytes;
        }
        d->tensors[r->n_tensors] =
            (struct answer_tensor){"token_ids", "I32", 1, {tokens->n}, tokens->n * sizeof(int32_t)};
        d->n_tensors = r->n_tensors + 1;
    }
    if (request->level != ENGINE_HIDDEN_STATES)
        return OK;
    for (int s = 0; s < (int)results[0].tensors[0].shape[0] && rc == OK; s++)
        rc = buf_printf(layers, err, "%s%d", s > 0 ? "," : "",
                        request->n_layers > 0 ? request->layers[s] : s);
    return rc;
}

/* Which features or embeddings a result has, as bits. */
static unsigned modalities_of(const struct engine_result *r)
{
    unsigned bits = 0;

    for (int i = 0; i < r->n_tensors; i++)
        bits |= strncmp(r->tensors[i].name, "video", 5) == 0   ? ENGINE_VIDEO
                : strncmp(r->tensors[i].name, "audio", 5) == 0 ? ENGINE_AUDIO
                                                               : 0u;
    return bits;
}

/* The bytes that the service answers to the same prompts: the same layout decides them. */
static int write_file(struct file_writer *writer, const struct engine *engine,
                      const struct engine_settings *settings, const struct tokenizer *tokenizer,
                      const struct prompts *prompts, const struct engine_result *results,
                      const struct engine_request *request, struct error *err)
{
    struct answer_prompt *described = calloc(prompts->n, sizeof(*described));
    struct buf layers = {.max = 4096}, compact = {.max = MAX_TOKENIZER};
    struct layout layout = {0};
    const struct engine_info *info = engine_info(engine);
    bool has_ltx = request->level != ENGINE_HIDDEN_STATES;
    char model[ENGINE_MODEL_ID_SIZE], extractor[8] = "";
    char weights[ENGINE_DIGEST_SIZE], tokenizer_digest[ENGINE_DIGEST_SIZE];
    int rc;

    if (described == NULL) {
        rc = error_set(err, ERR_MEM, "encode: no memory for %zu prompts", prompts->n);
        goto out;
    }
    if ((rc = describe(described, &layers, prompts, results, request, err)) != OK ||
        (rc = engine_settings_model_id(model, settings, err)) != OK ||
        (rc = engine_save_tokenizer(tokenizer, &compact, tokenizer_digest, err)) != OK ||
        (rc = engine_weights_digest(engine, weights, err)) != OK)
        goto out;
    if (has_ltx)
        snprintf(extractor, sizeof(extractor), "v%d", info->extractor);
    const struct answer answer = {.model = model,
                                  .weights = weights,
                                  .tokenizer = tokenizer_digest,
                                  .gemma_version = info->gemma_version,
                                  .output = engine_level_name(request->level),
                                  .layers = has_ltx ? "" : layers.data,
                                  .modalities = engine_modalities_name(modalities_of(results)),
                                  .extractor = extractor,
                                  .ltx_version = has_ltx ? info->ltx_version : "",
                                  .negative_index = -1,
                                  .n_prompts = prompts->n,
                                  .prompts = described};
    if ((rc = layout_safetensors(&layout, &answer, err)) != OK ||
        (rc = file_writer_append(writer, layout.text.data, layout.text.len, err)) != OK)
        goto out;
    for (size_t i = 0; i < prompts->n; i++) {
        for (int k = 0; k < results[i].n_tensors; k++)
            if ((rc = file_writer_append(writer, results[i].tensors[k].data,
                                         results[i].tensors[k].bytes, err)) != OK)
                goto out;
        if ((rc = file_writer_append(writer, prompts->tokens[i].ids,
                                     prompts->tokens[i].n * sizeof(int32_t), err)) != OK)
            goto out;
    }
    rc = file_writer_commit(writer, err);
out:
    layout_free(&layout);
    buf_free(&layers);
    buf_free(&compact);
    free(described);
    return rc;
}

/* ---- the summary ---- */

/* A tensor's name, shape and type, and the first numbers of its last row. */
static void print_tensor(const struct engine_tensor *t)
{
    size_t width = t->shape[t->n_dims - 1], row = t->bytes / dtype_info(t->dtype)->bytes - width;
    size_t n = width < 4 ? width : 4;
    float values[4];

    printf("%s [", t->name);
    for (int i = 0; i < t->n_dims; i++)
        printf("%s%zu", i > 0 ? ", " : "", t->shape[i]);
    printf("] %s, last row:", dtype_info(t->dtype)->name);
    dtype_decode(values, (const char *)t->data + row * dtype_info(t->dtype)->bytes, t->dtype, n);
    for (size_t i = 0; i < n; i++)
        printf(" %.4f", (double)values[i]);
    printf(" ...");
}

/* The beginning of a prompt on one line. */
static void print_text(const char *text, size_t len)
{
    struct buf line = {.max = 2 * MAX_SHOWN};

    if (buf_append_printable(&line, text, len, MAX_SHOWN, NULL) == OK && line.len > 0)
        fwrite(line.data, 1, line.len, stdout);
    buf_free(&line);
}

static void print_summary(const struct prompts *prompts, const struct engine_result *results,
                          double ms)
{
    size_t n_tokens = 0;

    for (size_t i = 0; i < prompts->n; i++) {
        const struct engine_result *r = &results[i];
        printf("p%zu  \"", i);
        print_text(prompts->text[i], prompts->len[i]);
        printf("\"\n");
        printf("    %d token%s", r->n_tokens, r->n_tokens == 1 ? "" : "s");
        for (int k = 0; k < r->n_tensors; k++)
            if (r->tensors[k].n_dims > 1) { /* not the mask, which says nothing */
                printf(k == 0 ? ", " : "\n    ");
                print_tensor(&r->tensors[k]);
            }
        printf("\n");
        n_tokens += (size_t)r->n_tokens;
    }
    printf("%zu prompt%s, %zu tokens: %.1f ms\n", prompts->n, prompts->n == 1 ? "" : "s", n_tokens,
           ms);
}

int command_encode(int argc, char **argv, struct error *err)
{
    struct settings settings = {.output = -1};
    struct prompts prompts = {0};
    struct tokenizer *tokenizer = NULL;
    struct engine *engine = NULL;
    struct engine_prompt *inputs = NULL;
    struct engine_result *results = NULL;
    struct file_writer *writer = NULL;
    struct engine_options engine_options = {0};
    struct engine_request request = {0};
    struct progress progress;
    int layers[ENGINE_MAX_LAYERS + 1], n_rest, rc;
    int64_t start_ns;
    double ms;
    bool help;
    char what[300];

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if ((rc = engine_settings_check(&settings.engine, err)) != OK)
        goto out;
    if ((rc = read_request(&request, layers, &settings, err)) != OK ||
        (rc = prompts_read(&prompts, argv + 1, n_rest, settings.prompts, err)) != OK ||
        (rc = check_request(&settings, &request, err)) != OK ||
        (settings.out != NULL && (rc = file_writer_open(&writer, settings.out, err)) != OK) ||
        (rc = engine_load_tokenizer(&tokenizer, settings.engine.model, err)) != OK ||
        (rc = prompts_tokenize(&prompts, tokenizer, ENGINE_MAX_TOKENS, err)) != OK)
        goto out;

    snprintf(what, sizeof(what), "loading %.250s", settings.engine.model);
    progress_start(&progress, what);
    engine_options = engine_settings_options(&settings.engine);
    engine_options.max_batch_tokens = tokens_per_pass(&prompts);
    engine_options.progress = progress_update;
    engine_options.progress_arg = &progress;
    if ((rc = engine_open(&engine, &engine_options, err)) != OK) {
        progress_abort(&progress);
        goto out;
    }
    progress_end(&progress);

    if ((inputs = calloc(prompts.n, sizeof(*inputs))) == NULL ||
        (results = calloc(prompts.n, sizeof(*results))) == NULL) {
        rc = error_set(err, ERR_MEM, "encode: no memory for %zu prompts", prompts.n);
        goto out;
    }
    for (size_t i = 0; i < prompts.n; i++)
        inputs[i] =
            (struct engine_prompt){prompts.tokens[i].ids, (int)prompts.tokens[i].n, &request};
    start_ns = clock_now_ns();
    if ((rc = engine_encode(engine, inputs, (int)prompts.n, results, err)) != OK)
        goto out;
    ms = clock_ms_since(start_ns);
    /* the file first: who reads the summary may leave early */
    if (writer != NULL && (rc = write_file(writer, engine, &settings.engine, tokenizer, &prompts,
                                           results, &request, err)) != OK)
        goto out;
    print_summary(&prompts, results, ms);
    if (writer != NULL)
        printf("wrote %s\n", settings.out);
out:
    for (size_t i = 0; results != NULL && i < prompts.n; i++)
        engine_result_free(&results[i]);
    free(results);
    free(inputs);
    engine_close(engine);
    tokenizer_free(tokenizer);
    file_writer_close(writer);
    prompts_free(&prompts);
    return rc;
}
