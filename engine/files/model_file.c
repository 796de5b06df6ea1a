/* model_file.c - see model_file.h.
 *
 * Every export puts the decoder under another prefix, and more exist than anyone documents. So the
 * prefix is not guessed from a list: it is what stands before the one "embed_tokens.weight". */
#include "engine/files/model_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/files/gguf_split.h"
#include "engine/files/safetensors.h"
#include "engine/files/safetensors_index.h"
#include "tokenizer/tokenizer.h"

#define EMBEDDING  "embed_tokens.weight"
#define SINGLE     "model.safetensors"
#define INDEX      "model.safetensors.index.json"
#define PREFIX_MAX 64 /* bytes */
#define NAME_CAP   256

/* What LTX's packer puts into the one file: config.json as metadata, tokenizer.json as a tensor. */
#define PACKED_CONFIG    "gemma_config"
#define PACKED_TOKENIZER "tokenizer_json"

struct model_file {
    struct gguf_split *gguf; /* one of these three */
    struct safetensors *single;
    bool is_packed; /* `single` is all there is: no directory around it */
    struct safetensors_index *shards;
    struct gemma_config config;
    char prefix[PREFIX_MAX + 1]; /* safetensors: what stands before the canonical names */
    const char *where;           /* what to name when a tensor is missing */
    char *path;
    char format[40];
};

/* Canonical names to GGUF's (gguf-py: TENSOR_NAMES of MODEL_ARCH.GEMMA3). */
static const struct {
    const char *canonical, *gguf;
} top_names[] = {
    {EMBEDDING, "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
};
static const struct {
    const char *canonical, *gguf;
} layer_names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

int model_file_recognise(enum model_file_kind *out, const char *path, struct error *err)
{
    struct file_map map;
    int rc;

    *out = MODEL_FILE_DIRECTORY;
    if (file_is_directory(path))
        return OK;
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    if (gguf_recognise(map.data, map.size))
        *out = MODEL_FILE_GGUF;
    else if (safetensors_recognise(map.data, map.size))
        *out = MODEL_FILE_SAFETENSORS;
    else
        *out = MODEL_FILE_OTHER;
    file_map_close(&map);
    return OK;
}

static const struct tensor *find(const struct model_file *m, const char *name)
{
    if (m->gguf != NULL)
        return gguf_split_find(m->gguf, name);
    if (m->single != NULL)
        return safetensors_find(m->single, name);
    return safetensors_index_find(m->shards, name);
}

/* The prefix of a tensor's name when it is an embedding table's, else false. */
static bool embedding_prefix(const char *name, size_t *len)
{
    const size_t name_len = strlen(name), suffix_len = strlen(EMBEDDING);

    if (name_len < suffix_len || strcmp(name + name_len - suffix_len, EMBEDDING) != 0)
        return false;
    *len = name_len - suffix_len;
    return *len == 0 || name[*len - 1] == '.';
}

static int find_prefix(struct model_file *m, struct error *err)
{
    const char *found = NULL;
    size_t len, found_len = 0;

    for (size_t i = 0; i < model_file_n_tensors(m); i++) {
        const struct tensor *t = model_file_tensor_at(m, i);

        if (!embedding_prefix(t->name, &len))
            continue;
        if (found != NULL)
            return error_set(err, ERR_FORMAT, "%s: both %s and %s: which is the decoder's?",
                             m->where, found, t->name);
        if (len > PREFIX_MAX)
            return error_set(err, ERR_FORMAT, "%s: %s: a prefix of %zu bytes, at most %d", t->file,
                             t->name, len, PREFIX_MAX);
        found = t->name;
        found_len = len;
    }
    if (found == NULL)
        return error_set(err, ERR_FORMAT, "%s: no tensor's name ends in %s", m->where, EMBEDDING);
    memcpy(m->prefix, found, found_len);
    m->prefix[found_len] = '\0';
    return OK;
}

static int open_config(struct model_file *m, struct error *err)
{
    struct file_map map;
    char path[PATH_MAX];
    int rc;

    if ((rc = file_join(path, sizeof(path), m->path, "config.json", err)) != OK ||
        (rc = file_map_open(&map, path, err)) != OK)
        return rc;
    rc = gemma_config_from_json(&m->config, map.data, map.size, "config.json", err);
    file_map_close(&map);
    return rc;
}

/* One file or its shards; where both lie, the one file, as transformers chooses. */
static int open_directory(struct model_file *m, struct error *err)
{
    char single[PATH_MAX], index[PATH_MAX];
    int rc;

    if ((rc = open_config(m, err)) != OK ||
        (rc = file_join(single, sizeof(single), m->path, SINGLE, err)) != OK ||
        (rc = file_join(index, sizeof(index), m->path, INDEX, err)) != OK)
        return rc;
    if (file_exists(single)) {
        m->where = SINGLE;
        if ((rc = safetensors_open(&m->single, single, err)) != OK)
            return rc;
        snprintf(m->format, sizeof(m->format), "safetensors");
    } else if (file_exists(index)) {
        m->where = INDEX;
        if ((rc = safetensors_index_open(&m->shards, index, err)) != OK)
            return rc;
        snprintf(m->format, sizeof(m->format), "safetensors, %zu shards",
                 safetensors_index_n_shards(m->shards));
    } else {
        return error_set(err, ERR_IO, "%s: holds neither %s nor %s", m->path, SINGLE, INDEX);
    }
    return find_prefix(m, err);
}

static int open_gguf(struct model_file *m, struct error *err)
{
    const struct gguf *first;
    int rc;

    if ((rc = gguf_split_open(&m->gguf, m->path, err)) != OK)
        return rc;
    first = gguf_split_first(m->gguf);
    m->where = gguf_name(first);
    snprintf(m->format, sizeof(m->format), "gguf v%u", gguf_version(first));
    if (gguf_split_n_files(m->gguf) > 1)
        snprintf(m->format, sizeof(m->format), "gguf v%u, %zu files", gguf_version(first),
                 gguf_split_n_files(m->gguf));
    return gemma_config_from_gguf(&m->config, first, gguf_split_find(m->gguf, "token_embd.weight"),
                                  err);
}

static int open_packed(struct model_file *m, struct error *err)
{
    char name[NAME_CAP];
    const char *config;
    int rc;

    m->where = tensor_file_name(m->path);
    m->is_packed = true;
    snprintf(m->format, sizeof(m->format), "safetensors, packed in one file");
    if ((rc = safetensors_open(&m->single, m->path, err)) != OK)
        return rc;
    if ((config = safetensors_metadata(m->single, PACKED_CONFIG)) == NULL)
        return error_set(err, ERR_FORMAT,
                         "%s: safetensors without " PACKED_CONFIG
                         ": expected its whole directory, a text encoder packed in one file, or a "
                         "GGUF file",
                         m->where);
    snprintf(name, sizeof(name), "%s: " PACKED_CONFIG, m->where);
    if ((rc = gemma_config_from_json(&m->config, config, strlen(config), name, err)) != OK)
        return rc;
    return find_prefix(m, err);
}

static int refuse_other(const char *path, struct error *err)
{
    return error_set(err, ERR_FORMAT,
                     "%s: no Gemma directory, safetensors or GGUF file, by its first bytes",
                     tensor_file_name(path));
}

int model_file_open(struct model_file **out, const char *path, struct error *err)
{
    enum model_file_kind kind;
    struct model_file *m;
    int rc;

    *out = NULL;
    if ((rc = model_file_recognise(&kind, path, err)) != OK)
        return rc;
    if ((m = calloc(1, sizeof(*m))) == NULL || (m->path = strdup(path)) == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory", path);
        goto out;
    }
    switch (kind) {
    case MODEL_FILE_DIRECTORY:
        rc = open_directory(m, err);
        break;
    case MODEL_FILE_GGUF:
        rc = open_gguf(m, err);
        break;
    case MODEL_FILE_SAFETENSORS:
        rc = open_packed(m, err);
        break;
    case MODEL_FILE_OTHER:
        rc = refuse_other(path, err);
        break;
    }
    if (rc != OK)
        goto out;
    *out = m;
    m = NULL; /* handed over */
out:
    model_file_close(m);
    return rc;
}

void model_file_close(struct model_file *m)
{
    if (m == NULL)
        return;
    gguf_split_close(m->gguf);
    safetensors_close(m->single);
    safetensors_index_close(m->shards);
    free(m->path);
    free(m);
}

const struct gemma_config *model_file_config(const struct model_file *m)
{
    return &m->config;
}

bool model_file_norms_lack_one(const struct model_file *m)
{
    return m->gguf == NULL && m->config.kind == GEMMA_3;
}

/* The file's name for a canonical one; false when there is none. */
static bool file_name_of(const struct model_file *m, char *out, size_t cap, const char *name)
{
    int layer, used = 0, n = -1;

    if (m->gguf == NULL) {
        n = snprintf(out, cap, "%s%s", m->prefix, name);
        return n > 0 && (size_t)n < cap;
    }
    for (size_t i = 0; i < sizeof(top_names) / sizeof(top_names[0]); i++)
        if (strcmp(name, top_names[i].canonical) == 0)
            n = snprintf(out, cap, "%s", top_names[i].gguf);
    if (sscanf(name, "layers.%3d.%n", &layer, &used) == 1 && used > 0)
        for (size_t i = 0; i < sizeof(layer_names) / sizeof(layer_names[0]); i++)
            if (strcmp(name + used, layer_names[i].canonical) == 0)
                n = snprintf(out, cap, "blk.%d.%s", layer, layer_names[i].gguf);
    return n > 0 && (size_t)n < cap;
}

int model_file_tensor(const struct model_file *m, struct tensor *out, const char *name, int n_dims,
                      const size_t *shape, struct error *err)
{
    char file_name[NAME_CAP];
    const struct tensor *t;

    if (!file_name_of(m, file_name, sizeof(file_name), name))
        return error_set(err, ERR_FORMAT, "%s: %s: no such name in a Gemma model", m->where, name);
    if ((t = find(m, file_name)) == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s: no such tensor", m->where, file_name);
    if (t->n_dims != n_dims || memcmp(t->shape, shape, (size_t)n_dims * sizeof(*shape)) != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: shape %s, want %s", t->file, t->name,
                         tensor_shape_text(t->n_dims, t->shape).text,
                         tensor_shape_text(n_dims, shape).text);
    if (!dtype_info(t->type)->is_number)
        return error_set(
            err, ERR_FORMAT, "%s: %s: type %s is not supported, expected F32, F16, BF16%s", t->file,
            t->name, dtype_info(t->type)->name,
            m->gguf != NULL ? ", Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K" : "");
    *out = *t;
    return OK;
}

/* A vocabulary as tokenizer_from_vocab() takes it. The arrays are copies: the file's are unaligned.
 */
struct vocabulary {
    const char **text;
    size_t *len;
    float *scores;
    int32_t *kinds;
};

static int copy_vocabulary(struct vocabulary *v, const struct gguf *g, size_t *n, struct error *err)
{
    struct gguf_array texts, scores, kinds;
    const uint8_t *at;
    int rc;

    if ((rc = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &texts, err)) != OK ||
        (rc = gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &scores, err)) != OK ||
        (rc = gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &kinds, err)) != OK)
        return rc;
    if (scores.n != texts.n || kinds.n != texts.n)
        return error_set(err, ERR_FORMAT,
                         "%s: %zu tokenizer.ggml.tokens, but %zu scores and %zu types",
                         gguf_name(g), texts.n, scores.n, kinds.n);
    *n = texts.n;
    v->text = calloc(*n + 1, sizeof(*v->text));
    v->len = calloc(*n + 1, sizeof(*v->len));
    v->scores = calloc(*n + 1, sizeof(*v->scores));
    v->kinds = calloc(*n + 1, sizeof(*v->kinds));
    if (v->text == NULL || v->len == NULL || v->scores == NULL || v->kinds == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu tokens", gguf_name(g), *n);
    at = texts.data;
    for (size_t i = 0; i < *n; i++) {
        struct gguf_text text = gguf_array_next_text(&at);

        v->text[i] = text.data;
        v->len[i] = text.len;
        v->scores[i] = gguf_array_f32(&scores, i);
        v->kinds[i] = gguf_array_i32(&kinds, i);
    }
    return OK;
}

/* add_space_prefix is not looked at: Gemma's tokenizer never adds one, whatever a converter wrote.
 */
static int tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g, struct error *err)
{
    struct vocabulary v = {0};
    struct tokenizer_vocab vocab = {.add_bos = true};
    struct gguf_text model;
    uint64_t bos;
    int rc;

    if ((rc = gguf_get_text(g, "tokenizer.ggml.model", &model, err)) != OK)
        goto out;
    if (model.len != 5 || memcmp(model.data, "llama", 5) != 0) {
        rc = error_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.model is not llama (a SentencePiece vocabulary with "
                       "scores), as Gemma 3 has it",
                       gguf_name(g));
        goto out;
    }
    if ((rc = copy_vocabulary(&v, g, &vocab.n_pieces, err)) != OK ||
        (rc = gguf_get_size(g, "tokenizer.ggml.bos_token_id", &bos, err)) != OK)
        goto out;
    if (gguf_has(g, "tokenizer.ggml.add_bos_token") &&
        (rc = gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &vocab.add_bos, err)) != OK)
        goto out;
    if (bos >= vocab.n_pieces || bos > INT32_MAX) {
        rc = error_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.bos_token_id is %llu, but there are %zu tokens",
                       gguf_name(g), (unsigned long long)bos, vocab.n_pieces);
        goto out;
    }
    vocab.text = v.text;
    vocab.len = v.len;
    vocab.scores = v.scores;
    vocab.kinds = v.kinds;
    vocab.bos_id = (int32_t)bos;
    rc = tokenizer_from_vocab(out, &vocab, gguf_name(g), err);
out:
    free(v.text);
    free(v.len);
    free(v.scores);
    free(v.kinds);
    return rc;
}

static int tokenizer_from_directory(struct tokenizer **out, const char *directory,
                                    struct error *err)
{
    char path[PATH_MAX];
    int rc;

    if ((rc = file_join(path, sizeof(path), directory, "tokenizer.json", err)) != OK)
        return rc;
    return tokenizer_load(out, path, err);
}

static int tokenizer_from_packed(struct tokenizer **out, const struct safetensors *s,
                                 const char *file, struct error *err)
{
    const struct tensor *t = safetensors_find(s, PACKED_TOKENIZER);
    char name[NAME_CAP];

    snprintf(name, sizeof(name), "%s: " PACKED_TOKENIZER, file);
    if (t == NULL)
        return error_set(err, ERR_FORMAT, "%s: no such tensor", name);
    if ((t->type != DTYPE_U8 && t->type != DTYPE_I8) || t->n_dims != 1)
        return error_set(err, ERR_FORMAT, "%s: %s %s, expected one row of U8 or I8", name,
                         dtype_info(t->type)->name, tensor_shape_text(t->n_dims, t->shape).text);
    return tokenizer_from_json(out, t->data, t->bytes, name, err);
}

int model_file_tokenizer(const struct model_file *m, struct tokenizer **out, struct error *err)
{
    *out = NULL;
    if (m->gguf != NULL)
        return tokenizer_from_gguf(out, gguf_split_first(m->gguf), err);
    if (m->is_packed)
        return tokenizer_from_packed(out, m->single, m->where, err);
    return tokenizer_from_directory(out, m->path, err);
}

int model_file_load_tokenizer(struct tokenizer **out, const char *path, struct error *err)
{
    enum model_file_kind kind;
    struct safetensors *s = NULL;
    struct gguf *g = NULL;
    int rc;

    *out = NULL;
    if ((rc = model_file_recognise(&kind, path, err)) != OK)
        return rc;
    switch (kind) {
    case MODEL_FILE_DIRECTORY:
        return tokenizer_from_directory(out, path, err);
    case MODEL_FILE_GGUF:
        if ((rc = gguf_open(&g, path, err)) == OK)
            rc = tokenizer_from_gguf(out, g, err);
        gguf_close(g);
        return rc;
    case MODEL_FILE_SAFETENSORS:
        if ((rc = safetensors_open(&s, path, err)) == OK)
            rc = tokenizer_from_packed(out, s, tensor_file_name(path), err);
        safetensors_close(s);
        return rc;
    case MODEL_FILE_OTHER:
        break;
    }
    return tokenizer_load(out, path, err);
}

size_t model_file_n_tensors(const struct model_file *m)
{
    if (m->gguf != NULL)
        return gguf_split_n_tensors(m->gguf);
    if (m->single != NULL)
        return safetensors_n_tensors(m->single);
    return safetensors_index_n_tensors(m->shards);
}

const struct tensor *model_file_tensor_at(const struct model_file *m, size_t i)
{
    if (m->gguf != NULL)
        return gguf_split_tensor_at(m->gguf, i);
    if (m->single != NULL)
        return safetensors_tensor_at(m->single, i);
    return safetensors_index_tensor_at(m->shards, i);
}

const char *model_file_format(const struct model_file *m)
{
    return m->format;
}

size_t model_file_n_sources(const struct model_file *m)
{
    if (m->gguf != NULL)
        return gguf_split_n_files(m->gguf);
    return m->shards == NULL ? 1 : 1 + safetensors_index_n_shards(m->shards);
}

/* A file that lies beside the model's first, or the first itself. */
static int path_beside(char *out, size_t cap, const char *first, const char *name,
                       struct error *err)
{
    size_t folder = (size_t)(tensor_file_name(first) - first);

    if (folder + strlen(name) >= cap)
        return error_set(err, ERR_SIZE, "%.100s...: the path is too long", first);
    memcpy(out, first, folder);
    memcpy(out + folder, name, strlen(name) + 1);
    return OK;
}

int model_file_source_at(const struct model_file *m, size_t i, char *path, size_t cap,
                         struct file_identity *opened, struct error *err)
{
    if (m->gguf != NULL) {
        const struct gguf *file = gguf_split_file_at(m->gguf, i);
        *opened = *gguf_identity(file);
        return path_beside(path, cap, m->path, gguf_name(file), err);
    }
    if (m->is_packed) {
        *opened = *safetensors_identity(m->single);
        return path_beside(path, cap, m->path, m->where, err);
    }
    *opened = m->single != NULL ? *safetensors_identity(m->single)
              : i == 0          ? *safetensors_index_identity(m->shards)
                                : *safetensors_index_shard_identity(m->shards, i - 1);
    return file_join(path, cap, m->path,
                     i == 0 ? m->where : safetensors_index_shard_at(m->shards, i - 1), err);
}
