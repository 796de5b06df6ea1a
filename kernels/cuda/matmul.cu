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
 * A view's ranges of rows are a call each, with y's leading dimension N; ranges of one size and at
 * one distance (gate and up; keys and values) are one call, as a batch of products that share x.
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

/* What one call multiplies by: rows of w, n at a time, and where in y they come out. */
struct piece {
    const void *w;
    const float *scales;    /* float8; else NULL */
    int n, batch, distance; /* of so many; rows from one to the next */
    int column;
};

/* What a plan is made for. */
struct shape {
    int T, n, K, w_stride, y_stride, batch, distance;
    int w_alignment, y_alignment; /* bytes, that the library may count on */
    bool float8, fuses;           /* fuses: bias and GELU may be its epilogue */
    struct kind kind;
};

struct plan {
    struct plan *next; /* in its bucket */
    struct shape shape;
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
static int set_scales(struct device *d, const struct plan *p, const struct piece *w,
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
                    const struct piece *w, const void *bias, struct error *err)
{
    const float one = 1.0f, beta = p->shape.kind.add ? 1.0f : 0.0f;
    int rc = OK;

    if (p->extent == FUSED && bias != NULL && p->shape.float8 && p->shape.kind.type == DTYPE_F32) {
        if ((rc = float8_round_bias(d, (const float *)bias, w->n, err)) != OK)
            return rc;
        bias = d->biases;
    }
    if (p->extent == FUSED && bias != NULL)
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof(bias)));
    if (p->shape.float8 && p->extent >= SCALED && (rc = set_scales(d, p, w, err)) != OK)
        goto out;
    CUBLAS_TRY(cublasLtMatmul(d->plans->handle, p->operation, &one, w->w, p->a, x, p->b, &beta, y,
                              p->c, y, p->c, &p->algorithm, d->plans->workspace, WORKSPACE_BYTES,
                              d->stream));
out:
    return rc;
}

/* The fastest of the candidates, on the operands of the call that needs it; results go to `y`,
 * which is scratch. */
static int choose(struct device *d, struct plan *p, cublasLtMatmulHeuristicResult_t *candidates,
                  int n, void *y, const void *x, const struct piece *w, const void *bias,
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
            if ((rc = cuda_wait(d, stop, err)) != OK)
                goto out;
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

static int layout_create(struct device *d, cublasLtMatrixLayout_t *out, cudaDataType_t type,
                         int rows, int columns, int stride, int batch, size_t distance,
                         struct error *err)
{
    int64_t apart = (int64_t)distance;
    int rc = OK;

    CUBLAS_TRY(cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, stride));
    if (batch == 1)
        return OK;
    CUBLAS_TRY(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof(batch)));
    CUBLAS_TRY(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &apart, sizeof(apart)));
out:
    return rc;
}

static int prefer(struct device *d, cublasLtMatmulPreference_t preference, const struct shape *s,
                  struct error *err)
{
    size_t workspace = WORKSPACE_BYTES;
    uint32_t w_bytes = (uint32_t)s->w_alignment, y_bytes = (uint32_t)s->y_alignment;
    int rc = OK;

    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w_bytes, sizeof(w_bytes)));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y_bytes, sizeof(y_bytes)));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y_bytes, sizeof(y_bytes)));
out:
    return rc;
}

/* Descriptors, and what the heuristic proposes; *n is 0 where it knows nothing. */
static int describe(struct device *d, struct plan *p, const struct piece *w,
                    cublasLtMatmulHeuristicResult_t *candidates, int *n, struct error *err)
{
    const struct shape *s = &p->shape;
    cudaDataType_t type = s->float8 ? CUDA_R_8F_E4M3 : cuda_type(d->act),
                   y_type = cuda_type(s->kind.type), bias_type = s->float8 ? CUDA_R_16BF : y_type;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtEpilogue_t epilogue = epilogue_of(s->kind);
    int rc = OK;

    *n = 0;
    CUBLAS_TRY(cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
    if (s->float8 && p->extent >= SCALED && (rc = set_scales(d, p, w, err)) != OK)
        goto out;
    if (p->extent == FUSED) {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                  &epilogue, sizeof(epilogue)));
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                  &bias_type, sizeof(bias_type)));
    }
    if ((rc = layout_create(d, &p->a, type, s->K, s->n, s->w_stride, s->batch,
                            (size_t)s->distance * s->w_stride, err)) != OK ||
        (rc = layout_create(d, &p->b, type, s->K, s->T, s->K, s->batch, 0, err)) != OK ||
        (rc = layout_create(d, &p->c, y_type, s->n, s->T, s->y_stride, s->batch, (size_t)s->n,
                            err)) != OK)
        goto out;
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    if ((rc = prefer(d, preference, s, err)) != OK)
        goto out;
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

static uint32_t bucket_of(const struct shape *s)
{
    return (((uint32_t)rounded_up(s->T) * 31u + (uint32_t)s->n) * 31u + (uint32_t)s->K * 7u) %
           BUCKETS;
}

/* All but T. */
static bool are_alike(const struct shape *a, const struct shape *b)
{
    return a->n == b->n && a->K == b->K && a->w_stride == b->w_stride &&
           a->y_stride == b->y_stride && a->batch == b->batch && a->distance == b->distance &&
           a->w_alignment == b->w_alignment && a->y_alignment == b->y_alignment &&
           a->float8 == b->float8 && a->fuses == b->fuses && a->kind.type == b->kind.type &&
           a->kind.add == b->kind.add && a->kind.biased == b->kind.biased &&
           a->kind.gelu == b->kind.gelu;
}

static struct plan *find_plan(struct device *d, const struct shape *s, bool nearby)
{
    for (struct plan *p = d->plans->buckets[bucket_of(s)]; p != NULL; p = p->next)
        if ((p->shape.T == s->T || (nearby && rounded_up(p->shape.T) == rounded_up(s->T))) &&
            are_alike(&p->shape, s))
            return p;
    return NULL;
}

static int plan_create(struct plan **out, struct device *d, const struct shape *s, const void *x,
                       const struct piece *w, const void *bias, struct error *err)
{
    uint32_t bucket = bucket_of(s);
    struct plan *near = find_plan(d, s, true), *p = NULL;
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES], check;
    int most = s->fuses ? FUSED : SCALED, least = s->float8 ? SUMS : SCALED, n = 0, rc = OK;
    size_t bytes = (size_t)s->T * s->y_stride * dtype_info(s->kind.type)->bytes;
    void *scratch = NULL;

    *out = NULL;
    for (int extent = most; extent >= least && n == 0; extent--) {
        if ((p = (struct plan *)calloc(1, sizeof(*p))) == NULL)
            return error_set(err, ERR_MEM, "cuda: no memory for a matmul plan");
        p->shape = *s;
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
                       d->gpu, s->T, s->K, s->n, s->K);
        goto out;
    }
    p->algorithm = candidates[0].algo;
    if (near != NULL && near->extent == p->extent &&
        cublasLtMatmulAlgoCheck(d->plans->handle, p->operation, p->a, p->b, p->c, p->c,
                                &near->algorithm, &check) == CUBLAS_STATUS_SUCCESS &&
        check.workspaceSize <= WORKSPACE_BYTES) {
        p->algorithm = near->algorithm;
    } else if (n > 1) {
        /* on the stream: cudaFree could wait for another rank's GPU, which waits for this one */
        CUDA_TRY(cudaMallocAsync(&scratch, bytes, d->stream));
        cuda_note_memory(d);
        if ((rc = choose(d, p, candidates, n, scratch, x, w, bias, err)) != OK)
            goto out;
    }
    p->next = d->plans->buckets[bucket];
    d->plans->buckets[bucket] = p;
    *out = p;
    p = NULL;
out:
    if (scratch != NULL)
        cudaFreeAsync(scratch, d->stream);
    plan_free(p);
    return rc;
}

/* y += bias, then GELU: both optional; of N columns in rows `stride` apart. */
template <typename T>
static __global__ void finish_kernel(T *y, int stride, const T *bias, bool with_gelu, int N)
{
    int n = blockIdx.y * BLOCK + threadIdx.x;
    T *to = &y[(size_t)blockIdx.x * stride + n];

    wait_for_inputs();
    if (n < N) {
        float value = to_float(*to) + (bias != NULL ? to_float(bias[n]) : 0.0f);
        put(to, with_gelu ? gelu(value) : value);
    }
}

/* The same for N a multiple of four, four numbers at a time; first the scales of x and w, or NULL.
 */
template <typename T>
static __global__ void finish4_kernel(T *y, int stride, const T *bias, bool with_gelu,
                                      const float *x_scales, const float *w_scales, int N)
{
    int n = 4 * (blockIdx.y * BLOCK + threadIdx.x);
    T *to = &y[(size_t)blockIdx.x * stride + n];

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
static __global__ void unscale_kernel(float *y, int stride, const float *x_scales,
                                      const float *w_scales, int N)
{
    int n = 4 * (blockIdx.y * BLOCK + threadIdx.x);
    float *to = &y[(size_t)blockIdx.x * stride + n];

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
static int finish(struct device *d, const struct plan *p, Y *y, const struct piece *w,
                  const Y *bias, struct error *err)
{
    const float *w_scales = p->extent == SUMS ? w->scales : NULL;
    int T = p->shape.T, columns = w->n * w->batch, stride = p->shape.y_stride;
    bool gelu = p->shape.kind.gelu;

    if (p->extent == FUSED || (bias == NULL && !gelu && w_scales == NULL))
        return OK;
    if (columns % 4 != 0 || w->column % 4 != 0 || stride % 4 != 0)
        return launch(d, "matmul", err, finish_kernel<Y>, rows_grid(T, columns), BLOCK, 0, y,
                      stride, bias, gelu, columns);
    return launch(d, "matmul", err, finish4_kernel<Y>, rows_grid(T, columns / 4), BLOCK, 0, y,
                  stride, bias, gelu, d->row_scales, w_scales, columns);
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

/* As many ranges from i on as one call can do. */
static struct piece piece_at(const struct device *d, const struct matrix *w, int i)
{
    const struct row_range *r = w->ranges;
    size_t begin = (size_t)r[i].begin * w->stride;
    struct piece p = {};

    p.n = r[i].n;
    p.batch = 1;
    if (w->scales != NULL) { /* one by one: the library takes scales of rows for one alone */
        p.w = (const uint8_t *)w->data + begin;
        p.scales = w->scales + r[i].begin;
        return p;
    }
    p.w = (const char *)w->data + begin * dtype_info(d->act)->bytes;
    for (int k = i + 1; k < w->n_ranges; k++) {
        int distance = r[k].begin - r[k - 1].begin;
        if (r[k].n != p.n || distance < 0 || (p.batch > 1 && distance != p.distance))
            break;
        p.distance = distance;
        p.batch++;
    }
    return p;
}

/* What of it the library may count on: all that it likes, unless rows or columns are cut oddly. */
static int alignment_of(uintptr_t address)
{
    return address % 16 == 0 ? 256 : (int)(address & (0 - address));
}

/* y, bias: where the piece's own columns begin. */
static int multiply(struct device *d, void *y, const void *x, const struct matrix *w,
                    const struct piece *piece, const void *bias, struct kind kind, int T,
                    struct error *err)
{
    struct shape s = {};
    struct plan *p;
    int rc;

    s.T = T;
    s.n = piece->n;
    s.K = w->K;
    s.w_stride = w->stride;
    s.y_stride = w->N;
    s.batch = piece->batch;
    s.distance = piece->distance;
    s.w_alignment = alignment_of((uintptr_t)piece->w);
    s.y_alignment = alignment_of((uintptr_t)piece->column * dtype_info(kind.type)->bytes);
    s.float8 = w->scales != NULL;
    s.fuses = piece->batch == 1 && (uintptr_t)bias % 16 == 0;
    s.kind = kind;
    p = find_plan(d, &s, false);
    if (p == NULL && (rc = plan_create(&p, d, &s, x, piece, bias, err)) != OK)
        return rc;
    if (p->extent == SUMS && kind.add &&
        (rc = launch(d, "matmul", err, unscale_kernel, rows_grid(T, piece->n / 4), BLOCK, 0,
                     (float *)y, w->N, d->row_scales, piece->scales, piece->n)) != OK)
        return rc;
    if ((rc = run_plan(d, p, y, x, piece, bias, err)) != OK)
        return rc;
    if (kind.type == DTYPE_F32)
        return finish(d, p, (float *)y, piece, (const float *)bias, err);
    return finish(d, p, (__nv_bfloat16 *)y, piece, (const __nv_bfloat16 *)bias, err);
}

static int product(struct device *d, void *y, const void *x, const struct matrix *w,
                   const void *bias, struct kind kind, int T, struct error *err)
{
    size_t size = dtype_info(kind.type)->bytes, column = 0;
    int rc;

    if (T == 0)
        return OK;
    if ((rc = round_rows(d, &x, w, T, err)) != OK)
        return rc;
    if (!kind.gelu && few_rows_serves(d, w, T))
        return few_rows_product(d, y, kind.type, x, w, bias, kind.add, T, err);
    for (int i = 0; i < w->n_ranges;) {
        struct piece piece = piece_at(d, w, i);
        piece.column = (int)column;
        if ((rc = multiply(d, (char *)y + column * size, x, w, &piece,
                           bias == NULL ? NULL : (const char *)bias + column * size, kind, T,
                           err)) != OK)
            return rc;
        column += (size_t)piece.n * piece.batch;
        i += piece.batch;
    }
    return OK;
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

    m->stride = m->K;
    m->n_ranges = 1;
    m->ranges[0].n = m->N;
    if (!d->float8 || !float8_serves(m->N, m->K)) {
        m->bytes = n * size;
        return cuda_weights_alloc(d, &m->data, m->bytes, err);
    }
    m->bytes = n + (size_t)m->N * sizeof(float);
    if ((rc = cuda_weights_alloc(d, &m->data, n, err)) != OK ||
        (rc = cuda_weights_alloc(d, &scales, (size_t)m->N * sizeof(float), err)) != OK)
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
                     int n_parts, int K, const struct column_cuts *cuts, struct error *err)
{
    void *rows = NULL;
    struct matrix *m;
    int rc;

    (void)cuts; /* rows lie as they are: they can be cut anywhere */
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

/* Views that float8 has no product for, on any path. */
static bool is_cut_oddly(const struct matrix *view, int k_begin)
{
    bool oddly = k_begin % 16 != 0 || view->K % 16 != 0;

    for (int i = 0; i < view->n_ranges; i++)
        oddly |= view->ranges[i].begin % 16 != 0 || view->ranges[i].n % 16 != 0;
    return oddly;
}

/* Ranges that touch become one; those without rows are left out. */
static int add_range(struct matrix *view, const struct matrix *m, struct row_range range,
                     struct error *err)
{
    struct row_range *last = view->n_ranges > 0 ? &view->ranges[view->n_ranges - 1] : NULL;

    if (range.begin < 0 || range.n < 0 || range.n > m->N - range.begin)
        return error_set(err, ERR_INPUT, "cuda: a view of rows %d to %d of %d", range.begin,
                         range.begin + range.n, m->N);
    view->N += range.n;
    if (last != NULL && range.begin == last->begin + last->n) {
        last->n += range.n;
    } else if (range.n > 0) {
        if (view->n_ranges == MAX_RANGES)
            return error_set(err, ERR_INPUT, "cuda: a view of more than %d ranges of rows",
                             MAX_RANGES);
        view->ranges[view->n_ranges++] = range;
    }
    return OK;
}

int cuda_matrix_view(struct device *d, struct matrix **out, const struct matrix *m,
                     const struct row_range *ranges, int n_ranges, int k_begin, int K,
                     struct error *err)
{
    size_t size = m->scales != NULL ? 1 : dtype_info(d->act)->bytes;
    struct matrix *view;
    int rc = OK;

    *out = NULL;
    if (m->is_view)
        return error_set(err, ERR_INPUT, "cuda: a view of a view");
    if (k_begin < 0 || K < 1 || K > m->K - k_begin)
        return error_set(err, ERR_INPUT, "cuda: a view of columns %d to %d of %d", k_begin,
                         k_begin + K, m->K);
    if ((view = (struct matrix *)calloc(1, sizeof(*view))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a matrix");
    view->K = K;
    view->stride = m->stride;
    view->is_view = true;
    view->data = (char *)m->data + (size_t)k_begin * size;
    view->scales = m->scales;
    for (int i = 0; i < n_ranges; i++)
        if ((rc = add_range(view, m, ranges[i], err)) != OK)
            goto out;
    if (view->N == 0)
        rc = error_set(err, ERR_INPUT, "cuda: a view of a matrix without rows");
    else if (m->scales != NULL && is_cut_oddly(view, k_begin))
        rc = error_set(err, ERR_INPUT, "cuda: float8 is cut at multiples of 16 rows and columns");
    if (rc != OK)
        goto out;
    *out = view;
    view = NULL;
out:
    free(view);
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
    if (m == NULL)
        return;
    if (!m->is_view) {
        cuda_weights_free(d, m->data);
        cuda_weights_free(d, m->scales);
    }
    free(m);
}

size_t cuda_matrix_bytes(const struct matrix *m)
{
    return m->bytes;
}
