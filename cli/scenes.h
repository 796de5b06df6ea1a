/* scenes.h - what `bench` measures: batches of prompts, as ids. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/prompts.h"

enum { SCENE_MAX_PROMPTS = 32, SCENES_MAX = 8 };

struct scene {
    const char *name;
    bool hidden_states; /* no further than Gemma */
    int n;              /* prompts */
    int tokens[SCENE_MAX_PROMPTS];
    int32_t *ids[SCENE_MAX_PROMPTS];
};

struct scenes {
    int n;
    struct scene list[SCENES_MAX];
    int32_t *ids; /* of all */
};

/* One scene of `prompts` (tokenised), else one of as many prompts as `tokens` ("61,30") has numbers
 * of tokens, else the built-in ones. ERR_INPUT: `tokens` is no such list, or more than
 * SCENE_MAX_PROMPTS. Start from a zeroed struct; scenes_free() in any case. */
int scenes_make(struct scenes *s, const char *tokens, const struct prompts *prompts,
                struct error *err);
/* Their ids: those of `prompts`, or made-up ones, spread over the vocabulary. */
int scenes_fill(struct scenes *s, const struct prompts *prompts, int vocabulary, struct error *err);
void scenes_free(struct scenes *s);
