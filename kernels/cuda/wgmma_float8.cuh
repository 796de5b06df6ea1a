/* wgmma_float8.cuh - as wgmma.cuh, in E4M3: c [64, n] += a [64, 32] b [n, 32]^T, rows of 128
 * numbers (128 bytes). Thirty-two numbers further is 2 more, as sixteen of bf16 are. What it adds
 * is aligned to the largest and cut off at 2^-13 of that. */
#pragma once
#include "kernels/cuda/wgmma.cuh"

static __device__ inline void wgmma_float8(float (&c)[16], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" WGMMA_NAMES_16 "}, "
                 "%16, %17, 1, 1, 1;"
                 : WGMMA_SUMS_16
                 : "l"(a), "l"(b));
}

static __device__ inline void wgmma_float8(float (&c)[32], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" WGMMA_NAMES_32 "}, "
                 "%32, %33, 1, 1, 1;"
                 : WGMMA_SUMS_32
                 : "l"(a), "l"(b));
}

static __device__ inline void wgmma_float8(float (&c)[48], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 {" WGMMA_NAMES_48 "}, "
                 "%48, %49, 1, 1, 1;"
                 : WGMMA_SUMS_48
                 : "l"(a), "l"(b));
}

static __device__ inline void wgmma_float8(float (&c)[64], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WGMMA_NAMES_64 "}, "
                 "%64, %65, 1, 1, 1;"
                 : WGMMA_SUMS_64
                 : "l"(a), "l"(b));
}
