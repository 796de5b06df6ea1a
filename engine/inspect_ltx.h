/* inspect_ltx.h - what of LTX's text side a safetensors file holds, as text for a person. */
#pragma once
#include "base/buf.h"
#include "engine/files/safetensors.h"

/* Whether it holds the projection or a connector. */
bool inspect_ltx_is_one(const struct safetensors *file);

/* Appends what the file's projection and connectors are, and what lacks to encode with them;
 * nothing where there are none. `path` is where `file` was opened. */
int inspect_ltx(struct buf *out, const char *path, const struct safetensors *file,
                struct error *err);
