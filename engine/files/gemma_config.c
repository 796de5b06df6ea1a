/* gemma_config.c - see gemma_config.h.
 *
 * Absent settings take the defaults of transformers' Gemma3TextConfig
 * (models/gemma3/configuration_gemma3.py): released configs rely on them. Both spellings of the
 * rotary settings are read: rope_theta, rope_local_base_freq and rope_scaling of transformers 4,
 * rope_parameters of 5; where both are there, rope_parameters wins, as in its
 * convert_rope_params_to_dict(). */
#include "engine/files/gemma_config.h"

#include <math.h>
#include <string.h>

#include "engine/files/gguf.h"
#include "engine/files/json_object.h"

#define CONFIG_MAX (1u << 20) /* bytes of JSON; real ones have a few thousand */

/* Bounds that no Gemma comes near, so that products of them fit in an int or a size_t. */
enum {
    WIDTH_MAX = 1 << 16,
    HEADS_MAX = 1 << 10,
    HEAD_WIDTH_MAX = 1 << 10,
    FF_MAX = 1 << 20,
    VOCAB_MAX = 1 << 22,
    POSITION_MAX = 1 << 30
};

/* One JSON object of a config file, and what it is called in messages. */
struct section {
    const json_t *object;
    const char *file;
};

static const json_t *get(const struct section *s, const char *key)
{
    const json_t *value = json_object_get(s->object, key);

    return json_is_null(value) ? NULL : value; /* null is transformers' None: mostly "not set" */
}

static int read_int(const struct section *s, const char *key, int fallback, int min, int max,
                    int *out, struct error *err)
{
    const json_t *value = json_object_get(s->object, key);

    if (value == NULL) {
        *out = fallback;
        return OK;
    }
    if (!json_is_integer(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected an integer", s->file, key,
                         json_object_kind(value));
    if (json_integer_value(value) < min || json_integer_value(value) > max)
        return error_set(err, ERR_FORMAT, "%s: %s is %lld, expected %d to %d", s->file, key,
                         (long long)json_integer_value(value), min, max);
    *out = (int)json_integer_value(value);
    return OK;
}

/* A finite number above 0. Returns OK with *out untouched when the key is absent or null. */
static int read_positive(const struct section *s, const char *key, double *out, struct error *err)
{
    const json_t *value = get(s, key);

    if (value == NULL)
        return OK;
    if (!json_is_number(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected a number", s->file, key,
                         json_object_kind(value));
    if (!(json_number_value(value) > 0))
        return error_set(err, ERR_FORMAT, "%s: %s is %g, expected more than 0", s->file, key,
                         json_number_value(value));
    *out = json_number_value(value);
    return OK;
}

static int read_text(const struct section *s, const char *key, const char **out, struct error *err)
{
    const json_t *value = get(s, key);

    *out = NULL;
    if (value == NULL)
        return OK;
    if (!json_is_string(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected a string", s->file, key,
                         json_object_kind(value));
    *out = json_string_value(value);
    return OK;
}

static int refuse_true(const struct section *s, const char *key, struct error *err)
{
    const json_t *value = get(s, key);

    if (value == NULL || json_is_false(value))
        return OK;
    return error_set(err, ERR_FORMAT, "%s: %s is %s, expected false: it is not supported", s->file,
                     key, json_object_kind(value));
}

static int refuse_unsupported(const struct section *s, struct error *err)
{
    const char *activation;
    int rc;

    if ((rc = read_text(s, "hidden_activation", &activation, err)) != OK)
        return rc;
    if (activation != NULL && strcmp(activation, "gelu_pytorch_tanh") != 0)
        return error_set(err, ERR_FORMAT, "%s: hidden_activation is %s, expected gelu_pytorch_tanh",
                         s->file, activation);
    if (get(s, "attn_logit_softcapping") != NULL)
        return error_set(err, ERR_FORMAT, "%s: attn_logit_softcapping is not supported", s->file);
    if ((rc = refuse_true(s, "attention_bias", err)) != OK)
        return rc;
    return refuse_true(s, "use_bidirectional_attention", err);
}

/* rope_scaling, or one half of rope_parameters: {rope_type or type, rope_theta, factor}. */
static int read_rope(struct gemma_rope *rope, const json_t *object, const char *file,
                     const char *key, struct error *err)
{
    const struct section s = {object, file};
    const char *type, *old_type;
    double partial = 1;
    int rc;

    if (!json_is_object(object))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected an object", file, key,
                         json_object_kind(object));
    if ((rc = read_text(&s, "rope_type", &type, err)) != OK ||
        (rc = read_text(&s, "type", &old_type, err)) != OK ||
        (rc = read_positive(&s, "rope_theta", &rope->theta, err)) != OK ||
        (rc = read_positive(&s, "partial_rotary_factor", &partial, err)) != OK)
        return rc;
    if (type == NULL)
        type = old_type != NULL ? old_type : "default";
    if (partial < 1 || partial > 1)
        return error_set(err, ERR_FORMAT, "%s: %s: partial_rotary_factor %g is not supported", file,
                         key, partial);
    if (strcmp(type, "default") == 0) {
        rope->factor = 1;
        return OK;
    }
    if (strcmp(type, "linear") != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: rope_type is %s, expected default or linear",
                         file, key, type);
    if (get(&s, "factor") == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s: factor is missing", file, key);
    return read_positive(&s, "factor", &rope->factor, err);
}

static int read_ropes(struct gemma_config *c, const struct section *s, struct error *err)
{
    const json_t *parameters = get(s, "rope_parameters"), *value;
    int rc;

    c->rope_global = (struct gemma_rope){1000000, 1}; /* default_theta of Gemma3TextConfig */
    c->rope_local = (struct gemma_rope){10000, 1};
    if ((rc = read_positive(s, "rope_theta", &c->rope_global.theta, err)) != OK ||
        (rc = read_positive(s, "rope_local_base_freq", &c->rope_local.theta, err)) != OK)
        return rc;
    if ((value = get(s, "rope_scaling")) != NULL &&
        (rc = read_rope(&c->rope_global, value, s->file, "rope_scaling", err)) != OK)
        return rc;
    if (parameters == NULL)
        return OK;
    if (!json_is_object(parameters))
        return error_set(err, ERR_FORMAT, "%s: rope_parameters is %s, expected an object", s->file,
                         json_object_kind(parameters));
    if ((value = json_object_get(parameters, "full_attention")) == NULL)
        return error_set(err, ERR_FORMAT, "%s: rope_parameters has no full_attention", s->file);
    if ((rc = read_rope(&c->rope_global, value, s->file, "rope_parameters.full_attention", err)) !=
        OK)
        return rc;
    if ((value = json_object_get(parameters, "sliding_attention")) == NULL)
        return error_set(err, ERR_FORMAT, "%s: rope_parameters has no sliding_attention", s->file);
    return read_rope(&c->rope_local, value, s->file, "rope_parameters.sliding_attention", err);
}

static int read_layer_types(struct gemma_config *c, const struct section *s, struct error *err)
{
    const json_t *types = get(s, "layer_types");
    int pattern, rc;

    if (types == NULL) {
        if ((rc = read_int(s, "sliding_window_pattern", 6, 1, POSITION_MAX, &pattern, err)) != OK)
            return rc;
        for (int i = 0; i < c->L; i++)
            c->is_global[i] = (i + 1) % pattern == 0;
        return OK;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->L)
        return error_set(
            err, ERR_FORMAT,
            "%s: layer_types is %s of %zu, expected an array of %d (num_hidden_layers)", s->file,
            json_object_kind(types), json_array_size(types), c->L);
    for (int i = 0; i < c->L; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *text = json_is_string(type) ? json_string_value(type) : json_object_kind(type);

        c->is_global[i] = strcmp(text, "full_attention") == 0;
        if (!c->is_global[i] && strcmp(text, "sliding_attention") != 0)
            return error_set(err, ERR_FORMAT,
                             "%s: layer_types[%d] is %s, expected full_attention or "
                             "sliding_attention",
                             s->file, i, text);
    }
    return OK;
}

static int read_eos_id(struct gemma_config *c, const json_t *id, const char *file,
                       struct error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > VOCAB_MAX)
        return error_set(err, ERR_FORMAT, "%s: eos_token_id is no token id", file);
    if (c->n_eos == GEMMA_MAX_EOS)
        return error_set(err, ERR_FORMAT, "%s: eos_token_id has more than %d ids", file,
                         GEMMA_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)json_integer_value(id);
    return OK;
}

/* A number or an array of them, at the top or beside the other text settings. */
static int read_eos(struct gemma_config *c, const struct section *top, const struct section *text,
                    struct error *err)
{
    const json_t *value = get(top, "eos_token_id");
    int rc = OK;

    if (value == NULL)
        value = get(text, "eos_token_id");
    if (value == NULL) {
        c->eos[c->n_eos++] = 1;
        return OK;
    }
    if (!json_is_array(value))
        return read_eos_id(c, value, text->file, err);
    for (size_t i = 0; rc == OK && i < json_array_size(value); i++)
        rc = read_eos_id(c, json_array_get(value, i), text->file, err);
    return rc;
}

/* What both sources promise. */
static int check(const struct gemma_config *c, const char *file, struct error *err)
{
    if (c->H % c->K != 0)
        return error_set(err, ERR_FORMAT,
                         "%s: %d attention heads are no multiple of %d key/value heads", file, c->H,
                         c->K);
    if (c->E % 2 != 0)
        return error_set(err, ERR_FORMAT, "%s: a head width of %d, expected an even number", file,
                         c->E);
    if (!(c->rms_norm_eps > 0 && c->rms_norm_eps < 1))
        return error_set(err, ERR_FORMAT, "%s: an RMS epsilon of %g, expected between 0 and 1",
                         file, (double)c->rms_norm_eps);
    return OK;
}

static int read_text_section(struct gemma_config *c, const struct section *s, struct error *err)
{
    double eps = 1e-6;
    int rc;

    c->query_pre_attn_scalar = 256;
    if ((rc = refuse_unsupported(s, err)) != OK ||
        (rc = read_int(s, "num_hidden_layers", 26, 1, GEMMA_MAX_LAYERS, &c->L, err)) != OK ||
        (rc = read_int(s, "hidden_size", 2304, 1, WIDTH_MAX, &c->D, err)) != OK ||
        (rc = read_int(s, "num_attention_heads", 8, 1, HEADS_MAX, &c->H, err)) != OK ||
        (rc = read_int(s, "num_key_value_heads", 4, 1, HEADS_MAX, &c->K, err)) != OK ||
        (rc = read_int(s, "head_dim", 256, 2, HEAD_WIDTH_MAX, &c->E, err)) != OK ||
        (rc = read_int(s, "intermediate_size", 9216, 1, FF_MAX, &c->F, err)) != OK ||
        (rc = read_int(s, "vocab_size", 262208, 1, VOCAB_MAX, &c->V, err)) != OK ||
        (rc = read_int(s, "sliding_window", 4096, 1, POSITION_MAX, &c->sliding_window, err)) !=
            OK ||
        (rc = read_int(s, "max_position_embeddings", 131072, 1, POSITION_MAX, &c->max_position,
                       err)) != OK ||
        (rc = read_positive(s, "rms_norm_eps", &eps, err)) != OK ||
        (rc = read_positive(s, "query_pre_attn_scalar", &c->query_pre_attn_scalar, err)) != OK ||
        (rc = read_ropes(c, s, err)) != OK || (rc = read_layer_types(c, s, err)) != OK)
        return rc;
    c->rms_norm_eps = eps < 1 ? (float)eps : 1;
    return check(c, s->file, err);
}

static int refuse_model_type(const char *file, const char *type, struct error *err)
{
    if (strncmp(type, "gemma4", 6) == 0)
        return error_set(err, ERR_FORMAT,
                         "%s: model_type is %s, expected gemma3: Gemma 4 is not supported yet",
                         file, type);
    return error_set(err, ERR_FORMAT, "%s: model_type is %s, expected gemma3 or gemma3_text", file,
                     type);
}

/* Finds the object with the decoder's settings: the file's own or its text_config. */
static int find_text_section(struct section *text, const struct section *top, struct error *err)
{
    const char *type;
    int rc;

    if ((rc = read_text(top, "model_type", &type, err)) != OK)
        return rc;
    if (type == NULL)
        return error_set(err, ERR_FORMAT, "%s: model_type is missing, expected gemma3", top->file);
    *text = *top;
    if (strcmp(type, "gemma3_text") == 0)
        return OK;
    if (strcmp(type, "gemma3") != 0)
        return refuse_model_type(top->file, type, err);
    text->object = json_object_get(top->object, "text_config");
    if (!json_is_object(text->object))
        return error_set(err, ERR_FORMAT, "%s: text_config is %s, expected an object", top->file,
                         json_object_kind(text->object));
    if ((rc = read_text(text, "model_type", &type, err)) != OK)
        return rc;
    if (type != NULL && strcmp(type, "gemma3_text") != 0)
        return error_set(err, ERR_FORMAT, "%s: text_config: model_type is %s, expected gemma3_text",
                         top->file, type);
    return OK;
}

int gemma_config_from_json(struct gemma_config *out, const void *json, size_t size,
                           const char *name, struct error *err)
{
    struct section top = {NULL, name}, text;
    json_t *root = NULL;
    int rc;

    *out = (struct gemma_config){.kind = GEMMA_3};
    if (size > CONFIG_MAX)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes, at most %u", name, size, CONFIG_MAX);
    if ((rc = json_object_parse(&root, json, size, name, err)) != OK)
        return rc;
    top.object = root;
    if ((rc = find_text_section(&text, &top, err)) != OK)
        goto out;
    if (get(&top, "quantization_config") != NULL || get(&text, "quantization_config") != NULL) {
        rc = error_set(err, ERR_FORMAT,
                       "%s: quantization_config: quantised directories are not supported (GGUF "
                       "files are)",
                       name);
        goto out;
    }
    if ((rc = read_text_section(out, &text, err)) == OK)
        rc = read_eos(out, &top, &text, err);
out:
    json_decref(root);
    return rc;
}

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
                     text_is(architecture, "gemma4") ? ": Gemma 4 is not supported yet" : "");
}

static int read_gguf_ropes(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    struct gguf_text type = {"linear",
                             6}; /* llama.cpp's default; without a factor it does nothing */
    int rc;

    c->rope_global = (struct gemma_rope){0, 1};
    c->rope_local = (struct gemma_rope){10000, 1}; /* llama.cpp: rope_freq_base_train_swa */
    if ((rc = read_gguf_positive(g, "gemma3.rope.freq_base", &c->rope_global.theta, err)) != OK)
        return rc;
    if (gguf_has(g, "gemma3.rope.freq_base_swa") &&
        (rc = read_gguf_positive(g, "gemma3.rope.freq_base_swa", &c->rope_local.theta, err)) != OK)
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
        return read_gguf_positive(g, "gemma3.rope.scaling.factor", &c->rope_global.factor, err);
    if (gguf_has(g, "gemma3.rope.scale_linear")) /* the key's older name */
        return read_gguf_positive(g, "gemma3.rope.scale_linear", &c->rope_global.factor, err);
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

    c->query_pre_attn_scalar = c->L == 62 ? c->D / c->H : c->E;
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
    int value_width, rc;

    if ((rc = read_gguf_int(g, "gemma3.attention.head_count", 1, HEADS_MAX, &c->H, err)) != OK)
        return rc;
    c->K = c->H;
    if (gguf_has(g, "gemma3.attention.head_count_kv") &&
        (rc = read_gguf_int(g, "gemma3.attention.head_count_kv", 1, HEADS_MAX, &c->K, err)) != OK)
        return rc;
    if ((rc = read_gguf_int(g, "gemma3.attention.key_length", 2, HEAD_WIDTH_MAX, &c->E, err)) != OK)
        return rc;
    value_width = c->E;
    if (gguf_has(g, "gemma3.attention.value_length") &&
        (rc = read_gguf_int(g, "gemma3.attention.value_length", 1, HEAD_WIDTH_MAX, &value_width,
                            err)) != OK)
        return rc;
    if (value_width != c->E)
        return error_set(err, ERR_FORMAT,
                         "%s: gemma3.attention.value_length is %d, expected %d (key_length)",
                         gguf_name(g), value_width, c->E);
    return OK;
}

/* The embedding has one row a token; the file does not state their number. */
static int read_gguf_vocabulary(struct gemma_config *c, const struct gguf *g, struct error *err)
{
    const struct tensor *embedding = gguf_find(g, "token_embd.weight");

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

int gemma_config_from_gguf(struct gemma_config *out, const struct gguf *g, struct error *err)
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
        (rc = read_gguf_vocabulary(c, g, err)) != OK)
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
    return check(c, gguf_name(g), err);
}
