/* random_model.c - see random_model.h. The numbers are those of the published configs. */
#include "engine/random_model.h"

#include <string.h>

static const char prefix[] = "random:";

/* The tiny ones are for tests: odd numbers of layers, and every op. */
static const struct {
    const char *name;
    struct gemma_config config;
    int pattern; /* every so many layers one is global */
} gemmas[] = {
    {"gemma-3-12b",
     {.kind = GEMMA_3,
      .L = 48,
      .D = 3840,
      .H = 16,
      .F = 15360,
      .V = 16384, /* of 262208: rows that nobody reads only take memory */
      .rms_norm_eps = 1e-6f,
      .query_pre_attn_scalar = 256.0,
      .sliding_window = 1024,
      .global = {8, 256, false, {1e6, 8.0, 128}},
      .sliding = {8, 256, false, {1e4, 1.0, 128}},
      .max_position = 131072},
     6},
    {"gemma-3-tiny",
     {.kind = GEMMA_3,
      .L = 7,
      .D = 128,
      .H = 4,
      .F = 320,
      .V = 1408, /* as many as tests/golden/gemma3-tiny, whose tokenizer goes with it */
      .rms_norm_eps = 1e-6f,
      .query_pre_attn_scalar = 64.0,
      .sliding_window = 32,
      .global = {2, 64, false, {1e6, 8.0, 32}},
      .sliding = {2, 64, false, {1e4, 1.0, 32}},
      .max_position = 8192},
     3},
};

static const struct {
    const char *name;
    struct ltx_config config;
} checkpoints[] = {
    {"ltx-2.3",
     {.extractor = LTX_EXTRACTOR_V2,
      .has_audio = true,
      .connectors = {{32, 128, 4096, 8, 128}, {32, 64, 2048, 8, 128}},
      .rope = LTX_ROPE_SPLIT,
      .rope_float64 = true,
      .max_pos = 4096.0,
      .gated = true,
      .ff_bias = true}},
    {"ltx-tiny",
     {.extractor = LTX_EXTRACTOR_V2,
      .has_audio = true,
      .connectors = {{3, 64, 192, 2, 128}, {3, 32, 96, 2, 128}},
      .rope = LTX_ROPE_SPLIT,
      .rope_float64 = true,
      .max_pos = 4096.0,
      .gated = true,
      .ff_bias = true}},
};

bool random_model_is(const char *path)
{
    return path != NULL && strncmp(path, prefix, sizeof(prefix) - 1) == 0;
}

int random_model_gemma(struct gemma_config *out, const char *path, struct error *err)
{
    const char *name = path + sizeof(prefix) - 1;

    for (size_t i = 0; i < sizeof(gemmas) / sizeof(gemmas[0]); i++)
        if (strcmp(gemmas[i].name, name) == 0) {
            *out = gemmas[i].config;
            for (int layer = 0; layer < out->L; layer++)
                out->is_global[layer] = (layer + 1) % gemmas[i].pattern == 0;
            return OK;
        }
    return error_set(err, ERR_INPUT, "%s: there are random:gemma-3-12b and random:gemma-3-tiny",
                     path);
}

int random_model_ltx(struct ltx_config *out, const char *path, struct error *err)
{
    const char *name = path + sizeof(prefix) - 1;

    for (size_t i = 0; i < sizeof(checkpoints) / sizeof(checkpoints[0]); i++)
        if (strcmp(checkpoints[i].name, name) == 0) {
            *out = checkpoints[i].config;
            return OK;
        }
    return error_set(err, ERR_INPUT, "%s: there are random:ltx-2.3 and random:ltx-tiny", path);
}
