/* model_file.h - a Gemma model on disk, whatever it is packed in.
 *
 * A path is a directory (config.json, tokenizer.json and model.safetensors or its shards), a
 * safetensors file that LTX packed all of that into, or a GGUF file (or the first of its parts),
 * told apart by their first bytes. Tensors are asked for by one set of names, those of a
 * text-only Hugging Face export without its leading "model.": "embed_tokens.weight",
 * "layers.3.self_attn.q_proj.weight", "norm.weight".
 *
 * Opening maps the files and reads their headers; weights are read when touched. Never changes
 * after opening: share one among any number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "engine/files/gemma_config.h"
#include "engine/files/tensor.h"

struct tokenizer;
struct model_file;

/* On success *out belongs to the caller (model_file_close). On failure *out is NULL.
 * ERR_IO: something is missing or unreadable. ERR_FORMAT: it is no Gemma model that we know; the
 * sentence says what it is instead. */
int model_file_open(struct model_file **out, const char *path, struct error *err);
void model_file_close(struct model_file *m); /* NULL is fine */

const struct gemma_config *model_file_config(const struct model_file *m);
/* Whether norm weights are stored as 1 less than the factor that they mean: in safetensors of Gemma
 * 3 (transformers, Gemma3RMSNorm.forward); its GGUF converters have added the 1 (llama.cpp,
 * norm_shift), and Gemma 4 multiplies by the weight as it is (Gemma4UnifiedRMSNorm.forward). */
bool model_file_norms_lack_one(const struct model_file *m);

/* The tensor of that name, of exactly that shape, of a type that dtype_decode() reads. The view is
 * valid until the close, its data at any alignment. ERR_FORMAT otherwise. */
int model_file_tensor(const struct model_file *m, struct tensor *out, const char *name, int n_dims,
                      const size_t *shape, struct error *err);

/* The model's tokenizer; belongs to the caller (tokenizer_free). It may know ids that the embedding
 * has no row for (the 270M export lacks <image_soft_token>): compare ids with V before use. */
int model_file_tokenizer(const struct model_file *m, struct tokenizer **out, struct error *err);
/* Only the tokenizer, of a model's path (the weights may be lacking) or of a tokenizer.json or
 * compact tokenizer file. */
int model_file_load_tokenizer(struct tokenizer **out, const char *path, struct error *err);

/* For listings: every tensor of every file, under the file's own names. */
size_t model_file_n_tensors(const struct model_file *m);
const struct tensor *model_file_tensor_at(const struct model_file *m, size_t i);
const char *model_file_format(const struct model_file *m); /* "gguf v3", "safetensors, 5 shards" */

/* The files that decide the tensors: where each lies, and which writing of it is open. ERR_SIZE:
 * its path does not fit. */
size_t model_file_n_sources(const struct model_file *m);
int model_file_source_at(const struct model_file *m, size_t i, char *path, size_t cap,
                         struct file_identity *opened, struct error *err);

enum model_file_kind {
    MODEL_FILE_DIRECTORY,
    MODEL_FILE_GGUF,
    MODEL_FILE_SAFETENSORS,
    MODEL_FILE_OTHER
};

/* What lies at `path`, by its first bytes. ERR_IO: nothing that can be read. */
int model_file_recognise(enum model_file_kind *out, const char *path, struct error *err);
