/* wgmma.cuh - Hopper's product of a warpgroup: c [64, n] += a [64, 16] b, bf16, operands in shared
 * memory as rows of 64 numbers (128 bytes) with the 128-byte swizzle. Private to kernels/cuda/;
 * only for code compiled for sm_90a.
 *
 * Between wgmma_begin() and a wait the products run beside the warpgroup's other instructions, and
 * neither c nor an a in registers may be touched. */
#pragma once
#include <stdint.h>

/* What the instruction wants to know of a tile at `shared`, on a boundary of 1024 bytes, whose rows
 * are those of a, or of b as [n, 16]. Sixteen numbers further along its rows is 32 bytes further: 2
 * more. */
static __device__ inline uint64_t wgmma_tile(unsigned shared)
{
    const uint64_t eight_rows = 1024 >> 4, swizzle_128 = 1;

    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)1 << 16 | eight_rows << 32 |
           swizzle_128 << 62;
}

/* The same of a tile whose rows are those of b as [16, n]: 64 of its columns, and the next 64
 * further_bytes further. Sixteen rows further is 2048 bytes further: 128 more. */
static __device__ inline uint64_t wgmma_tile_transposed(unsigned shared, unsigned further_bytes)
{
    const uint64_t eight_rows = 1024 >> 4, swizzle_128 = 1;

    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)(further_bytes >> 4) << 16 |
           eight_rows << 32 | swizzle_128 << 62;
}

static __device__ inline void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* What was begun since the last is a group. */
static __device__ inline void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Returns when at most n groups are under way; c, of one that has ended, may be used then. */
template <int n, int N> static __device__ inline void wgmma_wait(float (&c)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) /* no use of it is moved to before the wait */
        asm volatile("" : "+f"(c[i])::"memory");
}

static __device__ inline void wgmma_end(void)
{
    wgmma_commit();
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* The sums' registers, as the instruction and the compiler want to hear of them. */
#define WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32                                                                             \
    WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
                   "%31"
#define WGMMA_NAMES_48                                                                             \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47"
#define WGMMA_NAMES_64                                                                             \
    WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
                   "%63"
#define WGMMA_SUMS_8(i)                                                                            \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),    \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define WGMMA_SUMS_16 WGMMA_SUMS_8(0), WGMMA_SUMS_8(8)
#define WGMMA_SUMS_32 WGMMA_SUMS_16, WGMMA_SUMS_8(16), WGMMA_SUMS_8(24)
#define WGMMA_SUMS_48 WGMMA_SUMS_32, WGMMA_SUMS_8(32), WGMMA_SUMS_8(40)
#define WGMMA_SUMS_64 WGMMA_SUMS_48, WGMMA_SUMS_8(48), WGMMA_SUMS_8(56)

/* c = (add ? c : 0) + a b^T; b is [n, 16]. Number 4j + i of a lane lies in row lane / 4 + i / 2 * 8
 * of its warp's 16, column 8j + lane % 4 * 2 + i % 2. */
static __device__ inline void wgmma(float (&c)[16], uint64_t a, uint64_t b, bool add = true)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_NAMES_16 "}, "
                 "%16, %17, add, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_SUMS_16
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ inline void wgmma(float (&c)[32], uint64_t a, uint64_t b, bool add = true)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_NAMES_32 "}, "
                 "%32, %33, add, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_SUMS_32
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ inline void wgmma(float (&c)[48], uint64_t a, uint64_t b, bool add = true)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" WGMMA_NAMES_48 "}, "
                 "%48, %49, add, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_SUMS_48
                 : "l"(a), "l"(b), "r"((int)add));
}

static __device__ inline void wgmma(float (&c)[64], uint64_t a, uint64_t b, bool add = true)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_NAMES_64 "}, "
                 "%64, %65, add, 1, 1, 0, 0;\n"
                 "}"
                 : WGMMA_SUMS_64
                 : "l"(a), "l"(b), "r"((int)add));
}

/* c = (add ? c : 0) + a b; b is [16, n]. a lies in registers as c does, two numbers in each: i = 0
 * and 1, then 2 and 3, of j = 0, then of j = 1. */
static __device__ inline void wgmma_transposed(float (&c)[32], const unsigned (&a)[4], uint64_t b,
                                               bool add)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_NAMES_32 "}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n"
                 "}"
                 : WGMMA_SUMS_32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

static __device__ inline void wgmma_transposed(float (&c)[64], const unsigned (&a)[4], uint64_t b,
                                               bool add)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 "setp.ne.b32 add, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_NAMES_64 "}, "
                 "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n"
                 "}"
                 : WGMMA_SUMS_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
