/* ops_cpu.c - the best table this processor can run, chosen once from what the build holds.
 *
 * The choice depends on the processor, so the table cannot be a constant: it is written once,
 * before anyone can read it. */
#include <pthread.h>

#include "kernels/cpu/device.h"

static struct ops best; /* written once, under `once`; read-only afterwards */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    best = *ops_loops();
    best.name = "cpu";
#if defined(__x86_64__)
    /* x86-64-v4: AVX-512 with its usual companions; v3: AVX2 and FMA */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        simd_fill_v4(&best);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        simd_fill_v3(&best);
    else
        simd_fill_baseline(&best);
#else
    simd_fill_baseline(&best);
#endif
#if PE_HAVE_ONEDNN
    onednn_fill(&best); /* where it is both faster and the same for a row in any batch */
#endif
}

const struct ops *ops_cpu(void)
{
    pthread_once(&once, choose);
    return &best;
}
