/* range_norm.cu - two kernels, one block a row each: grid T, block 256. The first takes a row's
 * sum, least and largest number; the second takes those of all the prompt's rows, n of them, and
 * stores the row. A prompt's rows are always added in the same order, whatever is beside it. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32 };

struct measures {
    float sum, least, largest;
};

/* The block's together, in every thread. */
static __device__ measures block_measures(measures m)
{
    __shared__ measures partial[WARPS];

    for (int offset = 16; offset > 0; offset /= 2) {
        m.sum += __shfl_xor_sync(0xffffffffu, m.sum, offset);
        m.least = fminf(m.least, __shfl_xor_sync(0xffffffffu, m.least, offset));
        m.largest = fmaxf(m.largest, __shfl_xor_sync(0xffffffffu, m.largest, offset));
    }
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = m;
    __syncthreads();
    m = partial[0];
    for (int i = 1; i < WARPS; i++) {
        m.sum += partial[i].sum;
        m.least = fminf(m.least, partial[i].least);
        m.largest = fmaxf(m.largest, partial[i].largest);
    }
    return m;
}

static __global__ void measure_kernel(measures *rows, const float *x, int D)
{
    const float *row = x + (size_t)blockIdx.x * D;
    measures m = {0.0f, INFINITY, -INFINITY};

    wait_for_inputs();
    for (int i = threadIdx.x; i < D; i += BLOCK) {
        m.sum += row[i];
        m.least = fminf(m.least, row[i]);
        m.largest = fmaxf(m.largest, row[i]);
    }
    m = block_measures(m);
    if (threadIdx.x == 0)
        rows[blockIdx.x] = m;
}

template <typename Act>
static __global__ void range_norm_kernel(Act *y, const float *x, const measures *rows,
                                         const int32_t *begin, int B, int D)
{
    int t = blockIdx.x, low = 0, high = B;
    measures m = {0.0f, INFINITY, -INFINITY};
    float mean, factor;

    wait_for_inputs();
    while (high - low > 1) { /* the prompt that t lies in: begin[low] <= t < begin[high] */
        int middle = (low + high) / 2;
        if (begin[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    for (int i = begin[low] + threadIdx.x; i < begin[low + 1]; i += BLOCK) {
        m.sum += rows[i].sum;
        m.least = fminf(m.least, rows[i].least);
        m.largest = fmaxf(m.largest, rows[i].largest);
    }
    m = block_measures(m);
    mean = m.sum / ((float)(begin[low + 1] - begin[low]) * (float)D + 1e-6f);
    factor = 8.0f / (m.largest - m.least + 1e-6f);
    for (int i = threadIdx.x; i < D; i += BLOCK)
        put(&y[(size_t)t * D + i], (x[(size_t)t * D + i] - mean) * factor);
}

int cuda_range_norm(struct device *d, void *y, const float *x, const int32_t *begin, float *scratch,
                    int B, int T, int D, struct error *err)
{
    measures *rows = (measures *)scratch;
    int rc;

    if (T == 0)
        return OK;
    if ((rc = launch(d, "range_norm", err, measure_kernel, T, BLOCK, 0, rows, x, D)) != OK)
        return rc;
    if (d->act == DTYPE_F32)
        return launch(d, "range_norm", err, range_norm_kernel<float>, T, BLOCK, 0, (float *)y, x,
                      rows, begin, B, D);
    return launch(d, "range_norm", err, range_norm_kernel<__nv_bfloat16>, T, BLOCK, 0,
                  (__nv_bfloat16 *)y, x, rows, begin, B, D);
}
