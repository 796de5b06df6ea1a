/* ops_cuda_none.c - stands in for kernels/cuda/device.cu where the build has no CUDA. */
#include <stddef.h>

#include "kernels/ops.h"

const struct ops *ops_cuda(void)
{
    return NULL;
}
