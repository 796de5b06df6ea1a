/* gemma_config_gguf.c - a Gemma 3 decoder's numbers from GGUF metadata; see gemma_config.h.
 *
 * Keys and defaults are llama.cpp's (LLM_ARCH_GEMMA3). Only Gemma 3: no file of another
 * architecture is known well enough to be read without a doubt. */
#include <math.h>
#include <string.h>

#include "engine/files/gemma_bounds.h"
#include "engine/files/gguf.h"

static int read_gguf_int(const struct gguf *g, const char *key, int min, int max, int *out,
                         struct error *err)
{
    uint64_t value;
    int rc;

    if ((rc = gguf_get_size(g, key, &value, err)) != OK)
        return rc;
    if (value < (uint64_t)min || value > (uint64_t)max)
        return error_set(err, ERR_FORMAT, "%s: %s is %llu, expected %d to %d", gguf_name(g), key,
                         (unsigned long long)value, min, max);
    *out = (int)value;
    return OK;
}

static int read_gguf_positive(const struct gguf *g, const char *key, double *out, struct error *err)
{
    int rc;

    if ((rc = gguf_get_number(g, key, out, err)) != OK)
        return rc;
    if (!(*out > 0) || !isfinite(*out))
        return error_set(err, ERR_FORMAT, "%s: %s is %g, expected a finite number above 0",
                         gguf_name(g), key, *out);
    return OK;
}

static bool text_is(struct gguf_text text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

static int check_architecture(const struct gguf *g, struct error *err)
{
    const char *key = "general.architecture";
    struct gguf_text architecture;
    int rc;

    if ((rc = gguf_get_text(g, key, &architecture, err)) != OK)
        return rc;
    if (text_is(architecture, "gemma3"))
        return OK;
    if (!tensor_name_is_sound(architecture.data, architecture.len) || architecture.len > 60)
        architecture = (struct gguf_text){"unreadable", 10};
    return error_set(err, ERR_FORMAT, "%s: %s is %.*s, expected gemma3%s", gguf_name(g), key,
                     (int)architecture.len, architecture.data,
                     text_is(architecture, "gemma4") ? ": Gemma 4 is read from safetensors only"
                                                     : "");
}

static int read_gguf_ropes(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    struct gguf_text type = {"linear",
                             6}; /* llama.cpp's default; without a factor it does nothing */
    int rc;

    c->global.rope = (struct gemma_rope){0, 1, c->global.E / 2};
    /* llama.cpp: rope_freq_base_train_swa */
    c->sliding.rope = (struct gemma_rope){10000, 1, c->sliding.E / 2};
    if ((rc = read_gguf_positive(g, "gemma3.rope.freq_base", &c->global.rope.theta, err)) != OK)
        return rc;
    if (gguf_has(g, "gemma3.rope.freq_base_swa") &&
        (rc = read_gguf_positive(g, "gemma3.rope.freq_base_swa", &c->sliding.rope.theta, err)) !=
            OK)
        return rc;
    if (gguf_has(g, "gemma3.rope.scaling.type") &&
        (rc = gguf_get_text(g, "gemma3.rope.scaling.type", &type, err)) != OK)
        return rc;
    if (text_is(type, "none"))
        return OK;
    if (!text_is(type, "linear"))
        return error_set(err, ERR_FORMAT,
                         "%s: gemma3.rope.scaling.type: only none and linear are supported",
                         gguf_name(g));
    if (gguf_has(g, "gemma3.rope.scaling.factor"))
        return read_gguf_positive(g, "gemma3.rope.scaling.factor", &c->global.rope.factor, err);
    if (gguf_has(g, "gemma3.rope.scale_linear")) /* the key's older name */
        return read_gguf_positive(g, "gemma3.rope.scale_linear", &c->global.rope.factor, err);
    return OK;
}

/* A period, or one bool a layer, true for sliding; 6 when absent (llama.cpp: set_swa_pattern). */
static int read_gguf_pattern(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    const char *key = "gemma3.attention.sliding_window_pattern";
    struct gguf_array flags;
    enum gguf_type type;
    int pattern = 6, rc;

    if (gguf_type_of(g, key, &type) && type == GGUF_ARRAY) {
        if ((rc = gguf_get_array(g, key, GGUF_BOOL, &flags, err)) != OK)
            return rc;
        if (flags.n != (size_t)c->L)
            return error_set(err, ERR_FORMAT, "%s: %s has %zu entries, expected %d (block_count)",
                             gguf_name(g), key, flags.n, c->L);
        for (int i = 0; i < c->L; i++)
            c->is_global[i] = !gguf_array_bool(&flags, (size_t)i);
        return OK;
    }
    if (gguf_has(g, key) && (rc = read_gguf_int(g, key, 1, POSITION_MAX, &pattern, err)) != OK)
        return rc;
    for (int i = 0; i < c->L; i++)
        c->is_global[i] = (i + 1) % pattern == 0;
    return OK;
}

/* GGUF files have no query_pre_attn_scalar. llama.cpp (LLM_ARCH_GEMMA3, f_attention_scale) takes
 * the head width, and D / H for the 27B model, which it knows by its 62 layers. A file that states
 * the factor itself, under the format's general key attention.scale, is believed. */
static int read_gguf_scale(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    double scale;
    int rc;

    c->query_pre_attn_scalar = c->L == 62 ? c->D / c->H : c->sliding.E;
    if (c->query_pre_attn_scalar < 1)
        return error_set(err, ERR_FORMAT, "%s: %d attention heads in a width of %d", gguf_name(g),
                         c->H, c->D);
    if (!gguf_has(g, "gemma3.attention.scale"))
        return OK;
    if ((rc = read_gguf_positive(g, "gemma3.attention.scale", &scale, err)) != OK)
        return rc;
    if (!(scale > 1e-6 && scale < 1e6))
        return error_set(err, ERR_FORMAT, "%s: gemma3.attention.scale is %g, out of range",
                         gguf_name(g), scale);
    c->query_pre_attn_scalar = 1 / (scale * scale);
    return OK;
}

static int read_gguf_heads(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    struct gemma_attention *a = &c->sliding;
    int value_width, rc;

    if ((rc = read_gguf_int(g, "gemma3.attention.head_count", 1, HEADS_MAX, &c->H, err)) != OK)
        return rc;
    a->K = c->H;
    if (gguf_has(g, "gemma3.attention.head_count_kv") &&
        (rc = read_gguf_int(g, "gemma3.attention.head_count_kv", 1, HEADS_MAX, &a->K, err)) != OK)
        return rc;
    if ((rc = read_gguf_int(g, "gemma3.attention.key_length", 2, HEAD_WIDTH_MAX, &a->E, err)) != OK)
        return rc;
    value_width = a->E;
    if (gguf_has(g, "gemma3.attention.value_length") &&
        (rc = read_gguf_int(g, "gemma3.attention.value_length", 1, HEAD_WIDTH_MAX, &value_width,
                            err)) != OK)
        return rc;
    if (value_width != a->E)
        return error_set(err, ERR_FORMAT,
                         "%s: gemma3.attention.value_length is %d, expected %d (key_length)",
                         gguf_name(g), value_width, a->E);
    c->global = *a;
    return OK;
}

/* The embedding has one row a token; the file does not state their number. */
static int read_gguf_vocabulary(struct gemma_config *c, const struct gguf *g,
                                const struct tensor *embedding, struct error *err)
{
    if (embedding == NULL)
        return error_set(err, ERR_FORMAT, "%s: token_embd.weight: no such tensor", gguf_name(g));
    if (embedding->n_dims != 2 || embedding->shape[0] > VOCAB_MAX ||
        embedding->shape[1] != (size_t)c->D)
        return error_set(err, ERR_FORMAT, "%s: token_embd.weight: shape %s, want [V,%d]",
                         gguf_name(g), tensor_shape_text(embedding->n_dims, embedding->shape).text,
                         c->D);
    c->V = (int)embedding->shape[0];
    return OK;
}

int gemma_config_from_gguf(struct gemma_config *out, const struct gguf *g,
                           const struct tensor *embedding, struct error *err)
{
    struct gemma_config *c = out;
    double eps = 0;
    int eos, rc;

    *c = (struct gemma_config){.kind = GEMMA_3};
    if ((rc = check_architecture(g, err)) != OK ||
        (rc = read_gguf_int(g, "gemma3.block_count", 1, GEMMA_MAX_LAYERS, &c->L, err)) != OK ||
        (rc = read_gguf_int(g, "gemma3.embedding_length", 1, WIDTH_MAX, &c->D, err)) != OK ||
        (rc = read_gguf_int(g, "gemma3.feed_forward_length", 1, FF_MAX, &c->F, err)) != OK ||
        (rc = read_gguf_int(g, "gemma3.context_length", 1, POSITION_MAX, &c->max_position, err)) !=
            OK ||
        (rc = read_gguf_int(g, "gemma3.attention.sliding_window", 1, POSITION_MAX,
                            &c->sliding_window, err)) != OK ||
        (rc = read_gguf_positive(g, "gemma3.attention.layer_norm_rms_epsilon", &eps, err)) != OK ||
        (rc = read_gguf_heads(c, g, err)) != OK || (rc = read_gguf_pattern(c, g, err)) != OK ||
        (rc = read_gguf_ropes(c, g, err)) != OK || (rc = read_gguf_scale(c, g, err)) != OK ||
        (rc = read_gguf_vocabulary(c, g, embedding, err)) != OK)
        return rc;
    if (gguf_has(g, "gemma3.attn_logit_softcapping"))
        return error_set(err, ERR_FORMAT, "%s: gemma3.attn_logit_softcapping is not supported",
                         gguf_name(g));
    c->rms_norm_eps = eps < 1 ? (float)eps : 1;
    eos = 1;
    if (gguf_has(g, "tokenizer.ggml.eos_token_id") &&
        (rc = read_gguf_int(g, "tokenizer.ggml.eos_token_id", 0, VOCAB_MAX, &eos, err)) != OK)
        return rc;
    c->eos[c->n_eos++] = eos;
    return gemma_config_check(c, gguf_name(g), err);
}
