/* download.cu - from a GPU's memory into the host's, whose pages may move: through two pinned
 * buffers, one on its way from the GPU while the other is copied on. Several times as fast as the
 * driver's own way to such memory. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.cuh"

static const size_t SMALL = 1 << 14, PART = 2 << 20; /* bytes */

struct downloads {
    char *pinned[2]; /* PART each */
    cudaEvent_t there[2];
    cudaStream_t beside; /* what leaves while the device's stream computes */
    cudaEvent_t marks[OPS_MARKS];
};

void cuda_downloads_close(struct device *d)
{
    if (d->downloads == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(d->downloads->pinned[i]);
        if (d->downloads->there[i] != NULL)
            cudaEventDestroy(d->downloads->there[i]);
    }
    for (int i = 0; i < OPS_MARKS; i++)
        if (d->downloads->marks[i] != NULL)
            cudaEventDestroy(d->downloads->marks[i]);
    if (d->downloads->beside != NULL)
        cudaStreamDestroy(d->downloads->beside);
    free(d->downloads);
}

int cuda_downloads_open(struct device *d, struct error *err)
{
    int rc = OK;

    if ((d->downloads = (struct downloads *)calloc(1, sizeof(*d->downloads))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the device");
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaMallocHost((void **)&d->downloads->pinned[i], PART));
        CUDA_TRY(cudaEventCreateWithFlags(&d->downloads->there[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < OPS_MARKS; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&d->downloads->marks[i], cudaEventDisableTiming));
    CUDA_TRY(cudaStreamCreateWithFlags(&d->downloads->beside, cudaStreamNonBlocking));
out:
    return rc;
}

static int download_on(struct device *d, cudaStream_t stream, void *to, const void *from,
                       size_t bytes, struct error *err)
{
    struct downloads *s = d->downloads;
    size_t sent = 0;
    int rc = OK;

    /* in a group the driver must not wait itself, which has no end */
    if (bytes == 0 || (bytes <= SMALL && d->group == NULL)) {
        CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
        return cuda_wait_stream(d, stream, err);
    }
    for (size_t done = 0; done < bytes; done += PART) {
        size_t part = done / PART % 2, n = bytes - done < PART ? bytes - done : PART;
        while (sent < bytes && sent < done + 2 * PART) {
            size_t next = sent / PART % 2, m = bytes - sent < PART ? bytes - sent : PART;
            CUDA_TRY(cudaMemcpyAsync(s->pinned[next], (const char *)from + sent, m,
                                     cudaMemcpyDeviceToHost, stream));
            CUDA_TRY(cudaEventRecord(s->there[next], stream));
            sent += m;
        }
        if ((rc = cuda_wait(d, s->there[part], err)) != OK)
            goto out;
        memcpy((char *)to + done, s->pinned[part], n);
    }
out:
    return rc;
}

int cuda_download(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    return download_on(d, d->stream, to, from, bytes, err);
}

int cuda_mark(struct device *d, int mark, struct error *err)
{
    int rc = OK;

    CUDA_TRY(cudaEventRecord(d->downloads->marks[mark], d->stream));
out:
    return rc;
}

int cuda_download_marked(struct device *d, int mark, void *to, const void *from, size_t bytes,
                         struct error *err)
{
    struct downloads *s = d->downloads;
    int rc = OK;

    CUDA_TRY(cudaStreamWaitEvent(s->beside, s->marks[mark], 0));
    return download_on(d, s->beside, to, from, bytes, err);
out:
    return rc;
}
