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
 * beta 1; bias and GELU are its epilogue, or a kernel of their own for the odd shapes that it does
 * not serve. */
#include <stdlib.h>

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/gelu.cuh"
#include "kernels/random_number.h"

enum { BLOCK = 256, BUCKETS = 1024, WORKSPACE_BYTES = 64 << 20, CANDIDATES = 16, TIMINGS = 3 };
enum { HOPELESS = 2 }; /* times as long as the best so far: timed once, as a start has hundreds */

/* What becomes of the sums: their type, and what is done to them. */
struct kind {
    enum dtype type;
    bool add, biased, gelu;
};

struct plan {
    struct plan *next; /* in its bucket */
    int T, N, K;
    struct kind kind;
    bool fused; /* bias and GELU are in the product */
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
    rc = few_rows_open(d, err);
out:
    return rc; /* cuda_matmul_close() frees what there is */
}

void cuda_matmul_close(struct device *d)
{
    struct matmul_plans *plans = d->plans;

    few_rows_close(d);
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

static int run_plan(struct device *d, const struct plan *p, void *y, const void *x, const void *w,
                    const void *bias, struct error *err)
{
    const float one = 1.0f, beta = p->kind.add ? 1.0f : 0.0f;
    int rc = OK;

    if (p->fused && bias != NULL)
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof(bias)));
    CUBLAS_TRY(cublasLtMatmul(d->plans->handle, p->operation, &one, w, p->a, x, p->b, &beta, y,
                              p->c, y, p->c, &p->algorithm, d->plans->workspace, WORKSPACE_BYTES,
                              d->stream));
out:
    return rc;
}

/* The fastest of the candidates, on the operands of the call that needs it; results go to `y`,
 * which is scratch. */
static int choose(struct device *d, struct plan *p, cublasLtMatmulHeuristicResult_t *candidates,
                  int n, void *y, const void *x, const void *w, const void *bias, struct error *err)
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
static int describe(struct device *d, struct plan *p, cublasLtMatmulHeuristicResult_t *candidates,
                    int *n, struct error *err)
{
    cudaDataType_t type = cuda_type(d->act), y_type = cuda_type(p->kind.type);
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtEpilogue_t epilogue = epilogue_of(p->kind);
    size_t workspace = WORKSPACE_BYTES;
    int rc = OK;

    *n = 0;
    CUBLAS_TRY(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
    if (p->fused) {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                  &epilogue, sizeof(epilogue)));
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                  &y_type, sizeof(y_type)));
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

static struct plan *find_plan(struct device *d, int T, int N, int K, struct kind kind, bool nearby)
{
    uint32_t hash = ((uint32_t)rounded_up(T) * 31u + (uint32_t)N) * 31u + (uint32_t)K * 7u;

    for (struct plan *p = d->plans->buckets[hash % BUCKETS]; p != NULL; p = p->next)
        if ((p->T == T || (nearby && rounded_up(p->T) == rounded_up(T))) && p->N == N &&
            p->K == K && p->kind.type == kind.type && p->kind.add == kind.add &&
            p->kind.biased == kind.biased && p->kind.gelu == kind.gelu)
            return p;
    return NULL;
}

static int plan_create(struct plan **out, struct device *d, int T, struct kind kind, const void *x,
                       const struct matrix *w, const void *bias, struct error *err)
{
    uint32_t hash = ((uint32_t)rounded_up(T) * 31u + (uint32_t)w->N) * 31u + (uint32_t)w->K * 7u;
    struct plan *near = find_plan(d, T, w->N, w->K, kind, true), *p;
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES], check;
    void *scratch = NULL;
    int n = 0, rc = OK;

    *out = NULL;
    for (int fused = 1; fused >= 0 && n == 0; fused--) {
        if ((p = (struct plan *)calloc(1, sizeof(*p))) == NULL)
            return error_set(err, ERR_MEM, "cuda: no memory for a matmul plan");
        p->T = T;
        p->N = w->N;
        p->K = w->K;
        p->kind = kind;
        p->fused = fused;
        if ((rc = describe(d, p, candidates, &n, err)) != OK)
            goto out;
        if (n == 0 && fused) {
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
    if (near != NULL && near->fused == p->fused &&
        cublasLtMatmulAlgoCheck(d->plans->handle, p->operation, p->a, p->b, p->c, p->c,
                                &near->algorithm, &check) == CUBLAS_STATUS_SUCCESS &&
        check.workspaceSize <= WORKSPACE_BYTES) {
        p->algorithm = near->algorithm;
    } else if (n > 1) {
        if ((rc = cuda_alloc(d, &scratch, (size_t)T * w->N * dtype_info(kind.type)->bytes, err)) !=
                OK ||
            (rc = choose(d, p, candidates, n, scratch, x, w->data, bias, err)) != OK)
            goto out;
    }
    p->next = d->plans->buckets[hash % BUCKETS];
    d->plans->buckets[hash % BUCKETS] = p;
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

static int product(struct device *d, void *y, const void *x, const struct matrix *w,
                   const void *bias, struct kind kind, int T, struct error *err)
{
    dim3 grid((unsigned)T, (unsigned)((w->N + BLOCK - 1) / BLOCK));
    struct plan *p;
    int rc;

    if (T == 0)
        return OK;
    if (!kind.gelu && few_rows_serves(d, w, T))
        return few_rows_product(d, y, kind.type, x, w, bias, kind.add, T, err);
    p = find_plan(d, T, w->N, w->K, kind, false);
    if (p == NULL && (rc = plan_create(&p, d, T, kind, x, w, bias, err)) != OK)
        return rc;
    if ((rc = run_plan(d, p, y, x, w->data, bias, err)) != OK || p->fused ||
        (bias == NULL && !kind.gelu))
        return rc;
    if (kind.type == DTYPE_F32)
        return launch(d, "matmul", err, finish_kernel<float>, grid, BLOCK, 0, (float *)y,
                      (const float *)bias, kind.gelu, w->N);
    return launch(d, "matmul", err, finish_kernel<__nv_bfloat16>, grid, BLOCK, 0,
                  (__nv_bfloat16 *)y, (const __nv_bfloat16 *)bias, kind.gelu, w->N);
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
        return few_rows_geglu(d, y, x, w, T, err);
    if ((rc = cuda_matmul(d, gu, x, w, NULL, T, err)) != OK)
        return rc;
    return cuda_geglu(d, y, gu, T, w->N / 2, err);
}

int cuda_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                const float *bias, bool add, int T, struct error *err)
{
    return product(d, y, x, w, bias, kind{DTYPE_F32, add, bias != NULL, false}, T, err);
}

int cuda_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                     int n_parts, int K, struct error *err)
{
    struct matrix *m;
    int rc;

    *out = NULL;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    m->K = K;
    if ((rc = matrix_parts_rows(&m->N, parts, n_parts, K, err)) != OK)
        goto out;
    m->bytes = (size_t)m->N * K * dtype_info(d->act)->bytes;
    if ((rc = cuda_alloc(d, &m->data, m->bytes, err)) != OK ||
        (rc = cuda_load_rows(d, m->data, d->act, parts, n_parts, K, m->N, err)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
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

int cuda_matrix_random(struct device *d, struct matrix **out, int N, int K, float size,
                       uint64_t seed, struct error *err)
{
    size_t n = (size_t)N * K;
    struct matrix *m;
    int rc;

    *out = NULL;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    m->N = N;
    m->K = K;
    m->bytes = n * dtype_info(d->act)->bytes;
    if ((rc = cuda_alloc(d, &m->data, m->bytes, err)) != OK)
        goto out;
    if (d->act == DTYPE_F32)
        rc = launch(d, "random", err, random_kernel<float>, 4096, BLOCK, 0, (float *)m->data, n,
                    size, seed);
    else
        rc = launch(d, "random", err, random_kernel<__nv_bfloat16>, 4096, BLOCK, 0,
                    (__nv_bfloat16 *)m->data, n, size, seed);
    if (rc != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    cuda_matrix_free(d, m);
    return rc;
}

void cuda_matrix_free(struct device *d, struct matrix *m)
{
    (void)d;
    if (m == NULL)
        return;
    cudaFree(m->data);
    free(m);
}

size_t cuda_matrix_bytes(const struct matrix *m)
{
    return m->bytes;
}
