/* gguf.c - see gguf.h.
 *
 * One pass over the bytes with a cursor that cannot leave them. A value is kept as where it lies,
 * not as what it says: getters read it when asked, so a vocabulary of 262144 texts costs nothing
 * here. Arrays of arrays exist in the format's description but in no file that llama.cpp reads;
 * they are refused, so nothing here recurses. */
#include "engine/files/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"

#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MAX     (1u << 16)
#define NAME_BYTES_MAX    65535 /* of a key: docs/gguf.md; tensors' names are held to the same */
#define DIMS_MAX          4     /* GGML_MAX_DIMS */

struct value {
    char *key;
    enum gguf_type type; /* of the value, or of the elements */
    bool is_array;
    size_t n;            /* elements; 1 when it is no array */
    const uint8_t *data; /* the value, or the first element */
};

struct gguf {
    struct file_map map; /* nothing when the bytes are borrowed */
    char *name;
    uint32_t version;
    struct value *values; /* in the file's order */
    size_t n_values;
    const struct value **by_key;
    struct tensor *tensors; /* in the file's order */
    char **tensor_names;
    size_t n_tensors;
    const struct tensor **by_name;
};

struct cursor {
    const uint8_t *at;
    size_t left; /* bytes */
};

/* Bytes of one element; 0 for what has no fixed size. */
static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* enum ggml_type (ggml.h) to ours. -1: a number that ggml gave away and took back, or never gave.
 */
static const int tensor_types[] = {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    -1,
    -1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q8_1,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_Q8_K,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ3_XXS,
    DTYPE_IQ1_S,
    DTYPE_IQ4_NL,
    DTYPE_IQ3_S,
    DTYPE_IQ2_S,
    DTYPE_IQ4_XS,
    DTYPE_I8,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_F64,
    DTYPE_IQ1_M,
    DTYPE_BF16,
    -1,
    -1,
    -1,
    DTYPE_TQ1_0,
    DTYPE_TQ2_0,
    -1,
    -1,
    -1,
    DTYPE_MXFP4,
};

static uint64_t load_le(const uint8_t *p, size_t bytes)
{
    uint64_t x = 0;

    for (size_t i = bytes; i-- > 0;)
        x = x << 8 | p[i];
    return x;
}

static bool take(struct cursor *c, const uint8_t **out, size_t bytes)
{
    if (bytes > c->left)
        return false;
    *out = c->at;
    c->at += bytes;
    c->left -= bytes;
    return true;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const uint8_t *p;

    if (!take(c, &p, 4))
        return false;
    *out = (uint32_t)load_le(p, 4);
    return true;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const uint8_t *p;

    if (!take(c, &p, 8))
        return false;
    *out = load_le(p, 8);
    return true;
}

static bool take_text(struct cursor *c, struct gguf_text *out)
{
    const uint8_t *p;
    uint64_t len;

    if (!take_u64(c, &len) || len > c->left || !take(c, &p, (size_t)len))
        return false;
    *out = (struct gguf_text){(const char *)p, (size_t)len};
    return true;
}

static int cut_short(const struct gguf *g, const char *where, struct error *err)
{
    return error_set(err, ERR_FORMAT, "%s: the file ends within %s (cut short?)", g->name, where);
}

/* A key or a tensor's name as a C string of its own. */
static int take_name(char **out, struct cursor *c, const struct gguf *g, const char *what, size_t i,
                     struct error *err)
{
    struct gguf_text text;

    if (!take_text(c, &text))
        return cut_short(g, what, err);
    if (text.len > NAME_BYTES_MAX || !tensor_name_is_sound(text.data, text.len))
        return error_set(err, ERR_FORMAT,
                         "%s: %s %zu: its name is empty, too long or has control characters",
                         g->name, what, i);
    if ((*out = strndup(text.data, text.len)) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for a name", g->name);
    return OK;
}

static int read_elements(struct value *v, struct cursor *c, const struct gguf *g, struct error *err)
{
    const uint8_t *skipped;
    struct gguf_text text;
    size_t bytes;

    v->data = c->at;
    if (v->type == GGUF_STRING) {
        for (size_t i = 0; i < v->n; i++)
            if (!take_text(c, &text))
                return cut_short(g, v->key, err);
        return OK;
    }
    if (!size_mul(&bytes, v->n, types[v->type].bytes) || !take(c, &skipped, bytes))
        return cut_short(g, v->key, err);
    if (v->type == GGUF_BOOL)
        for (size_t i = 0; i < v->n; i++)
            if (v->data[i] > 1)
                return error_set(err, ERR_FORMAT, "%s: %s: a bool is %d, expected 0 or 1", g->name,
                                 v->key, v->data[i]);
    return OK;
}

static int read_value(struct value *v, size_t i, struct cursor *c, const struct gguf *g,
                      struct error *err)
{
    uint32_t type;
    uint64_t n = 1;
    int rc;

    if ((rc = take_name(&v->key, c, g, "metadata key", i, err)) != OK)
        return rc;
    if (!take_u32(c, &type))
        return cut_short(g, v->key, err);
    if (type == GGUF_ARRAY) {
        v->is_array = true;
        if (!take_u32(c, &type) || !take_u64(c, &n))
            return cut_short(g, v->key, err);
        if (type == GGUF_ARRAY)
            return error_set(err, ERR_FORMAT, "%s: %s: an array of arrays is not supported",
                             g->name, v->key);
    }
    if (type > GGUF_F64)
        return error_set(err, ERR_FORMAT, "%s: %s: value type %u is not known", g->name, v->key,
                         type);
    if (n > c->left) /* each element has a byte at least */
        return error_set(err, ERR_FORMAT,
                         "%s: %s: an array of %llu, but %zu bytes are left (cut short?)", g->name,
                         v->key, (unsigned long long)n, c->left);
    v->type = (enum gguf_type)type;
    v->n = (size_t)n;
    return read_elements(v, c, g, err);
}

static int compare_keys(const void *a, const void *b)
{
    const struct value *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

static int read_values(struct gguf *g, size_t n, struct cursor *c, struct error *err)
{
    int rc;

    g->values = calloc(n + 1, sizeof(*g->values));
    g->by_key = calloc(n + 1, sizeof(*g->by_key));
    if (g->values == NULL || g->by_key == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu keys", g->name, n);
    for (size_t i = 0; i < n; i++) {
        g->n_values = i + 1; /* what is half read is freed, too */
        if ((rc = read_value(&g->values[i], i, c, g, err)) != OK)
            return rc;
        g->by_key[i] = &g->values[i];
    }
    qsort(g->by_key, n, sizeof(*g->by_key), compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcmp(g->by_key[i - 1]->key, g->by_key[i]->key) == 0)
            return error_set(err, ERR_FORMAT, "%s: %s: there are two keys of this name", g->name,
                             g->by_key[i]->key);
    return OK;
}

static const struct value *find_value(const struct gguf *g, const char *key)
{
    size_t low = 0, high = g->n_values;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(key, g->by_key[middle]->key);

        if (order == 0)
            return g->by_key[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static int read_alignment(size_t *out, const struct gguf *g, struct error *err)
{
    uint64_t alignment = ALIGNMENT_DEFAULT;
    int rc;

    if (gguf_has(g, "general.alignment") &&
        (rc = gguf_get_size(g, "general.alignment", &alignment, err)) != OK)
        return rc;
    if (alignment == 0 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return error_set(err, ERR_FORMAT,
                         "%s: general.alignment is %llu, expected a power of two up to %u", g->name,
                         (unsigned long long)alignment, ALIGNMENT_MAX);
    *out = (size_t)alignment;
    return OK;
}

/* Name, dimensions, type and place; `offset` is from the start of the data, not yet checked. */
static int read_tensor(struct tensor *t, char **name, uint64_t *offset, size_t i, struct cursor *c,
                       const struct gguf *g, struct error *err)
{
    uint32_t n_dims, type;
    size_t n = 1;
    int rc;

    if ((rc = take_name(name, c, g, "tensor", i, err)) != OK)
        return rc;
    t->name = *name;
    t->file = g->name;
    if (!take_u32(c, &n_dims))
        return cut_short(g, t->name, err);
    if (n_dims > DIMS_MAX)
        return error_set(err, ERR_FORMAT, "%s: %s: %u dimensions, at most %d", g->name, t->name,
                         n_dims, DIMS_MAX);
    t->n_dims = (int)n_dims;
    for (int d = t->n_dims - 1; d >= 0; d--) { /* the file has the fastest first */
        uint64_t dim;

        if (!take_u64(c, &dim))
            return cut_short(g, t->name, err);
        if (dim == 0 || dim > SIZE_MAX || !size_mul(&n, n, (size_t)dim))
            return error_set(err, ERR_FORMAT, "%s: %s: a dimension is %llu or the shape overflows",
                             g->name, t->name, (unsigned long long)dim);
        t->shape[d] = (size_t)dim;
    }
    if (!take_u32(c, &type) || !take_u64(c, offset))
        return cut_short(g, t->name, err);
    if (type >= sizeof(tensor_types) / sizeof(tensor_types[0]) || tensor_types[type] < 0)
        return error_set(err, ERR_FORMAT, "%s: %s: tensor type %u is not known", g->name, t->name,
                         type);
    t->type = (enum dtype)tensor_types[type];
    if ((t->n_dims > 0 ? t->shape[t->n_dims - 1] : 1) % dtype_info(t->type)->block != 0 ||
        !dtype_bytes(&t->bytes, t->type, n))
        return error_set(err, ERR_FORMAT, "%s: %s: rows of shape %s are no whole blocks of %s",
                         g->name, t->name, tensor_shape_text(t->n_dims, t->shape).text,
                         dtype_info(t->type)->name);
    return OK;
}

static int read_tensors(struct gguf *g, size_t n, struct cursor *c, const uint8_t *file,
                        struct error *err)
{
    uint64_t *offsets = NULL;
    size_t alignment = ALIGNMENT_DEFAULT, padding, next = 0;
    const uint8_t *skipped;
    int rc;

    if ((rc = read_alignment(&alignment, g, err)) != OK)
        return rc;
    g->tensors = calloc(n + 1, sizeof(*g->tensors));
    g->tensor_names = calloc(n + 1, sizeof(*g->tensor_names));
    offsets = calloc(n + 1, sizeof(*offsets));
    if (g->tensors == NULL || g->tensor_names == NULL || offsets == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory for %zu tensors", g->name, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        g->n_tensors = i + 1;
        if ((rc = read_tensor(&g->tensors[i], &g->tensor_names[i], &offsets[i], i, c, g, err)) !=
            OK)
            goto out;
    }
    padding = (alignment - (size_t)(c->at - file) % alignment) % alignment;
    if (n > 0 && !take(c, &skipped, padding)) {
        rc = cut_short(g, "the padding before the data", err);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        struct tensor *t = &g->tensors[i];

        /* ggml (gguf.cpp) wants them one after another, too: no holes, no overlaps */
        if (offsets[i] != next) {
            rc = error_set(err, ERR_FORMAT, "%s: %s: begins at byte %llu of the data, expected %zu",
                           g->name, t->name, (unsigned long long)offsets[i], next);
            goto out;
        }
        if (next > c->left || t->bytes > c->left - next) {
            rc = error_set(
                err, ERR_FORMAT,
                "%s: %s: %zu bytes at %llu of the data, but the file has %zu (cut short?)", g->name,
                t->name, t->bytes, (unsigned long long)offsets[i], c->left);
            goto out;
        }
        t->data = c->at + next;
        next += t->bytes + (alignment - t->bytes % alignment) % alignment;
    }
    rc = tensor_sort(&g->by_name, g->tensors, n, err);
out:
    free(offsets);
    return rc;
}

static int read_file(struct gguf *g, const uint8_t *file, size_t size, struct error *err)
{
    /* the smallest key: length, one letter, type, one byte; the smallest tensor: length, one
     * letter, no dimensions, type, offset */
    const size_t key_min = 8 + 1 + 4 + 1, tensor_min = 8 + 1 + 4 + 4 + 8;
    struct cursor c = {file, size};
    const uint8_t *magic;
    uint64_t n_tensors, n_values;
    int rc;

    if (!gguf_recognise(file, size))
        return error_set(err, ERR_FORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"",
                         g->name);
    if (!take(&c, &magic, 4) || !take_u32(&c, &g->version))
        return cut_short(g, "its first 24 bytes", err);
    if (g->version == 0x02000000u || g->version == 0x03000000u)
        return error_set(err, ERR_FORMAT, "%s: a big-endian GGUF file, expected little-endian",
                         g->name);
    if (g->version != 2 && g->version != 3)
        return error_set(err, ERR_FORMAT, "%s: GGUF version %u, expected 2 or 3", g->name,
                         g->version);
    if (!take_u64(&c, &n_tensors) || !take_u64(&c, &n_values))
        return cut_short(g, "its first 24 bytes", err);
    if (n_values > c.left / key_min || n_tensors > c.left / tensor_min)
        return error_set(
            err, ERR_FORMAT,
            "%s: %llu keys and %llu tensors do not fit in the %zu bytes left (cut short?)", g->name,
            (unsigned long long)n_values, (unsigned long long)n_tensors, c.left);
    if ((rc = read_values(g, (size_t)n_values, &c, err)) != OK)
        return rc;
    if (n_tensors > c.left / tensor_min)
        return cut_short(g, "the list of tensors", err);
    return read_tensors(g, (size_t)n_tensors, &c, file, err);
}

static int create(struct gguf **out, struct file_map map, bool owned, const char *name,
                  struct error *err)
{
    struct gguf *g;
    int rc;

    if ((g = calloc(1, sizeof(*g))) == NULL) {
        if (owned)
            file_map_close(&map);
        return error_set(err, ERR_MEM, "%s: no memory", name);
    }
    if (owned)
        g->map = map;
    if ((g->name = strdup(name)) == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory", name);
        goto out;
    }
    if ((rc = read_file(g, map.data, map.size, err)) != OK)
        goto out;
    *out = g;
    g = NULL; /* handed over */
out:
    gguf_close(g);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, struct error *err)
{
    struct file_map map;
    int rc;

    *out = NULL;
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    return create(out, map, true, tensor_file_name(path), err);
}

int gguf_parse(struct gguf **out, const void *data, size_t size, const char *name,
               struct error *err)
{
    *out = NULL;
    return create(out, (struct file_map){.data = data, .size = size}, false, name, err);
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->n_values; i++)
        free(g->values[i].key);
    for (size_t i = 0; i < g->n_tensors; i++)
        free(g->tensor_names[i]);
    free(g->values);
    free(g->by_key);
    free(g->tensors);
    free(g->tensor_names);
    free(g->by_name);
    free(g->name);
    file_map_close(&g->map);
    free(g);
}

bool gguf_recognise(const void *data, size_t size)
{
    return size >= 4 && memcmp(data, "GGUF", 4) == 0;
}

const struct file_identity *gguf_identity(const struct gguf *g)
{
    return &g->map.identity;
}

const char *gguf_name(const struct gguf *g)
{
    return g->name;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct tensor *gguf_find(const struct gguf *g, const char *name)
{
    return tensor_find(g->by_name, g->n_tensors, name);
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_value(g, key) != NULL;
}

bool gguf_type_of(const struct gguf *g, const char *key, enum gguf_type *out)
{
    const struct value *v = find_value(g, key);

    if (v == NULL)
        return false;
    *out = v->is_array ? GGUF_ARRAY : v->type;
    return true;
}

/* The key's value, or the error that says what is wrong with it. */
static int expect(const struct value **out, const struct gguf *g, const char *key, const char *want,
                  struct error *err)
{
    if ((*out = find_value(g, key)) == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s is missing", g->name, key);
    if ((*out)->is_array)
        return error_set(err, ERR_FORMAT, "%s: %s is an array of %s, expected %s", g->name, key,
                         types[(*out)->type].name, want);
    return OK;
}

static int wrong_type(const struct gguf *g, const struct value *v, const char *want,
                      struct error *err)
{
    return error_set(err, ERR_FORMAT, "%s: %s is %s, expected %s", g->name, v->key,
                     types[v->type].name, want);
}

/* Any integer, sign-extended; false for another kind. */
static bool load_integer(const struct value *v, int64_t *out)
{
    const uint64_t bits = load_le(v->data, types[v->type].bytes);

    switch (v->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_I64:
        *out = (int64_t)bits;
        return true;
    case GGUF_I8:
        *out = (int8_t)bits;
        return true;
    case GGUF_I16:
        *out = (int16_t)bits;
        return true;
    case GGUF_I32:
        *out = (int32_t)bits;
        return true;
    case GGUF_U64:
        *out = bits > INT64_MAX ? INT64_MAX : (int64_t)bits; /* beyond any limit of ours */
        return true;
    default:
        return false;
    }
}

static double load_float(const struct value *v)
{
    if (v->type == GGUF_F32) {
        uint32_t bits = (uint32_t)load_le(v->data, 4);
        float x;

        memcpy(&x, &bits, sizeof(x));
        return (double)x;
    } else {
        uint64_t bits = load_le(v->data, 8);
        double x;

        memcpy(&x, &bits, sizeof(x));
        return x;
    }
}

int gguf_get_size(const struct gguf *g, const char *key, uint64_t *out, struct error *err)
{
    const struct value *v;
    int64_t x;
    int rc;

    if ((rc = expect(&v, g, key, "an integer", err)) != OK)
        return rc;
    if (!load_integer(v, &x))
        return wrong_type(g, v, "an integer", err);
    if (x < 0)
        return error_set(err, ERR_FORMAT, "%s: %s is %lld, expected no negative number", g->name,
                         key, (long long)x);
    *out = (uint64_t)x;
    return OK;
}

int gguf_get_number(const struct gguf *g, const char *key, double *out, struct error *err)
{
    const struct value *v;
    int64_t x;
    int rc;

    if ((rc = expect(&v, g, key, "a number", err)) != OK)
        return rc;
    if (v->type == GGUF_F32 || v->type == GGUF_F64)
        *out = load_float(v);
    else if (load_integer(v, &x))
        *out = (double)x;
    else
        return wrong_type(g, v, "a number", err);
    return OK;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *err)
{
    const struct value *v;
    int rc;

    if ((rc = expect(&v, g, key, "a bool", err)) != OK)
        return rc;
    if (v->type != GGUF_BOOL)
        return wrong_type(g, v, "a bool", err);
    *out = v->data[0] != 0;
    return OK;
}

int gguf_get_text(const struct gguf *g, const char *key, struct gguf_text *out, struct error *err)
{
    const struct value *v;
    const uint8_t *at;
    int rc;

    if ((rc = expect(&v, g, key, "a string", err)) != OK)
        return rc;
    if (v->type != GGUF_STRING)
        return wrong_type(g, v, "a string", err);
    at = v->data;
    *out = gguf_array_next_text(&at);
    return OK;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type,
                   struct gguf_array *out, struct error *err)
{
    const struct value *v = find_value(g, key);

    if (v == NULL)
        return error_set(err, ERR_FORMAT, "%s: %s is missing", g->name, key);
    if (!v->is_array || v->type != type)
        return error_set(err, ERR_FORMAT, "%s: %s is %s%s, expected an array of %s", g->name, key,
                         v->is_array ? "an array of " : "", types[v->type].name, types[type].name);
    *out = (struct gguf_array){v->type, v->n, v->data};
    return OK;
}

float gguf_array_f32(const struct gguf_array *a, size_t i)
{
    uint32_t bits = (uint32_t)load_le(a->data + 4 * i, 4);
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

int32_t gguf_array_i32(const struct gguf_array *a, size_t i)
{
    return (int32_t)load_le(a->data + 4 * i, 4);
}

bool gguf_array_bool(const struct gguf_array *a, size_t i)
{
    return a->data[i] != 0;
}

struct gguf_text gguf_array_next_text(const uint8_t **at)
{
    struct gguf_text text = {(const char *)*at + 8, (size_t)load_le(*at, 8)};

    *at += 8 + text.len; /* within the file: checked when it was read */
    return text;
}

size_t gguf_n_keys(const struct gguf *g)
{
    return g->n_values;
}

const char *gguf_key_at(const struct gguf *g, size_t i)
{
    return i < g->n_values ? g->values[i].key : NULL;
}

/* At most `cap` - 1 bytes: printable ones as they are, line breaks and the like as a space. */
static void print_text(struct gguf_text text, char *out, size_t cap)
{
    const size_t shown_max = 60;
    size_t n = text.len < shown_max ? text.len : shown_max;

    while (n < text.len && n > 0 && ((uint8_t)text.data[n] & 0xc0) == 0x80)
        n--; /* not through the middle of a character */
    if (n >= cap)
        n = cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)text.data[i] < 0x20 || text.data[i] == 0x7f ? ' ' : text.data[i];
    out[n] = '\0';
    if (n < text.len)
        snprintf(out + n, cap - n, "... (%zu bytes)", text.len);
}

void gguf_value_text(const struct gguf *g, size_t i, char *out, size_t cap)
{
    const struct value *v;
    const uint8_t *at;
    int64_t x;

    if (cap == 0)
        return;
    out[0] = '\0';
    if (i >= g->n_values)
        return;
    v = &g->values[i];
    at = v->data;
    if (v->is_array)
        snprintf(out, cap, "[%zu x %s]", v->n, types[v->type].name);
    else if (v->type == GGUF_STRING)
        print_text(gguf_array_next_text(&at), out, cap);
    else if (v->type == GGUF_BOOL)
        snprintf(out, cap, "%s", v->data[0] != 0 ? "true" : "false");
    else if (v->type == GGUF_U64)
        snprintf(out, cap, "%llu", (unsigned long long)load_le(v->data, 8));
    else if (load_integer(v, &x))
        snprintf(out, cap, "%lld", (long long)x);
    else
        snprintf(out, cap, "%g", load_float(v));
}
