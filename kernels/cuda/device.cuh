/* device.cuh - what the files of the CUDA backend share. Private to kernels/cuda/.
 *
 * A device is one GPU with one stream; its thread alone uses both. Every op puts its work on the
 * stream and returns; `sync` and `download` wait. */
#pragma once
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/matrix_parts.h"
#include "kernels/ops.h"
}

struct matmul_plans;

struct device {
    enum dtype act;
    int gpu;
    cudaStream_t stream;
    struct matmul_plans *plans;
};

struct matrix {
    int N, K;
    size_t bytes;
    void *data; /* [N, K] act, row-major */
};

struct table {
    void *data;      /* [V, D] */
    enum dtype type; /* F32, F16 or BF16 */
    int D;
};

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) {                                                              \
            rc = error_set(err, status_ == cudaErrorMemoryAllocation ? ERR_MEM : ERR_GPU,          \
                           "cuda: gpu %d: %s: %s", d->gpu, #call, cudaGetErrorString(status_));    \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

#define CUBLAS_TRY(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            rc = error_set(err, ERR_GPU, "cuda: gpu %d: %s: %s", d->gpu, #call,                    \
                           cublasLtGetStatusString(status_));                                      \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* After a launch. */
static inline int launch_result(struct device *d, const char *what, struct error *err)
{
    cudaError_t status = cudaGetLastError();

    if (status != cudaSuccess)
        return error_set(err, ERR_GPU, "cuda: gpu %d: %s: %s", d->gpu, what,
                         cudaGetErrorString(status));
    return OK;
}

static __device__ inline float to_float(float x)
{
    return x;
}
static __device__ inline float to_float(__half x)
{
    return __half2float(x);
}
static __device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ inline void put(float *y, float value)
{
    *y = value;
}
static __device__ inline void put(__nv_bfloat16 *y, float value)
{
    *y = __float2bfloat16_rn(value);
}

/* The sum over a warp, in every lane. */
static __device__ inline float warp_sum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

extern "C" {
/* Host memory to the device's, and there when this returns. On the device's stream: a plain
 * cudaMemcpy may return while the last of it is on its way, and no stream of ours would wait. */
int cuda_store(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cuda_matmul_open(struct device *d, struct error *err);
void cuda_matmul_close(struct device *d);
int cuda_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                     int n_parts, int K, struct error *err);
int cuda_matrix_random(struct device *d, struct matrix **out, int N, int K, float size,
                       uint64_t seed, struct error *err);
void cuda_matrix_free(struct device *d, struct matrix *m);
size_t cuda_matrix_bytes(const struct matrix *m);
int cuda_table_load(struct device *d, struct table **out, const void *data, enum dtype type, int V,
                    int D, struct error *err);
void cuda_table_free(struct device *d, struct table *t);
int cuda_measure(struct device *d, double *bytes_per_s, double *operations_per_s,
                 struct error *err);
int cuda_embed(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
               float scale, struct error *err);
int cuda_rmsnorm(struct device *d, void *y, enum dtype y_type, const float *x, const float *w,
                 int T, int D, float eps, struct error *err);
int cuda_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale, int T,
                     int D, float eps, struct error *err);
int cuda_matmul(struct device *d, float *y, const void *x, const struct matrix *w, int T,
                struct error *err);
int cuda_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                const float *bias, bool add, int T, struct error *err);
int cuda_qk_norm_rope(struct device *d, float *qkv, const float *q_w, const float *k_w,
                      const float *cos, const float *sin, const int32_t *positions, int T, int H,
                      int K, int E, float eps, bool norm_v, struct error *err);
int cuda_attention(struct device *d, void *o, const float *qkv, const int32_t *begin, int B, int T,
                   int H, int K, int E, float scale, int window, struct error *err);
int cuda_geglu(struct device *d, void *y, const float *gu, int T, int F, struct error *err);
int cuda_gelu(struct device *d, void *y, const float *x, int T, int F, struct error *err);
int cuda_range_norm(struct device *d, void *y, const float *x, const int32_t *begin, float *scratch,
                    int B, int T, int D, struct error *err);
int cuda_fill_rows(struct device *d, float *h, const float *x, const float *registers,
                   const int32_t *first, const int32_t *count, int B, int P, int R, int W,
                   struct error *err);
int cuda_wide_qk_norm_rope(struct device *d, float *qkv, const float *q_w, const float *k_w,
                           const float *cos, const float *sin, int T, int P, int H, int E,
                           int stride, bool interleaved, float eps, struct error *err);
int cuda_full_attention(struct device *d, void *o, const float *qkvg, int T, int P, int H, int E,
                        float scale, bool gated, struct error *err);
}
