/* safetensors.c - see safetensors.h.
 *
 * As strict as the reference library (SafeTensors::deserialize): it, too, refuses holes, overlaps
 * and bytes after the last tensor, so a file has one meaning and cannot hide anything. Names point
 * into the parsed header, which is kept. */
#include "engine/files/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/size.h"
#include "engine/files/json_object.h"

#define HEADER_MAX 100000000u /* bytes; MAX_HEADER_SIZE of the reference library */

struct safetensors {
    struct file_map map; /* nothing when the bytes are borrowed */
    char *name;
    json_t *header;
    struct tensor *tensors; /* in the order of their bytes */
    const struct tensor **sorted;
    size_t n_tensors;
    struct metadata {
        const char *key, *value;
    } * metadata;
    size_t n_metadata;
};

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t x = 0;

    for (int i = 7; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

/* The plain kinds are spelled as the format spells them; the blocked ones exist only in GGUF. */
static bool type_from_name(enum dtype *out, const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtype_info((enum dtype)i)->block == 1 &&
            strcmp(dtype_info((enum dtype)i)->name, name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

static bool size_from_json(size_t *out, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (size_t)json_integer_value(value);
    return true;
}

static int read_shape(struct tensor *t, const json_t *shape, struct error *err)
{
    size_t n_dims = json_array_size(shape);

    if (!json_is_array(shape))
        return error_set(err, ERR_FORMAT, "%s: %s: shape is %s, expected an array", t->file,
                         t->name, json_object_kind(shape));
    if (n_dims > TENSOR_MAX_DIMS)
        return error_set(err, ERR_FORMAT, "%s: %s: %zu dimensions, at most %d are supported",
                         t->file, t->name, n_dims, TENSOR_MAX_DIMS);
    for (size_t i = 0; i < n_dims; i++)
        if (!size_from_json(&t->shape[i], json_array_get(shape, i)))
            return error_set(err, ERR_FORMAT, "%s: %s: dimension %zu of the shape is no size",
                             t->file, t->name, i);
    t->n_dims = (int)n_dims;
    return OK;
}

/* One entry of the header; `data` are the `size` bytes after the header. */
static int read_tensor(struct tensor *t, const json_t *entry, const uint8_t *data, size_t size,
                       struct error *err)
{
    const json_t *type = json_object_get(entry, "dtype");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t begin, end, n = 1, bytes;
    int rc;

    if (!json_is_object(entry))
        return error_set(err, ERR_FORMAT, "%s: %s: is %s, expected an object", t->file, t->name,
                         json_object_kind(entry));
    if (json_object_size(entry) != 3 || type == NULL || offsets == NULL ||
        json_object_get(entry, "shape") == NULL)
        return error_set(err, ERR_FORMAT,
                         "%s: %s: expected dtype, shape and data_offsets, and nothing else",
                         t->file, t->name);
    if (!json_is_string(type) || !type_from_name(&t->type, json_string_value(type)))
        return error_set(err, ERR_FORMAT, "%s: %s: dtype %s is not known", t->file, t->name,
                         json_is_string(type) ? json_string_value(type) : json_object_kind(type));
    if ((rc = read_shape(t, json_object_get(entry, "shape"), err)) != OK)
        return rc;
    if (json_array_size(offsets) != 2 || !size_from_json(&begin, json_array_get(offsets, 0)) ||
        !size_from_json(&end, json_array_get(offsets, 1)) || begin > end)
        return error_set(err, ERR_FORMAT, "%s: %s: data_offsets are not [begin, end]", t->file,
                         t->name);
    if (end > size)
        return error_set(err, ERR_FORMAT,
                         "%s: %s: ends at byte %zu of the data, but the file has %zu (cut short?)",
                         t->file, t->name, end, size);
    for (int i = 0; i < t->n_dims; i++)
        if (!size_mul(&n, n, t->shape[i]))
            return error_set(err, ERR_FORMAT, "%s: %s: shape %s overflows", t->file, t->name,
                             tensor_shape_text(t->n_dims, t->shape).text);
    if (!dtype_bytes(&bytes, t->type, n) || bytes != end - begin)
        return error_set(err, ERR_FORMAT,
                         "%s: %s: %s %s does not take the %zu bytes that it is given", t->file,
                         t->name, dtype_info(t->type)->name,
                         tensor_shape_text(t->n_dims, t->shape).text, end - begin);
    t->data = data + begin;
    t->bytes = bytes;
    return OK;
}

static int read_metadata(struct safetensors *s, json_t *object, struct error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return error_set(err, ERR_FORMAT, "%s: __metadata__ is %s, expected an object", s->name,
                         json_object_kind(object));
    s->metadata = calloc(json_object_size(object) + 1, sizeof(*s->metadata));
    if (s->metadata == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for the metadata", s->name);
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return error_set(err, ERR_FORMAT, "%s: __metadata__ %s is %s, expected a string",
                             s->name, key, json_object_kind(value));
        s->metadata[s->n_metadata++] = (struct metadata){key, json_string_value(value)};
    }
    return OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;

    if (p != q)
        return p < q ? -1 : 1;
    if (x->bytes != y->bytes) /* an empty tensor comes before the one that begins where it lies */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts the tensors by place and checks that they fill the `size` bytes at `data`. */
static int check_coverage(struct safetensors *s, const uint8_t *data, size_t size,
                          struct error *err)
{
    const uint8_t *next = data;

    if (s->n_tensors > 0)
        qsort(s->tensors, s->n_tensors, sizeof(*s->tensors), compare_places);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        const uint8_t *begin = t->data;

        if (begin != next)
            return error_set(err, ERR_FORMAT,
                             "%s: %s: begins at byte %zu of the data, expected %zu (%s)", s->name,
                             t->name, (size_t)(begin - data), (size_t)(next - data),
                             begin < next ? "tensors overlap" : "a hole");
        next = begin + t->bytes;
    }
    if (next != data + size)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes after the last tensor", s->name,
                         (size_t)(data + size - next));
    return OK;
}

static int read_header(struct safetensors *s, const uint8_t *file, size_t size, struct error *err)
{
    const uint8_t *data;
    const char *key;
    json_t *value;
    uint64_t header_size;
    int rc;

    if (size < 8)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes, too short for a safetensors file",
                         s->name, size);
    header_size = load_u64(file);
    if (header_size > HEADER_MAX)
        return error_set(err, ERR_FORMAT,
                         "%s: not a safetensors file: a header of %llu bytes, at most %u", s->name,
                         (unsigned long long)header_size, HEADER_MAX);
    if (header_size > size - 8)
        return error_set(err, ERR_FORMAT,
                         "%s: a header of %llu bytes, but the file ends after %zu (cut short?)",
                         s->name, (unsigned long long)header_size, size - 8);
    if (header_size == 0 || file[8] != '{')
        return error_set(err, ERR_FORMAT,
                         "%s: not a safetensors file: the header is no JSON object", s->name);
    if ((rc = json_object_parse(&s->header, file + 8, (size_t)header_size, s->name, err)) != OK)
        return rc;
    data = file + 8 + header_size;
    size -= 8 + (size_t)header_size;

    s->tensors = calloc(json_object_size(s->header) + 1, sizeof(*s->tensors));
    if (s->tensors == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu tensors", s->name,
                         json_object_size(s->header));
    json_object_foreach(s->header, key, value)
    {
        struct tensor *t = &s->tensors[s->n_tensors];

        if (strcmp(key, "__metadata__") == 0) {
            if ((rc = read_metadata(s, value, err)) != OK)
                return rc;
            continue;
        }
        if (!tensor_name_is_sound(key, strlen(key)))
            return error_set(err, ERR_FORMAT,
                             "%s: tensor %zu: its name is empty or has control characters", s->name,
                             s->n_tensors);
        t->name = key;
        t->file = s->name;
        if ((rc = read_tensor(t, value, data, size, err)) != OK)
            return rc;
        s->n_tensors++;
    }
    if ((rc = check_coverage(s, data, size, err)) != OK)
        return rc;
    return tensor_sort(&s->sorted, s->tensors, s->n_tensors, err);
}

static int create(struct safetensors **out, struct file_map map, bool owned, const char *name,
                  struct error *err)
{
    struct safetensors *s;
    int rc;

    if ((s = calloc(1, sizeof(*s))) == NULL) {
        if (owned)
            file_map_close(&map);
        return error_set(err, ERR_MEM, "%s: no memory", name);
    }
    if (owned)
        s->map = map;
    if ((s->name = strdup(name)) == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory", name);
        goto out;
    }
    if ((rc = read_header(s, map.data, map.size, err)) != OK)
        goto out;
    *out = s;
    s = NULL; /* handed over */
out:
    safetensors_close(s);
    return rc;
}

int safetensors_open(struct safetensors **out, const char *path, struct error *err)
{
    struct file_map map;
    int rc;

    *out = NULL;
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    return create(out, map, true, tensor_file_name(path), err);
}

int safetensors_parse(struct safetensors **out, const void *data, size_t size, const char *name,
                      struct error *err)
{
    *out = NULL;
    return create(out, (struct file_map){.data = data, .size = size}, false, name, err);
}

void safetensors_close(struct safetensors *s)
{
    if (s == NULL)
        return;
    free(s->metadata);
    free(s->sorted);
    free(s->tensors);
    json_decref(s->header);
    free(s->name);
    file_map_close(&s->map);
    free(s);
}

bool safetensors_recognise(const void *data, size_t size)
{
    const uint8_t *bytes = data;

    return size > 8 && load_u64(bytes) <= HEADER_MAX && bytes[8] == '{';
}

const struct file_identity *safetensors_identity(const struct safetensors *s)
{
    return &s->map.identity;
}

size_t safetensors_n_tensors(const struct safetensors *s)
{
    return s->n_tensors;
}

const struct tensor *safetensors_tensor_at(const struct safetensors *s, size_t i)
{
    return i < s->n_tensors ? &s->tensors[i] : NULL;
}

const struct tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    return tensor_find(s->sorted, s->n_tensors, name);
}

size_t safetensors_n_metadata(const struct safetensors *s)
{
    return s->n_metadata;
}

void safetensors_metadata_at(const struct safetensors *s, size_t i, const char **key,
                             const char **value)
{
    *key = i < s->n_metadata ? s->metadata[i].key : NULL;
    *value = i < s->n_metadata ? s->metadata[i].value : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    for (size_t i = 0; i < s->n_metadata; i++)
        if (strcmp(s->metadata[i].key, key) == 0)
            return s->metadata[i].value;
    return NULL;
}
