/* wide_qk_norm_rope.cu - one block a row of q or of k: grid (T, 2), block 256; reads the row twice,
 * the second time from cache. A thread rotates whole pairs, so it writes only what it alone reads.
 */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32 };

static __global__ void wide_qk_norm_rope_kernel(float *qkv, const float *q_w, const float *k_w,
                                                const float *cos, const float *sin, int P, int H,
                                                int E, int stride, bool interleaved, float eps)
{
    __shared__ float partial[WARPS];
    int W = H * E, half = E / 2;
    const float *w = blockIdx.y == 0 ? q_w : k_w;
    float *x = qkv + (size_t)blockIdx.x * stride + (size_t)blockIdx.y * W;
    size_t angle = (size_t)(blockIdx.x % P) * (W / 2);
    float sum = 0.0f, factor;

    for (int i = threadIdx.x; i < W; i += BLOCK)
        sum += x[i] * x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    __syncthreads(); /* also: no thread writes before all have read */
    sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        sum += partial[i];
    factor = 1.0f / sqrtf(sum / (float)W + eps);
    for (int i = threadIdx.x; i < W / 2; i += BLOCK) {
        int first = interleaved ? 2 * i : i / half * E + i % half;
        int second = interleaved ? first + 1 : first + half;
        float c = cos[angle + i], s = sin[angle + i];
        float low = x[first] * factor * w[first], high = x[second] * factor * w[second];
        x[first] = low * c - high * s;
        x[second] = high * c + low * s;
    }
}

int cuda_wide_qk_norm_rope(struct device *d, float *qkv, const float *q_w, const float *k_w,
                           const float *cos, const float *sin, int T, int P, int H, int E,
                           int stride, bool interleaved, float eps, struct error *err)
{
    dim3 grid((unsigned)T, 2);

    if (T == 0)
        return OK;
    if (E % 2 != 0)
        return error_set(err, ERR_INPUT, "cuda: heads of %d numbers, expected an even number", E);
    wide_qk_norm_rope_kernel<<<grid, BLOCK, 0, d->stream>>>(qkv, q_w, k_w, cos, sin, P, H, E,
                                                            stride, interleaved, eps);
    return launch_result(d, "wide_qk_norm_rope", err);
}
