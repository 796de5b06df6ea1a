/* loading.cu - weights on their way to the GPU. All threads of the device fill a piece of pinned
 * memory while the pieces before it are copied, on a stream of their own: reading the file (it is
 * mapped: to touch it is to read it), converting and the bus work at the same time, from one matrix
 * to the next. What has the wanted type already is copied as it is.
 *
 * Not taken: converting on the GPU. It would need a second set of decoders that round as the
 * host's do, and the host's threads are faster than any disk. */
#include <stdlib.h>

#include "kernels/cuda/device.cuh"

enum { PIECES = 4, PIECE_BYTES = 16 << 20, TASK_BYTES = 512 << 10 };

struct piece {
    void *memory;        /* pinned, PIECE_BYTES */
    cudaEvent_t emptied; /* it has been copied */
};

struct loading {
    cudaStream_t stream;
    cudaEvent_t copied; /* all pieces so far */
    struct piece pieces[PIECES];
    int next;
    float *rows; /* [threads of the pool, row_numbers]: rows on their way from type to type */
    size_t row_numbers;
};

int cuda_loading_end(struct device *d, struct error *err)
{
    struct loading *l = d->loading;
    int rc = OK;

    cuda_weights_end(d);
    if (l == NULL)
        return OK;
    d->loading = NULL;
    if (l->stream != NULL)
        CUDA_TRY(cudaStreamSynchronize(l->stream));
out:
    for (int i = 0; i < PIECES; i++) {
        if (l->pieces[i].emptied != NULL)
            cudaEventDestroy(l->pieces[i].emptied);
        cudaFreeHost(l->pieces[i].memory);
    }
    if (l->copied != NULL)
        cudaEventDestroy(l->copied);
    if (l->stream != NULL)
        cudaStreamDestroy(l->stream);
    free(l->rows);
    free(l);
    return rc;
}

static int begin(struct device *d, struct error *err)
{
    struct loading *l;
    int rc = OK;

    if (d->loading != NULL)
        return OK;
    if ((l = d->loading = (struct loading *)calloc(1, sizeof(*l))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory to load weights");
    CUDA_TRY(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&l->copied, cudaEventDisableTiming));
    for (int i = 0; i < PIECES; i++) {
        CUDA_TRY(cudaEventCreateWithFlags(&l->pieces[i].emptied, cudaEventDisableTiming));
        CUDA_TRY(cudaMallocHost(&l->pieces[i].memory, PIECE_BYTES));
    }
out:
    if (rc != OK)
        cuda_loading_end(d, NULL);
    return rc;
}

/* Room for a row in each thread. */
static int take_rows(struct device *d, int K, struct error *err)
{
    struct loading *l = d->loading;
    size_t n_threads = (size_t)pool_n_threads(d->pool);

    if ((size_t)K <= l->row_numbers)
        return OK;
    free(l->rows);
    l->row_numbers = 0;
    if ((l->rows = (float *)malloc(n_threads * K * sizeof(float))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory to load rows of %d numbers", K);
    l->row_numbers = (size_t)K;
    return OK;
}

struct fill_args {
    void *to;
    enum dtype type;
    float *rows;
    size_t row_numbers;
    const struct matrix_part *parts;
    int n_parts, K;
    int row, n_rows, step; /* of the piece; of a task */
};

static void fill(void *arg, int index, int thread)
{
    const struct fill_args *a = (const struct fill_args *)arg;
    int from = index * a->step, n = a->n_rows - from < a->step ? a->n_rows - from : a->step;

    matrix_parts_convert((char *)a->to + (size_t)from * a->K * dtype_info(a->type)->bytes, a->type,
                         a->rows + thread * a->row_numbers, a->parts, a->n_parts, a->K,
                         a->row + from, n);
}

int cuda_load_rows(struct device *d, void *to, enum dtype type, const struct matrix_part *parts,
                   int n_parts, int K, int N, struct error *err)
{
    size_t row_bytes = (size_t)K * dtype_info(type)->bytes;
    int n = (int)(PIECE_BYTES / row_bytes), step = (int)(TASK_BYTES / row_bytes), rc;
    struct loading *l;

    if (n < 1)
        return error_set(err, ERR_SIZE, "cuda: rows of %d numbers are too long to load", K);
    if ((rc = begin(d, err)) != OK || (rc = take_rows(d, K, err)) != OK)
        return rc;
    l = d->loading;
    for (int row = 0; row < N; row += n) {
        struct piece *piece = &l->pieces[l->next];
        struct fill_args args = {piece->memory,
                                 type,
                                 l->rows,
                                 l->row_numbers,
                                 parts,
                                 n_parts,
                                 K,
                                 row,
                                 N - row < n ? N - row : n,
                                 step > 0 ? step : 1};
        l->next = (l->next + 1) % PIECES;
        CUDA_TRY(cudaEventSynchronize(piece->emptied));
        pool_run(d->pool, fill, &args, (args.n_rows + args.step - 1) / args.step);
        CUDA_TRY(cudaMemcpyAsync((char *)to + row * row_bytes, piece->memory,
                                 args.n_rows * row_bytes, cudaMemcpyHostToDevice, l->stream));
        CUDA_TRY(cudaEventRecord(piece->emptied, l->stream));
    }
    /* what comes next on the device's stream finds all of it there */
    CUDA_TRY(cudaEventRecord(l->copied, l->stream));
    CUDA_TRY(cudaStreamWaitEvent(d->stream, l->copied, 0));
out:
    return rc;
}
