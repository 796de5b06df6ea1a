/* gemma_config.c - a Gemma decoder's numbers from config.json; see gemma_config.h.
 *
 * Absent settings take the defaults of transformers (Gemma3TextConfig, Gemma4UnifiedTextConfig):
 * released configs rely on them. Gemma 3 has two spellings of the rotary settings: rope_theta,
 * rope_local_base_freq and rope_scaling of transformers 4, rope_parameters of 5; where both are
 * there, rope_parameters wins, as in its convert_rope_params_to_dict(). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/files/gemma_bounds.h"
#include "engine/files/json_object.h"
#include "engine/files/tensor.h"

#define CONFIG_MAX (1u << 20) /* bytes of JSON; real ones have a few thousand */

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

/* A switch or a count that must be off: absent, null, false or 0. */
static int refuse_on(const struct section *s, const char *key, struct error *err)
{
    const json_t *value = get(s, key);

    if (value == NULL || json_is_false(value) ||
        (json_is_integer(value) && json_integer_value(value) == 0))
        return OK;
    if (json_is_integer(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %lld, expected 0: it is not supported",
                         s->file, key, (long long)json_integer_value(value));
    return error_set(err, ERR_FORMAT, "%s: %s is %s, expected %s: it is not supported", s->file,
                     key, json_object_kind(value), json_is_true(value) ? "false" : "none");
}

/* What changes the arithmetic in a way that the forward pass does not know. */
static int refuse_unsupported(const struct section *s, enum gemma_kind kind, struct error *err)
{
    static const char *const off[] = {"attn_logit_softcapping", "attention_bias"};
    static const char *const off_in_gemma4[] = {
        /* of Gemma4UnifiedTextConfig */
        "num_kv_shared_layers", "use_double_wide_mlp",
        /* of its relative Gemma4TextConfig: experts, and an embedding of its own for each layer */
        "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size",
        "hidden_size_per_layer_input",
        /* of Gemma 3: transformers would not read them, so they cannot mean what they say */
        "query_pre_attn_scalar", "rope_scaling", "rope_theta", "rope_local_base_freq"};
    const char *text;
    int rc;

    if ((rc = read_text(s, "hidden_activation", &text, err)) != OK)
        return rc;
    if (text != NULL && strcmp(text, "gelu_pytorch_tanh") != 0)
        return error_set(err, ERR_FORMAT, "%s: hidden_activation is %s, expected gelu_pytorch_tanh",
                         s->file, text);
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
        if ((rc = refuse_on(s, off[i], err)) != OK)
            return rc;
    if (kind == GEMMA_3)
        return refuse_on(s, "use_bidirectional_attention", err);
    for (size_t i = 0; i < sizeof(off_in_gemma4) / sizeof(off_in_gemma4[0]); i++)
        if ((rc = refuse_on(s, off_in_gemma4[i], err)) != OK)
            return rc;
    /* "vision": image tokens see each other both ways, text tokens only what came before */
    if ((rc = read_text(s, "use_bidirectional_attention", &text, err)) != OK)
        return rc;
    if (text != NULL && strcmp(text, "vision") != 0)
        return error_set(err, ERR_FORMAT,
                         "%s: use_bidirectional_attention is %s, expected vision or null", s->file,
                         text);
    return OK;
}

/* rope_scaling, or one half of rope_parameters: {rope_type or type, rope_theta, factor,
 * partial_rotary_factor}. */
static int read_rope(struct gemma_attention *a, enum gemma_kind kind, const json_t *object,
                     const char *file, const char *key, struct error *err)
{
    const struct section s = {object, file};
    const char *type, *old_type;
    double share = 1;
    bool has_factor;
    int rc;

    if (!json_is_object(object))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected an object", file, key,
                         json_object_kind(object));
    if ((rc = read_text(&s, "rope_type", &type, err)) != OK ||
        (rc = read_text(&s, "type", &old_type, err)) != OK ||
        (rc = read_positive(&s, "rope_theta", &a->rope.theta, err)) != OK ||
        (rc = read_positive(&s, "partial_rotary_factor", &share, err)) != OK)
        return rc;
    if (type == NULL)
        type = old_type != NULL ? old_type : "default";
    a->rope.factor = 1;
    a->rope.n_turning = a->E / 2;
    has_factor = get(&s, "factor") != NULL;
    if (kind == GEMMA_4 && strcmp(type, "proportional") == 0) {
        if (share > 1)
            return error_set(err, ERR_FORMAT, "%s: %s: partial_rotary_factor is %g, at most 1",
                             file, key, share);
        /* as transformers rounds it: _compute_proportional_rope_parameters() */
        a->rope.n_turning = (int)(share * a->E / 2);
        return has_factor ? read_positive(&s, "factor", &a->rope.factor, err) : OK;
    }
    if (share < 1 || share > 1)
        return error_set(err, ERR_FORMAT, "%s: %s: partial_rotary_factor %g is not supported", file,
                         key, share);
    if (strcmp(type, "default") == 0)
        return OK;
    if (strcmp(type, "linear") != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: rope_type is %s, expected default%s linear",
                         file, key, type, kind == GEMMA_4 ? ", proportional or" : " or");
    if (!has_factor)
        return error_set(err, ERR_FORMAT, "%s: %s: factor is missing", file, key);
    return read_positive(&s, "factor", &a->rope.factor, err);
}

static int read_rope_parameters(struct gemma_config *c, const struct section *s, struct error *err)
{
    const json_t *parameters = get(s, "rope_parameters");
    const struct {
        const char *key, *path;
        struct gemma_attention *attention;
    } halves[] = {
        {"full_attention", "rope_parameters.full_attention", &c->global},
        {"sliding_attention", "rope_parameters.sliding_attention", &c->sliding},
    };

    if (!json_is_object(parameters))
        return error_set(err, ERR_FORMAT, "%s: rope_parameters is %s, expected an object", s->file,
                         json_object_kind(parameters));
    for (int i = 0; i < 2; i++) {
        const json_t *half = json_object_get(parameters, halves[i].key);
        int rc;

        if (half == NULL)
            return error_set(err, ERR_FORMAT, "%s: rope_parameters has no %s", s->file,
                             halves[i].key);
        if ((rc = read_rope(halves[i].attention, c->kind, half, s->file, halves[i].path, err)) !=
            OK)
            return rc;
        if (!(halves[i].attention->rope.theta > 0))
            return error_set(err, ERR_FORMAT, "%s: %s: rope_theta is missing", s->file,
                             halves[i].path);
    }
    return OK;
}

static int read_ropes3(struct gemma_config *c, const struct section *s, struct error *err)
{
    const json_t *scaling = get(s, "rope_scaling");
    int rc;

    c->global.rope = (struct gemma_rope){1000000, 1, c->global.E / 2}; /* default_theta */
    c->sliding.rope = (struct gemma_rope){10000, 1, c->sliding.E / 2};
    if ((rc = read_positive(s, "rope_theta", &c->global.rope.theta, err)) != OK ||
        (rc = read_positive(s, "rope_local_base_freq", &c->sliding.rope.theta, err)) != OK)
        return rc;
    if (scaling != NULL &&
        (rc = read_rope(&c->global, c->kind, scaling, s->file, "rope_scaling", err)) != OK)
        return rc;
    return get(s, "rope_parameters") != NULL ? read_rope_parameters(c, s, err) : OK;
}

static int read_ropes4(struct gemma_config *c, const struct section *s, struct error *err)
{
    if (get(s, "rope_parameters") != NULL)
        return read_rope_parameters(c, s, err);
    /* default_rope_params: a partial_rotary_factor of 0.25 */
    c->global.rope = (struct gemma_rope){1000000, 1, c->global.E / 8};
    c->sliding.rope = (struct gemma_rope){10000, 1, c->sliding.E / 2};
    return OK;
}

static int read_layer_types(struct gemma_config *c, const struct section *s, struct error *err)
{
    const json_t *types = get(s, "layer_types");
    int pattern, rc;

    if (types == NULL) {
        pattern = 6; /* in Gemma 4 always: Gemma4UnifiedTextConfig.__post_init__() */
        if (c->kind == GEMMA_3 && (rc = read_int(s, "sliding_window_pattern", pattern, 1,
                                                 POSITION_MAX, &pattern, err)) != OK)
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

/* The number of a layer, decimal, perhaps with zeros before it ("05"); -1: it is none. */
static int layer_number(const char *text, int n_layers)
{
    int number = 0;

    if (*text == '\0')
        return -1;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || number >= n_layers)
            return -1;
        number = number * 10 + (*text - '0');
    }
    return number < n_layers ? number : -1;
}

/* One entry of per_layer_config. */
static int read_overrides(int *E, int *K, json_t *object, const char *key, const char *file,
                          struct error *err)
{
    char where[256];
    const struct section s = {object, where};
    const char *setting;
    json_t *value;
    int rc;

    snprintf(where, sizeof(where), "%s: per_layer_config.%s", file, key);
    if (!json_is_object(object))
        return error_set(err, ERR_FORMAT, "%s is %s, expected an object", where,
                         json_object_kind(object));
    json_object_foreach(object, setting, value)
    {
        if (strcmp(setting, "head_dim") != 0 && strcmp(setting, "num_key_value_heads") != 0)
            return error_set(err, ERR_FORMAT,
                             "%s: %s is not supported, only head_dim and num_key_value_heads",
                             where, setting);
    }
    if ((rc = read_int(&s, "head_dim", *E, 2, HEAD_WIDTH_MAX, E, err)) != OK)
        return rc;
    return read_int(&s, "num_key_value_heads", *K, 1, HEADS_MAX, K, err);
}

/* per_layer_config: {"5": {"head_dim": 512, "num_key_value_heads": 1}, ...}. Layers of one kind
 * must agree: they share a rotary table (transformers insists, too: per_layer_config[layer_type]).
 */
static int read_per_layer(struct gemma_config *c, const struct section *s, json_t *object,
                          struct error *err)
{
    int E[GEMMA_MAX_LAYERS], K[GEMMA_MAX_LAYERS], rc;
    bool given[GEMMA_MAX_LAYERS] = {false}, seen[2] = {false};
    const char *key;
    json_t *value;

    for (int i = 0; i < c->L; i++) {
        E[i] = gemma_attention_of(c, i)->E;
        K[i] = gemma_attention_of(c, i)->K;
    }
    if (!json_is_object(object))
        return error_set(err, ERR_FORMAT, "%s: per_layer_config is %s, expected an object", s->file,
                         json_object_kind(object));
    json_object_foreach(object, key, value)
    {
        int layer = layer_number(key, c->L);

        if (layer < 0 || given[layer])
            return error_set(err, ERR_FORMAT, "%s: per_layer_config: %.20s is %s", s->file, key,
                             layer < 0 ? "no layer's number" : "there twice");
        given[layer] = true;
        if ((rc = read_overrides(&E[layer], &K[layer], value, key, s->file, err)) != OK)
            return rc;
    }
    for (int i = 0; i < c->L; i++) {
        struct gemma_attention *a = c->is_global[i] ? &c->global : &c->sliding;

        if (seen[c->is_global[i]] && (a->E != E[i] || a->K != K[i]))
            return error_set(err, ERR_FORMAT,
                             "%s: per_layer_config: layer %d has %d key/value heads of %d, but "
                             "another %s layer %d of %d",
                             s->file, i, K[i], E[i], c->is_global[i] ? "global" : "sliding", a->K,
                             a->E);
        seen[c->is_global[i]] = true;
        a->E = E[i];
        a->K = K[i];
    }
    return OK;
}

/* Gemma 4's global layers have heads of their own: as per_layer_config says; without one, of
 * global_head_dim and, where keys are values, num_global_key_value_heads. */
static int read_heads4(struct gemma_config *c, const struct section *s, struct error *err)
{
    json_t *per_layer = json_object_get(s->object, "per_layer_config");
    const json_t *same = get(s, "attention_k_eq_v");
    int rc;

    if (same != NULL && !json_is_boolean(same))
        return error_set(err, ERR_FORMAT, "%s: attention_k_eq_v is %s, expected true or false",
                         s->file, json_object_kind(same));
    c->global.k_is_v = json_is_true(same);
    if (!c->is_global[c->L - 1])
        return error_set(err, ERR_FORMAT,
                         "%s: layer_types: the last layer is sliding, expected full_attention, as "
                         "Gemma 4 always has it",
                         s->file);
    if (json_is_null(per_layer)) /* None: all layers as the settings beside it say */
        return OK;
    if (per_layer != NULL)
        return read_per_layer(c, s, per_layer, err);
    if ((rc = read_int(s, "global_head_dim", 512, 2, HEAD_WIDTH_MAX, &c->global.E, err)) != OK)
        return rc;
    if (!c->global.k_is_v || get(s, "num_global_key_value_heads") == NULL)
        return OK;
    return read_int(s, "num_global_key_value_heads", 1, 1, HEADS_MAX, &c->global.K, err);
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

/* Which fine-tuning this is, for checkpoints that need a certain one. */
static int read_version(struct gemma_config *c, const struct section *top, struct error *err)
{
    const char *version;
    int rc;

    if ((rc = read_text(top, "gemma_version", &version, err)) != OK || version == NULL)
        return rc;
    if (strlen(version) > GEMMA_MAX_VERSION || !tensor_name_is_sound(version, strlen(version)))
        return error_set(err, ERR_FORMAT,
                         "%s: gemma_version is empty, longer than %d bytes or has control "
                         "characters",
                         top->file, GEMMA_MAX_VERSION);
    snprintf(c->version, sizeof(c->version), "%s", version);
    return OK;
}

int gemma_config_check(const struct gemma_config *c, const char *file, struct error *err)
{
    const struct gemma_attention *both[] = {&c->global, &c->sliding};

    for (int i = 0; i < 2; i++) {
        if (c->H % both[i]->K != 0)
            return error_set(err, ERR_FORMAT,
                             "%s: %d attention heads are no multiple of %d key/value heads", file,
                             c->H, both[i]->K);
        if (both[i]->E % 2 != 0)
            return error_set(err, ERR_FORMAT, "%s: a head width of %d, expected an even number",
                             file, both[i]->E);
    }
    if (!(c->rms_norm_eps > 0 && c->rms_norm_eps < 1))
        return error_set(err, ERR_FORMAT, "%s: an RMS epsilon of %g, expected between 0 and 1",
                         file, (double)c->rms_norm_eps);
    return OK;
}

const char *gemma_kind_name(enum gemma_kind kind)
{
    return kind == GEMMA_4 ? "gemma4" : "gemma3";
}

static size_t attention_text(char *out, size_t cap, const char *name,
                             const struct gemma_attention *a)
{
    int len = snprintf(out, cap, ", %s %d x %d%s by %.17g over %.17g for %d", name, a->K, a->E,
                       a->k_is_v ? " where k is v" : "", a->rope.theta, a->rope.factor,
                       a->rope.n_turning);

    return (size_t)len;
}

struct gemma_config_text gemma_config_text(const struct gemma_config *c)
{
    struct gemma_config_text out;
    size_t cap = sizeof(out.text), len;

    len = (size_t)snprintf(out.text, cap,
                           "%s version '%s', %d layers of %d with %d heads and %d, eps %.9g%s%s, "
                           "scores by %.17g, window %d",
                           gemma_kind_name(c->kind), c->version, c->L, c->D, c->H, c->F,
                           (double)c->rms_norm_eps, c->norm_v ? ", v normed" : "",
                           c->has_layer_scalars ? ", scalars" : "", c->query_pre_attn_scalar,
                           c->sliding_window);
    len += attention_text(out.text + len, cap - len, "global", &c->global);
    len += attention_text(out.text + len, cap - len, "sliding", &c->sliding);
    len += (size_t)snprintf(out.text + len, cap - len, ", ");
    for (int i = 0; i < c->L; i++) /* at most 256 of the 1024 */
        out.text[len++] = c->is_global[i] ? 'g' : 's';
    out.text[len] = '\0';
    return out;
}

/* transformers' defaults, where the two generations differ. */
static const struct {
    int L, V, window, positions;
} defaults[] = {
    [GEMMA_3] = {26, 262208, 4096, 131072},
    [GEMMA_4] = {30, 262144, 1024, 262144},
};

static int read_text_section(struct gemma_config *c, const struct section *s, struct error *err)
{
    int (*read_ropes)(struct gemma_config *, const struct section *, struct error *) = read_ropes3;
    double eps = 1e-6;
    int rc;

    if ((rc = refuse_unsupported(s, c->kind, err)) != OK ||
        (rc = read_int(s, "num_hidden_layers", defaults[c->kind].L, 1, GEMMA_MAX_LAYERS, &c->L,
                       err)) != OK ||
        (rc = read_int(s, "hidden_size", 2304, 1, WIDTH_MAX, &c->D, err)) != OK ||
        (rc = read_int(s, "num_attention_heads", 8, 1, HEADS_MAX, &c->H, err)) != OK ||
        (rc = read_int(s, "num_key_value_heads", 4, 1, HEADS_MAX, &c->sliding.K, err)) != OK ||
        (rc = read_int(s, "head_dim", 256, 2, HEAD_WIDTH_MAX, &c->sliding.E, err)) != OK ||
        (rc = read_int(s, "intermediate_size", 9216, 1, FF_MAX, &c->F, err)) != OK ||
        (rc = read_int(s, "vocab_size", defaults[c->kind].V, 1, VOCAB_MAX, &c->V, err)) != OK ||
        (rc = read_int(s, "sliding_window", defaults[c->kind].window, 1, POSITION_MAX,
                       &c->sliding_window, err)) != OK ||
        (rc = read_int(s, "max_position_embeddings", defaults[c->kind].positions, 1, POSITION_MAX,
                       &c->max_position, err)) != OK ||
        (rc = read_positive(s, "rms_norm_eps", &eps, err)) != OK ||
        (rc = read_layer_types(c, s, err)) != OK)
        return rc;
    c->rms_norm_eps = eps < 1 ? (float)eps : 1;
    c->global = c->sliding;
    if (c->kind == GEMMA_4) {
        c->norm_v = true;
        c->has_layer_scalars = true;
        c->query_pre_attn_scalar = 1; /* Gemma4UnifiedTextAttention: scaling = 1.0 */
        read_ropes = read_ropes4;
        if ((rc = read_heads4(c, s, err)) != OK)
            return rc;
    } else {
        c->query_pre_attn_scalar = 256;
        if ((rc = read_positive(s, "query_pre_attn_scalar", &c->query_pre_attn_scalar, err)) != OK)
            return rc;
    }
    if ((rc = read_ropes(c, s, err)) != OK)
        return rc;
    return gemma_config_check(c, s->file, err);
}

/* The model_type of a whole file, with its decoder's settings under text_config, and of a file with
 * the decoder alone. */
static const struct {
    const char *whole, *text;
    enum gemma_kind kind;
} types[] = {
    {"gemma3", "gemma3_text", GEMMA_3},
    {"gemma4_unified", "gemma4_unified_text", GEMMA_4},
};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

/* Finds the object with the decoder's settings: the file's own or its text_config. */
static int find_text_section(struct section *text, enum gemma_kind *kind, const struct section *top,
                             struct error *err)
{
    const char *type;
    int i, rc;

    if ((rc = read_text(top, "model_type", &type, err)) != OK)
        return rc;
    if (type == NULL)
        return error_set(err, ERR_FORMAT,
                         "%s: model_type is missing, expected gemma3 or gemma4_unified", top->file);
    for (i = 0; i < N_TYPES; i++)
        if (strcmp(type, types[i].whole) == 0 || strcmp(type, types[i].text) == 0)
            break;
    if (i == N_TYPES)
        return error_set(err, ERR_FORMAT,
                         "%s: model_type is %s, expected gemma3, gemma4_unified or one of these "
                         "with _text",
                         top->file, type);
    *kind = types[i].kind;
    *text = *top;
    if (strcmp(type, types[i].text) == 0)
        return OK;
    text->object = json_object_get(top->object, "text_config");
    if (!json_is_object(text->object))
        return error_set(err, ERR_FORMAT, "%s: text_config is %s, expected an object", top->file,
                         json_object_kind(text->object));
    if ((rc = read_text(text, "model_type", &type, err)) != OK)
        return rc;
    if (type != NULL && strcmp(type, types[i].text) != 0)
        return error_set(err, ERR_FORMAT, "%s: text_config: model_type is %s, expected %s",
                         top->file, type, types[i].text);
    return OK;
}

int gemma_config_from_json(struct gemma_config *out, const void *json, size_t size,
                           const char *name, struct error *err)
{
    struct section top = {NULL, name}, text;
    json_t *root = NULL;
    int rc;

    *out = (struct gemma_config){0};
    if (size > CONFIG_MAX)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes, at most %u", name, size, CONFIG_MAX);
    if ((rc = json_object_parse(&root, json, size, name, err)) != OK)
        return rc;
    top.object = root;
    if ((rc = find_text_section(&text, &out->kind, &top, err)) != OK)
        goto out;
    if (get(&top, "quantization_config") != NULL || get(&text, "quantization_config") != NULL) {
        rc = error_set(err, ERR_FORMAT,
                       "%s: quantization_config: quantised directories are not supported (GGUF "
                       "files are)",
                       name);
        goto out;
    }
    if ((rc = read_text_section(out, &text, err)) == OK &&
        (rc = read_version(out, &top, err)) == OK)
        rc = read_eos(out, &top, &text, err);
out:
    json_decref(root);
    return rc;
}
