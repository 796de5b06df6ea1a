/* safetensors_index.c - see safetensors_index.h.
 *
 * Shards are named by a file that may come from anyone, so a shard must be a plain name in the same
 * directory: nothing else of the system can be opened through it. Tensors that a shard holds but
 * the map does not name are ignored, as transformers does. */
#include "engine/files/safetensors_index.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/files/json_object.h"
#include "engine/files/safetensors.h"

#define INDEX_MAX  (64u << 20) /* bytes of JSON: about a million tensors */
#define SHARDS_MAX 1024

struct entry {
    const char *tensor, *shard; /* in the parsed JSON */
};

struct safetensors_index {
    char *name;
    struct file_identity identity; /* nothing when the bytes are borrowed */
    json_t *root;
    struct entry *entries; /* by tensor */
    size_t n_entries;
    const char **shards; /* each name once, sorted */
    struct safetensors **files;
    size_t n_shards;
    const struct tensor **tensors; /* by name; NULL while no shard was opened */
};

static bool shard_name_is_plain(const char *name)
{
    return tensor_name_is_sound(name, strlen(name)) && strchr(name, '/') == NULL &&
           strchr(name, '\\') == NULL && name[0] != '.' && strlen(name) <= NAME_MAX;
}

static int compare_texts(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return strcmp(x->tensor, y->tensor);
}

static int list_shards(struct safetensors_index *x, struct error *err)
{
    size_t n = 0;

    if ((x->shards = calloc(x->n_entries, sizeof(*x->shards))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu entries", x->name, x->n_entries);
    for (size_t i = 0; i < x->n_entries; i++)
        x->shards[i] = x->entries[i].shard;
    qsort(x->shards, x->n_entries, sizeof(*x->shards), compare_texts);
    for (size_t i = 0; i < x->n_entries; i++)
        if (n == 0 || strcmp(x->shards[n - 1], x->shards[i]) != 0)
            x->shards[n++] = x->shards[i];
    if (n > SHARDS_MAX)
        return error_set(err, ERR_FORMAT, "%s: %zu shards, at most %d", x->name, n, SHARDS_MAX);
    x->n_shards = n;
    return OK;
}

static int read_map(struct safetensors_index *x, struct error *err)
{
    json_t *map = json_object_get(x->root, "weight_map"), *shard;
    const char *tensor;

    if (!json_is_object(map))
        return error_set(err, ERR_FORMAT, "%s: weight_map is %s, expected an object", x->name,
                         json_object_kind(map));
    if (json_object_size(map) == 0)
        return error_set(err, ERR_FORMAT, "%s: weight_map is empty", x->name);
    if ((x->entries = calloc(json_object_size(map), sizeof(*x->entries))) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu entries", x->name,
                         json_object_size(map));
    json_object_foreach(map, tensor, shard)
    {
        if (!tensor_name_is_sound(tensor, strlen(tensor)))
            return error_set(err, ERR_FORMAT,
                             "%s: entry %zu: its name is empty or has control characters", x->name,
                             x->n_entries);
        if (!json_is_string(shard))
            return error_set(err, ERR_FORMAT, "%s: %s: its shard is %s, expected a file name",
                             x->name, tensor, json_object_kind(shard));
        if (!shard_name_is_plain(json_string_value(shard)))
            return error_set(err, ERR_FORMAT,
                             "%s: %s: its shard is no plain name of a file in the same directory",
                             x->name, tensor);
        x->entries[x->n_entries++] = (struct entry){tensor, json_string_value(shard)};
    }
    qsort(x->entries, x->n_entries, sizeof(*x->entries), compare_entries);
    return list_shards(x, err);
}

int safetensors_index_parse(struct safetensors_index **out, const void *json, size_t size,
                            const char *name, struct error *err)
{
    struct safetensors_index *x;
    int rc;

    *out = NULL;
    if (size > INDEX_MAX)
        return error_set(err, ERR_FORMAT, "%s: %zu bytes, at most %u", name, size, INDEX_MAX);
    if ((x = calloc(1, sizeof(*x))) == NULL || (x->name = strdup(name)) == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory", name);
        goto out;
    }
    if ((rc = json_object_parse(&x->root, json, size, name, err)) != OK ||
        (rc = read_map(x, err)) != OK)
        goto out;
    *out = x;
    x = NULL; /* handed over */
out:
    safetensors_index_close(x);
    return rc;
}

static int open_shards(struct safetensors_index *x, const char *directory, struct error *err)
{
    char path[PATH_MAX];
    int rc;

    x->files = calloc(x->n_shards, sizeof(*x->files));
    x->tensors = calloc(x->n_entries, sizeof(*x->tensors));
    if (x->files == NULL || x->tensors == NULL)
        return error_set(err, ERR_MEM, "%s: no memory for %zu tensors", x->name, x->n_entries);
    for (size_t i = 0; i < x->n_shards; i++) {
        if ((rc = file_join(path, sizeof(path), directory, x->shards[i], err)) != OK ||
            (rc = safetensors_open(&x->files[i], path, err)) != OK)
            return rc;
    }
    for (size_t i = 0; i < x->n_entries; i++) {
        const struct entry *e = &x->entries[i];
        const char **shard =
            bsearch(&e->shard, x->shards, x->n_shards, sizeof(*x->shards), compare_texts);

        x->tensors[i] = safetensors_find(x->files[shard - x->shards], e->tensor);
        if (x->tensors[i] == NULL)
            return error_set(err, ERR_FORMAT, "%s: %s: no such tensor, but %s says so", e->shard,
                             e->tensor, x->name);
    }
    return OK;
}

int safetensors_index_open(struct safetensors_index **out, const char *path, struct error *err)
{
    const char *name = tensor_file_name(path);
    struct safetensors_index *x = NULL;
    struct file_map map;
    char *directory = NULL;
    size_t directory_len = (size_t)(name - path);
    int rc;

    *out = NULL;
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    if ((rc = safetensors_index_parse(&x, map.data, map.size, name, err)) != OK)
        goto out;
    x->identity = map.identity;
    if (directory_len > 1)
        directory_len--; /* its slash */
    if ((directory = strndup(path, directory_len)) == NULL) {
        rc = error_set(err, ERR_MEM, "%s: no memory", name);
        goto out;
    }
    if ((rc = open_shards(x, directory[0] != '\0' ? directory : ".", err)) != OK)
        goto out;
    *out = x;
    x = NULL; /* handed over */
out:
    safetensors_index_close(x);
    free(directory);
    file_map_close(&map); /* jansson has copied every text */
    return rc;
}

void safetensors_index_close(struct safetensors_index *x)
{
    if (x == NULL)
        return;
    for (size_t i = 0; x->files != NULL && i < x->n_shards; i++)
        safetensors_close(x->files[i]);
    free(x->files);
    free(x->tensors);
    free(x->shards);
    free(x->entries);
    json_decref(x->root);
    free(x->name);
    free(x);
}

size_t safetensors_index_n_shards(const struct safetensors_index *x)
{
    return x->n_shards;
}

const char *safetensors_index_shard_at(const struct safetensors_index *x, size_t i)
{
    return i < x->n_shards ? x->shards[i] : NULL;
}

const struct file_identity *safetensors_index_identity(const struct safetensors_index *x)
{
    return &x->identity;
}

const struct file_identity *safetensors_index_shard_identity(const struct safetensors_index *x,
                                                             size_t i)
{
    return safetensors_identity(x->files[i]);
}

size_t safetensors_index_n_tensors(const struct safetensors_index *x)
{
    return x->tensors != NULL ? x->n_entries : 0;
}

const struct tensor *safetensors_index_tensor_at(const struct safetensors_index *x, size_t i)
{
    return i < safetensors_index_n_tensors(x) ? x->tensors[i] : NULL;
}

const struct tensor *safetensors_index_find(const struct safetensors_index *x, const char *name)
{
    return tensor_find(x->tensors, safetensors_index_n_tensors(x), name);
}
