/* safetensors_index.h - a model cut into several safetensors files, and the JSON file that says
 * which tensor lies in which (model.safetensors.index.json, key `weight_map`).
 *
 * Never changes after opening: share one among any number of threads. */
#pragma once
#include <stddef.h>

#include "base/file.h"
#include "engine/files/tensor.h"

struct safetensors_index;

/* Opens the index and every shard, which lie beside it, and checks that each tensor of the map is
 * in its shard. On success *out belongs to the caller (safetensors_index_close).
 * ERR_IO: a file is missing or unreadable. ERR_FORMAT: the index or a shard is broken; the sentence
 * names which. */
int safetensors_index_open(struct safetensors_index **out, const char *path, struct error *err);
/* Only the index, from bytes: no shard is opened and no tensor can be found. */
int safetensors_index_parse(struct safetensors_index **out, const void *json, size_t size,
                            const char *name, struct error *err);
void safetensors_index_close(struct safetensors_index *x); /* NULL is fine */

size_t safetensors_index_n_shards(const struct safetensors_index *x);
const char *safetensors_index_shard_at(const struct safetensors_index *x, size_t i); /* its name */
/* Of the index itself, and of shard i. */
const struct file_identity *safetensors_index_identity(const struct safetensors_index *x);
const struct file_identity *safetensors_index_shard_identity(const struct safetensors_index *x,
                                                             size_t i);

/* The tensors of the map, in the order of their names. */
size_t safetensors_index_n_tensors(const struct safetensors_index *x);
const struct tensor *safetensors_index_tensor_at(const struct safetensors_index *x, size_t i);
/* NULL when there is none of that name. */
const struct tensor *safetensors_index_find(const struct safetensors_index *x, const char *name);
