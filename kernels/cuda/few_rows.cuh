/* few_rows.cuh - products of up to FEW_ROWS rows, for matmul.cu. Private to kernels/cuda/. */
#pragma once
#include "kernels/cuda/device.cuh"

enum { FEW_ROWS = 128 };

/* Whether this GPU and these shapes are served; else cuBLASLt is the way. */
bool few_rows_serves(const struct device *d, const struct matrix *w, int T);

/* y [T, N] of y_type (F32 or BF16) = or += bias + x w^T; bias [N] of y_type or NULL; T from 1.
 * Where w is E4M3, x is d->rounded. */
int few_rows_product(struct device *d, void *y, enum dtype y_type, const void *x,
                     const struct matrix *w, const void *bias, bool add, int T, struct error *err);

/* y [T, N / 2] bf16 = geglu(x w^T), the first half of w's rows being gate. */
bool few_rows_serves_geglu(const struct device *d, const struct matrix *w, int T);
int few_rows_geglu(struct device *d, void *y, const void *x, const struct matrix *w, int T,
                   struct error *err);
