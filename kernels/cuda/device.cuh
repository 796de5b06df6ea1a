/* device.cuh - what the files of the CUDA backend share. Private to kernels/cuda/.
 *
 * A device is one GPU with one stream (and others for what goes over the bus beside it); its thread
 * alone uses both. Every op puts its work on the stream and returns; `sync` and `download` wait. */
#pragma once
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/cpu/pool.h"
#include "kernels/matrix_parts.h"
#include "kernels/ops.h"
}

struct collectives;
struct matmul_plans;
struct hopper;
struct recordings;
struct downloads;
struct loading;
struct sleeping;

struct device {
    bool rehearses; /* no collectives, no recording */
    enum dtype act;
    int gpu;
    cudaStream_t stream;
    struct group *group;             /* NULL: this GPU computes alone */
    struct collectives *collectives; /* with it */
    cudaEvent_t waited;              /* see cuda_wait_stream() */
    bool starts_early; /* the GPU can start a kernel before the one before it has ended */
    /* float8 */
    bool float8;
    int max_rows, rounded_width, n_biases;
    void *rounded;     /* [max_rows, rounded_width] E4M3: what a product reads */
    float *row_scales; /* [max_rows] of it */
    void *biases;      /* [n_biases] bf16: a float32 bias, rounded */
    struct matmul_plans *plans;
    struct hopper *hopper; /* NULL: this GPU is none */
    struct recordings *recordings;
    struct downloads *downloads;
    struct pool *pool;         /* host threads: they fill what goes to the GPU */
    struct loading *loading;   /* NULL but while weights are loaded */
    struct sleeping *sleeping; /* NULL: its weights stay where they are */
    size_t least_free;         /* of the GPU's memory, at any time since it was opened */
};

enum { MAX_RANGES = 3 }; /* of a view: query, key and value heads are the most */

/* Weights as they lie in memory, or a view of such: then memory is another's. */
struct matrix {
    int N, K;
    int stride; /* numbers from row to row in memory */
    int n_ranges;
    struct row_range ranges[MAX_RANGES]; /* its N rows, of those in memory */
    bool is_view;
    size_t bytes;
    void *data;    /* act or E4M3, row-major, from the first column of row 0 on */
    float *scales; /* of the rows in memory, of E4M3; else NULL */
};

struct table {
    void *data;      /* [V, D] */
    enum dtype type; /* F32, F16 or BF16 */
    int D;
    size_t bytes;
};

/* Memory that lacks is said by ERR_MEM, after which all goes on; the runtime must not keep such an
 * error for the next launch to trip over. */
static inline int cuda_failed(const struct device *d, const char *what, cudaError_t status,
                              struct error *err)
{
    bool lacks_memory = status == cudaErrorMemoryAllocation;

    if (lacks_memory)
        cudaGetLastError();
    return error_set(err, lacks_memory ? ERR_MEM : ERR_GPU, "cuda: gpu %d: %s: %s", d->gpu, what,
                     cudaGetErrorString(status));
}

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) {                                                              \
            rc = cuda_failed(d, #call, status_, err);                                              \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

#define CUBLAS_TRY(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t status_ = (call);                                                           \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            rc = error_set(err, status_ == CUBLAS_STATUS_ALLOC_FAILED ? ERR_MEM : ERR_GPU,         \
                           "cuda: gpu %d: %s: %s", d->gpu, #call,                                  \
                           cublasLtGetStatusString(status_));                                      \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* Every kernel begins with this: it may start while the kernel before it ends, and waits here for
 * what that wrote; the next one may start as early. What does not depend on earlier kernels (the
 * weights) can be read before. */
static __device__ inline void wait_for_inputs(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Puts a kernel that begins with wait_for_inputs() on the device's stream. */
template <typename... Parameters, typename... Arguments>
static inline int launch(struct device *d, const char *what, struct error *err,
                         void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                         Arguments... arguments)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    cudaError_t status;

    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    /* as the products have it: another division of a multiprocessor's memory would have to wait
     * until it is idle */
    attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = d->stream;
    config.attrs = attributes;
    config.numAttrs = d->starts_early ? 2 : 0;
    status = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
    return status == cudaSuccess ? OK : cuda_failed(d, what, status, err);
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

/* Four numbers at once; on a boundary of four numbers. */
static __device__ inline float4 load4(const float *x)
{
    return *(const float4 *)x;
}
static __device__ inline float4 load4(const __nv_bfloat16 *x)
{
    uint2 bits = *(const uint2 *)x;
    float2 low = __bfloat1622float2(*(__nv_bfloat162 *)&bits.x);
    float2 high = __bfloat1622float2(*(__nv_bfloat162 *)&bits.y);

    return make_float4(low.x, low.y, high.x, high.y);
}

static __device__ inline void put4(float *y, float4 x)
{
    *(float4 *)y = x;
}
static __device__ inline void put4(__nv_bfloat16 *y, float4 x)
{
    __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);

    *(uint2 *)y = make_uint2(*(unsigned *)&low, *(unsigned *)&high);
}

/* The sum over a warp, in every lane. */
static __device__ inline float warp_sum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

extern "C" {
/* cudaMalloc, and what is left is noted. */
int cuda_alloc(struct device *d, void **out, size_t bytes, struct error *err);
/* For weights: where the device sleeps, from what leaves then, until their end. What it gave is
 * freed by the other; NULL is fine. */
int cuda_weights_alloc(struct device *d, void **out, size_t bytes, struct error *err);
void cuda_weights_free(struct device *d, void *memory);
void cuda_weights_end(struct device *d);
int cuda_sleeping_open(struct device *d, const struct device_options *options, struct error *err);
void cuda_sleeping_close(struct device *d);
/* Looks at what is free, for least_free; after memory was taken. */
void cuda_note_memory(struct device *d);
/* Rows 0 .. N - 1 of the stacked parts to `to` [N, K], device memory, as numbers of `type` (F32,
 * F16 or BF16). When it returns the parts have been read, and what is put on the device's stream
 * next finds the rows there. */
int cuda_load_rows(struct device *d, void *to, enum dtype type, const struct matrix_part *parts,
                   int n_parts, int K, int N, struct error *err);
int cuda_loading_end(struct device *d, struct error *err);
/* Returns when the event, or all that is on the stream, has come. In a group ERR_GPU, and the group
 * is aborted: when it was, when NCCL has failed, or after the deadline. */
int cuda_wait(struct device *d, cudaEvent_t event, struct error *err);
int cuda_wait_stream(struct device *d, cudaStream_t stream, struct error *err);
/* For loops that wait, in a group: whether to go on. The deadline is at least least_ms. */
int cuda_check_group(struct device *d, int64_t since_ns, int least_ms, struct error *err);
/* Aborts the group for the reason in `err`, and what NCCL has under way. Returns ERR_GPU. */
int cuda_give_up(struct device *d, struct error *err);
int cuda_join(struct device *d, struct group *group, struct error *err);
void cuda_leave(struct device *d);
int cuda_all_reduce(struct device *d, float *y, size_t n, struct error *err);
int cuda_all_gather(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cuda_broadcast(struct device *d, void *data, size_t bytes, int root, struct error *err);
void cuda_collectives_abort(struct device *d);
/* What has failed of collectives since they were called. */
int cuda_collectives_check(struct device *d, struct error *err);
int cuda_downloads_open(struct device *d, struct error *err);
void cuda_downloads_close(struct device *d);
int cuda_mark(struct device *d, int mark, struct error *err);
int cuda_download_marked(struct device *d, int mark, void *to, const void *from, size_t bytes,
                         struct error *err);
int cuda_download(struct device *d, void *to, const void *from, size_t bytes, struct error *err);
int cuda_recordings_open(struct device *d, struct error *err);
/* All runs so far, and one that is under way; what the GPU is at goes on to its end. */
void cuda_recordings_forget(struct device *d);
void cuda_recordings_close(struct device *d);
int cuda_record(struct device *d, uint64_t key, bool *known, struct error *err);
int cuda_replay(struct device *d, uint64_t key, struct error *err);
int cuda_matmul_open(struct device *d, struct error *err);
void cuda_matmul_close(struct device *d);
int cuda_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                     int n_parts, int K, const struct column_cuts *cuts, struct error *err);
int cuda_matrix_view(struct device *d, struct matrix **out, const struct matrix *m,
                     const struct row_range *ranges, int n_ranges, int k_begin, int K,
                     struct error *err);
int cuda_matrix_random(struct device *d, struct matrix **out, int N, int K, float size,
                       uint64_t seed, struct error *err);
/* Its first n numbers, in act at `to`. */
int cuda_random_numbers(struct device *d, void *to, size_t n, float size, uint64_t seed,
                        struct error *err);
void cuda_matrix_free(struct device *d, struct matrix *m);
size_t cuda_matrix_bytes(const struct matrix *m);
int cuda_table_load(struct device *d, struct table **out, const void *data, enum dtype type, int V,
                    int D, struct error *err);
void cuda_table_free(struct device *d, struct table *t);
size_t cuda_table_bytes(const struct table *t);
int cuda_save(struct device *d, struct saved_weights **out, struct error *err);
size_t cuda_saved_bytes(const struct saved_weights *w);
void cuda_saved_free(struct saved_weights *w);
int cuda_sleep(struct device *d, struct error *err);
int cuda_wake(struct device *d, const struct saved_weights *from, struct error *err);
int cuda_plan_size(int T);
int cuda_measure(struct device *d, double *bytes_per_s, double *operations_per_s,
                 struct error *err);
int cuda_embed(struct device *d, float *h, const struct table *table, const int32_t *ids, int T,
               float scale, struct error *err);
int cuda_rmsnorm(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                 const float *w, int T, int D, float eps, struct error *err);
int cuda_add_rmsnorm_rmsnorm(struct device *d, float *h, void *y, const float *x, const float *w,
                             float scale, const float *next_w, int T, int D, float eps,
                             struct error *err);
int cuda_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale, int T,
                     int D, float eps, struct error *err);
int cuda_matmul(struct device *d, void *y, const void *x, const struct matrix *w, const void *bias,
                int T, struct error *err);
int cuda_matmul_gelu(struct device *d, void *y, const void *x, const struct matrix *w,
                     const void *bias, int T, struct error *err);
int cuda_matmul_geglu(struct device *d, void *y, const void *x, const struct matrix *w, void *gu,
                      int T, struct error *err);
int cuda_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                const float *bias, bool add, int T, struct error *err);
int cuda_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                      const float *cos, const float *sin, const int32_t *positions, int T, int H,
                      int K, int E, float eps, bool norm_v, struct error *err);
int cuda_attention(struct device *d, void *o, const void *qkv, const int32_t *begin, int B, int T,
                   int H, int K, int E, float scale, int window, struct error *err);
int cuda_geglu(struct device *d, void *y, const void *gu, int T, int F, struct error *err);
int cuda_gelu(struct device *d, void *y, const void *x, int T, int F, struct error *err);
int cuda_range_norm(struct device *d, void *y, const float *x, const int32_t *begin, float *scratch,
                    int B, int T, int D, struct error *err);
int cuda_scale_columns(struct device *d, float *y, int y_stride, const float *x, int x_stride,
                       float scale, const float *bias, int T, int N, struct error *err);
int cuda_fill_rows(struct device *d, void *h, const void *x, const void *registers, enum dtype type,
                   const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R,
                   int W, struct error *err);
int cuda_wide_qk_norm_rope(struct device *d, void *qkv, const float *q_w, const float *k_w,
                           const float *cos, const float *sin, int T, int P, int H, int E,
                           int stride, bool interleaved, float eps, struct error *err);
int cuda_full_attention(struct device *d, void *o, const void *q, const void *g, int q_stride,
                        const void *kv, int kv_stride, int T, int Q, int P, int kv_rows, int H,
                        int E, float scale, struct error *err);
int cuda_encode(struct device *d, void *y, enum dtype type, const float *x, size_t n,
                int32_t *has_nan, struct error *err);
}
