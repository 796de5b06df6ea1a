/* safetensors.h - one .safetensors file, read strictly.
 *
 * The format (github.com/huggingface/safetensors, README "Format"): a u64 with the length of a JSON
 * header, the header, then the tensors' bytes without holes or overlaps. Opening reads the header
 * and nothing else, so a file of any size opens at once; pages of a tensor are read when touched.
 * Never changes after opening: share one among any number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "engine/files/tensor.h"

struct safetensors;

/* On success *out belongs to the caller (safetensors_close). On failure *out is NULL.
 * ERR_IO: cannot read `path`. ERR_FORMAT: it breaks the format; the sentence says where. */
int safetensors_open(struct safetensors **out, const char *path, struct error *err);
/* The same over bytes that the caller keeps until the close. `name` stands for them in messages. */
int safetensors_parse(struct safetensors **out, const void *data, size_t size, const char *name,
                      struct error *err);
void safetensors_close(struct safetensors *s); /* NULL is fine */

/* Whether the bytes begin as a safetensors file does; says nothing about the rest. */
bool safetensors_recognise(const void *data, size_t size);

const struct file_identity *safetensors_identity(const struct safetensors *s);
size_t safetensors_n_tensors(const struct safetensors *s);
const struct tensor *safetensors_tensor_at(const struct safetensors *s, size_t i); /* file order */
/* NULL when there is none of that name. */
const struct tensor *safetensors_find(const struct safetensors *s, const char *name);

/* The texts of the header's __metadata__. */
size_t safetensors_n_metadata(const struct safetensors *s);
void safetensors_metadata_at(const struct safetensors *s, size_t i, const char **key,
                             const char **value);
const char *safetensors_metadata(const struct safetensors *s, const char *key); /* or NULL */
