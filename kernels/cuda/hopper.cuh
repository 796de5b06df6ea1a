/* hopper.cuh - what the kernels of Hopper's own instructions share: few_rows.cu and
 * full_attention_hopper.cu. Private to kernels/cuda/.
 *
 * Tiles of a matrix come to shared memory by the bulk tensor copy engine, as a tensor map on the
 * host's side describes them: rows of 128 bytes (64 numbers of bf16) with the 128-byte swizzle,
 * which is what wgmma.cuh reads. Barriers say when a tile is there and when its place is free. */
#pragma once
#include <cuda.h>

#include "kernels/cuda/device.cuh"

enum { TILE_WIDTH = 64, TILE_ROW_BYTES = TILE_WIDTH * 2 };

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

struct hopper {
    encode_fn *encode;
    int n_processors;
};

/* d->hopper; NULL, and OK, where the GPU is none or computes in float32. */
int hopper_open(struct device *d, struct error *err);
void hopper_close(struct device *d);

/* Tiles of TILE_ROW_BYTES and box_rows rows of a row-major [rows, columns] of BF16 or F8_E4M3 whose
 * rows are `stride` numbers apart. Every row on 16 bytes; what a tile has beyond the matrix is 0.
 */
int hopper_map(struct device *d, CUtensorMap *map, enum dtype type, const void *data, int rows,
               int columns, size_t stride, int box_rows, struct error *err);

static __device__ inline unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* The first boundary of 1024 bytes, which the swizzle counts from. */
static __device__ inline uint8_t *tiles_begin(uint8_t *shared)
{
    return shared + (1024 - shared_address(shared) % 1024) % 1024;
}

static __device__ inline void barrier_init(uint64_t *barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count));
}

static __device__ inline void barrier_expect(uint64_t *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

static __device__ inline void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

static __device__ inline void barrier_wait(uint64_t *barrier, int phase)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* How long L2 keeps what a copy has read: less long than other things, as long, longer. */
enum : uint64_t {
    READ_ONCE = 0x12f0000000000000,
    READ_AGAIN = 0x1000000000000000,
    READ_OFTEN = 0x14f0000000000000
};

/* A tile of `map` from column k and row `row` on; policy says how long L2 keeps it. */
static __device__ inline void fetch_tile(void *to, const CUtensorMap *map, uint64_t *barrier, int k,
                                         int row, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(k), "r"(row), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}
