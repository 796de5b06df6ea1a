/* memory.h - how much memory of this machine a process may still take. */
#pragma once
#include <stdint.h>

#include "base/error.h"

/* In bytes, of what can be had without swapping: what the system calls available, bounded by the
 * limits of the control groups that this process is in (version 2; files in the page cache do not
 * count as taken). ERR_IO: the system does not say. */
int memory_available(uint64_t *out, struct error *err);

/* The same of a file system that lies under `root` ("" is the machine's), for tests. */
int memory_available_under(const char *root, uint64_t *out, struct error *err);
