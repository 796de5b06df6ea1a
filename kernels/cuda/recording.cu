/* recording.cu - runs of ops as CUDA graphs. The first time a key comes its ops just run: plans are
 * made and timed then, and what comes once costs nothing more. The second time they are captured;
 * from then on one launch runs them all. */
#include <stdlib.h>

#include "kernels/cuda/device.cuh"

enum { MAX_RECORDINGS = 512 }; /* more than that: all are forgotten, and it begins anew */

struct recording {
    uint64_t key;
    cudaGraphExec_t graph; /* NULL: it came once */
};

struct recordings {
    struct recording list[MAX_RECORDINGS];
    int n;
    bool capturing;
};

static void forget(struct recordings *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->list[i].graph != NULL)
            cudaGraphExecDestroy(r->list[i].graph);
    r->n = 0;
}

int cuda_recordings_open(struct device *d, struct error *err)
{
    if ((d->recordings = (struct recordings *)calloc(1, sizeof(*d->recordings))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for recordings");
    return OK;
}

static void drop_capture(struct device *d)
{
    struct recordings *r = d->recordings;
    cudaGraph_t left = NULL;

    if (!r->capturing)
        return;
    r->capturing = false;
    cudaStreamEndCapture(d->stream, &left);
    if (left != NULL)
        cudaGraphDestroy(left);
    cudaGetLastError();
}

void cuda_recordings_forget(struct device *d)
{
    if (d->recordings == NULL)
        return;
    drop_capture(d);
    forget(d->recordings);
}

void cuda_recordings_close(struct device *d)
{
    cuda_recordings_forget(d);
    free(d->recordings);
    d->recordings = NULL;
}

static struct recording *find(struct recordings *r, uint64_t key)
{
    for (int i = 0; i < r->n; i++)
        if (r->list[i].key == key)
            return &r->list[i];
    return NULL;
}

int cuda_record(struct device *d, uint64_t key, bool *known, struct error *err)
{
    struct recordings *r = d->recordings;
    struct recording *found = find(r, key);
    int rc = OK;

    drop_capture(d); /* of a run that failed */
    *known = found != NULL && found->graph != NULL && !d->rehearses;
    if (*known || found == NULL || d->rehearses)
        return OK;
    CUDA_TRY(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    r->capturing = true;
out:
    return rc;
}

int cuda_replay(struct device *d, uint64_t key, struct error *err)
{
    struct recordings *r = d->recordings;
    struct recording *found = find(r, key);
    cudaGraph_t graph = NULL;
    int rc = OK;

    if (d->rehearses)
        return OK;
    if (found == NULL) { /* only now: what failed on its way here has plans to make yet */
        if (r->n == MAX_RECORDINGS)
            forget(r);
        r->list[r->n++] = recording{key, NULL};
        return OK;
    }
    if (r->capturing) {
        r->capturing = false;
        CUDA_TRY(cudaStreamEndCapture(d->stream, &graph));
        CUDA_TRY(cudaGraphInstantiate(&found->graph, graph, 0));
        cuda_note_memory(d);
    }
    CUDA_TRY(cudaGraphLaunch(found->graph, d->stream));
out:
    if (rc == ERR_MEM)
        forget(r); /* they hold memory of the GPU, and can be made again */
    if (graph != NULL)
        cudaGraphDestroy(graph);
    return rc;
}
