/* hash.h - FNV-1a by whole numbers or by bytes: tells apart what nobody makes alike on purpose. */
#pragma once
#include <stdint.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash_add(uint64_t hash, uint64_t number)
{
    return (hash ^ number) * UINT64_C(0x100000001b3);
}
