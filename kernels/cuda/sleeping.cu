/* sleeping.cu - weights that leave the GPU while there is nothing to do, and come back.
 *
 * A device that is to sleep takes its weights from one range of addresses, reserved when it is
 * opened and as large as the GPU's memory. Memory is put under it piece by piece as weights are
 * taken, one after another: small ones cost their bytes, and the weights of devices that load the
 * same lie alike. To sleep takes the memory away from under the addresses, to wake puts new memory
 * there, so that every pointer and every recorded graph is right again. Single weights are not
 * given back before the device is closed.
 *
 * The copy they come back from is pinned. It is the host's memory first, touched by all threads,
 * and pinned then: the driver's own way to take pinned memory touches it with one.
 *
 * The driver's functions are asked of the runtime, so that no program needs a driver to link. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cuda/device.cuh"

static const size_t PIECE_BYTES = 64 << 20, ALIGNMENT = 256;
static const size_t TOUCH_BYTES = 32 << 20, PAGE_BYTES = 4096; /* of the host's memory */

struct driver {
    decltype(&cuDeviceGetAttribute) get_attribute;
    decltype(&cuGetErrorName) error_name;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) unreserve;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) set_access;
};

struct sleeping {
    struct driver driver;
    CUmemAllocationProp kind; /* of the memory */
    size_t granularity;       /* of pieces */
    CUdeviceptr begin;
    size_t reserved, used; /* addresses: in all; taken by weights */
    size_t *pieces;        /* [n_pieces] bytes of those that follow each other from `begin` on */
    int n_pieces, max_pieces, n_mapped; /* mapped: have memory; all of them, or none: it sleeps */
    size_t mapped;                      /* bytes of these */
    bool loaded;                        /* what is taken now is no weight */
};

struct saved_weights {
    void *data;
    size_t bytes;
    bool pinned;
};

static int driver_failed(const struct device *d, const char *what, CUresult status,
                         struct error *err)
{
    const char *name = NULL;

    if (d->sleeping->driver.error_name(status, &name) != CUDA_SUCCESS)
        name = "an unknown error";
    return error_set(err, status == CUDA_ERROR_OUT_OF_MEMORY ? ERR_MEM : ERR_GPU,
                     "cuda: gpu %d: %s: %s", d->gpu, what, name);
}

#define DRIVER_TRY(call)                                                                           \
    do {                                                                                           \
        CUresult status_ = (call);                                                                 \
        if (status_ != CUDA_SUCCESS) {                                                             \
            rc = driver_failed(d, #call, status_, err);                                            \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* False: this driver has not got all of them. */
static bool find_driver(struct driver *out)
{
    const struct {
        const char *name;
        void **function;
    } wanted[] = {
        {"cuDeviceGetAttribute", (void **)&out->get_attribute},
        {"cuGetErrorName", (void **)&out->error_name},
        {"cuMemGetAllocationGranularity", (void **)&out->granularity},
        {"cuMemAddressReserve", (void **)&out->reserve},
        {"cuMemAddressFree", (void **)&out->unreserve},
        {"cuMemCreate", (void **)&out->create},
        {"cuMemRelease", (void **)&out->release},
        {"cuMemMap", (void **)&out->map},
        {"cuMemUnmap", (void **)&out->unmap},
        {"cuMemSetAccess", (void **)&out->set_access},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion(wanted[i].name, wanted[i].function, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess) {
            cudaGetLastError();
            return false;
        }
    }
    return true;
}

int cuda_sleeping_open(struct device *d, const struct device_options *options, struct error *err)
{
    size_t free_bytes, total;
    struct sleeping *s;
    int serves = 0, rc = OK;

    if (!options->sleeps)
        return OK;
    if ((s = d->sleeping = (struct sleeping *)calloc(1, sizeof(*s))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the device");
    if (find_driver(&s->driver))
        DRIVER_TRY(s->driver.get_attribute(
            &serves, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, d->gpu));
    if (!serves)
        return error_set(err, ERR_INPUT,
                         "cuda: gpu %d cannot sleep: it, or its driver, has no virtual memory "
                         "management",
                         d->gpu);
    s->kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    s->kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    s->kind.location.id = d->gpu;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
    DRIVER_TRY(
        s->driver.granularity(&s->granularity, &s->kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    s->max_pieces = (int)(total / PIECE_BYTES) + 1;
    if ((s->pieces = (size_t *)calloc((size_t)s->max_pieces, sizeof(*s->pieces))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for the device");
    total = (total + s->granularity - 1) / s->granularity * s->granularity;
    DRIVER_TRY(s->driver.reserve(&s->begin, total, 0, 0, 0));
    s->reserved = total;
out:
    return rc; /* cuda_sleeping_close() frees what there is */
}

/* Takes the memory away from under all pieces; the first failure counts. */
static int unmap_all(struct device *d, struct error *err)
{
    struct sleeping *s = d->sleeping;
    int rc = OK;

    while (s->n_mapped > 0) {
        size_t bytes = s->pieces[--s->n_mapped];
        CUresult status;
        s->mapped -= bytes;
        status = s->driver.unmap(s->begin + s->mapped, bytes);
        if (status != CUDA_SUCCESS && rc == OK)
            rc = driver_failed(d, "cuMemUnmap", status, err);
    }
    return rc;
}

void cuda_sleeping_close(struct device *d)
{
    struct sleeping *s = d->sleeping;

    if (s == NULL)
        return;
    if (s->n_mapped > 0)
        cudaStreamSynchronize(d->stream); /* nothing may run there yet */
    unmap_all(d, NULL);
    if (s->reserved > 0)
        s->driver.unreserve(s->begin, s->reserved);
    free(s->pieces);
    free(s);
    d->sleeping = NULL;
}

/* Memory under the next piece. */
static int map_next(struct device *d, struct error *err)
{
    struct sleeping *s = d->sleeping;
    size_t bytes = s->pieces[s->n_mapped];
    CUmemGenericAllocationHandle memory;
    CUmemAccessDesc access = {};
    CUresult status;
    int rc = OK;

    access.location = s->kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER_TRY(s->driver.create(&memory, bytes, &s->kind, 0));
    status = s->driver.map(s->begin + s->mapped, bytes, 0, memory, 0);
    s->driver.release(memory); /* it stays as long as it is mapped */
    if (status != CUDA_SUCCESS)
        return driver_failed(d, "cuMemMap", status, err);
    status = s->driver.set_access(s->begin + s->mapped, bytes, &access, 1);
    if (status != CUDA_SUCCESS) {
        s->driver.unmap(s->begin + s->mapped, bytes);
        return driver_failed(d, "cuMemSetAccess", status, err);
    }
    s->mapped += bytes;
    s->n_mapped++;
out:
    return rc;
}

int cuda_weights_alloc(struct device *d, void **out, size_t bytes, struct error *err)
{
    struct sleeping *s = d->sleeping;
    size_t end;
    int rc;

    *out = NULL;
    if (s == NULL || s->loaded)
        return cuda_alloc(d, out, bytes, err);
    bytes = (bytes > 0 ? bytes + ALIGNMENT - 1 : ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    if (bytes > s->reserved - s->used)
        return error_set(err, ERR_MEM, "cuda: gpu %d: memory of %zu bytes: it has %zu in all",
                         d->gpu, bytes, s->reserved);
    end = s->used + bytes;
    if (end > s->mapped) {
        size_t piece = end - s->mapped > PIECE_BYTES ? end - s->mapped : PIECE_BYTES;
        piece = (piece + s->granularity - 1) / s->granularity * s->granularity;
        if (piece > s->reserved - s->mapped) /* the last one */
            piece = s->reserved - s->mapped;
        s->pieces[s->n_pieces] = piece;
        if ((rc = map_next(d, err)) != OK)
            return rc;
        s->n_pieces++;
        cuda_note_memory(d);
    }
    *out = (void *)(s->begin + s->used);
    s->used = end;
    return OK;
}

void cuda_weights_free(struct device *d, void *memory)
{
    const struct sleeping *s = d->sleeping;
    CUdeviceptr at = (CUdeviceptr)memory;

    if (s == NULL || at < s->begin || at >= s->begin + s->reserved)
        cudaFree(memory);
}

void cuda_weights_end(struct device *d)
{
    if (d->sleeping != NULL)
        d->sleeping->loaded = true;
}

static int check_sleeps(const struct device *d, struct error *err)
{
    if (d->sleeping != NULL && d->sleeping->loaded)
        return OK;
    return error_set(err, ERR_INPUT, "cuda: gpu %d was not opened to sleep, or is loading", d->gpu);
}

struct touch_args {
    char *data;
    size_t bytes;
};

static void touch(void *arg, int index, int thread)
{
    const struct touch_args *a = (const struct touch_args *)arg;
    size_t from = (size_t)index * TOUCH_BYTES;
    size_t to = a->bytes - from > TOUCH_BYTES ? from + TOUCH_BYTES : a->bytes;

    (void)thread;
    for (size_t i = from; i < to; i += PAGE_BYTES)
        ((volatile char *)a->data)[i] = 0;
}

static int take_pinned(struct device *d, struct saved_weights *w, size_t bytes, struct error *err)
{
    struct touch_args args;
    int rc = OK;
    void *data;

    data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return error_set(err, ERR_MEM, "cuda: no memory of the host's for %.1f GB of weights",
                         (double)bytes / 1e9);
    w->data = data;
    w->bytes = bytes;
    madvise(data, bytes, MADV_HUGEPAGE); /* faster where it can be had */
    args = touch_args{(char *)data, bytes};
    pool_run(d->pool, touch, &args, (int)((bytes + TOUCH_BYTES - 1) / TOUCH_BYTES));
    CUDA_TRY(cudaHostRegister(data, bytes, cudaHostRegisterPortable)); /* for all GPUs */
    w->pinned = true;
out:
    return rc;
}

/* All weights between the GPU and the host, as fast as the bus allows. */
static int copy_all(struct device *d, char *host, bool to_host, struct error *err)
{
    const struct sleeping *s = d->sleeping;
    size_t at = 0;
    int rc = OK;

    for (int i = 0; i < s->n_pieces; at += s->pieces[i++]) {
        size_t bytes = s->used - at < s->pieces[i] ? s->used - at : s->pieces[i];
        char *gpu = (char *)(s->begin + at);
        CUDA_TRY(cudaMemcpyAsync(to_host ? host + at : gpu, to_host ? gpu : host + at, bytes,
                                 to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                                 d->stream));
    }
    rc = cuda_wait_stream(d, d->stream, err);
out:
    return rc;
}

int cuda_save(struct device *d, struct saved_weights **out, struct error *err)
{
    struct saved_weights *w;
    int rc;

    *out = NULL;
    if ((rc = check_sleeps(d, err)) != OK)
        return rc;
    if ((w = (struct saved_weights *)calloc(1, sizeof(*w))) == NULL)
        return error_set(err, ERR_MEM, "cuda: no memory for a copy of the weights");
    if ((rc = take_pinned(d, w, d->sleeping->used, err)) != OK ||
        (rc = copy_all(d, (char *)w->data, true, err)) != OK)
        goto out;
    *out = w;
    w = NULL;
out:
    cuda_saved_free(w);
    return rc;
}

void cuda_saved_free(struct saved_weights *w)
{
    if (w == NULL)
        return;
    if (w->pinned)
        cudaHostUnregister(w->data);
    if (w->data != NULL)
        munmap(w->data, w->bytes);
    free(w);
}

size_t cuda_saved_bytes(const struct saved_weights *w)
{
    return w->bytes;
}

int cuda_sleep(struct device *d, struct error *err)
{
    int rc;

    if ((rc = check_sleeps(d, err)) != OK || (rc = cuda_wait_stream(d, d->stream, err)) != OK)
        return rc;
    return unmap_all(d, err);
}

int cuda_wake(struct device *d, const struct saved_weights *from, struct error *err)
{
    struct sleeping *s = d->sleeping;
    int rc;

    if ((rc = check_sleeps(d, err)) != OK)
        return rc;
    if (from->bytes != s->used)
        return error_set(err, ERR_INPUT, "cuda: gpu %d: its weights are %zu bytes, the copy %zu",
                         d->gpu, s->used, from->bytes);
    while (s->n_mapped < s->n_pieces)
        if ((rc = map_next(d, err)) != OK)
            goto out;
    cuda_note_memory(d);
    return copy_all(d, (char *)from->data, false, err);
out:
    unmap_all(d, NULL); /* asleep as before, for another try */
    return rc;
}
