/* full_attention_hopper.cuh - full_attention on Hopper's own instructions, for full_attention.cu.
 * Private to kernels/cuda/. */
#pragma once
#include "kernels/cuda/device.cuh"

/* Whether this GPU and these shapes are served; else tensor_attention.cuh is the way. */
bool hopper_attention_serves(const struct device *d, int P, int E, int stride);

/* As ops.h has full_attention, in bf16; T from 1. */
int hopper_attention(struct device *d, __nv_bfloat16 *o, const __nv_bfloat16 *qkvg, int T, int P,
                     int H, int E, float scale, bool gated, struct error *err);
