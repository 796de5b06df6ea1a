/* tokenize.c - prompt-encoder tokenize: prompts to ids, a JSON list of lists on stdout. */
#include <stdio.h>

#include "base/options.h"
#include "cli/commands.h"
#include "cli/prompts.h"
#include "engine/engine.h"

struct settings {
    const char *model, *prompts;
    int64_t limit;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"model", 'm', "PE_MODEL", OPT_TEXT, FIELD(model), NULL, 0, 0, "PATH",
     "model directory, GGUF file or tokenizer.json"},
    {"prompts", 0, NULL, OPT_TEXT, FIELD(prompts), NULL, 0, 0, "FILE.json",
     "a JSON list of strings, instead of arguments; -: standard input"},
    {"limit", 0, NULL, OPT_INT, FIELD(limit), "1024", 0, 1 << 24, "N",
     "cut to the first N ids; 0: do not cut"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder tokenize",
    .usage = "--model PATH [options] PROMPT...",
    .about = "Prints the token ids of each prompt as the model reads them: stripped, <bos> first,\n"
             "cut at the limit.",
    .options = options,
};

int command_tokenize(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct tokenizer *tokenizer = NULL;
    struct prompts prompts = {0};
    int n_rest, rc;
    bool help;

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
    if ((rc = prompts_read(&prompts, argv + 1, n_rest, settings.prompts, err)) != OK ||
        (rc = engine_load_tokenizer(&tokenizer, settings.model, err)) != OK ||
        (rc = prompts_tokenize(&prompts, tokenizer, (size_t)settings.limit, err)) != OK)
        goto out;
    putchar('[');
    for (size_t i = 0; i < prompts.n; i++) {
        printf("%s[", i > 0 ? ",\n " : "");
        for (size_t t = 0; t < prompts.tokens[i].n; t++)
            printf("%s%d", t > 0 ? ", " : "", (int)prompts.tokens[i].ids[t]);
        putchar(']');
    }
    printf("]\n");
out:
    tokenizer_free(tokenizer);
    prompts_free(&prompts);
    return rc;
}
