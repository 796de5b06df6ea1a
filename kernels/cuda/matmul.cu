/* matmul.cu - matmul and linear by cuBLASLt, and weights as plain rows on the GPU.
 *
 * cuBLASLt is column-major. A row-major [R, C] is a column-major [C, R] with leading dimension C,
 * so the row-major y = x w^T, [T, N] = [T, K] [N, K]^T, reads there as y' [N, T] = w' [K, N]^T  x'
 * [K, T] with A = w (transposed, leading dimension K), B = x (leading dimension K), C = y (leading
 * dimension N). No operand is moved.
 *
 * A plan (descriptors and the heuristic's first choice) is kept per shape. What linear adds to is
 * cuBLASLt's C, with beta 1. Its bias is a kernel of its own, one thread a number, grid (T,
 * ceil(N / 256)), which reads and writes y once more; cuBLASLt's epilogue is the fast way. */
#include <stdlib.h>

#include "kernels/cuda/device.cuh"
#include "kernels/random_number.h"

enum { BLOCK = 256, BUCKETS = 1024, WORKSPACE_BYTES = 32 << 20, STAGING_BYTES = 32 << 20 };

struct plan {
    struct plan *next; /* in its bucket */
    int T, N, K;
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

static int plan_create(struct plan **out, struct device *d, int T, int N, int K, struct error *err)
{
    cudaDataType_t type = d->act == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result = {};
    size_t workspace = WORKSPACE_BYTES;
    struct plan *p;
    int n_results = 0, rc = OK;

    *out = NULL;
    if ((p = (struct plan *)calloc(1, sizeof(*p))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matmul plan");
    p->T = T;
    p->N = N;
    p->K = K;
    CUBLAS_TRY(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)K, (uint64_t)N, K));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)K, (uint64_t)T, K));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&p->c, CUDA_R_32F, (uint64_t)N, (uint64_t)T, N));
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    CUBLAS_TRY(cublasLtMatmulAlgoGetHeuristic(d->plans->handle, p->operation, p->a, p->b, p->c,
                                              p->c, preference, 1, &result, &n_results));
    if (n_results == 0) {
        rc = error_set(err, ERR_GPU, "cuda: gpu %d: cuBLASLt has no product [%d,%d] x [%d,%d]",
                       d->gpu, T, K, N, K);
        goto out;
    }
    p->algorithm = result.algo;
    *out = p;
    p = NULL;
out:
    if (preference != NULL)
        cublasLtMatmulPreferenceDestroy(preference);
    plan_free(p);
    return rc;
}

static int plan_get(const struct plan **out, struct device *d, int T, int N, int K,
                    struct error *err)
{
    uint32_t hash = ((uint32_t)T * 31u + (uint32_t)N) * 31u + (uint32_t)K * 7u;
    struct plan **bucket = &d->plans->buckets[hash % BUCKETS], *p;
    int rc;

    for (p = *bucket; p != NULL; p = p->next)
        if (p->T == T && p->N == N && p->K == K) {
            *out = p;
            return OK;
        }
    if ((rc = plan_create(&p, d, T, N, K, err)) != OK)
        return rc;
    p->next = *bucket;
    *bucket = p;
    *out = p;
    return OK;
}

static __global__ void add_bias_kernel(float *y, const float *bias, int N)
{
    int n = blockIdx.y * BLOCK + threadIdx.x;

    if (n < N)
        y[(size_t)blockIdx.x * N + n] += bias[n];
}

int cuda_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                const float *bias, bool add, int T, struct error *err)
{
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    dim3 grid((unsigned)T, (unsigned)((w->N + BLOCK - 1) / BLOCK));
    const struct plan *p;
    int rc;

    if (T == 0)
        return OK;
    if ((rc = plan_get(&p, d, T, w->N, w->K, err)) != OK)
        return rc;
    CUBLAS_TRY(cublasLtMatmul(d->plans->handle, p->operation, &one, w->data, p->a, x, p->b, &beta,
                              y, p->c, y, p->c, &p->algorithm, d->plans->workspace, WORKSPACE_BYTES,
                              d->stream));
    if (bias != NULL) {
        add_bias_kernel<<<grid, BLOCK, 0, d->stream>>>(y, bias, w->N);
        rc = launch_result(d, "add_bias", err);
    }
out:
    return rc;
}

int cuda_matmul(struct device *d, float *y, const void *x, const struct matrix *w, int T,
                struct error *err)
{
    return cuda_linear(d, y, x, w, NULL, false, T, err);
}

/* Rows are decoded to float32 on the host, rounded to act, and copied, a piece at a time. */
int cuda_matrix_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                     int n_parts, int K, struct error *err)
{
    size_t size = dtype_info(d->act)->bytes;
    int step = STAGING_BYTES / (K * (int)sizeof(float)), rc = OK;
    float *rows = NULL;
    void *staging = NULL;
    struct matrix *m;

    *out = NULL;
    if (step < 1)
        step = 1;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL ||
        (rows = (float *)malloc((size_t)step * K * sizeof(float))) == NULL ||
        (staging = malloc((size_t)step * K * size)) == NULL) {
        rc = error_set(err, ERR_MEM, "cuda: no memory to load a matrix of %d columns", K);
        goto out;
    }
    m->K = K;
    if ((rc = matrix_parts_rows(&m->N, parts, n_parts, K, err)) != OK)
        goto out;
    m->bytes = (size_t)m->N * K * size;
    CUDA_TRY(cudaMalloc(&m->data, m->bytes > 0 ? m->bytes : 1));
    for (int row = 0; row < m->N; row += step) {
        int n = m->N - row < step ? m->N - row : step;
        matrix_parts_decode(rows, parts, n_parts, K, row, n);
        dtype_encode(staging, rows, d->act, (size_t)n * K);
        if ((rc = cuda_store(d, (char *)m->data + (size_t)row * K * size, staging,
                             (size_t)n * K * size, err)) != OK)
            goto out;
    }
    *out = m;
    m = NULL;
out:
    free(rows);
    free(staging);
    cuda_matrix_free(d, m);
    return rc;
}

template <typename Act>
static __global__ void random_kernel(Act *to, size_t n, float size, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * BLOCK;

    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += step)
        put(&to[i], random_number(seed, i) * size);
}

int cuda_matrix_random(struct device *d, struct matrix **out, int N, int K, float size,
                       uint64_t seed, struct error *err)
{
    size_t n = (size_t)N * K;
    struct matrix *m;
    int rc = OK;

    *out = NULL;
    if ((m = (struct matrix *)calloc(1, sizeof(*m))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    m->N = N;
    m->K = K;
    m->bytes = n * dtype_info(d->act)->bytes;
    CUDA_TRY(cudaMalloc(&m->data, m->bytes));
    if (d->act == DTYPE_F32)
        random_kernel<<<4096, BLOCK, 0, d->stream>>>((float *)m->data, n, size, seed);
    else
        random_kernel<<<4096, BLOCK, 0, d->stream>>>((__nv_bfloat16 *)m->data, n, size, seed);
    if ((rc = launch_result(d, "random", err)) != OK)
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
