/* connector_rope.h - the rotary tables of the connectors. Pure; any thread. */
#pragma once
#include "engine/files/ltx_checkpoint.h"

/* cos and sin [P, W/2] of rows 0 .. P-1, row-major, for a connector of width W; rounded to the type
 * the run computes in (DTYPE_F32 or DTYPE_BF16) and stored as float32. */
void connector_rope_build(float *cos_table, float *sin_table, const struct ltx_config *config,
                          int W, int P, enum dtype act);
