#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cores.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* Processors that the control group's quota amounts to; 0: no quota, or none that can be read. */
static int quota(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    long long used = 0, period = 0;
    int n = 0;

    if (f == NULL)
        return 0;
    n = fscanf(f, "%lld %lld", &used, &period); /* "max 100000" where there is none */
    fclose(f);
    return n == 2 && used > 0 && period > 0 ? (int)((used + period - 1) / period) : 0;
}

int cores_available(void)
{
    cpu_set_t set;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    int limit = quota();

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    if (limit > 0 && limit < n)
        n = limit;
    return n < 1 ? 1 : (int)n;
}
