/* cores.h - how many processors this process may really use. */
#pragma once

/* At least 1: those of its affinity mask, bounded by the CPU quota of its control group (a
 * container limited to two of many processors has two), rounded up. */
int cores_available(void);
