#include "engine/level.h"

#include <string.h>

static const char *const level_names[] = {"hidden_states", "features", "embeddings"};
static const char *const modalities_names[] = {"", "video", "audio", "video,audio"};

const char *engine_level_name(enum engine_level level)
{
    return level_names[level];
}

const char *engine_modalities_name(unsigned modalities)
{
    return modalities_names[modalities & (ENGINE_VIDEO | ENGINE_AUDIO)];
}

bool engine_level_find(enum engine_level *out, const char *name)
{
    for (int i = 0; i <= ENGINE_EMBEDDINGS; i++)
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum engine_level)i;
            return true;
        }
    return false;
}

bool engine_modalities_find(unsigned *out, const char *name)
{
    for (unsigned i = 0; i <= (ENGINE_VIDEO | ENGINE_AUDIO); i++)
        if (strcmp(name, modalities_names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}
