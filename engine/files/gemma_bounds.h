/* gemma_bounds.h - what every source of a gemma_config promises. Only for the readers beside it. */
#pragma once
#include "engine/files/gemma_config.h"

/* Bounds that no Gemma comes near, so that products of them fit in an int or a size_t. */
enum {
    WIDTH_MAX = 1 << 16,
    HEADS_MAX = 1 << 10,
    HEAD_WIDTH_MAX = 1 << 10,
    FF_MAX = 1 << 20,
    VOCAB_MAX = 1 << 22,
    POSITION_MAX = 1 << 30
};

/* That the numbers, each within its bounds, fit each other. `file` is for messages. ERR_FORMAT. */
int gemma_config_check(const struct gemma_config *c, const char *file, struct error *err);
