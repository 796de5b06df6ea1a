#include "cli/prompts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { MAX_FILE = 256 << 20 }; /* bytes of a prompt file */

static int allocate(struct prompts *p, size_t n, struct error *err)
{
    if ((p->text = calloc(n, sizeof(*p->text))) == NULL ||
        (p->len = calloc(n, sizeof(*p->len))) == NULL ||
        (p->tokens = calloc(n, sizeof(*p->tokens))) == NULL)
        return error_set(err, ERR_MEM, "prompts: no memory for %zu prompts", n);
    p->n = n;
    return OK;
}

static int copy(struct prompts *p, size_t i, const char *text, size_t len, struct error *err)
{
    if ((p->text[i] = malloc(len + 1)) == NULL)
        return error_set(err, ERR_MEM, "prompts: no memory for %zu bytes", len);
    memcpy(p->text[i], text, len);
    p->text[i][len] = '\0';
    p->len[i] = len;
    return OK;
}

static int read_json(struct prompts *p, const char *file, struct error *err)
{
    struct buf text = {.max = MAX_FILE};
    json_error_t json_err;
    json_t *list = NULL;
    int rc;

    if ((rc = file_read(&text, file, err)) != OK)
        return rc;
    list = json_loadb(text.len > 0 ? text.data : "", text.len,
                      JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &json_err);
    if (list == NULL) {
        rc = error_set(err, ERR_INPUT, "%s: line %d: %s", file, json_err.line, json_err.text);
        goto out;
    }
    if (!json_is_array(list) || json_array_size(list) == 0) {
        rc = error_set(err, ERR_INPUT, "%s: expected a JSON list of one or more strings", file);
        goto out;
    }
    if ((rc = allocate(p, json_array_size(list), err)) != OK)
        goto out;
    for (size_t i = 0; i < p->n; i++) {
        json_t *item = json_array_get(list, i);
        if (!json_is_string(item)) {
            rc = error_set(err, ERR_INPUT, "%s: item %zu is no string", file, i);
            goto out;
        }
        if ((rc = copy(p, i, json_string_value(item), json_string_length(item), err)) != OK)
            goto out;
    }
out:
    json_decref(list);
    buf_free(&text);
    return rc;
}

int prompts_read(struct prompts *p, char *const *arguments, int n_arguments, const char *file,
                 struct error *err)
{
    int rc;

    if (file != NULL && n_arguments > 0)
        return error_set(err, ERR_INPUT, "prompts come from arguments or from --prompts, not both");
    if (file != NULL)
        return read_json(p, file, err);
    if (n_arguments == 0)
        return error_set(err, ERR_INPUT, "no prompt: give one or more, or --prompts FILE.json");
    if ((rc = allocate(p, (size_t)n_arguments, err)) != OK)
        return rc;
    for (int i = 0; i < n_arguments; i++)
        if ((rc = copy(p, (size_t)i, arguments[i], strlen(arguments[i]), err)) != OK)
            return rc;
    return OK;
}

int prompts_tokenize(struct prompts *p, const struct tokenizer *t, size_t limit, struct error *err)
{
    for (size_t i = 0; i < p->n; i++) {
        struct error why = {0};
        int rc = tokenizer_encode(t, p->text[i], p->len[i], limit, &p->tokens[i], &why);
        if (rc != OK)
            return error_set(err, why.code, "prompt %zu: %s", i, why.text);
        if (p->tokens[i].n < p->tokens[i].n_uncut)
            fprintf(stderr, "prompt %zu: cut to %zu of its %zu tokens\n", i, p->tokens[i].n,
                    p->tokens[i].n_uncut);
    }
    return OK;
}

void prompts_free(struct prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->text[i]);
        token_list_free(&p->tokens[i]);
    }
    free(p->text);
    free(p->len);
    free(p->tokens);
    *p = (struct prompts){0};
}
