/* gpu_check.h - whether CUDA can be used here, and if not, in one sentence why not: from what the
 * runtime tells, so that it can be tested where there is no GPU. Pure; any thread. */
#pragma once
#include "base/error.h"

struct gpu_runtime {
    int driver, runtime; /* CUDA's version that the driver serves, that we were built with: 13010
                            is 13.1; driver 0: there is none */
    const char *failure; /* why no GPU can be counted, in the runtime's words; or NULL */
    int n_gpus;          /* visible */
    const char *visible; /* CUDA_VISIBLE_DEVICES; or NULL */
};

/* ERR_INPUT: no driver, one that is too old, no GPU, or none of the number `gpu`. */
int gpu_check_runtime(const struct gpu_runtime *r, int gpu, struct error *err);
/* ERR_INPUT: it is older than what the kernels are made for. */
int gpu_check_capability(int gpu, const char *name, int major, int minor, struct error *err);
