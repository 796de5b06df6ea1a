/* matmul.cu - matmul and linear, and weights as plain rows on the GPU. Few rows on a Hopper are
 * few_rows.cu's; all else is cuBLASLt's.
 *
 * cuBLASLt is column-major. A row-major [R, C] is a column-major [C, R] with leading dimension C,
 * so the row-major y = x w^T, [T, N] = [T, K] [N, K]^T, reads there as y' [N, T] = w' [K, N]^T  x'
 * [K, T] with A = w (transposed, leading dimension K), B = x (leading dimension K), C = y (leading
 * dimension N). No operand is moved.
 *
 * A plan (descriptors and an algorithm) is kept per shape and kind. The algorithm is the fastest of
 * what the heuristic proposes, timed once per shape with the caches emptied in between, as weights
 * come from memory in a forward pass; nearby T share one. What linear adds to is cuBLASLt's C, with
 * beta 1; bias and GELU are its epilogue, or a kernel of their own for what it does not serve.
 *
 * In float8 (kernels/ops.h) float8.cu first rounds the rows of x. On Hopper cuBLASLt multiplies by
 * the scales of both rows, elsewhere that is done to its sums, and what linear adds to is divided
 * by them before. The sums are promoted to float32 every now and then
 * (CUBLASLT_MATMUL_DESC_FAST_ACCUM is off). */
#include <stdlib.h>

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/float8.h"
#include "kernels/random_number.h"

enum { BLOCK = 256, BUCKETS = 1024, WORKSPACE_BYTES = 64 << 20, CANDIDATES = 16, TIMINGS = 3 };
enum { HOPELESS = 2 }; /* times as long as the best so far: timed once, as a start has hundreds */

/* What becomes of the sums: their type, and what is done to them. */
struct kind {
    enum dtype type;
    bool add, biased, gelu;
};

/* What cuBLASLt does of a product: its sums; in float8 also the scales; bias and GELU too. */
enum extent { SUMS, SCALED, FUSED };

struct plan {
    struct plan *next; /* in its bucket */
    int T, N, K;
    struct kind kind;
    enum extent extent;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

struct matmul_plans {
    cublasLtHandle_t handle;
    void *workspace;
    struct plan *buckets[BUCKETS];
};

static void plan_free(struct plan *p)
{
    if (p == NULL)
        return;
    if (p->operation != NULL)
        cublasLtMatmulDescDestroy(p->operation);
    if (p->a != NULL)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b != NULL)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c != NULL)
        cublasLtMatrixLayoutDestroy(p->c);
    free(p);
}

int cuda_matmul_open(struct device *d, struct error *err)
{
    int rc = OK;

    d->plans = (struct matmul_plans *)calloc(1, sizeof(*d->plans));
    if (d->plans == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for matmul plans");
    CUBLAS_TRY(cublasLtCreate(&d->plans->handle));
    CUDA_TRY(cudaMalloc(&d->plans->workspace, WORKSPACE_BYTES));
out:
    return rc; /* cuda_matmul_close() frees what there is */
}

void cuda_matmul_close(struct device *d)
{
    struct matmul_plans *plans = d->plans;

    if (plans == NULL)
        return;
    for (int i = 0; i < BUCKETS; i++)
        for (struct plan *p = plans->buckets[i]; p != NULL;) {
            struct plan *next = p->next;
            plan_free(p);
            p = next;
        }
    cudaFree(plans->workspace);
    if (plans->handle != NULL)
        cublasLtDestroy(plans->handle);
    free(plans);
    d->plans = NULL;
}

/* A scale for each row of w and of x, where it can. */
static int set_scales(struct device *d, const struct plan *p, const struct matrix *w,
                      struct error *err)
{
    int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    int rc = OK;

    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                                              &by_row, sizeof(by_row)));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                                              &by_row, sizeof(by_row)));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                              &w->scales, sizeof(w->scales)));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                              &d->row_scales, sizeof(d->row_scales)));
out:
    return rc;
}

static int run_plan(struct device *d, const struct plan *p, void *y, const void *x,
                    const struct matrix *w, const void *bias, struct error *err)
{
    const float one = 1.0f, beta = p->kind.add ? 1.0f : 0.0f;
    int rc = OK;

    if (p->extent == FUSED && bias != NULL && w->scales != NULL && p->kind.type == DTYPE_F32) {
        if ((rc = float8_round_bias(d, (const float *)bias, p->N, err)) != OK)
            return rc;
        bias = d->biases;
    }
    if (p->extent == FUSED && bias != NULL)
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof(bias)));
    if (w->scales != NULL && p->extent >= SCALED && (rc = set_scales(d, p, w, err)) != OK)
        goto out;
    CUBLAS_TRY(cublasLtMatmul(d->plans->handle, p->operation, &one, w->data, p->a, x, p->b, &beta,
                              y, p->c, y, p->c, &p->algorithm, d->plans->workspace, WORKSPACE_BYTES,
                              d->stream));
out:
    return rc;
}

/* The fastest of the candidates, on the operands of the call that needs it; results go to `y`,
 * which is scratch. */
static int choose(struct device *d, struct plan *p, cublasLtMatmulHeuristicResult_t *candidates,
                  int n, void *y, const void *x, const struct matrix *w, const void *bias,
                  struct error *err)
{
    cudaEvent_t start = NULL, stop = NULL;
    float best = INFINITY, ms;
    int fastest = 0, rc = OK;

    CUDA_TRY(cudaEventCreate(&start));
    CUDA_TRY(cudaEventCreate(&stop));
    for (int i = 0; i < n; i++) {
        float least = INFINITY;
        p->algorithm = candidates[i].algo;
        for (int run = 0; run <= TIMINGS; run++) { /* the first to warm up */
            /* whatever is cached goes out */
            CUDA_TRY(cudaMemsetAsync(d->plans->workspace, 0, WORKSPACE_BYTES, d->stream));
            CUDA_TRY(cudaEventRecord(start, d->stream));
            if ((rc = run_plan(d, p, y, x, w, bias, err)) != OK)
                goto out;
            CUDA_TRY(cudaEventRecord(stop, d->stream));
            CUDA_TRY(cudaEventSynchronize(stop));
            CUDA_TRY(cudaEventElapsedTime(&ms, start, stop));
            if (run > 0 && ms < least)
                least = ms;
            if (least < INFINITY && least > HOPELESS * best)
                break;
        }
        if (least < best) {
            best = least;
            fastest = i;
        }
    }
    p->algorithm = candidates[fastest].algo;
out:
    if (start != NULL)
        cudaEventDestroy(start);
    if (stop != NULL)
        cudaEventDestroy(stop);
    return rc;
}

static cublasLtEpilogue_t epilogue_of(struct kind kind)
{
    if (kind.gelu)
        return kind.biased ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return kind.biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cudaDataType_t cuda_type(enum dtype type)
{
    return type == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Descriptors, and what the heuristic proposes; *n is 0 where it knows nothing. */
static int describe(struct device *d, struct plan *p, const struct matrix *w,
                    cublasLtMatmulHeuristicResult_t *candidates, int *n, struct error *err)
{
    cudaDataType_t type = w->scales != NULL ? CUDA_R_8F_E4M3 : cuda_type(d->act),
                   y_type = cuda_type(p->kind.type),
                   bias_type = w->scales != NULL ? CUDA_R_16BF : y_type;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtEpilogue_t epilogue = epilogue_of(p->kind);
    size_t workspace = WORKSPACE_BYTES;
    int rc = OK;

    *n = 0;
    CUBLAS_TRY(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
    if (w->scales != NULL && p->extent >= SCALED && (rc = set_scales(d, p, w, err)) != OK)
        goto out;
    if (p->extent == FUSED) {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                  &epilogue, sizeof(epilogue)));
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                  &bias_type, sizeof(bias_type)));
    }
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)p->K, (uint64_t)p->N, p->K));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)p->K, (uint64_t)p->T, p->K));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->c, y_type, (uint64_t)p->N, (uint64_t)p->T, p->N));
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    /* what it cannot serve is an error status, or no results */
    if (cublasLtMatmulAlgoGetHeuristic(d->plans->handle, p->operation, p->a, p->b, p->c, p->c,
                                       preference, CANDIDATES, candidates,
                                       n) != CUBLAS_STATUS_SUCCESS)
        *n = 0;
out:
    if (preference != NULL)
        cublasLtMatmulPreferenceDestroy(preference);
    return rc;
}

/* T's that share an algorithm. */
static int rounded_up(int T)
{
    int step = T <= 128 ? 16 : T <= 512 ? 64 : 256;

    return (T + step - 1) / step * step;
}

int cuda_plan_size(int T)
{
    return rounded_up(T);
}

static uint32_t bucket_of(int T, int N, int K)
{
    return (((uint32_t)rounded_up(T) * 31u + (uint32_t)N) * 31u + (uint32_t)K * 7u) % BUCKETS;
}

static struct plan *find_plan(struct device *d, int T, int N, int K, struct kind kind, bool nearby)
{
    for (struct plan *p = d->plans->buckets[bucket_of(T, N, K)]; p != NULL; p = p->next)
        if ((p->T == T || (nearby && rounded_up(p->T) == rounded_up(T))) && p->N == N &&
            p->K == K && p->kind.type == kind.type && p->kind.add == kind.add &&
            p->kind.biased == kind.biased && p->kind.gelu == kind.gelu)
            return p;
    return NULL;
}

static int plan_create(struct plan **out, struct device *d, int T, struct kind kind, const void *x,
                       const struct matrix *w, const void *bias, struct error *err)
{
    uint32_t bucket = bucket_of(T, w->N, w->K);
    struct plan *near = find_plan(d, T, w->N, w->K, kind, true), *p;
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES], check;
    int least = w->scales != NULL ? SUMS : SCALED, n = 0, rc = OK;
    void *scratch = NULL;

    *out = NULL;
    for (int extent = FUSED; extent >= least && n == 0; extent--) {
        if ((p = (struct plan *)calloc(1, sizeof(*p))) == NULL)
            return error_set(err, ERR_MEM, "cuda: no memory for a matmul plan");
        p->T = T;
        p->N = w->N;
        p->K = w->K;
        p->kind = kind;
        p->extent = (enum extent)extent;
        if ((rc = describe(d, p, w, candidates, &n, err)) != OK)
            goto out;
        if (n == 0 && extent > least) {
            plan_free(p);
            p = NULL;
        }
    }
    if (n == 0) {
        rc = error_set(err, ERR_GPU, "cuda: gpu %d: cuBLASLt has no product [%d,%d] x [%d,%d]",
                       d->gpu, T, w->K, w->N, w->K);
        goto out;
    }
    p->algorithm = candidates[0].algo;
    if (near != NULL && near->extent == p->extent &&
        cublasLtMatmulAlgoCheck(d->plans->handle, p->operation, p->a, p->b, p->c, p->c,
                                &near->algorithm, &check) == CUBLAS_STATUS_SUCCESS &&
        check.workspaceSize <= WORKSPACE_BYTES) {
        p->algorithm = near->algorithm;
    } else if (n > 1) {
        if ((rc = cuda_alloc(d, &scratch, (size_t)T * w->N * dtype_info(kind.type)->bytes, err)) !=
                OK ||
            (rc = choose(d, p, candidates, n, scratch, x, w, bias, err)) != OK)
            goto out;
    }
    p->next = d->plans->buckets[bucket];
    d->plans->buckets[bucket] = p;
    *out = p;
    p = NULL;
out:
    cudaFree(scratch);
    plan_free(p);
    return rc;
}

/* y += bias, then GELU: both optional. */
template <typename T>
static __global__ void finish_kernel(T *y, const T *bias, bool with_gelu, int N)
{
    int n = blockIdx.y * BLOCK + threadIdx.x;
    T *to = &y[(size_t)blockIdx.x * N + n];

    wait_for_inputs();
    if (n < N) {
        float value = to_float(*to) + (bias != NULL ? to_float(bias[n]) : 0.0f);
        put(to, with_gelu ? gelu(value) : value);
    }
}

/* The same for N a multiple of four, four numbers at a time; first the scales of x and w, or NULL.
 */
template <typename T>
static __global__ void finish4_kernel(T *y, const T *bias, bool with_gelu, const float *x_scales,
                                      const float *w_scales, int N)
{
    int n = 4 * (blockIdx.y * BLOCK + threadIdx.x);
    T *to = &y[(size_t)blockIdx.x * N + n];

    wait_for_inputs();
    if (n < N) {
        float4 value = load4(to);
        if (w_scales != NULL) {
            float4 w = load4(w_scales + n);
            float x = x_scales[blockIdx.x];
            value = make_float4(value.x * x * w.x, value.y * x * w.y, value.z * x * w.z,
                                value.w * x * w.w);
        }
        if (bias != NULL) {
            float4 b = load4(bias + n);
            value = make_float4(value.x + b.x, value.y + b.y, value.z + b.z, value.w + b.w);
        }
        if (with_gelu)
            value = make_float4(gelu(value.x), gelu(value.y), gelu(value.z), gelu(value.w));
        put4(to, value);
    }
}

/* What is there before the sums are added to it, so that the scales leave it as it was. */
static __global__ void unscale_kernel(float *y, const float *x_scales, const float *w_scales, int N)
{
    int n = 4 * (blockIdx.y * BLOCK + threadIdx.x);
    float *to = &y[(size_t)blockIdx.x * N + n];

    wait_for_inputs();
    if (n < N) {
        float4 value = load4(to), w = load4(w_scales + n);
        float x = x_scales[blockIdx.x];
        put4(to, make_float4(value.x / x / w.x, value.y / x / w.y, value.z / x / w.z,
                             value.w / x / w.w));
    }
}

/* In threads: a row each, of so many columns. */
static dim3 rows_grid(int T, int columns)
{
    return dim3((unsigned)T, (unsigned)((columns + BLOCK - 1) / BLOCK));
}

/* What cuBLASLt left of a product. */
template <typename Y>
static int finish(struct device *d, const struct plan *p, Y *y, const struct matrix *w,
                  const Y *bias, struct error *err)
{
    const float *w_scales = p->extent == SUMS ? w->scales : NULL;
    int T = p->T, N = p->N;

    if (p->extent == FUSED || (bias == NULL && !p->kind.gelu && w_scales == NULL))
        return OK;
    if (N % 4 != 0)
        return launch(d, "matmul", err, finish_kernel<Y>, rows_grid(T, N), BLOCK, 0, y, bias,
                      p->kind.gelu, N);
    return launch(d, "matmul", err, finish4_kernel<Y>, rows_grid(T, N / 4), BLOCK, 0, y, bias,
                  p->kind.gelu, d->row_scales, w_scales, N);
}

/* In float8 *x [T, K] becomes what the device holds of it in E4M3. */
static int round_rows(struct device *d, const void **x, const struct matrix *w, int T,
                      struct error *err)
{
    const void *from = *x;

    if (w->scales == NULL)
        return OK;
    if (T > d->max_rows)
        return error_set(err, ERR_SIZE, "cuda: a product of %d rows in float8, room for %d", T,
                         d->max_rows);
    *x = d->rounded;
    return float8_round_rows(d, d->rounded, d->row_scales, from, T, w->K, err);
}

static int product(struct device *d, void *y, const void *x, const struct matrix *w,
                   const void *bias, struct kind kind, int T, struct error *err)
{
    struct plan *p;
    int rc;

    if (T == 0)
        return OK;
    if ((rc = round_rows(d, &x, w, T, err)) != OK)
        return rc;
    if (!kind.gelu && few_rows_serves(d, w, T))
        return few_rows_product(d, y, kind.type, x, w, bias, kind.add, T, err);
    p = find_plan(d, T, w->N, w->K, kind, false);
    if (p == NULL && (rc = plan_create(&p, d, T, kind, x, w, bias, err)) != OK)
        return rc;
    if (p->extent == SUMS && kind.add &&
        (rc = launch(d, "matmul", err, unscale_kernel, rows_grid(T, w->N / 4), BLOCK, 0, (float *)y,
                     d->row_scales, w->scales, w->N)) != OK)
        return rc;
    if ((rc = run_plan(d, p, y, x, w, bias, err)) != OK)
        return rc;
    if (kind.type == DTYPE_F32)
        return finish(d, p, (float *)y, w, (const float *)bias, err);
    return finish(d, p, (__nv_bfloat16 *)y, w, (const __nv_bfloat16 *)bias, err);
}

int cuda_matmul(struct device *d, void *y, const void *x, const struct matrix *w, const void *bias,
                int T, struct error *err)
{
    return product(d, y, x, w, bias, kind{d->act, false, bias != NULL, false}, T, err);
}

int cuda_matmul_gelu(struct device *d, void *y, const void *x, const struct matrix *w,
                     const void *bias, int T, struct error *err)
{
    return product(d, y, x, w, bias, kind{d->act, false, bias != NULL, true}, T, err);
}

int cuda_matmul_geglu(struct device *d, void *y, const void *x, const struct matrix *w, void *gu,
                      int T, struct error *err)
{
    int rc;

    if (T > 0 && few_rows_serves_geglu(d, w, T))
        return (rc = round_rows(d, &x, w, T, err)) == OK ? few_rows_geglu(d, y, x, w, T, err) : rc;
    if ((rc = cuda_matmul(d, gu, x, w, NULL, T, err)) != OK)
        return rc;
    return cuda_geglu(d, y, gu, T, w->N / 2, err);
}

int cuda_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                const float *bias, bool add, int T, struct error *err)
{
    return product(d, y, x, w, bias, kind{DTYPE_F32, add, bias != NULL, false}, T, err);
}

/* Memory for a matrix of N and K. In float8 also for the rows of its products, and *rows [N, K] of
 * act, from which round_matrix() makes the matrix; it is the caller's (cudaFree). Else *rows stays
 * NULL. */
static int take_matrix(struct device *d, struct matrix *m, void **rows, struct error *err)
{
    size_t n = (size_t)m->N * m->K, size = dtype_info(d->act)->bytes;
    void *scales;
    int rc;

    if (!d->float8 || !float8_serves(m->N, m->K)) {
        m->bytes = n * size;
        return cuda_alloc(d, &m->data, m->bytes, err);
    }
    m->bytes = n + (size_t)m->N * sizeof(float);
    if ((rc = cuda_alloc(d, &m->data, n, err)) != OK ||
        (rc = cuda_alloc(d, &scales, (size_t)m->N * sizeof(float), err)) != OK)
        return rc;
    m->scales = (float *)scales;
    if ((rc = float8_reserve(d, m->N, m->K, err)) != OK)
        return rc;
    return cuda_alloc(d, rows, n * size, err);
}

static int round_matrix(struct device *d, struct matrix *m, const void *rows, struct error *err)
{
    if (rows == NULL)
        return OK;
    return float8_round_rows(d, m->data, m->scales, rows, m->N, m->K, err);
}

int cuda_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                     int n_parts, int K, struct error *err)
{
    void *rows = NULL;
    struct matrix *m;
    int rc;

    *out = NULL;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    m->K = K;
    if ((rc = matrix_parts_rows(&m->N, parts, n_parts, K, err)) != OK ||
        (rc = take_matrix(d, m, &rows, err)) != OK ||
        (rc = cuda_load_rows(d, rows != NULL ? rows : m->data, d->act, parts, n_parts, K, m->N,
                             err)) != OK ||
        (rc = round_matrix(d, m, rows, err)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    cudaFree(rows); /* waits for what reads it */
    cuda_matrix_free(d, m);
    return rc;
}

template <typename Act>
static __global__ void random_kernel(Act *to, size_t n, float size, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * BLOCK;

    wait_for_inputs();
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += step)
        put(&to[i], random_number(seed, i) * size);
}

int cuda_random_numbers(struct device *d, void *to, size_t n, float size, uint64_t seed,
                        struct error *err)
{
    if (d->act == DTYPE_F32)
        return launch(d, "random", err, random_kernel<float>, 4096, BLOCK, 0, (float *)to, n, size,
                      seed);
    return launch(d, "random", err, random_kernel<__nv_bfloat16>, 4096, BLOCK, 0,
                  (__nv_bfloat16 *)to, n, size, seed);
}

int cuda_matrix_random(struct device *d, struct matrix **out, int N, int K, float size,
                       uint64_t seed, struct error *err)
{
    void *rows = NULL;
    struct matrix *m;
    int rc;

    *out = NULL;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    m->N = N;
    m->K = K;
    if ((rc = take_matrix(d, m, &rows, err)) != OK ||
        (rc = cuda_random_numbers(d, rows != NULL ? rows : m->data, (size_t)N * K, size, seed,
                                  err)) != OK ||
        (rc = round_matrix(d, m, rows, err)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    cudaFree(rows); /* waits for what reads it */
    cuda_matrix_free(d, m);
    return rc;
}

void cuda_matrix_free(struct device *d, struct matrix *m)
{
    (void)d;
    if (m == NULL)
        return;
    cudaFree(m->data);
    cudaFree(m->scales);
    free(m);
}

size_t cuda_matrix_bytes(const struct matrix *m)
{
    return m->bytes;
}
