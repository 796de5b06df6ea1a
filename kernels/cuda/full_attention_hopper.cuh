/* full_attention_hopper.cuh - full_attention on Hopper's own instructions, for full_attention.cu.
 * Private to kernels/cuda/. */
#pragma once
#include "kernels/cuda/tensor_attention.cuh"

/* Whether this GPU and these shapes are served; else tensor_attention.cuh is the way. */
bool hopper_attention_serves(const struct device *d, int Q, int P, int E);

/* As ops.h has full_attention, in bf16; T from 1; all rows on 16 bytes. */
int hopper_attention(struct device *d, __nv_bfloat16 *o, const heads &where,
                     const __nv_bfloat16 *gates, int T, int Q, int P, int kv_rows, int H, int E,
                     struct error *err);
