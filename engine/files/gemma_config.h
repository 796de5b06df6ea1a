/* gemma_config.h - the numbers that shape a Gemma decoder, of generation 3 or 4.
 *
 * From a Hugging Face config.json, old and new spelling, or from GGUF metadata. What the forward
 * pass does not do is refused here, by the name of the setting. Plain data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct gguf;
struct tensor;

#define GEMMA_MAX_LAYERS  256
#define GEMMA_MAX_EOS     8
#define GEMMA_MAX_VERSION 63 /* bytes */

enum gemma_kind {
    GEMMA_3, /* model_type gemma3 or gemma3_text */
    GEMMA_4  /* model_type gemma4_unified or gemma4_unified_text */
};

struct gemma_rope {
    double theta;
    double factor; /* positions are divided by it; 1 when the file gives none */
    int n_turning; /* of a head's E/2 pairs the first so many turn: all but in proportional RoPE */
};

/* What all layers of one kind, global or sliding, have in common. */
struct gemma_attention {
    int K;       /* key/value heads; H % K == 0 */
    int E;       /* head width, even */
    bool k_is_v; /* no weights of their own for v: it is k as it was before norm and RoPE */
    struct gemma_rope rope;
};

struct gemma_config {
    enum gemma_kind kind;
    char version[GEMMA_MAX_VERSION + 1]; /* gemma_version: which fine-tuning; "" when not given */
    int L;                               /* layers, at most GEMMA_MAX_LAYERS */
    int D;                               /* model width */
    int H;                               /* query heads */
    int F;                               /* feed-forward width */
    int V; /* rows of the embedding: at least one a token, often some more */
    float rms_norm_eps;
    bool norm_v;                  /* value heads are normed too, without a weight */
    bool has_layer_scalars;       /* each layer's result is multiplied by a number of its own */
    double query_pre_attn_scalar; /* scores are multiplied by its power -1/2; 1 in Gemma 4 */
    int sliding_window;           /* sliding layers see keys with q - k < sliding_window */
    bool is_global[GEMMA_MAX_LAYERS];
    struct gemma_attention global, sliding; /* of layers with is_global, and of the others */
    int max_position;
    int n_eos;
    int32_t eos[GEMMA_MAX_EOS];
};

/* "gemma3" or "gemma4". */
const char *gemma_kind_name(enum gemma_kind kind);

/* All that decides what given weights compute, in one line. Two configs that compute differently,
 * or are of another version, have different texts. */
struct gemma_config_text {
    char text[1024];
};
struct gemma_config_text gemma_config_text(const struct gemma_config *c);

static inline const struct gemma_attention *gemma_attention_of(const struct gemma_config *c,
                                                               int layer)
{
    return c->is_global[layer] ? &c->global : &c->sliding;
}

/* `name` stands for the bytes in messages. ERR_FORMAT: no JSON, no Gemma that we know, a number out
 * of range, or something that the forward pass does not do. */
int gemma_config_from_json(struct gemma_config *out, const void *json, size_t size,
                           const char *name, struct error *err);
/* Gemma 3 only. `embedding` is the model's token_embd.weight, which in a split model may lie in
 * another of its files; NULL when there is none, which is refused. V is the number of its rows. */
int gemma_config_from_gguf(struct gemma_config *out, const struct gguf *g,
                           const struct tensor *embedding, struct error *err);
