/* float8.cuh - what products in float8 need beside the product. Private to kernels/cuda/. */
#pragma once
#include "kernels/cuda/device.cuh"

/* Nothing where the options do not ask for it. ERR_INPUT: this GPU or its cuBLASLt cannot. */
int float8_open(struct device *d, const struct device_options *options, struct error *err);
void float8_close(struct device *d);

/* d->rounded has place for max_rows rows of K numbers, d->biases for N. Recordings hold their
 * addresses: all matrices are loaded before the first. */
int float8_reserve(struct device *d, int N, int K, struct error *err);

/* d->biases [N] of a float32 bias: cuBLASLt takes no other with E4M3. */
int float8_round_bias(struct device *d, const float *bias, int N, struct error *err);

/* E4M3 at `to` [T, K] and scales [T] of x [T, K] bf16; K % 16 == 0, T from 1. */
int float8_round_rows(struct device *d, void *to, float *scales, const void *x, int T, int K,
                      struct error *err);
