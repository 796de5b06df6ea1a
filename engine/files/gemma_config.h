/* gemma_config.h - the numbers that shape a Gemma decoder.
 *
 * From a Hugging Face config.json, old and new spelling, or from GGUF metadata. What the forward
 * pass does not do is refused here, by the name of the setting. Plain data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct gguf;

#define GEMMA_MAX_LAYERS 256
#define GEMMA_MAX_EOS    8

enum gemma_kind {
    GEMMA_3 /* model_type gemma3 or gemma3_text */
};

struct gemma_rope {
    double theta;
    double factor; /* positions are divided by it (rope_type linear); 1 when it is default */
};

struct gemma_config {
    enum gemma_kind kind;
    int L; /* layers, at most GEMMA_MAX_LAYERS */
    int D; /* model width */
    int H; /* query heads */
    int K; /* key/value heads; H % K == 0 */
    int E; /* head width, even */
    int F; /* feed-forward width */
    int V; /* rows of the embedding: at least one a token, often some more */
    float rms_norm_eps;
    double query_pre_attn_scalar; /* scores are multiplied by its power -1/2 */
    int sliding_window;           /* sliding layers see keys with q - k < sliding_window */
    bool is_global[GEMMA_MAX_LAYERS];
    struct gemma_rope rope_global, rope_local; /* of global and of sliding layers */
    int max_position;
    int n_eos;
    int32_t eos[GEMMA_MAX_EOS];
};

/* `name` stands for the bytes in messages. ERR_FORMAT: no JSON, no Gemma 3, a number out of range,
 * or something that the forward pass does not do. */
int gemma_config_from_json(struct gemma_config *out, const void *json, size_t size,
                           const char *name, struct error *err);
/* V is the number of rows of the file's token_embd.weight. */
int gemma_config_from_gguf(struct gemma_config *out, const struct gguf *g, struct error *err);
