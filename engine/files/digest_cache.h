/* digest_cache.h - digests of weights that were worked out before, in a folder of the user's.
 *
 * Hashing a model reads all of it, which takes longer than loading it. A digest is kept under the
 * model's path together with the text that says which files it is of; it counts only for exactly
 * that text. Nothing depends on it: what cannot be read or written is as if it were not there.
 * From any thread, and any number of processes. */
#pragma once
#include <stdbool.h>

enum { DIGEST_CACHE_SIZE = 65 }; /* SHA-256 in hex, and a NUL */

/* Where it lies: prompt-encoder in $XDG_CACHE_HOME or ~/.cache. */
bool digest_cache_find(const char *model, const char *files, char digest[DIGEST_CACHE_SIZE]);
/* Over what was kept for the model before. */
void digest_cache_keep(const char *model, const char *files, const char *digest);
