/* random_model.h - architectures by name, their weights random numbers: for measuring a machine
 * without the files. "random:gemma-3-12b" stands where a model's path does, "random:ltx-2.3" where
 * a checkpoint's. Pure; any thread. */
#pragma once
#include <stdbool.h>

#include "engine/files/gemma_config.h"
#include "engine/files/ltx_checkpoint.h"

/* Whether `path` asks for random weights; NULL does not. */
bool random_model_is(const char *path);
/* ERR_INPUT: no architecture of that name; the sentence lists them. */
int random_model_gemma(struct gemma_config *out, const char *path, struct error *err);
int random_model_ltx(struct ltx_config *out, const char *path, struct error *err);
