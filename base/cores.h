/* cores.h - how many processors this process may really use, and how a thread waits on one. */
#pragma once

/* At least 1: those of its affinity mask, bounded by the CPU quota of its control group (a
 * container limited to two of many processors has two), rounded up. */
int cores_available(void);

/* In a loop that waits for what another core is about to do: lets this one do less meanwhile. */
static inline void cores_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
