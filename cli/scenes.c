#include "cli/scenes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "engine/engine.h"

/* A long positive prompt and a usual negative one; then as people mix them. */
static const struct scene built_in[] = {
    {"1 prompt", false, 1, {61}, {NULL}}, /* the first after opening */
    {"gemma alone, 1 prompt", true, 1, {61}, {NULL}},
    {"pair", false, 2, {61, 30}, {NULL}},
    {"8 prompts", false, 8, {61, 30, 61, 30, 61, 30, 61, 30}, {NULL}},
    {"32 prompts",
     false,
     32,
     {61, 30, 12, 79, 61, 30, 24, 67, 61, 30, 8, 83, 61, 30, 40, 51,
      61, 30, 19, 72, 61, 30, 33, 58, 61, 30, 5, 86, 61, 30, 91, 1},
     {NULL}},
};
enum { N_BUILT_IN = sizeof(built_in) / sizeof(built_in[0]) };

static int too_many(size_t n, struct error *err)
{
    return error_set(err, ERR_INPUT, "%zu prompts, at most %d are measured together", n,
                     SCENE_MAX_PROMPTS);
}

/* "61,30" to a scene. */
static int parse_tokens(struct scene *scene, const char *text, struct error *err)
{
    *scene = (struct scene){.name = text};
    while (text != NULL) {
        char one[16];
        int64_t value;
        int rc;

        if (scene->n == SCENE_MAX_PROMPTS)
            return too_many(SCENE_MAX_PROMPTS + 1, err);
        if (!options_next_item(one, sizeof(one), &text) || one[0] == '\0')
            return error_set(err, ERR_INPUT, "--tokens: '%s' is no list of numbers", scene->name);
        if ((rc = options_parse_int(&value, one, 1, ENGINE_MAX_TOKENS, "--tokens", err)) != OK)
            return rc;
        scene->tokens[scene->n++] = (int)value;
    }
    return OK;
}

static int describe_prompts(struct scene *scene, const struct prompts *prompts, struct error *err)
{
    if (prompts->n > SCENE_MAX_PROMPTS)
        return too_many(prompts->n, err);
    *scene = (struct scene){.name = "prompts", .n = (int)prompts->n};
    for (size_t i = 0; i < prompts->n; i++)
        scene->tokens[i] = (int)prompts->tokens[i].n;
    return OK;
}

/* Made up, and not the same for two prompts. */
static int32_t made_up_id(int prompt, int token, int vocabulary)
{
    return (2 + 7919 * (token + 131 * prompt)) % vocabulary;
}

int scenes_fill(struct scenes *s, const struct prompts *prompts, int vocabulary, struct error *err)
{
    size_t total = 0;
    int32_t *next;

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->list[i].n; k++)
            total += (size_t)s->list[i].tokens[k];
    if ((s->ids = calloc(total, sizeof(*s->ids))) == NULL)
        return error_set(err, ERR_MEM, "bench: no memory for %zu ids", total);
    next = s->ids;
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->list[i].n; k++) {
            struct scene *scene = &s->list[i];
            for (int t = 0; t < scene->tokens[k]; t++)
                next[t] =
                    prompts != NULL ? prompts->tokens[k].ids[t] : made_up_id(k, t, vocabulary);
            scene->ids[k] = next;
            next += scene->tokens[k];
        }
    return OK;
}

int scenes_make(struct scenes *s, const char *tokens, const struct prompts *prompts,
                struct error *err)
{
    s->n = 1;
    if (prompts != NULL)
        return describe_prompts(&s->list[0], prompts, err);
    if (tokens != NULL)
        return parse_tokens(&s->list[0], tokens, err);
    s->n = N_BUILT_IN;
    memcpy(s->list, built_in, sizeof(built_in));
    return OK;
}

void scenes_free(struct scenes *s)
{
    free(s->ids);
    *s = (struct scenes){0};
}
