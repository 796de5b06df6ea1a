/* expected.h - what a model's results should be, and how far an engine's are from it.
 *
 * A file of expected values is a safetensors file, made by the reference implementation or by
 * expected_write() on another machine; docs/VERIFY.md has its format. It is read strictly, but no
 * value is believed: what it does not hold is not checked, what has the wrong shape is refused.
 * Used by one thread. */
#pragma once
#include "base/error.h"
#include "engine/engine.h"

struct expected;
struct file_writer;

/* `path`, and the JSON file of the same name beside it where there is one (token ids, and what the
 * reference loses in bfloat16).
 * ERR_IO, ERR_FORMAT: it cannot be read, is no such file, or holds no prompt. */
int expected_open(struct expected **out, const char *path, struct error *err);
void expected_close(struct expected *x); /* NULL is fine */

int expected_n_prompts(const struct expected *x);
/* Its token ids, the request left open. */
struct engine_prompt expected_prompt(const struct expected *x, int prompt);

/* How one level of one prompt came out: of its tensors the one that is worst for its bound. */
struct verdict {
    const char *level; /* "hidden_states" */
    int prompt, n_tokens;
    char worst[32]; /* "state 7", "video rows", "audio mix" */
    double error;   /* relative: the norm of the difference over the norm of what is expected */
    double bound;   /* 0: the file gives none in this compute type, so there is no verdict */
    bool passed;
};

enum { EXPECTED_MAX_VERDICTS = 3 };

/* Encodes a prompt in all the levels that both file and engine have, in one call, and compares.
 * Bounds: `bound` where it is not 0; else 1e-4 in float32, in bfloat16 1.25 times what the file
 * says the reference loses, and 0.3 in float8. ERR_FORMAT: a tensor of the file is not of the shape
 * or type that this model's must have. */
int expected_check(const struct expected *x, struct engine *e, enum dtype compute, int prompt,
                   double bound, struct verdict verdicts[EXPECTED_MAX_VERDICTS], int *n_verdicts,
                   struct error *err);

/* Writes what this engine makes of the prompts (their requests are not read) as a file for
 * expected_open(), and commits it. `made_by` goes into its metadata. */
int expected_write(struct file_writer *w, struct engine *e, const struct engine_prompt *prompts,
                   int n_prompts, const char *made_by, struct error *err);
