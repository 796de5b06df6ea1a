/* verify.c - prompt-encoder verify: does this machine compute what it should?
 *
 * Either small models of random weights against golden vectors that the reference implementation
 * made (they come with the program: they need no download and take seconds), or the operator's own
 * model against a file of expected values that the reference or another machine made. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "cli/commands.h"
#include "cli/expected.h"
#include "cli/progress.h"
#include "cli/prompts.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"

struct settings {
    struct engine_settings engine;
    const char *fixtures, *expected, *write, *prompts, *bound;
    bool quiet;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    ENGINE_OPTIONS(FIELD(engine)),
    {"expected", 0, NULL, OPT_TEXT, FIELD(expected), NULL, 0, 0, "FILE",
     "what --model should give: safetensors; docs/VERIFY.md has the format"},
    {"write", 0, NULL, OPT_TEXT, FIELD(write), NULL, 0, 0, "FILE",
     "write what --model gives, for --expected elsewhere"},
    {"prompts", 0, NULL, OPT_TEXT, FIELD(prompts), NULL, 0, 0, "FILE.json",
     "for --write: a JSON list of strings, instead of arguments"},
    {"bound", 0, NULL, OPT_TEXT, FIELD(bound), NULL, 0, 0, "X",
     "relative error that is allowed, instead of the usual bounds"},
    {"fixtures", 0, NULL, OPT_TEXT, FIELD(fixtures), NULL, 0, 0, "DIR",
     "golden vectors; default: those that came with the program"},
    {"quiet", 'q', NULL, OPT_BOOL, FIELD(quiet), NULL, 0, 0, NULL, "show misses and sums only"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder verify",
    .usage = "[--model PATH (--expected FILE | --write FILE PROMPT...)] [options]",
    .about = "Checks the numbers of this machine's backend and compute type. Alone: small models\n"
             "against golden vectors of the reference implementation. With --expected: your own\n"
             "model against values made by the reference, or by --write on another backend.\n"
             "Bounds are relative errors: 1e-4 in float32; in bfloat16 1.25 times what the\n"
             "reference loses; 0.3 in float8, which loses more: docs/ACCURACY.md. A miss makes\n"
             "the exit code 1.",
    .options = options,
};

/* The golden models; each has expected-<model>.safetensors and .json. */
static const struct fixture {
    const char *model, *ltx;
} fixtures[] = {
    {"gemma3-tiny", "ltx-tiny-v1.safetensors"},
    {"gemma3-tiny", "ltx-tiny-v2.safetensors"},
    {"gemma4-tiny", "ltx-tiny-v2-gemma4.safetensors"},
};

/* For --write without prompts: nothing, a word, a sentence, a negative prompt, scripts. */
static char *const usual_prompts[] = {
    "",
    "snow",
    "A red fox runs through fresh snow at dawn, its breath visible, the camera low beside it.",
    "blurry, low quality, distorted, watermark",
    "Ночной поезд, 雪の駅, café, 🦊",
};

struct sums {
    int n_checks, n_misses, n_unjudged;
    double nearest; /* the largest error as a part of its bound */
};

static void print_verdict(const struct verdict *v, struct sums *sums, bool quiet)
{
    bool judged = v->bound > 0;
    char bound[16] = "-";

    if (!judged) {
        sums->n_unjudged++;
    } else {
        sums->n_checks++;
        sums->n_misses += !v->passed;
        if (!(v->error / v->bound <= sums->nearest))
            sums->nearest = v->error / v->bound;
        snprintf(bound, sizeof(bound), "%.1e", v->bound);
    }
    if (!quiet || (judged && !v->passed))
        printf("%-13s %6d %6d  %-16s %8.1e %8s  %s\n", v->level, v->prompt, v->n_tokens, v->worst,
               v->error, bound,
               !judged     ? "no bound"
               : v->passed ? "pass"
                           : "MISS");
}

static void print_head(const char *title, const struct settings *s)
{
    printf("%s: %s, %s\n", title, engine_settings_backend(&s->engine),
           engine_settings_compute(&s->engine));
    if (!s->quiet)
        printf("%-13s %6s %6s  %-16s %8s %8s\n", "level", "prompt", "tokens", "worst", "error",
               "bound");
}

/* All prompts of a file. */
static int check_all(const struct expected *x, struct engine *e, const struct settings *s,
                     double bound, struct sums *sums, struct error *err)
{
    struct engine_options options_used = engine_settings_options(&s->engine);
    struct verdict verdicts[EXPECTED_MAX_VERDICTS];
    int n, rc;

    for (int p = 0; p < expected_n_prompts(x); p++) {
        if ((rc = expected_check(x, e, options_used.compute, p, bound, verdicts, &n, err)) != OK)
            return rc;
        for (int i = 0; i < n; i++)
            print_verdict(&verdicts[i], sums, s->quiet);
        fflush(stdout);
    }
    return OK;
}

static int open_engine(struct engine **out, const struct settings *s, const char *model,
                       const char *ltx, struct progress *progress, struct error *err)
{
    struct engine_options o = engine_settings_options(&s->engine);

    o.model = model;
    if (ltx != NULL) {
        memset(o.ltx, 0, sizeof(o.ltx));
        o.ltx[0] = ltx;
    }
    o.max_batch_tokens = EXPECTED_MAX_VERDICTS * ENGINE_MAX_TOKENS;
    if (progress != NULL) {
        o.progress = progress_update;
        o.progress_arg = progress;
    }
    return engine_open(out, &o, err);
}

/* ---- the golden models ---- */

/* Where a checkout's build and an installation have them, seen from the program. */
static const char *const places[] = {"../../../tests/golden", "../share/prompt-encoder/golden"};

static int find_fixtures(char *out, size_t cap, const struct settings *s, struct error *err)
{
    char program_path[PATH_MAX], tried[sizeof(places) / sizeof(places[0])][PATH_MAX];
    ssize_t n;
    char *slash;
    int rc;

    if (s->fixtures != NULL) {
        if (!file_is_directory(s->fixtures))
            return error_set(err, ERR_INPUT, "--fixtures: %s: no such folder", s->fixtures);
        if (snprintf(out, cap, "%s", s->fixtures) >= (int)cap)
            return error_set(err, ERR_SIZE, "--fixtures: too long a path");
        return OK;
    }
    if ((n = readlink("/proc/self/exe", program_path, sizeof(program_path) - 1)) <= 0)
        return error_set(err, ERR_IO, "/proc/self/exe: %s", strerror(errno));
    program_path[n] = '\0';
    if ((slash = strrchr(program_path, '/')) != NULL)
        *slash = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if ((rc = file_join(tried[i], sizeof(tried[i]), program_path, places[i], err)) != OK)
            return rc;
        if (file_is_directory(tried[i]))
            return snprintf(out, cap, "%s", tried[i]) < (int)cap
                       ? OK
                       : error_set(err, ERR_SIZE, "%.80s...: too long a path", tried[i]);
    }
    return error_set(err, ERR_INPUT,
                     "no golden vectors: neither %.160s nor %.160s is there; give --fixtures DIR",
                     tried[0], tried[1]);
}

/* The ids of prompts.json are those of the reference. */
static int check_tokens(const struct expected *x, const char *model, const char *dir,
                        struct sums *sums, bool quiet, struct error *err)
{
    struct prompts prompts = {0};
    struct tokenizer *tokenizer = NULL;
    char path[PATH_MAX];
    int n = expected_n_prompts(x), rc;

    if ((rc = file_join(path, sizeof(path), dir, "prompts.json", err)) != OK ||
        (rc = prompts_read(&prompts, NULL, 0, path, err)) != OK ||
        (rc = engine_load_tokenizer(&tokenizer, model, err)) != OK)
        goto out;
    if (prompts.n != (size_t)n) {
        rc = error_set(err, ERR_FORMAT, "%s: %zu prompts, but %d are expected", path, prompts.n, n);
        goto out;
    }
    for (int i = 0; i < n; i++) {
        struct engine_prompt want = expected_prompt(x, i);
        struct token_list got = {0};
        bool same;
        if ((rc = tokenizer_encode(tokenizer, prompts.text[i], prompts.len[i], ENGINE_MAX_TOKENS,
                                   &got, err)) != OK)
            goto out;
        same = got.n == (size_t)want.n && memcmp(got.ids, want.ids, got.n * sizeof(*got.ids)) == 0;
        token_list_free(&got);
        sums->n_checks++;
        sums->n_misses += !same;
        if (!quiet || !same)
            printf("%-13s %6d %6d  %-16s %8s %8s  %s\n", "token_ids", i, want.n, "", "", "exact",
                   same ? "pass" : "MISS");
    }
out:
    tokenizer_free(tokenizer);
    prompts_free(&prompts);
    return rc;
}

static int verify_fixture(const char *dir, const struct fixture *f, bool with_tokens,
                          const struct settings *s, double bound, struct sums *sums,
                          struct error *err)
{
    char model[PATH_MAX], ltx[PATH_MAX], file[PATH_MAX], name[64], title[200];
    struct expected *x = NULL;
    struct engine *e = NULL;
    int rc;

    snprintf(name, sizeof(name), "expected-%s.safetensors", f->model);
    if ((rc = file_join(model, sizeof(model), dir, f->model, err)) != OK ||
        (rc = file_join(ltx, sizeof(ltx), dir, f->ltx, err)) != OK ||
        (rc = file_join(file, sizeof(file), dir, name, err)) != OK ||
        (rc = expected_open(&x, file, err)) != OK ||
        (rc = open_engine(&e, s, model, ltx, NULL, err)) != OK)
        goto out;
    snprintf(title, sizeof(title), "%s with %s", f->model, f->ltx);
    print_head(title, s);
    if ((with_tokens && (rc = check_tokens(x, model, dir, sums, s->quiet, err)) != OK) ||
        (rc = check_all(x, e, s, bound, sums, err)) != OK)
        goto out;
    if (!s->quiet)
        printf("\n");
out:
    engine_close(e);
    expected_close(x);
    return rc;
}

static int verify_fixtures(const struct settings *s, double bound, struct sums *sums,
                           struct error *err)
{
    char dir[PATH_MAX];
    int rc;

    if ((rc = find_fixtures(dir, sizeof(dir), s, err)) != OK)
        return rc;
    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        bool new_model = i == 0 || strcmp(fixtures[i].model, fixtures[i - 1].model) != 0;
        if ((rc = verify_fixture(dir, &fixtures[i], new_model, s, bound, sums, err)) != OK)
            return rc;
    }
    if (s->engine.model != NULL)
        printf("%s itself was not looked at: that takes --expected FILE\n", s->engine.model);
    return OK;
}

/* ---- the operator's model ---- */

static int load(struct engine **out, const struct settings *s, struct error *err)
{
    struct progress progress;
    char what[300];
    int rc;

    snprintf(what, sizeof(what), "loading %.250s", s->engine.model);
    progress_start(&progress, what);
    if ((rc = open_engine(out, s, s->engine.model, NULL, &progress, err)) != OK)
        progress_abort(&progress);
    else
        progress_end(&progress);
    return rc;
}

static int verify_model(const struct settings *s, double bound, struct sums *sums,
                        struct error *err)
{
    struct expected *x = NULL;
    struct engine *e = NULL;
    int rc;

    if ((rc = expected_open(&x, s->expected, err)) != OK || (rc = load(&e, s, err)) != OK)
        goto out;
    print_head(s->engine.model, s);
    if ((rc = check_all(x, e, s, bound, sums, err)) != OK)
        goto out;
    if (!s->quiet)
        printf("\n");
    if (sums->n_checks == 0 && sums->n_unjudged == 0)
        rc = error_set(err, ERR_FORMAT, "%s: holds nothing that this model makes%s", s->expected,
                       engine_info(e)->extractor == 0 ? " (without --ltx: hidden states)" : "");
    else if (sums->n_checks == 0)
        rc = error_set(err, ERR_INPUT,
                       "%s does not say what the reference loses in bfloat16: give --bound",
                       s->expected);
out:
    engine_close(e);
    expected_close(x);
    return rc;
}

static int write_expected(const struct settings *s, char *const *arguments, int n_arguments,
                          struct error *err)
{
    struct prompts prompts = {0};
    struct tokenizer *tokenizer = NULL;
    struct engine_prompt *list = NULL;
    struct file_writer *w = NULL;
    struct engine *e = NULL;
    char made_by[100];
    int rc;

    if (n_arguments == 0 && s->prompts == NULL) {
        arguments = usual_prompts;
        n_arguments = sizeof(usual_prompts) / sizeof(usual_prompts[0]);
    }
    if ((rc = prompts_read(&prompts, arguments, n_arguments, s->prompts, err)) != OK ||
        (rc = file_writer_open(&w, s->write, err)) != OK ||
        (rc = engine_load_tokenizer(&tokenizer, s->engine.model, err)) != OK ||
        (rc = prompts_tokenize(&prompts, tokenizer, ENGINE_MAX_TOKENS, err)) != OK ||
        (rc = load(&e, s, err)) != OK)
        goto out;
    if ((list = calloc(prompts.n, sizeof(*list))) == NULL) {
        rc = error_set(err, ERR_MEM, "verify: no memory for %zu prompts", prompts.n);
        goto out;
    }
    for (size_t i = 0; i < prompts.n; i++)
        list[i] = (struct engine_prompt){prompts.tokens[i].ids, (int)prompts.tokens[i].n, NULL};
    snprintf(made_by, sizeof(made_by), "prompt-encoder %s, %s, %s", PE_VERSION,
             engine_settings_backend(&s->engine), engine_settings_compute(&s->engine));
    if ((rc = expected_write(w, e, list, (int)prompts.n, made_by, err)) != OK)
        goto out;
    printf("wrote %s: %zu prompts by %s\n", s->write, prompts.n, made_by);
out:
    free(list);
    file_writer_close(w);
    engine_close(e);
    tokenizer_free(tokenizer);
    prompts_free(&prompts);
    return rc;
}

/* ---- the command ---- */

static int parse_bound(double *out, const char *text, struct error *err)
{
    char *end;

    *out = 0.0;
    if (text == NULL)
        return OK;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(*out) || *out <= 0)
        return error_set(err, ERR_INPUT, "--bound: '%s' is no number above 0", text);
    return OK;
}

static int check_settings(const struct settings *s, int n_arguments, struct error *err)
{
    if (s->expected != NULL && s->write != NULL)
        return error_set(err, ERR_INPUT, "--expected and --write are two commands");
    if (s->fixtures != NULL && (s->expected != NULL || s->write != NULL))
        return error_set(err, ERR_INPUT, "--fixtures has models of its own: leave %s away",
                         s->expected != NULL ? "--expected" : "--write");
    if (s->write == NULL && (n_arguments > 0 || s->prompts != NULL))
        return error_set(err, ERR_INPUT, "prompts are for --write: expected values bring theirs");
    return s->expected != NULL || s->write != NULL ? engine_settings_check(&s->engine, err) : OK;
}

int command_verify(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct sums sums = {0};
    double bound;
    int n_rest, rc;
    bool help;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        return rc;
    if (help) {
        options_help(&program, stdout);
        return OK;
    }
    if ((rc = check_settings(&settings, n_rest, err)) != OK ||
        (rc = parse_bound(&bound, settings.bound, err)) != OK)
        return rc;
    if (settings.write != NULL)
        return write_expected(&settings, argv + 1, n_rest, err);
    rc = settings.expected != NULL ? verify_model(&settings, bound, &sums, err)
                                   : verify_fixtures(&settings, bound, &sums, err);
    if (rc != OK)
        return rc;
    if (sums.n_misses > 0)
        return error_set(err, ERR_INPUT, "%d of %d checks missed their bound on %s in %s",
                         sums.n_misses, sums.n_checks, engine_settings_backend(&settings.engine),
                         engine_settings_compute(&settings.engine));
    printf("all %d checks passed on %s in %s; the largest error is %.2f of its bound\n",
           sums.n_checks, engine_settings_backend(&settings.engine),
           engine_settings_compute(&settings.engine), sums.nearest);
    return OK;
}
