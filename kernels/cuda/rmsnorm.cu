/* rmsnorm.cu - rmsnorm, add_rmsnorm and both in one: one block a row; grid T, block BLOCK, one
 * float of shared memory a warp. A thread keeps up to HELD numbers of its row in registers, four
 * and four together, and reads what is beyond again from cache. Rows that are no multiple of four
 * numbers go one number at a time. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 512, WARPS = BLOCK / 32, HELD = 2 };

static __device__ float block_sum(float sum)
{
    __shared__ float partial[WARPS];

    sum = warp_sum(sum);
    __syncthreads(); /* an earlier sum has been read by all */
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += partial[i];
    return sum;
}

static __device__ inline float squares(float4 x)
{
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

static __device__ inline float4 scaled(float4 x, float factor, float4 w)
{
    return make_float4(x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z,
                       x.w * factor * w.w);
}

/* D % 4 == 0 and D <= 4 * BLOCK * HELD: all of it is read once. h NULL: y is the norm of x. Else
 * x's norm is added to h, and y (or NULL) is the norm of the sum, by next_w. y may be x where both
 * are float32 and its rows, `stride` numbers apart, are those of x. */
template <typename T>
static __global__ void held_kernel(float *h, T *y, int stride, const float *x, const float *w,
                                   float scale, const float *next_w, int D, float eps)
{
    size_t row = (size_t)blockIdx.x * D, y_row = (size_t)blockIdx.x * stride;
    float4 held[HELD], before[HELD], weight[HELD], next[HELD];
    float sum = 0.0f, factor;

    for (int i = 0; i < HELD; i++) { /* weights are no kernel's output */
        int at = 4 * (threadIdx.x + i * BLOCK);
        if (at < D) {
            weight[i] = w != NULL ? load4(w + at) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
            if (h != NULL && y != NULL)
                next[i] = load4(next_w + at);
        }
    }
    wait_for_inputs();
    for (int i = 0; i < HELD; i++) {
        int at = 4 * (threadIdx.x + i * BLOCK);
        if (at < D) {
            held[i] = load4(x + row + at);
            if (h != NULL)
                before[i] = load4(h + row + at);
            sum += squares(held[i]);
        }
    }
    factor = 1.0f / sqrtf(block_sum(sum) / (float)D + eps);
    sum = 0.0f;
    for (int i = 0; i < HELD; i++) {
        int at = 4 * (threadIdx.x + i * BLOCK);
        if (at < D) {
            held[i] = scaled(held[i], factor, weight[i]);
            if (h != NULL) {
                held[i].x = (before[i].x + held[i].x) * scale;
                held[i].y = (before[i].y + held[i].y) * scale;
                held[i].z = (before[i].z + held[i].z) * scale;
                held[i].w = (before[i].w + held[i].w) * scale;
                put4(h + row + at, held[i]);
                sum += squares(held[i]);
            } else
                put4(y + y_row + at, held[i]);
        }
    }
    if (h == NULL || y == NULL)
        return;
    factor = 1.0f / sqrtf(block_sum(sum) / (float)D + eps);
    for (int i = 0; i < HELD; i++) {
        int at = 4 * (threadIdx.x + i * BLOCK);
        if (at < D)
            put4(y + y_row + at, scaled(held[i], factor, next[i]));
    }
}

/* Any D; the arguments as above. A thread writes only what it alone reads. */
template <typename T>
static __global__ void any_kernel(float *h, T *y, int stride, const float *x, const float *w,
                                  float scale, const float *next_w, int D, float eps)
{
    size_t row = (size_t)blockIdx.x * D, y_row = (size_t)blockIdx.x * stride;
    float sum = 0.0f, factor;

    wait_for_inputs();
    for (int i = threadIdx.x; i < D; i += BLOCK)
        sum += x[row + i] * x[row + i];
    factor = 1.0f / sqrtf(block_sum(sum) / (float)D + eps);
    sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += BLOCK) {
        float value = x[row + i] * factor * (w != NULL ? w[i] : 1.0f);
        if (h != NULL) {
            value = (h[row + i] + value) * scale;
            h[row + i] = value;
            sum += value * value;
        } else
            put(&y[y_row + i], value);
    }
    if (h == NULL || y == NULL)
        return;
    factor = 1.0f / sqrtf(block_sum(sum) / (float)D + eps);
    for (int i = threadIdx.x; i < D; i += BLOCK)
        put(&y[y_row + i], h[row + i] * factor * next_w[i]);
}

template <typename T>
static int run(struct device *d, const char *what, float *h, T *y, int stride, const float *x,
               const float *w, float scale, const float *next_w, int rows, int D, float eps,
               struct error *err)
{
    bool held = D % 4 == 0 && stride % 4 == 0 && D <= 4 * BLOCK * HELD;

    if (rows == 0)
        return OK;
    return launch(d, what, err, held ? held_kernel<T> : any_kernel<T>, rows, BLOCK, 0, h, y, stride,
                  x, w, scale, next_w, D, eps);
}

int cuda_rmsnorm(struct device *d, void *y, enum dtype y_type, int stride, const float *x,
                 const float *w, int T, int D, float eps, struct error *err)
{
    float *none = NULL;

    if (y_type == DTYPE_F32)
        return run(d, "rmsnorm", none, (float *)y, stride, x, w, 1.0f, none, T, D, eps, err);
    return run(d, "rmsnorm", none, (__nv_bfloat16 *)y, stride, x, w, 1.0f, none, T, D, eps, err);
}

int cuda_add_rmsnorm(struct device *d, float *h, const float *x, const float *w, float scale, int T,
                     int D, float eps, struct error *err)
{
    float *none = NULL;

    return run(d, "add_rmsnorm", h, none, D, x, w, scale, none, T, D, eps, err);
}

int cuda_add_rmsnorm_rmsnorm(struct device *d, float *h, void *y, const float *x, const float *w,
                             float scale, const float *next_w, int T, int D, float eps,
                             struct error *err)
{
    if (d->act == DTYPE_F32)
        return run(d, "add_rmsnorm_rmsnorm", h, (float *)y, D, x, w, scale, next_w, T, D, eps, err);
    return run(d, "add_rmsnorm_rmsnorm", h, (__nv_bfloat16 *)y, D, x, w, scale, next_w, T, D, eps,
               err);
}
