/* device.c - the CPU as a device: threads, memory, and the choice of the fastest ops.
 *
 * Device memory is host memory, so upload and download copy. Work is done when a call returns. */
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES */
#include "kernels/cpu/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/size.h"

enum { ALIGNMENT = 64 };

int cpu_open(struct device **out, const struct device_options *options, struct error *err)
{
    struct device *d;
    int rc;

    *out = NULL;
    if (options->act != DTYPE_F32 && options->act != DTYPE_BF16)
        return error_set(err, ERR_INPUT, "cpu: cannot compute in %s, only in F32 and BF16",
                         dtype_info(options->act)->name);
    if ((d = calloc(1, sizeof(*d))) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for the device");
    d->act = options->act;
    d->float8 = options->float8;
    d->max_rows = options->max_rows;
    if (d->float8 &&
        (d->row_scales = calloc((size_t)d->max_rows, sizeof(*d->row_scales))) == NULL) {
        rc = error_set(err, ERR_MEM, "cpu: no memory for the scales of %d rows", d->max_rows);
        goto out;
    }
    if ((options->like != NULL &&
         (rc = cpu_float8_widen(d, options->like->rounded_width, err)) != OK) ||
        (rc = pool_start(&d->pool, options->n_threads, err)) != OK)
        goto out;
    *out = d;
    d = NULL;
out:
    cpu_close(d);
    return rc;
}

void cpu_close(struct device *d)
{
    if (d == NULL)
        return;
    pool_stop(d->pool);
    free(d->rounded);
    free(d->row_scales);
    free(d);
}

int cpu_bind(struct device *d, struct error *err)
{
    (void)d;
    (void)err;
    return OK;
}

int cpu_alloc(struct device *d, void **out, size_t bytes, struct error *err)
{
    size_t rounded;

    (void)d;
    *out = NULL;
    if (!size_add(&rounded, bytes, 2 * ALIGNMENT - 1) ||
        (*out = aligned_alloc(ALIGNMENT, rounded / ALIGNMENT * ALIGNMENT)) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for %zu bytes", bytes);
    return OK;
}

void cpu_release(struct device *d, void *memory)
{
    (void)d;
    free(memory);
}

int cpu_upload(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    (void)d;
    (void)err;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return OK;
}

int cpu_sync(struct device *d, struct error *err)
{
    return d->group != NULL ? group_check(d->group, err) : OK;
}

int cpu_download(struct device *d, void *to, const void *from, size_t bytes, struct error *err)
{
    int rc = cpu_sync(d, err);

    return rc != OK ? rc : cpu_upload(d, to, from, bytes, err);
}

int cpu_clear(struct device *d, void *memory, size_t bytes, struct error *err)
{
    (void)d;
    (void)err;
    if (bytes > 0)
        memset(memory, 0, bytes);
    return OK;
}

int cpu_copy_rows(struct device *d, void *y, size_t y_stride, const void *x, size_t x_stride,
                  size_t bytes, int n_rows, struct error *err)
{
    (void)d;
    (void)err;
    for (size_t i = 0; bytes > 0 && i < (size_t)n_rows; i++)
        memcpy((char *)y + i * y_stride, (const char *)x + i * x_stride, bytes);
    return OK;
}

int cpu_memory(struct device *d, struct device_memory *out, struct error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct rusage usage;

    (void)d;
    *out = (struct device_memory){0};
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return error_set(err, ERR_IO, "cpu: cannot tell what memory is used");
    out->total = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    out->free = (size_t)sysconf(_SC_AVPHYS_PAGES) * page;
    out->peak = (size_t)usage.ru_maxrss * 1024;
    return OK;
}

void cpu_host_run(struct device *d, void (*task)(void *arg, int index, int thread), void *arg,
                  int n_tasks)
{
    pool_run(d->pool, task, arg, n_tasks);
}

const struct ops *ops_loops(void)
{
    static const struct ops loops = {
        .name = "loops",
        .is_host = true,
        .open = cpu_open,
        .close = cpu_close,
        .bind = cpu_bind,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .upload = cpu_upload,
        .download = cpu_download,
        .sync = cpu_sync,
        .memory = cpu_memory,
        .clear = cpu_clear,
        .copy_rows = cpu_copy_rows,
        .join = cpu_join,
        .all_reduce = cpu_all_reduce,
        .all_gather = cpu_all_gather,
        .broadcast = cpu_broadcast,
        .host_run = cpu_host_run,
        .matrix_load = loops_matrix_load,
        .matrix_free = cpu_matrix_free,
        .matrix_bytes = cpu_matrix_bytes,
        .matrix_view = cpu_matrix_view,
        .table_load = cpu_table_load,
        .table_free = cpu_table_free,
        .table_bytes = cpu_table_bytes,
        .embed = cpu_embed,
        .rmsnorm = loops_rmsnorm,
        .add_rmsnorm = loops_add_rmsnorm,
        .matmul = loops_matmul,
        .linear = loops_linear,
        .qk_norm_rope = loops_qk_norm_rope,
        .attention = loops_attention,
        .geglu = loops_geglu,
        .gelu = loops_gelu,
        .range_norm = loops_range_norm,
        .scale_columns = loops_scale_columns,
        .fill_rows = cpu_fill_rows,
        .wide_qk_norm_rope = loops_wide_qk_norm_rope,
        .full_attention = loops_full_attention,
        .encode = cpu_encode,
    };

    return &loops;
}
