/* result.h - what is wanted of a prompt, as tensors. For the files of engine/ that are engine.h
 * together. Pure but for memory; any thread. */
#pragma once
#include "engine/engine.h"

/* Of a modality's features or embeddings, in a result of that level. */
const char *result_tensor_name(enum engine_level level, int modality);

/* Whether the request wants that modality (0: video), of those the model has. */
bool request_wants(const struct engine_info *info, const struct engine_request *request, int m);

/* The tensors of a prompt that has been checked, without memory. */
void result_describe(struct engine_result *r, const struct engine_info *info,
                     const struct engine_prompt *prompt);

void result_fill_mask(int64_t mask[ENGINE_ROWS]);

/* Room for what is wanted of a prompt that has been checked; its mask is filled. ERR_MEM. */
int result_create(struct engine_result *r, const struct engine_info *info,
                  const struct engine_prompt *prompt, struct error *err);
