/* waiting.cu - waits for what is on a GPU's streams. Outside a group the driver waits. In a group
 * other ranks have a part in it, so it may never come: the event is asked again and again, and now
 * and then whether the group is well. For as long as nearly every pass takes there is no pause in
 * between, as the driver makes none either; then short ones. */
#include <time.h>

#include "kernels/cuda/device.cuh"

extern "C" {
#include "base/clock.h"
}

static const int64_t CHECK_NS = 500 * 1000, EAGER_NS = 50 * 1000 * 1000, PAUSE_NS = 30 * 1000;

int cuda_give_up(struct device *d, struct error *err)
{
    group_abort(d->group, err != NULL ? err->text : "its GPU");
    cuda_collectives_abort(d);
    return ERR_GPU;
}

int cuda_check_group(struct device *d, int64_t since_ns, int least_ms, struct error *err)
{
    int deadline_ms = group_deadline_ms(d->group), rc;

    if ((rc = group_check(d->group, err)) != OK || (rc = cuda_collectives_check(d, err)) != OK)
        return rc;
    if (deadline_ms < least_ms)
        deadline_ms = least_ms;
    if (clock_ms_since(since_ns) > deadline_ms)
        return error_set(err, ERR_GPU, "cuda: gpu %d: rank %d waited longer than %d ms", d->gpu,
                         group_rank(d->group), deadline_ms);
    return OK;
}

int cuda_wait(struct device *d, cudaEvent_t event, struct error *err)
{
    int64_t start = clock_now_ns(), checked = start - CHECK_NS;
    cudaError_t status;
    int rc = OK;

    if (d->group == NULL) {
        CUDA_TRY(cudaEventSynchronize(event));
        return OK;
    }
    for (;;) {
        int64_t now = clock_now_ns();
        if (now - checked >= CHECK_NS) {
            if ((rc = cuda_check_group(d, start, 0, err)) != OK)
                goto out;
            checked = now;
        }
        if ((status = cudaEventQuery(event)) != cudaErrorNotReady)
            break;
        if (now - start > EAGER_NS) {
            struct timespec pause = {0, PAUSE_NS};
            nanosleep(&pause, NULL);
        }
    }
    cudaGetLastError(); /* "not ready" is none, and the next launch must not find it */
    CUDA_TRY(status);
    return OK;
out:
    return d->group != NULL ? cuda_give_up(d, err) : rc;
}

int cuda_wait_stream(struct device *d, cudaStream_t stream, struct error *err)
{
    int rc = OK;

    if (d->group == NULL) {
        CUDA_TRY(cudaStreamSynchronize(stream));
        return OK;
    }
    CUDA_TRY(cudaEventRecord(d->waited, stream));
    rc = cuda_wait(d, d->waited, err);
out:
    return rc;
}
