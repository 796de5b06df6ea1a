/* options.h - a program's settings as one table.
 *
 * The table is the whole truth: the parser, --help and the environment all read it. A value comes
 * from the flag, else from the environment variable, else from the default; it is checked strictly
 * (all characters used, in range), and what is wrong stops the start with one sentence.
 *
 *     struct settings { const char *model; int64_t threads; bool quiet; int backend; };
 *     #define FIELD(name) offsetof(struct settings, name)
 *     static const struct option options[] = {
 *         {"model", 'm', "PE_MODEL", OPT_TEXT, FIELD(model), NULL, 0, 0, "PATH", "which model"},
 *         {"backend", 0, NULL, OPT_CHOICE, FIELD(backend), "cpu", 0, 0, "cpu|cuda", "where"},
 *         {0},
 *     };
 *
 * Texts but those of lists point into argv or the environment and are borrowed for the life of the
 * process. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum option_kind {
    OPT_TEXT,   /* field: const char *; NULL when there is neither value nor default */
    OPT_INT,    /* field: int64_t, between min and max */
    OPT_BOOL,   /* field: bool; the flag takes no value, the environment 0 or 1 */
    OPT_CHOICE, /* field: int, the index of the word in `value` ("cpu|cuda") */
    OPT_LIST    /* field: struct option_list, up to max texts: the flag again for each, in the
                   environment with commas between them */
};

enum { OPTION_LIST_MAX = 8, OPTION_LIST_BYTES = 8192 };

/* Plain data, the texts' own copies included. */
struct option_list {
    int n;
    int at[OPTION_LIST_MAX]; /* where in `text` each begins */
    char text[OPTION_LIST_BYTES];
};
const char *option_list_at(const struct option_list *list, int i); /* NULL from the n-th on */

struct option {
    const char *flag; /* without its dashes; NULL ends the table */
    char letter;      /* the short form, or 0 */
    const char *env;  /* environment variable, or NULL */
    enum option_kind kind;
    size_t offset;        /* of the field in the settings struct */
    const char *fallback; /* the default, written as a user would; NULL: none */
    int64_t min, max;     /* for OPT_INT; max for OPT_LIST */
    const char *value;    /* what --help calls the value; the words of a choice */
    const char *help;
};

struct program {
    const char *name;  /* "prompt-encoder encode" */
    const char *usage; /* what follows the name: "[options] PROMPT..." */
    const char *about; /* a sentence or two for --help */
    const struct option *options;
};

/* Reads argv[1..argc-1] into `settings`. What is no flag (and all after "--") is moved to the front
 * of argv, argv[0] staying first, and counted in *n_rest. *help is set when --help or -h was given;
 * then nothing else was checked. ERR_INPUT: an unknown flag or a bad value, named. */
int options_parse(const struct program *program, void *settings, int argc, char **argv, int *n_rest,
                  bool *help, struct error *err);

void options_help(const struct program *program, FILE *out);

/* A whole number between min and max, decimal, all characters used. `what` names it in the error.
 * ERR_INPUT otherwise. */
int options_parse_int(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                      struct error *err);

/* The next of a list with commas, copied; *list goes on behind it, or is NULL after the last.
 * False: it has `cap` bytes or more, and nothing was done. */
bool options_next_item(char *out, size_t cap, const char **list);
