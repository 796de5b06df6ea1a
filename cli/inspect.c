/* inspect.c - prompt-encoder inspect: what a model directory or file is. */
#include <stdio.h>

#include "base/options.h"
#include "cli/commands.h"
#include "engine/engine.h"

struct settings {
    bool tensors;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"tensors", 't', NULL, OPT_BOOL, FIELD(tensors), NULL, 0, 0, NULL, "list every tensor"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder inspect",
    .usage = "[options] PATH",
    .about = "Shows what a model directory, a safetensors file or a GGUF file is, its sizes and\n"
             "types, and what it lacks to be encoded with.",
    .options = options,
};

int command_inspect(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct buf text = {.max = 256u << 20};
    int n_rest, rc;
    bool help;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (n_rest != 1) {
        rc = error_set(err, ERR_INPUT, "inspect takes one PATH, got %d", n_rest);
        goto out;
    }
    if ((rc = engine_inspect(&text, argv[1], settings.tensors, err)) != OK)
        goto out;
    fwrite(text.data, 1, text.len, stdout);
out:
    buf_free(&text);
    return rc;
}
