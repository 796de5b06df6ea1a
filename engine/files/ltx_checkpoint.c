/* ltx_checkpoint.c - see ltx_checkpoint.h.
 *
 * Settings are keys of `transformer` in the metadata `config`. The reference gives every absent key
 * a default (ltx-core, Embeddings1DConnectorConfigurator and its audio form), and released files
 * rely on them. Keys of the video model's own attention are not read: what the projection's width
 * is, its tensor says. */
#include "engine/files/ltx_checkpoint.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/json_object.h"
#include "engine/files/safetensors.h"
#include "kernels/ops.h"

#define CONFIG_MAX  (4u << 20) /* bytes of JSON; real ones have some ten thousand */
#define VERSION_MAX 100        /* bytes of a version */
#define PROJECTION  "text_embedding_projection."
#define CONNECTOR   "model.diffusion_model."

/* Bounds that no LTX comes near, so that products of them fit in an int or a size_t. */
enum { HEADS_MAX = 1 << 10, WIDTH_MAX = 1 << 16, BLOCKS_MAX = 256 };

/* What a file gives whole: one of the connectors, or the projection. */
enum { PART_PROJECTION = LTX_N_MODALITIES, N_PARTS };

struct ltx_checkpoint {
    struct safetensors *files[LTX_MAX_FILES];
    const char *names[LTX_MAX_FILES]; /* the last parts of their paths; borrowed from `paths` */
    char *paths[LTX_MAX_FILES];
    int n_files;
    int of[N_PARTS]; /* which file holds the part; -1: none */
    struct ltx_config config;
    const char *model_version; /* in a file's metadata; or NULL */
    char *gemma_version;       /* or NULL */
    const char *random;        /* a file's LTX_RANDOM_KEY; or NULL */
};

const char *ltx_modality_name(enum ltx_modality modality)
{
    return modality == LTX_VIDEO ? "video" : "audio";
}

const char *ltx_connector_prefix(enum ltx_modality modality)
{
    return modality == LTX_VIDEO ? CONNECTOR "video_embeddings_connector."
                                 : CONNECTOR "audio_embeddings_connector.";
}

static const char *part_prefix(int part)
{
    return part == PART_PROJECTION ? PROJECTION : ltx_connector_prefix((enum ltx_modality)part);
}

/* ---- the config ---- */

struct section {
    const json_t *object;
    const char *file;
};

static int read_int(const struct section *s, const char *key, int fallback, int min, int max,
                    int *out, struct error *err)
{
    const json_t *value = json_object_get(s->object, key);

    *out = fallback;
    if (value == NULL || json_is_null(value))
        return OK;
    if (!json_is_integer(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected an integer", s->file, key,
                         json_object_kind(value));
    if (json_integer_value(value) < min || json_integer_value(value) > max)
        return error_set(err, ERR_FORMAT, "%s: %s is %lld, expected %d to %d", s->file, key,
                         (long long)json_integer_value(value), min, max);
    *out = (int)json_integer_value(value);
    return OK;
}

static int read_bool(const struct section *s, const char *key, bool fallback, bool *out,
                     struct error *err)
{
    const json_t *value = json_object_get(s->object, key);

    *out = fallback;
    if (value == NULL || json_is_null(value))
        return OK;
    if (!json_is_boolean(value))
        return error_set(err, ERR_FORMAT, "%s: %s is %s, expected true or false", s->file, key,
                         json_object_kind(value));
    *out = json_is_true(value);
    return OK;
}

/* One of two words; absent is the first. */
static int read_choice(const struct section *s, const char *key, const char *const words[2],
                       int *out, struct error *err)
{
    const json_t *value = json_object_get(s->object, key);

    *out = 0;
    if (value == NULL || json_is_null(value))
        return OK;
    for (int i = 0; i < 2 && json_is_string(value); i++)
        if (strcmp(json_string_value(value), words[i]) == 0) {
            *out = i;
            return OK;
        }
    return error_set(err, ERR_FORMAT, "%s: %s is %.60s, expected %s or %s", s->file, key,
                     json_is_string(value) ? json_string_value(value) : json_object_kind(value),
                     words[0], words[1]);
}

/* Four keys tell the extractors apart: all there with these values, or none. */
static int read_extractor(struct ltx_config *c, const struct section *s, struct error *err)
{
    static const struct {
        const char *key;
        bool v2;
    } keys[] = {
        {"caption_proj_before_connector", true},
        {"caption_projection_first_linear", false},
        {"caption_proj_input_norm", false},
        {"caption_projection_second_linear", false},
    };
    const char *present = NULL, *absent = NULL;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = json_object_get(s->object, keys[i].key);
        if (value == NULL) {
            absent = keys[i].key;
            continue;
        }
        present = keys[i].key;
        if (!json_is_boolean(value) || json_is_true(value) != keys[i].v2)
            return error_set(err, ERR_FORMAT,
                             "%s: %s is %s, expected %s: an extractor that is not known", s->file,
                             keys[i].key, json_object_kind(value), keys[i].v2 ? "true" : "false");
    }
    if (present != NULL && absent != NULL)
        return error_set(err, ERR_FORMAT,
                         "%s: %s is missing beside %s: an extractor that is not known", s->file,
                         absent, present);
    c->extractor = present != NULL ? LTX_EXTRACTOR_V2 : LTX_EXTRACTOR_V1;
    return OK;
}

/* A list of one: positions have one axis here. */
static int read_max_pos(struct ltx_config *c, const struct section *s, struct error *err)
{
    const char *key = "connector_positional_embedding_max_pos";
    const json_t *list = json_object_get(s->object, key);
    const json_t *value = json_array_get(list, 0);

    c->max_pos = 1;
    if (list == NULL || json_is_null(list))
        return OK;
    if (json_array_size(list) != 1 || !json_is_number(value))
        return error_set(err, ERR_FORMAT, "%s: %s is no list of one number", s->file, key);
    c->max_pos = json_number_value(value);
    if (!(c->max_pos > 0 && c->max_pos <= 1e9))
        return error_set(err, ERR_FORMAT, "%s: %s is %g, expected more than 0, at most 1e9",
                         s->file, key, c->max_pos);
    return OK;
}

/* `prefix` is "" for video, and "audio_" for audio, each of whose settings falls back alone. */
static int read_connector(struct ltx_connector_config *c, const struct section *s,
                          const char *prefix, struct ltx_connector_config fallback,
                          struct error *err)
{
    char heads[64], width[64], layers[64];
    int rc;

    snprintf(heads, sizeof(heads), "%sconnector_num_attention_heads", prefix);
    snprintf(width, sizeof(width), "%sconnector_attention_head_dim", prefix);
    snprintf(layers, sizeof(layers), "%sconnector_num_layers", prefix);
    *c = (struct ltx_connector_config){0};
    if ((rc = read_int(s, heads, fallback.H, 1, HEADS_MAX, &c->H, err)) != OK ||
        (rc = read_int(s, width, fallback.E, 2, OPS_MAX_HEAD, &c->E, err)) != OK ||
        (rc = read_int(s, layers, fallback.L, 0, BLOCKS_MAX, &c->L, err)) != OK)
        return rc;
    c->W = c->H * c->E;
    if (c->E % 2 != 0)
        return error_set(err, ERR_FORMAT, "%s: %s is %d, expected an even number", s->file, width,
                         c->E);
    if (c->W < 4 || c->W > WIDTH_MAX)
        return error_set(err, ERR_FORMAT, "%s: %s %d times %s %d is %d, expected 4 to %d", s->file,
                         heads, c->H, width, c->E, c->W, WIDTH_MAX);
    return OK;
}

static int read_transformer(struct ltx_config *c, const struct section *s, struct error *err)
{
    static const char *const rope_types[] = {"split", "interleaved"};
    static const char *const precisions[] = {"float32", "float64"};
    const struct ltx_connector_config defaults = {.H = 30, .E = 128, .L = 2};
    int rope, precision, rc;

    if ((rc = read_extractor(c, s, err)) != OK ||
        (rc = read_connector(&c->connectors[LTX_VIDEO], s, "", defaults, err)) != OK ||
        (rc = read_connector(&c->connectors[LTX_AUDIO], s, "audio_", c->connectors[LTX_VIDEO],
                             err)) != OK ||
        (rc = read_choice(s, "rope_type", rope_types, &rope, err)) != OK ||
        (rc = read_choice(s, "frequencies_precision", precisions, &precision, err)) != OK ||
        (rc = read_max_pos(c, s, err)) != OK ||
        (rc = read_bool(s, "connector_apply_gated_attention", false, &c->gated, err)) != OK ||
        (rc = read_bool(s, "connector_ff_bias", true, &c->ff_bias, err)) != OK)
        return rc;
    c->rope = rope == 0 ? LTX_ROPE_SPLIT : LTX_ROPE_INTERLEAVED;
    c->rope_float64 = precision == 1;
    c->has_audio = true;
    return OK;
}

int ltx_config_from_json(struct ltx_config *out, const void *json, size_t size, const char *name,
                         struct error *err)
{
    struct section s = {NULL, name};
    json_t *root;
    int rc;

    *out = (struct ltx_config){0};
    if (size > CONFIG_MAX)
        return error_set(err, ERR_FORMAT, "%s: metadata config has %zu bytes, at most %u", name,
                         size, CONFIG_MAX);
    if ((rc = json_object_parse(&root, json, size, name, err)) != OK)
        return rc;
    s.object = json_object_get(root, "transformer");
    if (!json_is_object(s.object))
        rc = error_set(err, ERR_FORMAT,
                       "%s: metadata config: transformer is %s, expected an object: no LTX "
                       "checkpoint",
                       name, json_object_kind(s.object));
    else
        rc = read_transformer(out, &s, err);
    json_decref(root);
    return rc;
}

struct ltx_config_text ltx_config_text(const struct ltx_config *c)
{
    struct ltx_config_text out;
    size_t cap = sizeof(out.text), len;

    len = (size_t)snprintf(out.text, cap, "extractor v%d", (int)c->extractor);
    for (int m = 0; m < (c->has_audio ? LTX_N_MODALITIES : 1); m++) {
        const struct ltx_connector_config *k = &c->connectors[m];
        len += (size_t)snprintf(
            out.text + len, cap - len, ", %s %d x %d with %d block%s and %d registers",
            ltx_modality_name((enum ltx_modality)m), k->H, k->E, k->L, k->L == 1 ? "" : "s", k->R);
    }
    snprintf(out.text + len, cap - len, ", %s rope of %s over %.17g%s%s",
             c->rope == LTX_ROPE_SPLIT ? "split" : "interleaved",
             c->rope_float64 ? "float64" : "float32", c->max_pos, c->gated ? ", gates" : "",
             c->ff_bias ? "" : ", feed-forward without bias");
    return out;
}

/* ---- versions ---- */

/* "2.4.0", "2.4", "2.5.0-rc1" to three numbers. */
static bool parse_version(int numbers[3], const char *text)
{
    for (int i = 0; i < 3; i++) {
        numbers[i] = 0;
        if (i > 0) {
            if (*text != '.')
                continue;
            text++;
        }
        if (!isdigit((unsigned char)*text))
            return false;
        while (isdigit((unsigned char)*text)) {
            if (numbers[i] > 99999)
                return false;
            numbers[i] = numbers[i] * 10 + (*text++ - '0');
        }
    }
    return true;
}

static int check_version_text(const char *text, const char *file, const char *key,
                              struct error *err)
{
    if (strlen(text) > VERSION_MAX || !tensor_name_is_sound(text, strlen(text)))
        return error_set(err, ERR_FORMAT, "%s: metadata %s is no version", file, key);
    return OK;
}

/* gemma_version of one file's gemma_source_checkpoint, a JSON object in a string. */
static int read_gemma_version(struct ltx_checkpoint *c, int file, struct error *err)
{
    const char *key = "gemma_source_checkpoint";
    const char *text = safetensors_metadata(c->files[file], key), *version;
    char name[256];
    json_t *root;
    int rc;

    if (text == NULL)
        return OK;
    snprintf(name, sizeof(name), "%.150s: metadata %s", c->names[file], key);
    if (strlen(text) > CONFIG_MAX)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes, at most %u", name, strlen(text),
                         CONFIG_MAX);
    if ((rc = json_object_parse(&root, text, strlen(text), name, err)) != OK)
        return rc;
    version = json_string_value(json_object_get(root, "gemma_version"));
    if (version == NULL) {
        rc = error_set(err, ERR_FORMAT, "%s: gemma_version is %s, expected a string", name,
                       json_object_kind(json_object_get(root, "gemma_version")));
        goto out;
    }
    if ((rc = check_version_text(version, c->names[file], "gemma_source_checkpoint", err)) != OK)
        goto out;
    if (c->gemma_version != NULL && strcmp(c->gemma_version, version) != 0)
        rc = error_set(err, ERR_FORMAT,
                       "%s and %s belong to two models: one is for gemma_version %s, the other "
                       "for %s",
                       c->names[0], c->names[1], c->gemma_version, version);
    else if (c->gemma_version == NULL && (c->gemma_version = strdup(version)) == NULL)
        rc = error_set(err, ERR_MEM, "%s: no memory", name);
out:
    json_decref(root);
    return rc;
}

static int read_random(struct ltx_checkpoint *c, int file, struct error *err)
{
    const char *text = safetensors_metadata(c->files[file], LTX_RANDOM_KEY);

    if (text == NULL)
        return OK;
    if (strlen(text) > VERSION_MAX || !tensor_name_is_sound(text, strlen(text)))
        return error_set(err, ERR_FORMAT, "%s: metadata %s is no line of text", c->names[file],
                         LTX_RANDOM_KEY);
    c->random = text;
    return OK;
}

int ltx_checkpoint_check_gemma(const struct ltx_checkpoint *c, const char *model_type,
                               const char *gemma_version, struct error *err)
{
    const char *file = c->names[c->of[LTX_VIDEO]];
    int v[3];

    if (c->gemma_version != NULL) {
        if (gemma_version != NULL && strcmp(gemma_version, c->gemma_version) == 0)
            return OK;
        return error_set(err, ERR_INPUT,
                         "%s needs a Gemma of gemma_version %s, but this one is a %s %s%s", file,
                         c->gemma_version, model_type,
                         gemma_version != NULL ? "of gemma_version " : "without a gemma_version",
                         gemma_version != NULL ? gemma_version : "");
    }
    if (c->model_version != NULL) {
        if (!parse_version(v, c->model_version))
            return error_set(err, ERR_FORMAT, "%s: metadata model_version is '%s', no version",
                             file, c->model_version);
        if (v[0] > 2 || (v[0] == 2 && v[1] >= 4))
            return error_set(err, ERR_FORMAT,
                             "%s: model_version %s must name its Gemma in the metadata "
                             "gemma_source_checkpoint, as 2.4.0 and later do, and does not",
                             file, c->model_version);
    }
    if (strcmp(model_type, "gemma3") != 0)
        return error_set(err, ERR_INPUT,
                         "%s (model_version %s, without gemma_source_checkpoint) needs a Gemma of "
                         "model_type gemma3, but this one is a %s%s%s",
                         file, c->model_version != NULL ? c->model_version : "not given",
                         model_type, gemma_version != NULL ? " of gemma_version " : "",
                         gemma_version != NULL ? gemma_version : "");
    return OK;
}

/* ---- files ---- */

static bool file_has_part(const struct safetensors *file, const char *prefix)
{
    for (size_t i = 0; i < safetensors_n_tensors(file); i++)
        if (strncmp(safetensors_tensor_at(file, i)->name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

/* "a.safetensors" or "a.safetensors and b.safetensors" */
static void all_names(const struct ltx_checkpoint *c, char *out, size_t cap)
{
    snprintf(out, cap, "%.120s%s%.120s", c->names[0], c->n_files > 1 ? " and " : "",
             c->n_files > 1 ? c->names[1] : "");
}

static int find_parts(struct ltx_checkpoint *c, bool connectors_alone, struct error *err)
{
    char names[256];

    all_names(c, names, sizeof(names));
    for (int part = 0; part < N_PARTS; part++) {
        c->of[part] = -1;
        for (int f = c->n_files - 1; f >= 0; f--)
            if (file_has_part(c->files[f], part_prefix(part)))
                c->of[part] = f;
    }
    if (c->of[LTX_VIDEO] < 0)
        return error_set(err, ERR_FORMAT,
                         "%s: no tensors %s*: the connectors are missing (another file may hold "
                         "them: give both)",
                         names, part_prefix(LTX_VIDEO));
    if (c->of[PART_PROJECTION] < 0 && !connectors_alone)
        return error_set(err, ERR_FORMAT,
                         "%s: no tensors %s*: the projection is missing (another file may hold it: "
                         "give both)",
                         names, PROJECTION);
    return OK;
}

/* The metadata's value, of the connectors' file or else of another; *file says which. */
static const char *find_metadata(const struct ltx_checkpoint *c, const char *key, int *file)
{
    *file = c->of[LTX_VIDEO];
    if (safetensors_metadata(c->files[*file], key) == NULL && c->n_files > 1)
        *file = 1 - *file;
    return safetensors_metadata(c->files[*file], key);
}

/* A connector's registers, [R, W]: they alone say how many there are. */
static int read_registers(struct ltx_checkpoint *c, enum ltx_modality modality, struct error *err)
{
    struct ltx_connector_config *config = &c->config.connectors[modality];
    const struct safetensors *file = c->files[c->of[modality]];
    const struct tensor *t;
    char name[128];

    snprintf(name, sizeof(name), "%slearnable_registers", ltx_connector_prefix(modality));
    if ((t = safetensors_find(file, name)) == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s: no such tensor", c->names[c->of[modality]],
                         name);
    if (t->n_dims != 2 || t->shape[1] != (size_t)config->W || t->shape[0] < 1 ||
        t->shape[0] > LTX_ROWS || LTX_ROWS % t->shape[0] != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: shape %s, want [R,%d] with an R that divides %d",
                         t->file, t->name, tensor_shape_text(t->n_dims, t->shape).text, config->W,
                         LTX_ROWS);
    config->R = (int)t->shape[0];
    return OK;
}

/* Audio is there as a whole or not at all. */
static int settle_audio(struct ltx_checkpoint *c, struct error *err)
{
    const char *projection = PROJECTION "audio_aggregate_embed.weight";
    bool connector = c->of[LTX_AUDIO] >= 0, projected = ltx_checkpoint_find(c, NULL, projection);

    if (c->config.extractor == LTX_EXTRACTOR_V1 || !ltx_checkpoint_has_projection(c))
        projected = connector; /* one projection serves both, or nothing is known of it */
    if (connector && !projected)
        return error_set(err, ERR_FORMAT, "%s: %s: no such tensor, but there is an audio connector",
                         c->names[c->of[PART_PROJECTION]], projection);
    if (!connector && projected)
        return error_set(err, ERR_FORMAT,
                         "%s: no tensors %s*: the audio connector is missing, but %s is there",
                         c->names[c->of[LTX_VIDEO]], part_prefix(LTX_AUDIO), projection);
    c->config.has_audio = connector;
    if (!connector)
        c->config.connectors[LTX_AUDIO] = (struct ltx_connector_config){0};
    return OK;
}

static int read_metadata(struct ltx_checkpoint *c, struct error *err)
{
    const char *config;
    char names[256];
    int file, rc;

    if ((config = find_metadata(c, "config", &file)) == NULL) {
        all_names(c, names, sizeof(names));
        return error_set(err, ERR_FORMAT,
                         "%s: no metadata config: no LTX checkpoint, or one that lost it", names);
    }
    if ((rc = ltx_config_from_json(&c->config, config, strlen(config), c->names[file], err)) != OK)
        return rc;
    if ((c->model_version = find_metadata(c, "model_version", &file)) != NULL &&
        (rc = check_version_text(c->model_version, c->names[file], "model_version", err)) != OK)
        return rc;
    for (int f = 0; f < c->n_files; f++)
        if ((rc = read_gemma_version(c, f, err)) != OK || (rc = read_random(c, f, err)) != OK)
            return rc;
    if ((rc = settle_audio(c, err)) != OK || (rc = read_registers(c, LTX_VIDEO, err)) != OK)
        return rc;
    return c->config.has_audio ? read_registers(c, LTX_AUDIO, err) : OK;
}

static int open_files(struct ltx_checkpoint **out, const char *const *paths, int n_paths,
                      bool connectors_alone, struct error *err)
{
    struct ltx_checkpoint *c;
    int rc = OK;

    *out = NULL;
    if (n_paths < 1 || n_paths > LTX_MAX_FILES)
        return error_set(err, ERR_INPUT, "ltx: %d files, expected one or two", n_paths);
    if ((c = calloc(1, sizeof(*c))) == NULL)
        return error_set(err, ERR_MEM, "ltx: no memory");
    for (int f = 0; f < n_paths; f++) {
        if ((c->paths[f] = strdup(paths[f])) == NULL) {
            rc = error_set(err, ERR_MEM, "ltx: no memory");
            goto out;
        }
        if ((rc = safetensors_open(&c->files[f], paths[f], err)) != OK)
            goto out;
        c->names[f] = tensor_file_name(c->paths[f]);
        c->n_files++;
    }
    if ((rc = find_parts(c, connectors_alone, err)) != OK || (rc = read_metadata(c, err)) != OK)
        goto out;
    *out = c;
    c = NULL; /* handed over */
out:
    ltx_checkpoint_close(c);
    return rc;
}

int ltx_checkpoint_open(struct ltx_checkpoint **out, const char *const *paths, int n_paths,
                        struct error *err)
{
    return open_files(out, paths, n_paths, false, err);
}

int ltx_checkpoint_open_connectors(struct ltx_checkpoint **out, const char *path, struct error *err)
{
    return open_files(out, &path, 1, true, err);
}

void ltx_checkpoint_close(struct ltx_checkpoint *c)
{
    if (c == NULL)
        return;
    for (int f = 0; f < LTX_MAX_FILES; f++) {
        safetensors_close(c->files[f]);
        free(c->paths[f]);
    }
    free(c->gemma_version);
    free(c);
}

const struct ltx_config *ltx_checkpoint_config(const struct ltx_checkpoint *c)
{
    return &c->config;
}

bool ltx_checkpoint_has_projection(const struct ltx_checkpoint *c)
{
    return c->of[PART_PROJECTION] >= 0;
}

const char *ltx_checkpoint_model_version(const struct ltx_checkpoint *c)
{
    return c->model_version;
}

const char *ltx_checkpoint_gemma_version(const struct ltx_checkpoint *c)
{
    return c->gemma_version;
}

const char *ltx_checkpoint_random(const struct ltx_checkpoint *c)
{
    return c->random;
}

/* The file that holds the part to which a name belongs; -1: there is none. */
static int file_of(const struct ltx_checkpoint *c, const char *name)
{
    for (int part = 0; part < N_PARTS; part++)
        if (strncmp(name, part_prefix(part), strlen(part_prefix(part))) == 0)
            return c->of[part];
    return -1;
}

int ltx_checkpoint_tensor(const struct ltx_checkpoint *c, struct tensor *out, const char *name,
                          int n_dims, const size_t *shape, struct error *err)
{
    int f = file_of(c, name);
    const struct tensor *t = f < 0 ? NULL : safetensors_find(c->files[f], name);

    if (t == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s: no such tensor", c->names[f < 0 ? 0 : f], name);
    if (t->n_dims != n_dims || memcmp(t->shape, shape, (size_t)n_dims * sizeof(*shape)) != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: shape %s, want %s", t->file, t->name,
                         tensor_shape_text(t->n_dims, t->shape).text,
                         tensor_shape_text(n_dims, shape).text);
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16)
        return error_set(err, ERR_FORMAT,
                         "%s: %s: type %s is not supported, expected F32, F16 or BF16", t->file,
                         t->name, dtype_info(t->type)->name);
    *out = *t;
    return OK;
}

bool ltx_checkpoint_find(const struct ltx_checkpoint *c, struct tensor *out, const char *name)
{
    int f = file_of(c, name);
    const struct tensor *t = f < 0 ? NULL : safetensors_find(c->files[f], name);

    if (t != NULL && out != NULL)
        *out = *t;
    return t != NULL;
}

int ltx_checkpoint_n_files(const struct ltx_checkpoint *c)
{
    return c->n_files;
}

const char *ltx_checkpoint_path_at(const struct ltx_checkpoint *c, int i)
{
    return c->paths[i];
}

const struct file_identity *ltx_checkpoint_identity_at(const struct ltx_checkpoint *c, int i)
{
    return safetensors_identity(c->files[i]);
}
