/* digest.h - one name for a set of weights. */
#pragma once
#include <stddef.h>

#include "base/error.h"
#include "engine/files/ltx_checkpoint.h"
#include "engine/files/model_file.h"

enum { MODEL_DIGEST_SIZE = 65 };

/* SHA-256 of bytes, in hex. */
int digest_bytes(char out[MODEL_DIGEST_SIZE], const void *data, size_t size, struct error *err);

/* What LTX checkpoints add to a model: the tensors that are used, and the settings. */
struct digest_addition {
    const struct ltx_checkpoint *checkpoint;
    const struct tensor *tensors; /* [n] of its files; they stand in place of the model's own of the
                                     same names (a packed file may hold the projection too) */
    size_t n;
};

/* SHA-256, in hex, over the tensors in the order of their names, for each its name, type and shape
 * as text and the SHA-256 of its bytes; then over the settings and versions as text, of Gemma and,
 * where `more` is not NULL, of LTX: the same tensors compute other numbers under others. Reads
 * every byte of the tensors, in n_threads threads. Two files of one model differ when names or
 * types do, as their encodes then may. */
int model_file_digest(const struct model_file *m, const struct digest_addition *more, int n_threads,
                      char digest[MODEL_DIGEST_SIZE], struct error *err);

/* The same, read from digest_cache.h where all the files are those hashed before: each at the same
 * place, the same inode, not written to and not touched since. */
int model_file_cached_digest(const struct model_file *m, const struct digest_addition *more,
                             int n_threads, char digest[MODEL_DIGEST_SIZE], struct error *err);
