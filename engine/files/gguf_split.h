/* gguf_split.h - a GGUF model in one file, or cut into several as llama.cpp's gguf-split does it:
 * "NAME-00001-of-00003.gguf" and so on, the settings in the first, the tensors in any.
 *
 * Never changes after opening: share one among any number of threads. */
#pragma once
#include "engine/files/gguf.h"

struct gguf_split;

/* `path` is the first file; the others lie beside it. On success *out belongs to the caller
 * (gguf_split_close). On failure *out is NULL.
 * ERR_IO: a file is missing or unreadable. ERR_FORMAT: a file is broken, or they are not the parts
 * of one model; the sentence names the file. */
int gguf_split_open(struct gguf_split **out, const char *path, struct error *err);
void gguf_split_close(struct gguf_split *s); /* NULL is fine */

const struct gguf *gguf_split_first(const struct gguf_split *s);
size_t gguf_split_n_files(const struct gguf_split *s);
const struct gguf *gguf_split_file_at(const struct gguf_split *s, size_t i); /* from the first on */

/* The tensors of all files. */
size_t gguf_split_n_tensors(const struct gguf_split *s);
const struct tensor *gguf_split_tensor_at(const struct gguf_split *s, size_t i); /* files' order */
/* NULL when there is none of that name. */
const struct tensor *gguf_split_find(const struct gguf_split *s, const char *name);
