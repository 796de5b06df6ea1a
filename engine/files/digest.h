/* digest.h - one name for a set of weights. */
#pragma once
#include <stddef.h>

#include "base/error.h"
#include "engine/files/model_file.h"

enum { MODEL_DIGEST_SIZE = 65 };

/* SHA-256, in hex, over the model's tensors in the order of their names: for each its name, type
 * and shape as text and the SHA-256 of its bytes. Reads every byte of the files, in n_threads
 * threads. Two files of one model differ when names or types do, as their encodes then may. */
int model_file_digest(const struct model_file *m, int n_threads, char digest[MODEL_DIGEST_SIZE],
                      struct error *err);

/* The same over the model's tensors and `n` more, and over `settings`, a text that decides results
 * too. With n == 0 and NULL it is model_file_digest(). */
int model_file_digest_with(const struct model_file *m, const struct tensor *more, size_t n,
                           const char *settings, int n_threads, char digest[MODEL_DIGEST_SIZE],
                           struct error *err);
