/* bench.c - prompt-encoder bench: how long prompts take on this machine, beside the least they
 * could.
 *
 * Times are from ids to results in the device's memory. The floor of a stage is the larger of its
 * weights' bytes over the memory's rate and its operations over the product's rate, both measured
 * on the device in the same run; stages add up. The first two passes of each kind after start are
 * told beside the others: whoever comes first waits for them. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/prompts.h"
#include "cli/scenes.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"
#include "engine/random_model.h"

enum { BATCH_TOKENS = 4096, MIN_RUNS = 5 };

struct settings {
    struct engine_settings engine;
    const char *prompts, *tokens;
    int64_t runs;
    bool json;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    ENGINE_OPTIONS(FIELD(engine)),
    {"prompts", 0, NULL, OPT_TEXT, FIELD(prompts), NULL, 0, 0, "FILE.json",
     "a JSON list of strings, measured as one batch instead of the built-in ones; -: standard "
     "input"},
    {"tokens", 0, NULL, OPT_TEXT, FIELD(tokens), NULL, 0, 0, "61,30,..",
     "one batch of made-up prompts of so many tokens, instead of the built-in ones"},
    {"runs", 0, NULL, OPT_INT, FIELD(runs), "50", MIN_RUNS, 10000, "N", "times each is measured"},
    {"json", 0, NULL, OPT_BOOL, FIELD(json), NULL, 0, 0, NULL,
     "one JSON object instead of a table"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder bench",
    .usage = "--model PATH [--ltx PATH] [options]",
    .about = "Measures how long prompts take, up to results in the device's memory, and on a\n"
             "GPU the least that it could take. Without model files: --model random:gemma-3-12b\n"
             "--ltx random:ltx-2.3.",
    .options = options,
};

struct outcome {
    double first_ms, second_ms; /* before all others */
    double median_ms, p10_ms, p90_ms, p99_ms, min_ms, max_ms;
    double floor_ms; /* 0: not known */
};

/* Of all scenes together. */
struct figures {
    struct outcome scenes[SCENES_MAX];
    double open_s, warm_s;                /* until the weights are there; and then */
    double bytes_per_s, operations_per_s; /* of the device */
    uint64_t peak_bytes, device_bytes;    /* see engine_memory() */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double stage_ms(struct engine_stage_work work, double bytes_per_s, double operations_per_s)
{
    double reading = work.bytes / bytes_per_s, computing = work.operations / operations_per_s;

    return 1e3 * (reading > computing ? reading : computing);
}

static double floor_ms(const struct engine *engine, const struct scene *scene, double bytes_per_s,
                       double operations_per_s)
{
    struct engine_work work = engine_work(engine, scene->tokens, scene->n);
    double ms;

    if (bytes_per_s == 0.0)
        return 0.0;
    ms = stage_ms(work.gemma, bytes_per_s, operations_per_s);
    if (!scene->hidden_states)
        ms += stage_ms(work.extractor, bytes_per_s, operations_per_s) +
              stage_ms(work.connectors, bytes_per_s, operations_per_s);
    return ms;
}

/* `ms` [runs] is scratch. */
static int measure(struct outcome *out, struct engine *engine, const struct scene *scene,
                   double *ms, int runs, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    int last = info->n_layers;
    struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_BF16};
    struct engine_prompt prompts[SCENE_MAX_PROMPTS];
    int rc;

    if (scene->hidden_states || info->extractor == 0)
        request = (struct engine_request){.layers = &last, .n_layers = 1, .dtype = DTYPE_BF16};
    for (int i = 0; i < scene->n; i++)
        prompts[i] = (struct engine_prompt){scene->ids[i], scene->tokens[i], &request};
    for (int run = -MIN_RUNS; run < runs; run++) { /* the first few to warm up */
        int64_t start = clock_now_ns();
        if ((rc = engine_compute(engine, prompts, scene->n, err)) != OK)
            return rc;
        if (run >= 0)
            ms[run] = clock_ms_since(start);
        else if (run == -MIN_RUNS)
            out->first_ms = clock_ms_since(start);
        else if (run == 1 - MIN_RUNS)
            out->second_ms = clock_ms_since(start);
    }
    qsort(ms, (size_t)runs, sizeof(*ms), by_value);
    out->median_ms = ms[runs / 2];
    out->p10_ms = ms[runs / 10];
    out->p90_ms = ms[runs * 9 / 10];
    out->p99_ms = ms[runs * 99 / 100];
    out->min_ms = ms[0];
    out->max_ms = ms[runs - 1];
    return OK;
}

static void print_start(const struct engine_info *info, const struct figures *f)
{
    printf("opened in %.2f s", f->open_s);
    if (info->load_s > 0.0)
        printf(" (%.2f GB of files in %.2f s: %.2f GB/s)", (double)info->loaded_bytes / 1e9,
               info->load_s, (double)info->loaded_bytes / 1e9 / info->load_s);
    printf(", ready %.2f s later\n", f->warm_s);
    printf("weights %.2f GB; at most %.2f of %.2f GB in use by %s\n",
           (double)info->weights_bytes / 1e9, (double)f->peak_bytes / 1e9,
           (double)f->device_bytes / 1e9,
           strcmp(info->backend, "cuda") == 0 ? "all that use the GPU" : "this process");
}

static void print_table(const struct settings *s, const struct engine_info *info,
                        const struct scenes *scenes, const struct figures *f)
{
    const char *ltx = option_list_at(&s->engine.ltx, 0);

    printf("%s, %s, %s; %s\n", s->engine.model, ltx != NULL ? ltx : "no LTX checkpoint",
           engine_settings_compute(&s->engine), info->backend);
    print_start(info, f);
    if (f->bytes_per_s > 0.0)
        printf("this device reads %.2f TB/s and multiplies at %.0f TFLOP/s\n",
               f->bytes_per_s / 1e12, f->operations_per_s / 1e12);
    printf("%-22s %6s %9s %9s %9s %9s %9s %9s", "", "tokens", "first ms", "second", "median ms",
           "p10", "p90", "prompts/s");
    if (f->bytes_per_s > 0.0)
        printf(" %9s %6s", "floor ms", "ratio");
    printf("\n");
    for (int i = 0; i < scenes->n; i++) {
        const struct outcome *o = &f->scenes[i];
        int tokens = 0;
        for (int k = 0; k < scenes->list[i].n; k++)
            tokens += scenes->list[i].tokens[k];
        printf("%-22s %6d %9.3f %9.3f %9.3f %9.3f %9.3f %9.1f", scenes->list[i].name, tokens,
               o->first_ms, o->second_ms, o->median_ms, o->p10_ms, o->p90_ms,
               1e3 * scenes->list[i].n / o->median_ms);
        if (o->floor_ms > 0.0)
            printf(" %9.3f %6.2f", o->floor_ms, o->median_ms / o->floor_ms);
        printf("\n");
    }
}

static int print_json(const struct settings *s, const struct engine_info *info,
                      const struct scenes *scenes, const struct figures *f, struct error *err)
{
    json_t *root, *list = json_array();
    int rc = OK;

    for (int i = 0; i < scenes->n; i++) {
        const struct outcome *o = &f->scenes[i];
        json_t *tokens = json_array();
        for (int k = 0; k < scenes->list[i].n; k++)
            json_array_append_new(tokens, json_integer(scenes->list[i].tokens[k]));
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "name",
                            scenes->list[i].name, "tokens", tokens, "first_ms", o->first_ms,
                            "second_ms", o->second_ms, "median_ms", o->median_ms, "p10_ms",
                            o->p10_ms, "p90_ms", o->p90_ms, "p99_ms", o->p99_ms, "min_ms",
                            o->min_ms, "max_ms", o->max_ms, "prompts_per_s",
                            1e3 * scenes->list[i].n / o->median_ms, "floor_ms", o->floor_ms));
    }
    root = json_pack("{s:s, s:s?, s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:f, s:I, s:I, s:I, s:o}",
                     "model", s->engine.model, "ltx", option_list_at(&s->engine.ltx, 0), "compute",
                     engine_settings_compute(&s->engine), "backend", info->backend, "runs",
                     (json_int_t)s->runs, "bytes_per_s", f->bytes_per_s, "operations_per_s",
                     f->operations_per_s, "open_s", f->open_s, "warm_s", f->warm_s, "loaded_bytes",
                     (json_int_t)info->loaded_bytes, "load_s", info->load_s, "weights_bytes",
                     (json_int_t)info->weights_bytes, "peak_bytes", (json_int_t)f->peak_bytes,
                     "device_bytes", (json_int_t)f->device_bytes, "scenes", list);
    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(1)) != 0)
        rc = error_set(err, ERR_MEM, "bench: no memory for the result");
    printf("\n");
    json_decref(root);
    return rc;
}

/* The prompts of a file as the model's tokenizer reads them. */
static int read_prompts(struct prompts *prompts, const struct settings *s, struct error *err)
{
    struct tokenizer *tokenizer = NULL;
    int rc;

    if (random_model_is(s->engine.model))
        return error_set(err, ERR_INPUT,
                         "%s has no tokenizer to read --prompts with: give --tokens",
                         s->engine.model);
    if ((rc = prompts_read(prompts, NULL, 0, s->prompts, err)) == OK &&
        (rc = engine_load_tokenizer(&tokenizer, s->engine.model, err)) == OK)
        rc = prompts_tokenize(prompts, tokenizer, ENGINE_MAX_TOKENS, err);
    tokenizer_free(tokenizer);
    return rc;
}

int command_bench(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct engine_options engine_options;
    struct prompts prompts = {0};
    struct scenes scenes = {0};
    struct figures figures = {0};
    struct engine *engine = NULL;
    double *ms = NULL;
    int64_t start_ns;
    int n_rest, rc;
    bool help;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (n_rest > 0) {
        rc = error_set(err, ERR_INPUT, "bench takes no '%s'", argv[1]);
        goto out;
    }
    if (settings.engine.model == NULL) {
        rc = error_set(err, ERR_INPUT, "no model: give --model PATH or random:gemma-3-12b");
        goto out;
    }
    if (settings.prompts != NULL && settings.tokens != NULL) {
        rc = error_set(err, ERR_INPUT,
                       "what is measured comes from --prompts or --tokens, not both");
        goto out;
    }
    if ((ms = calloc((size_t)settings.runs, sizeof(*ms))) == NULL) {
        rc = error_set(err, ERR_MEM, "bench: no memory for %d runs", (int)settings.runs);
        goto out;
    }
    engine_options = engine_settings_options(&settings.engine);
    engine_options.max_batch_tokens = BATCH_TOKENS;
    if ((settings.prompts != NULL && (rc = read_prompts(&prompts, &settings, err)) != OK) ||
        (rc = scenes_make(&scenes, settings.tokens, settings.prompts != NULL ? &prompts : NULL,
                          err)) != OK)
        goto out;
    start_ns = clock_now_ns();
    if ((rc = engine_open(&engine, &engine_options, err)) != OK)
        goto out;
    figures.open_s = clock_ms_since(start_ns) / 1e3;
    if ((rc = scenes_fill(&scenes, settings.prompts != NULL ? &prompts : NULL,
                          engine_info(engine)->vocabulary, err)) != OK ||
        (rc = engine_warm(engine, &figures.warm_s, err)) != OK)
        goto out;
    for (int i = 0; i < scenes.n; i++)
        if ((rc = measure(&figures.scenes[i], engine, &scenes.list[i], ms, (int)settings.runs,
                          err)) != OK)
            goto out;
    /* before measuring the device, which takes memory of its own */
    if ((rc = engine_memory(engine, &figures.peak_bytes, &figures.device_bytes, err)) != OK)
        goto out;
    rc = engine_measure(engine, &figures.bytes_per_s, &figures.operations_per_s, err);
    if (rc == ERR_MEM) { /* what was measured is worth more than its floor */
        fprintf(stderr, "no floor: %s\n", err->text);
        *err = (struct error){0};
        rc = OK;
    }
    if (rc != OK)
        goto out;
    for (int i = 0; i < scenes.n; i++)
        figures.scenes[i].floor_ms =
            floor_ms(engine, &scenes.list[i], figures.bytes_per_s, figures.operations_per_s);
    if (settings.json)
        rc = print_json(&settings, engine_info(engine), &scenes, &figures, err);
    else
        print_table(&settings, engine_info(engine), &scenes, &figures);
out:
    engine_close(engine);
    scenes_free(&scenes);
    prompts_free(&prompts);
    free(ms);
    return rc;
}
