/* source.h - where a model's weights come from: its files, opened and checked, or the names of
 * architectures whose weights are random numbers.
 *
 * What can be said from headers alone is said here, before anything large is read. Once opened it
 * is read by any number of threads; source_damage() alone is one thread's. */
#pragma once
#include "engine/engine.h"
#include "engine/files/gemma_config.h"
#include "engine/files/ltx_checkpoint.h"
#include "engine/files/model_file.h"

struct source {
    struct model_file *file; /* NULL: random weights */
    struct gemma_config config;
    bool has_ltx;
    struct ltx_config ltx_config;           /* where it has */
    struct ltx_checkpoint *checkpoint;      /* NULL: none, or random weights */
    struct engine_info info;                /* what the files say; no backend, nothing of a load */
    char random_digest[ENGINE_DIGEST_SIZE]; /* of random weights */
    /* why results have NaN among their numbers, where they do; looked for once */
    bool looked_for_damage;
    char damage[192];
};

/* `options` is borrowed for the call. Errors as engine_open(). *out is to be closed in any case. */
int source_open(struct source *out, const struct engine_options *options, struct error *err);
void source_close(struct source *s); /* one of zeros is fine */

/* Whether both are the same writing of the same files, or the same random numbers. */
bool source_is_same(const struct source *a, const struct source *b);

int source_digest(const struct source *s, int n_threads, char digest[ENGINE_DIGEST_SIZE],
                  struct error *err);

/* The type in which the embedding table lies in the file. */
int source_table_type(const struct source *s, enum dtype *out, struct error *err);

/* A sentence on the first of the model's tensors that is at fault. Whole files are read for that,
 * so it is asked only when results say that something is wrong, and not on the way of each load. */
const char *source_damage(struct source *s);
