/* device.cu - one GPU as a device: its stream, its memory, its table of ops. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/hopper.cuh"

extern "C" {
#include "kernels/gpu_check.h"
}

static void cuda_close(struct device *d)
{
    if (d == NULL)
        return;
    cudaSetDevice(d->gpu);
    cuda_leave(d);
    cuda_downloads_close(d);
    cuda_loading_end(d, NULL);
    cuda_recordings_close(d);
    cuda_matmul_close(d);
    float8_close(d);
    pool_stop(d->pool);
    hopper_close(d);
    cuda_sleeping_close(d);
    if (d->waited != NULL)
        cudaEventDestroy(d->waited);
    if (d->stream != NULL)
        cudaStreamDestroy(d->stream);
    free(d);
}

/* Hopper can start a kernel before the one before it has ended. */
static int check_gpu(bool *starts_early, int gpu, struct error *err)
{
    struct gpu_runtime r = {};
    cudaDeviceProp properties;
    cudaError_t status;
    int rc;

    status = cudaGetDeviceCount(&r.n_gpus);
    if (status != cudaSuccess)
        r.n_gpus = 0;
    if (status != cudaSuccess && status != cudaErrorNoDevice)
        r.failure = cudaGetErrorString(status);
    if (cudaDriverGetVersion(&r.driver) != cudaSuccess)
        r.driver = 0;
    cudaRuntimeGetVersion(&r.runtime);
    r.visible = getenv("CUDA_VISIBLE_DEVICES");
    if ((rc = gpu_check_runtime(&r, gpu, err)) != OK)
        return rc;
    if ((status = cudaGetDeviceProperties(&properties, gpu)) != cudaSuccess)
        return error_set(err, ERR_GPU, "cuda: gpu %d: cudaGetDeviceProperties: %s", gpu,
                         cudaGetErrorString(status));
    *starts_early = properties.major >= 9;
    return gpu_check_capability(gpu, properties.name, properties.major, properties.minor, err);
}

static void cuda_rehearse(struct device *d, bool on)
{
    d->rehearses = on;
}

/* None is no error here: opening one says best what is wrong. */
static int cuda_n_devices(int *n, struct error *err)
{
    (void)err;
    if (cudaGetDeviceCount(n) != cudaSuccess || *n < 1) {
        cudaGetLastError();
        *n = 1;
    }
    return OK;
}

static int cuda_open(struct device **out, const struct device_options *options, struct error *err)
{
    struct device *d;
    bool starts_early;
    int rc;

    *out = NULL;
    if ((rc = check_gpu(&starts_early, options->gpu, err)) != OK)
        return rc;
    if (options->act != DTYPE_F32 && options->act != DTYPE_BF16)
        return error_set(err, ERR_INPUT, "cuda: cannot compute in %s, only in F32 and BF16",
                         dtype_info(options->act)->name);
    if ((d = (struct device *)calloc(1, sizeof(*d))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the device");
    d->act = options->act;
    d->gpu = options->gpu;
    d->starts_early = starts_early;
    CUDA_TRY(cudaSetDevice(d->gpu));
    CUDA_TRY(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&d->waited, cudaEventDisableTiming));
    d->least_free = SIZE_MAX;
    if ((rc = pool_start(&d->pool, options->n_threads > 0 ? options->n_threads : 1, err)) != OK ||
        (rc = hopper_open(d, err)) != OK || (rc = float8_open(d, options, err)) != OK ||
        (rc = cuda_downloads_open(d, err)) != OK || (rc = cuda_recordings_open(d, err)) != OK ||
        (rc = cuda_matmul_open(d, err)) != OK || (rc = cuda_sleeping_open(d, options, err)) != OK)
        goto out;
    cuda_note_memory(d);
    *out = d;
    d = NULL;
out:
    cuda_close(d);
    return rc;
}

static int cuda_bind(struct device *d, struct error *err)
{
    int rc = OK;

    CUDA_TRY(cudaSetDevice(d->gpu));
out:
    return rc;
}

void cuda_note_memory(struct device *d)
{
    size_t free_bytes, total;

    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes < d->least_free)
        d->least_free = free_bytes;
}

static int cuda_memory(struct device *d, struct device_memory *out, struct error *err)
{
    int rc = OK;

    *out = (struct device_memory){};
    CUDA_TRY(cudaMemGetInfo(&out->free, &out->total));
    if (out->free < d->least_free)
        d->least_free = out->free;
    out->peak = out->total - d->least_free;
out:
    return rc;
}

int cuda_alloc(struct device *d, void **out, size_t bytes, struct error *err)
{
    void *memory = NULL;
    cudaError_t status = cudaMalloc(&memory, bytes > 0 ? bytes : 1);
    char what[64];

    *out = NULL;
    if (status != cudaSuccess) {
        snprintf(what, sizeof(what), "memory of %zu bytes", bytes);
        return cuda_failed(d, what, status, err);
    }
    *out = memory;
    cuda_note_memory(d);
    return OK;
}

static void cuda_release(struct device *d, void *memory)
{
    /* cudaFree waits for what is on the stream, and that without an end */
    if (d->group != NULL && memory != NULL)
        cuda_wait_stream(d, d->stream, NULL);
    cuda_weights_free(d, memory);
}

static int cuda_upload(struct device *d, void *to, const void *from, size_t bytes,
                       struct error *err)
{
    int rc = OK;

    /* for more than 64 KiB the driver may wait for the stream, and that without an end */
    if (d->group != NULL && bytes > 65536 && (rc = cuda_wait_stream(d, d->stream, err)) != OK)
        return rc;
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream));
out:
    return rc;
}

static int cuda_sync(struct device *d, struct error *err)
{
    return cuda_wait_stream(d, d->stream, err);
}

static int cuda_clear(struct device *d, void *memory, size_t bytes, struct error *err)
{
    int rc = OK;

    CUDA_TRY(cudaMemsetAsync(memory, 0, bytes, d->stream));
out:
    return rc;
}

static int cuda_copy_rows(struct device *d, void *y, size_t y_stride, const void *x,
                          size_t x_stride, size_t bytes, int n_rows, struct error *err)
{
    int rc = OK;

    if (n_rows == 0 || bytes == 0)
        return OK;
    CUDA_TRY(cudaMemcpy2DAsync(y, y_stride, x, x_stride, bytes, (size_t)n_rows,
                               cudaMemcpyDeviceToDevice, d->stream));
out:
    return rc;
}

static void cuda_host_run(struct device *d, void (*task)(void *arg, int index, int thread),
                          void *arg, int n_tasks)
{
    pool_run(d->pool, task, arg, n_tasks);
}

extern "C" const struct ops *ops_cuda(void)
{
    static const struct ops cuda = {
        .name = "cuda",
        .is_host = false,
        .mid_is_act = true,
        .n_devices = cuda_n_devices,
        .open = cuda_open,
        .close = cuda_close,
        .bind = cuda_bind,
        .alloc = cuda_weights_alloc,
        .release = cuda_release,
        .upload = cuda_upload,
        .download = cuda_download,
        .sync = cuda_sync,
        .mark = cuda_mark,
        .download_marked = cuda_download_marked,
        .memory = cuda_memory,
        .clear = cuda_clear,
        .copy_rows = cuda_copy_rows,
        .join = cuda_join,
        .all_reduce = cuda_all_reduce,
        .all_gather = cuda_all_gather,
        .broadcast = cuda_broadcast,
        .rehearse = cuda_rehearse,
        .host_run = cuda_host_run,
        .record = cuda_record,
        .replay = cuda_replay,
        .matrix_load = cuda_matrix_load,
        .matrix_random = cuda_matrix_random,
        .matrix_free = cuda_matrix_free,
        .matrix_bytes = cuda_matrix_bytes,
        .table_load = cuda_table_load,
        .table_free = cuda_table_free,
        .table_bytes = cuda_table_bytes,
        .loading_end = cuda_loading_end,
        .save = cuda_save,
        .saved_bytes = cuda_saved_bytes,
        .saved_free = cuda_saved_free,
        .sleep = cuda_sleep,
        .wake = cuda_wake,
        .matrix_view = cuda_matrix_view,
        .plan_size = cuda_plan_size,
        .measure = cuda_measure,
        .embed = cuda_embed,
        .rmsnorm = cuda_rmsnorm,
        .add_rmsnorm = cuda_add_rmsnorm,
        .add_rmsnorm_rmsnorm = cuda_add_rmsnorm_rmsnorm,
        .matmul = cuda_matmul,
        .matmul_gelu = cuda_matmul_gelu,
        .matmul_geglu = cuda_matmul_geglu,
        .linear = cuda_linear,
        .qk_norm_rope = cuda_qk_norm_rope,
        .attention = cuda_attention,
        .geglu = cuda_geglu,
        .gelu = cuda_gelu,
        .range_norm = cuda_range_norm,
        .scale_columns = cuda_scale_columns,
        .fill_rows = cuda_fill_rows,
        .wide_qk_norm_rope = cuda_wide_qk_norm_rope,
        .full_attention = cuda_full_attention,
        .encode = cuda_encode,
    };

    return &cuda;
}
