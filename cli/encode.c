/* encode.c - prompt-encoder encode: prompts to tensors in this process, without Redis or HTTP.
 *
 * The file it writes is what the service answers to the same prompts. What can be wrong with the
 * command line is found before the model loads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/options.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/prompts.h"
#include "engine/engine.h"
#include "service/formats/safetensors_writer.h"

enum {
    DEFAULT_PASS = 2048, /* tokens in a pass: enough to fill the cores */
    MAX_SHOWN = 60       /* bytes of a prompt in the summary */
};

struct settings {
    const char *model, *prompts, *layers, *out;
    int backend, compute, output, dtype;
    int64_t threads;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"model", 'm', "PE_MODEL", OPT_TEXT, FIELD(model), NULL, 0, 0, "PATH",
     "model directory or GGUF file"},
    {"prompts", 0, NULL, OPT_TEXT, FIELD(prompts), NULL, 0, 0, "FILE.json",
     "a JSON list of strings, instead of arguments"},
    {"output", 0, NULL, OPT_CHOICE, FIELD(output), "hidden_states", 0, 0, "hidden_states",
     "what to compute"},
    {"layers", 0, NULL, OPT_TEXT, FIELD(layers), NULL, 0, 0, "0,12,..",
     "which hidden states, 0: the embeddings; default: all"},
    {"dtype", 0, NULL, OPT_CHOICE, FIELD(dtype), "bfloat16", 0, 0, "bfloat16|float16|float32",
     "type of the result"},
    {"out", 'o', NULL, OPT_TEXT, FIELD(out), NULL, 0, 0, "FILE.safetensors",
     "where to write the tensors"},
    {"backend", 0, "PE_BACKEND", OPT_CHOICE, FIELD(backend), "cpu", 0, 0, "cpu|cuda|loops",
     "what computes; loops: slow, for checking"},
    {"compute", 0, "PE_COMPUTE", OPT_CHOICE, FIELD(compute), "float32", 0, 0, "float32|bfloat16",
     "what matrix products compute in"},
    {"threads", 0, "PE_THREADS", OPT_INT, FIELD(threads), "0", 0, 1024, "N",
     "threads that compute; 0: one a core"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder encode",
    .usage = "--model PATH [options] PROMPT...",
    .about = "Encodes prompts and shows tokens, shapes and a few numbers; with -o also writes the\n"
             "tensors: p<i>.hidden_states [states, tokens, width] and p<i>.token_ids [tokens].",
    .options = options,
};

static const enum dtype result_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
static const enum dtype compute_types[] = {DTYPE_F32, DTYPE_BF16};
static const enum engine_backend backends[] = {ENGINE_CPU, ENGINE_CUDA, ENGINE_LOOPS};

/* "0,12,18" to numbers. */
static int parse_layers(int *layers, int *n_layers, const char *text, struct error *err)
{
    *n_layers = 0;
    while (text != NULL) {
        const char *comma = strchr(text, ',');
        size_t len = comma == NULL ? strlen(text) : (size_t)(comma - text);
        char one[16];
        int64_t value;
        int rc;

        if (len >= sizeof(one) || *n_layers == ENGINE_MAX_LAYERS)
            return error_set(err, ERR_INPUT, "--layers: '%s' is no list of layers", text);
        memcpy(one, text, len);
        one[len] = '\0';
        if ((rc = options_parse_int(&value, one, 0, ENGINE_MAX_LAYERS, "--layers", err)) != OK)
            return rc;
        layers[(*n_layers)++] = (int)value;
        text = comma == NULL ? NULL : comma + 1;
    }
    return OK;
}

/* Room for the longest prompt, and for all of them up to a full pass. */
static int tokens_per_pass(const struct prompts *prompts)
{
    size_t longest = 1, total = 0;

    for (size_t i = 0; i < prompts->n; i++) {
        if (prompts->tokens[i].n > longest)
            longest = prompts->tokens[i].n;
        total += prompts->tokens[i].n;
    }
    return (int)(total < DEFAULT_PASS ? total : longest > DEFAULT_PASS ? longest : DEFAULT_PASS);
}

/* ---- the file ---- */

struct output_file {
    struct safetensors_entry *entries; /* [2 n] */
    char (*names)[40];                 /* [2 n] */
    struct buf header, tokens, truncated, layers;
};

static void output_file_free(struct output_file *f)
{
    free(f->entries);
    free(f->names);
    buf_free(&f->header);
    buf_free(&f->tokens);
    buf_free(&f->truncated);
    buf_free(&f->layers);
}

static int describe(struct output_file *f, const struct prompts *prompts,
                    const struct engine_result *results, const struct engine_request *request,
                    struct error *err)
{
    size_t n = prompts->n;
    int rc = OK;

    if ((f->entries = calloc(2 * n, sizeof(*f->entries))) == NULL ||
        (f->names = calloc(2 * n, sizeof(*f->names))) == NULL)
        return error_set(err, ERR_MEM, "encode: no memory for %zu prompts", n);
    f->header.max = f->tokens.max = f->truncated.max = f->layers.max = 64u << 20;
    for (size_t i = 0; i < n && rc == OK; i++) {
        const struct engine_result *r = &results[i];
        const struct token_list *tokens = &prompts->tokens[i];
        snprintf(f->names[2 * i], sizeof(f->names[0]), "p%zu.hidden_states", i);
        snprintf(f->names[2 * i + 1], sizeof(f->names[0]), "p%zu.token_ids", i);
        f->entries[2 * i] =
            (struct safetensors_entry){f->names[2 * i],
                                       dtype_info(r->dtype)->name,
                                       3,
                                       {(size_t)r->n_states, (size_t)r->n_tokens, (size_t)r->width},
                                       r->bytes};
        f->entries[2 * i + 1] = (struct safetensors_entry){
            f->names[2 * i + 1], "I32", 1, {tokens->n}, tokens->n * sizeof(int32_t)};
        if ((rc = buf_printf(&f->tokens, err, "%s%zu", i > 0 ? "," : "", tokens->n)) == OK)
            rc = buf_printf(&f->truncated, err, "%s%s", i > 0 ? "," : "",
                            tokens->n < tokens->n_uncut ? "true" : "false");
    }
    for (int s = 0; s < results[0].n_states && rc == OK; s++)
        rc = buf_printf(&f->layers, err, "%s%d", s > 0 ? "," : "",
                        request->n_layers > 0 ? request->layers[s] : s);
    if (rc == OK) {
        const struct safetensors_metadata metadata[] = {{"layers", f->layers.data},
                                                        {"output", "hidden_states"},
                                                        {"tokens", f->tokens.data},
                                                        {"truncated", f->truncated.data}};
        rc = safetensors_write_header(&f->header, f->entries, 2 * n, metadata,
                                      sizeof(metadata) / sizeof(metadata[0]), err);
    }
    return rc;
}

static int write_file(struct file_writer *writer, const struct prompts *prompts,
                      const struct engine_result *results, const struct engine_request *request,
                      struct error *err)
{
    struct output_file f = {0};
    int rc;

    if ((rc = describe(&f, prompts, results, request, err)) != OK ||
        (rc = file_writer_append(writer, f.header.data, f.header.len, err)) != OK)
        goto out;
    for (size_t i = 0; i < prompts->n; i++)
        if ((rc = file_writer_append(writer, results[i].hidden_states, results[i].bytes, err)) !=
                OK ||
            (rc = file_writer_append(writer, prompts->tokens[i].ids,
                                     prompts->tokens[i].n * sizeof(int32_t), err)) != OK)
            goto out;
    rc = file_writer_commit(writer, err);
out:
    output_file_free(&f);
    return rc;
}

/* ---- the summary ---- */

/* The first numbers of the last state's last token. */
static void print_numbers(const struct engine_result *r)
{
    size_t size = dtype_info(r->dtype)->bytes;
    size_t row = ((size_t)r->n_states * r->n_tokens - 1) * r->width;
    int n = r->width < 4 ? r->width : 4;
    float values[4];

    dtype_decode(values, (const char *)r->hidden_states + row * size, r->dtype, (size_t)n);
    for (int i = 0; i < n; i++)
        printf(" %.4f", (double)values[i]);
    printf(" ...");
}

/* The beginning of a prompt on one line: control characters as spaces, no character cut in two. */
static void print_text(const char *text, size_t len)
{
    size_t shown = len > MAX_SHOWN ? MAX_SHOWN - 3 : len;

    while (shown < len && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
        shown--;
    for (size_t i = 0; i < shown; i++)
        putchar((unsigned char)text[i] < 0x20 || text[i] == 0x7f ? ' ' : text[i]);
    if (shown < len)
        printf("...");
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
        printf("    %d tokens, hidden_states [%d, %d, %d] %s, last row:", r->n_tokens, r->n_states,
               r->n_tokens, r->width, dtype_info(r->dtype)->name);
        print_numbers(r);
        printf("\n");
        n_tokens += (size_t)r->n_tokens;
    }
    printf("%zu prompt%s, %zu tokens: %.1f ms\n", prompts->n, prompts->n == 1 ? "" : "s", n_tokens,
           ms);
}

static int n_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > 1024 ? 1024 : (int)n;
}

int command_encode(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct prompts prompts = {0};
    struct tokenizer *tokenizer = NULL;
    struct engine *engine = NULL;
    struct engine_prompt *inputs = NULL;
    struct engine_result *results = NULL;
    struct file_writer *writer = NULL;
    struct engine_options engine_options = {0};
    struct engine_request request = {0};
    struct engine_info info;
    struct progress progress;
    int layers[ENGINE_MAX_LAYERS], n_rest, rc;
    int64_t start_ns;
    bool help;
    char what[300];

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (settings.model == NULL) {
        rc = error_set(err, ERR_INPUT, "no model: give --model PATH or set PE_MODEL");
        goto out;
    }
    request.dtype = result_types[settings.dtype];
    request.layers = layers;
    if ((rc = parse_layers(layers, &request.n_layers, settings.layers, err)) != OK ||
        (rc = prompts_read(&prompts, argv + 1, n_rest, settings.prompts, err)) != OK ||
        (rc = engine_read_info(&info, settings.model, err)) != OK ||
        (rc = engine_check_request(&info, &request, err)) != OK ||
        (settings.out != NULL && (rc = file_writer_open(&writer, settings.out, err)) != OK) ||
        (rc = engine_load_tokenizer(&tokenizer, settings.model, err)) != OK ||
        (rc = prompts_tokenize(&prompts, tokenizer, ENGINE_MAX_TOKENS, err)) != OK)
        goto out;

    snprintf(what, sizeof(what), "loading %.250s", settings.model);
    progress_start(&progress, what);
    engine_options = (struct engine_options){
        .model = settings.model,
        .backend = backends[settings.backend],
        .compute = compute_types[settings.compute],
        .n_threads = settings.threads > 0 ? (int)settings.threads : n_cores(),
        .max_batch_tokens = tokens_per_pass(&prompts),
        .progress = progress_update,
        .progress_arg = &progress,
    };
    if ((rc = engine_open(&engine, &engine_options, err)) != OK)
        goto out;
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
    print_summary(&prompts, results, clock_ms_since(start_ns));
    if (writer != NULL && (rc = write_file(writer, &prompts, results, &request, err)) == OK)
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
