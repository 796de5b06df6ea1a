/* layout.h - for the formats in this folder: building a layout from front to back. */
#pragma once
#include "service/formats/answer.h"

/* What was added to l->text since the last segment becomes one. */
int layout_add_text(struct layout *l, struct error *err);
int layout_add_tensors(struct layout *l, enum segment_kind kind, size_t prompt, size_t offset,
                       size_t bytes, struct error *err);

/* "6,1" and "false,true": what safetensors' metadata says of the prompts. */
int answer_append_tokens(struct buf *out, const struct answer *a, struct error *err);
int answer_append_truncated(struct buf *out, const struct answer *a, struct error *err);
/* "4096,2048": the widths of what the level has, in the order of its tensors. */
int answer_append_widths(struct buf *out, const struct answer *a, struct error *err);
/* A tensor that goes with the level's: mask or ids. */
bool answer_is_beside(const struct answer_tensor *t);
size_t answer_prompt_bytes(const struct answer_prompt *p);
