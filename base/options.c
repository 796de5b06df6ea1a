#include "base/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 30 };

int options_parse_int(int64_t *out, const char *text, int64_t min, int64_t max, const char *what,
                      struct error *err)
{
    long long value;
    char *end;

    errno = 0;
    value = strtoll(text, &end, 10);
    /* strtoll alone would skip white space and take a plus */
    if (strchr("-0123456789", text[0]) == NULL || text[0] == '\0' || *end != '\0' || errno != 0 ||
        value < min || value > max)
        return error_set(err, ERR_INPUT,
                         "%s: '%s' is not a whole number from %" PRId64 " to %" PRId64, what, text,
                         min, max);
    *out = value;
    return OK;
}

static int parse_choice(int *out, const char *text, const char *words, const char *what,
                        struct error *err)
{
    size_t len = strlen(text);
    int index = 0;

    for (const char *word = words; word != NULL; index++) {
        const char *bar = strchr(word, '|');
        size_t word_len = bar == NULL ? strlen(word) : (size_t)(bar - word);
        if (len == word_len && memcmp(word, text, len) == 0) {
            *out = index;
            return OK;
        }
        word = bar == NULL ? NULL : bar + 1;
    }
    return error_set(err, ERR_INPUT, "%s: '%s' is none of %s", what, text, words);
}

const char *option_list_at(const struct option_list *list, int i)
{
    return i < list->n ? list->text + list->at[i] : NULL;
}

static int add_to_list(struct option_list *list, const struct option *o, const char *text,
                       size_t len, const char *what, struct error *err)
{
    size_t at = 0;

    if (len == 0)
        return error_set(err, ERR_INPUT, "%s: the value is empty", what);
    if (list->n == o->max)
        return error_set(err, ERR_INPUT, "%s: '%.*s' is one too many, at most %" PRId64, what,
                         (int)(len < 80 ? len : 80), text, o->max);
    if (list->n > 0) {
        at = (size_t)list->at[list->n - 1];
        at += strlen(list->text + at) + 1;
    }
    if (len >= sizeof(list->text) - at)
        return error_set(err, ERR_INPUT, "%s: longer than %zu bytes", what,
                         sizeof(list->text) - at - 1);
    memcpy(list->text + at, text, len);
    list->text[at + len] = '\0';
    list->at[list->n++] = (int)at;
    return OK;
}

static int split_into_list(struct option_list *list, const struct option *o, const char *text,
                           const char *what, struct error *err)
{
    for (;;) {
        size_t len = strcspn(text, ",");
        int rc = add_to_list(list, o, text, len, what, err);
        if (rc != OK || text[len] == '\0')
            return rc;
        text += len + 1;
    }
}

/* `what` is how the user gave it: "--threads" or "PE_THREADS". Of a list it is one more. */
static int set_field(const struct option *o, void *settings, const char *text, const char *what,
                     struct error *err)
{
    char *field = (char *)settings + o->offset;

    switch (o->kind) {
    case OPT_TEXT:
        if (text[0] == '\0')
            return error_set(err, ERR_INPUT, "%s: the value is empty", what);
        memcpy(field, &text, sizeof(text));
        return OK;
    case OPT_INT: {
        int64_t value = 0;
        int rc = options_parse_int(&value, text, o->min, o->max, what, err);
        memcpy(field, &value, sizeof(value));
        return rc;
    }
    case OPT_BOOL: {
        int value = 0;
        int rc = parse_choice(&value, text, "0|1", what, err);
        *(bool *)(void *)field = value == 1;
        return rc;
    }
    case OPT_CHOICE: {
        int value = 0;
        int rc = parse_choice(&value, text, o->value, what, err);
        memcpy(field, &value, sizeof(value));
        return rc;
    }
    case OPT_LIST:
        return add_to_list((struct option_list *)(void *)field, o, text, strlen(text), what, err);
    }
    return error_set(err, ERR_INPUT, "%s: unknown kind of option", what);
}

/* Defaults first, then the environment: a flag read later wins over both. */
static int set_from_environment(const struct program *program, void *settings, struct error *err)
{
    int rc;

    for (const struct option *o = program->options; o->flag != NULL; o++) {
        const char *text = o->env == NULL ? NULL : getenv(o->env);
        if (o->fallback != NULL && (rc = set_field(o, settings, o->fallback, o->flag, err)) != OK)
            return rc;
        if (text == NULL || text[0] == '\0')
            continue;
        if (o->kind == OPT_LIST)
            rc = split_into_list((struct option_list *)(void *)((char *)settings + o->offset), o,
                                 text, o->env, err);
        else
            rc = set_field(o, settings, text, o->env, err);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* Finds the option of "--flag", "--flag=value" or "-x". */
static const struct option *find(const struct program *program, const char *arg,
                                 const char **inline_value)
{
    *inline_value = NULL;
    for (const struct option *o = program->options; o->flag != NULL; o++) {
        size_t len = strlen(o->flag);
        if (arg[1] != '-') {
            if (o->letter != 0 && arg[1] == o->letter && arg[2] == '\0')
                return o;
            continue;
        }
        if (strncmp(arg + 2, o->flag, len) != 0)
            continue;
        if (arg[2 + len] == '\0')
            return o;
        if (arg[2 + len] == '=') {
            *inline_value = arg + 2 + len + 1;
            return o;
        }
    }
    return NULL;
}

bool options_next_item(char *out, size_t cap, const char **list)
{
    const char *comma = strchr(*list, ',');
    size_t len = comma == NULL ? strlen(*list) : (size_t)(comma - *list);

    if (len >= cap)
        return false;
    memcpy(out, *list, len);
    out[len] = '\0';
    *list = comma == NULL ? NULL : comma + 1;
    return true;
}

/* Of two rows of one name the second would never be read. */
static bool is_doubled(const struct option *options)
{
    for (const struct option *a = options; a->flag != NULL; a++)
        for (const struct option *b = a + 1; b->flag != NULL; b++)
            if (strcmp(a->flag, b->flag) == 0 || (a->letter != 0 && a->letter == b->letter))
                return true;
    return false;
}

int options_parse(const struct program *program, void *settings, int argc, char **argv, int *n_rest,
                  bool *help, struct error *err)
{
    uint64_t lists_begun = 0; /* a bit for each row of the table */
    bool only_rest = false;
    int rc;

    *n_rest = 0;
    *help = false;
    if (is_doubled(program->options))
        return error_set(err, ERR_INPUT, "%s: its options have a name twice", program->name);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
            return OK;
        }
    if ((rc = set_from_environment(program, settings, err)) != OK)
        return rc;
    for (int i = 1; i < argc; i++) {
        const struct option *o;
        const char *value;
        char what[64];

        if (!only_rest && strcmp(argv[i], "--") == 0) {
            only_rest = true;
            continue;
        }
        if (only_rest || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[1 + (*n_rest)++] = argv[i];
            continue;
        }
        if ((o = find(program, argv[i], &value)) == NULL)
            return error_set(err, ERR_INPUT, "unknown flag %s; '%s --help' lists them", argv[i],
                             program->name);
        snprintf(what, sizeof(what), "--%s", o->flag);
        if (o->kind == OPT_BOOL) {
            if (value != NULL)
                return error_set(err, ERR_INPUT, "%s takes no value, got '%s'", what, value);
            value = "1";
        } else if (value == NULL) {
            if (i + 1 == argc)
                return error_set(err, ERR_INPUT, "%s needs a value: %s", what, o->value);
            value = argv[++i];
        }
        if (o->kind == OPT_LIST) { /* the first flag drops what the environment said */
            uint64_t bit = UINT64_C(1) << (o - program->options);
            if ((lists_begun & bit) == 0)
                ((struct option_list *)(void *)((char *)settings + o->offset))->n = 0;
            lists_begun |= bit;
        }
        if ((rc = set_field(o, settings, value, what, err)) != OK)
            return rc;
    }
    return OK;
}

void options_help(const struct program *program, FILE *out)
{
    fprintf(out, "usage: %s %s\n\n%s\n\noptions:\n", program->name, program->usage, program->about);
    for (const struct option *o = program->options; o->flag != NULL; o++) {
        char left[64], short_form[8] = "    ";
        if (o->letter != 0)
            snprintf(short_form, sizeof(short_form), "-%c, ", o->letter);
        snprintf(left, sizeof(left), "%s--%s%s%s", short_form, o->flag,
                 o->kind == OPT_BOOL ? "" : " ", o->kind == OPT_BOOL ? "" : o->value);
        if (strlen(left) > HELP_COLUMN) /* too wide for its column: the rest on the next line */
            fprintf(out, "  %s\n  %*s %s", left, HELP_COLUMN, "", o->help);
        else
            fprintf(out, "  %-*s %s", HELP_COLUMN, left, o->help);
        if (o->kind == OPT_INT)
            fprintf(out, " (%" PRId64 " to %" PRId64 ")", o->min, o->max);
        if (o->kind == OPT_LIST)
            fprintf(out, " (up to %" PRId64 " times)", o->max);
        if (o->fallback != NULL && o->kind != OPT_BOOL)
            fprintf(out, " [%s]", o->fallback);
        if (o->env != NULL)
            fprintf(out, " {%s}", o->env);
        fputc('\n', out);
    }
    fprintf(out, "  %-*s %s\n", HELP_COLUMN, "-h, --help", "this text");
    fprintf(out, "\n[default]  {environment variable}; a flag wins over the environment\n");
}
