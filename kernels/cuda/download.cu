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
out:
    return rc;
}

int cuda_download(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    struct downloads *s = d->downloads;
    size_t sent = 0;
    int rc = OK;

    if (bytes <= SMALL) {
        CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream));
        CUDA_TRY(cudaStreamSynchronize(d->stream));
        return OK;
    }
    for (size_t done = 0; done < bytes; done += PART) {
        size_t part = done / PART % 2, n = bytes - done < PART ? bytes - done : PART;
        while (sent < bytes && sent < done + 2 * PART) {
            size_t next = sent / PART % 2, m = bytes - sent < PART ? bytes - sent : PART;
            CUDA_TRY(cudaMemcpyAsync(s->pinned[next], (const char *)from + sent, m,
                                     cudaMemcpyDeviceToHost, d->stream));
            CUDA_TRY(cudaEventRecord(s->there[next], d->stream));
            sent += m;
        }
        CUDA_TRY(cudaEventSynchronize(s->there[part]));
        memcpy((char *)to + done, s->pinned[part], n);
    }
out:
    return rc;
}
