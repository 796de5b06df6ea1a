/* fill_rows.cu - one block a row: grid B * P, block 256; memory-bound. Rows that are whole units of
 * 16 bytes go by those, others by the number. */
#include "kernels/cuda/device.cuh"

enum { BLOCK = 256 };

/* n units a row */
template <typename Unit>
static __global__ void fill_rows_kernel(Unit *h, const Unit *x, const Unit *registers,
                                        const int32_t *first, const int32_t *count, int p_begin,
                                        int P, int R, int n)
{
    int b = blockIdx.x / P, p = p_begin + blockIdx.x % P;
    const Unit *from;

    wait_for_inputs();
    from = p < count[b] ? x + (size_t)(first[b] + p) * n : registers + (size_t)(p % R) * n;
    for (int i = threadIdx.x; i < n; i += BLOCK)
        h[(size_t)blockIdx.x * n + i] = from[i];
}

template <typename Unit>
static int run(struct device *d, void *h, const void *x, const void *registers,
               const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R,
               size_t row_bytes, struct error *err)
{
    return launch(d, "fill_rows", err, fill_rows_kernel<Unit>, B * P, BLOCK, 0, (Unit *)h,
                  (const Unit *)x, (const Unit *)registers, first, count, p_begin, P, R,
                  (int)(row_bytes / sizeof(Unit)));
}

int cuda_fill_rows(struct device *d, void *h, const void *x, const void *registers, enum dtype type,
                   const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R,
                   int W, struct error *err)
{
    size_t row_bytes = (size_t)W * dtype_info(type)->bytes;

    if (B == 0 || P == 0)
        return OK;
    if (row_bytes % sizeof(uint4) == 0)
        return run<uint4>(d, h, x, registers, first, count, B, p_begin, P, R, row_bytes, err);
    if (type == DTYPE_F32)
        return run<float>(d, h, x, registers, first, count, B, p_begin, P, R, row_bytes, err);
    return run<uint16_t>(d, h, x, registers, first, count, B, p_begin, P, R, row_bytes, err);
}
