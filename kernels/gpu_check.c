#include "kernels/gpu_check.h"

#include <stddef.h>

enum { OLDEST_MAJOR = 8 }; /* Ampere: the first with bfloat16 */

static int major_of(int version)
{
    return version / 1000;
}

static int minor_of(int version)
{
    return version % 1000 / 10;
}

int gpu_check_runtime(const struct gpu_runtime *r, int gpu, struct error *err)
{
    /* minor versions of one major version work together */
    if (r->driver == 0)
        return error_set(
            err, ERR_INPUT,
            "cuda: no NVIDIA driver (libcuda.so.1) is here; one for CUDA %d is needed, "
            "and in a container its GPUs have to be asked for",
            major_of(r->runtime));
    if (major_of(r->driver) < major_of(r->runtime))
        return error_set(err, ERR_INPUT,
                         "cuda: the NVIDIA driver is too old: it serves CUDA %d.%d, and this build "
                         "needs %d.0 or newer",
                         major_of(r->driver), minor_of(r->driver), major_of(r->runtime));
    if (r->failure != NULL)
        return error_set(err, ERR_INPUT, "cuda: no GPU can be used: %s", r->failure);
    if (r->n_gpus == 0)
        return error_set(err, ERR_INPUT, "cuda: no GPU is visible%s%s%s",
                         r->visible != NULL ? ", CUDA_VISIBLE_DEVICES being '" : "",
                         r->visible != NULL ? r->visible : "", r->visible != NULL ? "'" : "");
    if (gpu < 0 || gpu >= r->n_gpus)
        return error_set(err, ERR_INPUT, "cuda: no GPU %d: there are 0 to %d", gpu, r->n_gpus - 1);
    return OK;
}

int gpu_check_capability(int gpu, const char *name, int major, int minor, struct error *err)
{
    if (major >= OLDEST_MAJOR)
        return OK;
    return error_set(err, ERR_INPUT,
                     "cuda: GPU %d (%s) has compute capability %d.%d, and %d.0 or newer is needed",
                     gpu, name, major, minor, OLDEST_MAJOR);
}
