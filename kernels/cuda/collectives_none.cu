/* collectives_none.cu - stands in for collectives.cu where the build has no NCCL: a GPU computes
 * alone, as a group of one. */
#include "kernels/cuda/device.cuh"

void cuda_collectives_abort(struct device *d)
{
    (void)d;
}

int cuda_collectives_check(struct device *d, struct error *err)
{
    (void)d;
    (void)err;
    return OK;
}

void cuda_leave(struct device *d)
{
    d->group = NULL;
}

int cuda_join(struct device *d, struct group *group, struct error *err)
{
    if (group != NULL && group_n_ranks(group) > 1)
        return error_set(err, ERR_INPUT,
                         "cuda: a group of %d GPUs: this program was built without NCCL, which "
                         "they exchange by",
                         group_n_ranks(group));
    d->group = group;
    return OK;
}

int cuda_all_reduce(struct device *d, float *y, size_t n, struct error *err)
{
    (void)d;
    (void)y;
    (void)n;
    (void)err;
    return OK;
}

int cuda_all_gather(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    int rc = OK;

    if (to != from)
        CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream));
out:
    return rc;
}

int cuda_broadcast(struct device *d, void *data, size_t bytes, int root, struct error *err)
{
    (void)d;
    (void)data;
    (void)bytes;
    (void)root;
    (void)err;
    return OK;
}
