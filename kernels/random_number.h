/* random_number.h - numbers for measuring without a model: any number of a long list at once, the
 * same on every machine and device. Pure; any thread. */
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#define RANDOM_NUMBER static __host__ __device__ inline
#else
#define RANDOM_NUMBER static inline
#endif

/* Number i of list `seed`, uniform in -1 .. 1: the finaliser of MurmurHash3 over both. */
RANDOM_NUMBER float random_number(uint64_t seed, uint64_t i)
{
    uint64_t x = i + seed * 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return (float)(int32_t)(x >> 40) / (float)(1 << 23) - 1.0f;
}
