/* collectives.cu - what ranks exchange, by NCCL, on the device's stream.
 *
 * Its communicators do not block: a call that is not done yet says so, and is asked until it is,
 * or until the group is aborted or the deadline has passed. A rank whose wait ended so aborts its
 * communicator, which ends what it has on the GPU.
 *
 * NVLink multicast stays off: a program that dies in it can leave a host's NVSwitches unusable for
 * all others there. */
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>

#include "kernels/cuda/device.cuh"

extern "C" {
#include "base/clock.h"
}

enum { START_MS = 60000 }; /* ranks that start find each other's GPUs and links first */

struct collectives {
    ncclComm_t comm; /* NULL: aborted */
};

/* NCCL reads it once; set before there are threads, as they may read the environment. */
__attribute__((constructor)) static void leave_multicast_off(void)
{
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}

static int nccl_failed(const struct device *d, const char *what, ncclResult_t status,
                       struct error *err)
{
    struct collectives *c = d->collectives;
    const char *more = ncclGetLastError(c == NULL ? NULL : c->comm);

    return error_set(err, status == ncclInvalidUsage ? ERR_INPUT : ERR_GPU,
                     "cuda: gpu %d: %s: %s: %s", d->gpu, what, ncclGetErrorString(status),
                     more == NULL ? "" : more);
}

void cuda_collectives_abort(struct device *d)
{
    struct collectives *c = d->collectives;
    ncclComm_t comm;

    if (c == NULL || c->comm == NULL)
        return;
    comm = c->comm;
    c->comm = NULL;
    cuda_recordings_forget(d); /* NCCL waits, without an end, for all that recorded its calls */
    ncclCommAbort(comm);
}

int cuda_collectives_check(struct device *d, struct error *err)
{
    struct collectives *c = d->collectives;
    ncclResult_t status = ncclSuccess, asked;

    if (c == NULL || c->comm == NULL)
        return OK;
    if ((asked = ncclCommGetAsyncError(c->comm, &status)) != ncclSuccess)
        status = asked;
    if (status == ncclSuccess || status == ncclInProgress)
        return OK;
    return nccl_failed(d, "a collective", status, err);
}

/* Returns when the call that gave `status` is done. */
static int settle(struct device *d, const char *what, ncclResult_t status, int least_ms,
                  struct error *err)
{
    int64_t start = clock_now_ns();
    ncclResult_t asked;
    int rc;

    while (status == ncclSuccess || status == ncclInProgress) {
        if ((asked = ncclCommGetAsyncError(d->collectives->comm, &status)) != ncclSuccess)
            status = asked;
        if (status == ncclSuccess)
            return OK;
        if (status == ncclInProgress && (rc = cuda_check_group(d, start, least_ms, err)) != OK)
            return cuda_give_up(d, err);
        sched_yield();
    }
    rc = nccl_failed(d, what, status, err);
    cuda_give_up(d, err);
    return rc;
}

/* Of calls on the device's communicator. */
#define NCCL_TRY(call)                                                                             \
    do {                                                                                           \
        if ((rc = settle(d, #call, (call), 0, err)) != OK)                                         \
            goto out;                                                                              \
    } while (0)

void cuda_leave(struct device *d)
{
    struct collectives *c = d->collectives;
    struct error err = {};

    if (c != NULL && c->comm != NULL && group_check(d->group, &err) != OK)
        cuda_collectives_abort(d); /* the others do not come to an orderly end */
    cuda_recordings_forget(d);
    if (c != NULL && c->comm != NULL &&
        settle(d, "ncclCommFinalize", ncclCommFinalize(c->comm), 0, &err) == OK)
        ncclCommDestroy(c->comm);
    free(c);
    d->collectives = NULL;
    d->group = NULL;
}

int cuda_join(struct device *d, struct group *group, struct error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t status;
    ncclUniqueId id = {};
    int rank, rc = OK;

    cuda_leave(d);
    if (group == NULL)
        return OK;
    rank = group_rank(group);
    if ((d->collectives = (struct collectives *)calloc(1, sizeof(*d->collectives))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the group");
    d->group = group;
    if (rank == 0 && (status = ncclGetUniqueId(&id)) != ncclSuccess) {
        rc = nccl_failed(d, "ncclGetUniqueId", status, err);
        group_abort(group, err->text); /* they wait for it */
        goto out;
    }
    if ((rc = group_share(group, &id, sizeof(id), 0, err)) != OK)
        goto out;
    config.blocking = 0;
    status = ncclCommInitRankConfig(&d->collectives->comm, group_n_ranks(group), id, rank, &config);
    if (d->collectives->comm == NULL) {
        rc = nccl_failed(d, "ncclCommInitRankConfig", status, err);
        group_abort(group, err->text);
        goto out;
    }
    rc = settle(d, "ncclCommInitRankConfig", status, START_MS, err);
out:
    if (rc != OK)
        cuda_leave(d);
    return rc;
}

/* Whether there is somebody to exchange with. */
static int is_joined(const struct device *d, struct error *err)
{
    if (d->collectives == NULL || d->collectives->comm == NULL)
        return error_set(err, ERR_GPU, "cuda: gpu %d: its group is %s", d->gpu,
                         d->collectives == NULL ? "none" : "aborted");
    return OK;
}

int cuda_all_reduce(struct device *d, float *y, size_t n, struct error *err)
{
    int rc;

    if (n == 0 || d->rehearses)
        return OK;
    if ((rc = is_joined(d, err)) != OK)
        return rc;
    NCCL_TRY(ncclAllReduce(y, y, n, ncclFloat32, ncclSum, d->collectives->comm, d->stream));
out:
    return rc;
}

int cuda_all_gather(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    int rc;

    if (bytes == 0 || d->rehearses)
        return OK;
    if ((rc = is_joined(d, err)) != OK)
        return rc;
    NCCL_TRY(ncclAllGather(from, to, bytes, ncclUint8, d->collectives->comm, d->stream));
out:
    return rc;
}

int cuda_broadcast(struct device *d, void *data, size_t bytes, int root, struct error *err)
{
    int rc;

    if (bytes == 0 || d->rehearses)
        return OK;
    if ((rc = is_joined(d, err)) != OK)
        return rc;
    NCCL_TRY(ncclBroadcast(data, data, bytes, ncclUint8, root, d->collectives->comm, d->stream));
out:
    return rc;
}
