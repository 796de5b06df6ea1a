/* safetensors_edit.h - a small safetensors file in memory, to be changed and written again.
 *
 *     struct edit f;
 *     edit_load(&f, "good.safetensors");
 *     edit_remove(&f, "model.diffusion_model.audio_");
 *     edit_set_metadata(&f, "model_version", "2.5.0");
 *     edit_write(&f, "without-audio.safetensors", 0);
 *     edit_free(&f);
 *
 * For tests: what goes wrong ends the program. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/files/safetensors.h"

enum { EDIT_MAX = 256 };

struct edit_tensor {
    char *name;
    enum dtype type;
    int n_dims;
    size_t shape[TENSOR_MAX_DIMS];
    uint8_t *data;
    size_t bytes;
};

struct edit {
    json_t *metadata; /* an object of strings */
    struct edit_tensor tensors[EDIT_MAX];
    int n;
};

static inline void edit_fail(const char *what, const char *which)
{
    fprintf(stderr, "safetensors_edit: %s: %s\n", what, which);
    abort();
}

static inline void edit_set_metadata(struct edit *f, const char *key, const char *value)
{
    if (value == NULL)
        json_object_del(f->metadata, key);
    else
        json_object_set_new(f->metadata, key, json_string(value));
}

static inline void edit_load(struct edit *f, const char *path)
{
    struct safetensors *s;
    struct error err = {0};

    *f = (struct edit){.metadata = json_object()};
    if (safetensors_open(&s, path, &err) != OK)
        edit_fail("cannot load", err.text);
    for (size_t i = 0; i < safetensors_n_metadata(s); i++) {
        const char *key, *value;
        safetensors_metadata_at(s, i, &key, &value);
        edit_set_metadata(f, key, value);
    }
    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct tensor *t = safetensors_tensor_at(s, i);
        struct edit_tensor *e = &f->tensors[f->n++];
        if (f->n == EDIT_MAX)
            edit_fail("too many tensors", path);
        *e = (struct edit_tensor){.type = t->type, .n_dims = t->n_dims, .bytes = t->bytes};
        memcpy(e->shape, t->shape, sizeof(e->shape));
        if ((e->name = strdup(t->name)) == NULL || (e->data = malloc(t->bytes + 1)) == NULL)
            edit_fail("no memory", path);
        memcpy(e->data, t->data, t->bytes);
    }
    safetensors_close(s);
}

static inline struct edit_tensor *edit_find(struct edit *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    edit_fail("no such tensor", name);
    return NULL;
}

/* Removes the tensors whose names begin so. */
static inline void edit_remove(struct edit *f, const char *prefix)
{
    int n = 0;

    for (int i = 0; i < f->n; i++) {
        if (strncmp(f->tensors[i].name, prefix, strlen(prefix)) == 0) {
            free(f->tensors[i].name);
            free(f->tensors[i].data);
        } else {
            f->tensors[n++] = f->tensors[i];
        }
    }
    if (n == f->n)
        edit_fail("nothing to remove", prefix);
    f->n = n;
}

/* Moves the tensors whose names begin so to another file. */
static inline void edit_move(struct edit *to, struct edit *from, const char *prefix)
{
    int n = 0;

    for (int i = 0; i < from->n; i++) {
        bool moves = strncmp(from->tensors[i].name, prefix, strlen(prefix)) == 0;
        if (moves && to->n == EDIT_MAX)
            edit_fail("too many tensors", prefix);
        if (moves)
            to->tensors[to->n++] = from->tensors[i];
        else
            from->tensors[n++] = from->tensors[i];
    }
    if (n == from->n)
        edit_fail("nothing to move", prefix);
    from->n = n;
}

/* Turns a tensor into float32, to be changed in place. */
static inline float *edit_floats(struct edit *f, const char *name, size_t *n)
{
    struct edit_tensor *t = edit_find(f, name);
    float *values;

    *n = t->bytes / dtype_info(t->type)->bytes;
    if ((values = malloc(*n * sizeof(float) + 1)) == NULL)
        edit_fail("no memory", name);
    dtype_decode(values, t->data, t->type, *n);
    free(t->data);
    t->data = (uint8_t *)values;
    t->type = DTYPE_F32;
    t->bytes = *n * sizeof(float);
    return values;
}

/* Sets, replaces or (NULL) removes a key of the object `transformer` in the metadata `config`. */
static inline void edit_set_config(struct edit *f, const char *key, const char *json)
{
    json_t *config = json_loads(json_string_value(json_object_get(f->metadata, "config")), 0, NULL);
    json_t *transformer = json_object_get(config, "transformer");
    json_t *value = json != NULL ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    char *text;

    if (transformer == NULL || (json != NULL && value == NULL))
        edit_fail("no config to change", key);
    if (json == NULL)
        json_object_del(transformer, key);
    else
        json_object_set_new(transformer, key, value);
    text = json_dumps(config, 0);
    edit_set_metadata(f, "config", text);
    free(text);
    json_decref(config);
}

/* `padding` bytes of a tensor "padding" come first, as a hole in the file. */
static inline void edit_write(const struct edit *f, const char *path, uint64_t padding)
{
    json_t *header = json_object();
    uint64_t at = padding, len;
    uint8_t bytes[8];
    char *text;
    FILE *out;

    json_object_set(header, "__metadata__", f->metadata);
    if (padding > 0)
        json_object_set_new(header, "padding",
                            json_pack("{s:s,s:[I],s:[I,I]}", "dtype", "U8", "shape",
                                      (json_int_t)padding, "data_offsets", (json_int_t)0,
                                      (json_int_t)padding));
    for (int i = 0; i < f->n; i++) {
        const struct edit_tensor *t = &f->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype_info(t->type)->name,
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    text = json_dumps(header, 0);
    len = strlen(text);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(len >> 8 * i);
    if ((out = fopen(path, "wb")) == NULL || fwrite(bytes, 1, 8, out) != 8 ||
        fwrite(text, 1, len, out) != len || fseeko(out, (off_t)(8 + len + padding), SEEK_SET) != 0)
        edit_fail("cannot write", path);
    for (int i = 0; i < f->n; i++)
        if (fwrite(f->tensors[i].data, 1, f->tensors[i].bytes, out) != f->tensors[i].bytes)
            edit_fail("cannot write", path);
    if (fclose(out) != 0)
        edit_fail("cannot write", path);
    free(text);
    json_decref(header);
}

static inline void edit_free(struct edit *f)
{
    for (int i = 0; i < f->n; i++) {
        free(f->tensors[i].name);
        free(f->tensors[i].data);
    }
    json_decref(f->metadata);
}
