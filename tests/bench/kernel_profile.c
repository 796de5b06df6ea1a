/* kernel_profile.c - which kernels a program's recorded passes spend their time in.
 *
 *     CUDA_INJECTION64_PATH=build/cuda/tests/libkernel_profile.so prompt-encoder bench ...
 *
 * A library that CUDA loads into the program. It counts the kernels of graphs alone: what a pass
 * launches while its products are timed is no part of it. At the end it prints, most time first, a
 * kernel's launches, its mean time and its share. Kernels that run side by side count in full. */
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 512, NAME_SIZE = 120, BUFFER_BYTES = 8 << 20 };

struct kernel {
    char name[NAME_SIZE];
    uint64_t n, ns;
};

static struct kernel kernels[MAX_NAMES];
static int n_kernels;
static uint64_t n_lost;

static void must(CUptiResult result, const char *what)
{
    const char *text = "?";

    if (result == CUPTI_SUCCESS)
        return;
    cuptiGetResultString(result, &text);
    fprintf(stderr, "kernel_profile: %s: %s\n", what, text);
    exit(EXIT_FAILURE);
}

static void count(const char *name, uint64_t ns)
{
    int i = 0;

    while (i < n_kernels && strncmp(kernels[i].name, name, NAME_SIZE - 1) != 0)
        i++;
    if (i == MAX_NAMES) {
        n_lost++;
        return;
    }
    if (i == n_kernels) {
        snprintf(kernels[i].name, NAME_SIZE, "%s", name);
        n_kernels++;
    }
    kernels[i].n++;
    kernels[i].ns += ns;
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *bytes = *buffer != NULL ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;

    (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *kernel = (const CUpti_ActivityKernel10 *)record;
            if (kernel->graphId != 0)
                count(kernel->name, kernel->end - kernel->start);
        }
    must(cuptiActivityGetNumDroppedRecords(context, stream, &dropped), "dropped records");
    n_lost += dropped;
    free(buffer);
}

static int by_time(const void *a, const void *b)
{
    const struct kernel *x = a, *y = b;

    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void report(void)
{
    uint64_t total = 0;

    must(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
    qsort(kernels, (size_t)n_kernels, sizeof(kernels[0]), by_time);
    for (int i = 0; i < n_kernels; i++)
        total += kernels[i].ns;
    printf("%9s %9s %7s  kernel (%.3f ms in all, %llu lost)\n", "launches", "mean us", "share",
           (double)total / 1e6, (unsigned long long)n_lost);
    for (int i = 0; i < n_kernels; i++)
        printf("%9llu %9.2f %6.1f%%  %s\n", (unsigned long long)kernels[i].n,
               (double)kernels[i].ns / 1e3 / (double)kernels[i].n,
               100.0 * (double)kernels[i].ns / (double)total, kernels[i].name);
}

/* What CUDA calls once the library is loaded; 1: it went well. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    must(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "callbacks");
    must(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels");
    return atexit(report) == 0;
}
