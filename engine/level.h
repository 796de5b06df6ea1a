/* level.h - how far a prompt is taken, and the names of that which the programs share. */
#pragma once
#include <stdbool.h>

/* The later two need an LTX checkpoint. */
enum engine_level {
    ENGINE_HIDDEN_STATES, /* of Gemma, real tokens only */
    ENGINE_FEATURES,      /* after the projection, real tokens only */
    ENGINE_EMBEDDINGS     /* after the connectors, ENGINE_ROWS rows: what the video model reads */
};

enum engine_modality { ENGINE_VIDEO = 1, ENGINE_AUDIO = 2 }; /* bits */

const char *engine_level_name(enum engine_level level); /* "hidden_states" */
/* "video,audio", in this order; "" for none. */
const char *engine_modalities_name(unsigned modalities);

/* False: that is no name of one. */
bool engine_level_find(enum engine_level *out, const char *name);
bool engine_modalities_find(unsigned *out, const char *name);
