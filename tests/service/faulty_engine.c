/* faulty_engine.c - the engine's program, on a CPU whose ranks fail where they are told to.
 *
 * All of the product's code, main() included; at link time alone its table of ops is wrapped
 * (--wrap=ops_cpu). Reads the environment:
 *     FAULT_RANK     whose ops
 *     FAULT_OP       which of them: "all_reduce"
 *     FAULT_CALL     the how many-th call of it, from 1 on (default 1)
 *     FAULT_KIND     gpu, mem: it returns ERR_GPU, ERR_MEM; hang: it never returns; kill: the
 *                    process is killed
 *     FAULT_ARM      a path: calls count while a file is there; default: at once
 *     FAULT_MARK     a path: of a file that is made when it happens
 *     FAULT_GPUS     so many "GPUs" seem to be there, "GPU-fake-0", .., and are named in failures
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/ops.h"

enum { MAX_DEVICES = 16 };

static const struct ops *real;

/* Devices by their rank; the one that only loads is the first rank's, too. */
static struct {
    pthread_mutex_t lock; /* guards what follows */
    struct device *devices[MAX_DEVICES];
    int ranks[MAX_DEVICES], n, calls;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int number(const char *name, int fallback)
{
    const char *text = getenv(name);

    return text == NULL ? fallback : (int)strtol(text, NULL, 10);
}

static bool is(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text != NULL && strcmp(text, value) == 0;
}

static void mark(void)
{
    const char *path = getenv("FAULT_MARK");
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT, 0600) : -1;

    if (fd >= 0)
        close(fd);
}

static int happen(const char *op, struct error *err)
{
    mark();
    if (is("FAULT_KIND", "kill"))
        raise(SIGKILL);
    while (is("FAULT_KIND", "hang"))
        clock_pause_ms(1000);
    return error_set(err, is("FAULT_KIND", "mem") ? ERR_MEM : ERR_GPU, "faulty: %s", op);
}

/* Each op asks this first. */
static int fault(int rank, const char *op, struct error *err)
{
    const char *arm = getenv("FAULT_ARM");
    bool now;

    if (rank != number("FAULT_RANK", -1) || !is("FAULT_OP", op) ||
        (arm != NULL && access(arm, F_OK) != 0))
        return OK;
    pthread_mutex_lock(&known.lock);
    now = ++known.calls == number("FAULT_CALL", 1);
    pthread_mutex_unlock(&known.lock);
    return now ? happen(op, err) : OK;
}

static int rank_of(const struct device *d)
{
    int rank = -1;

    pthread_mutex_lock(&known.lock);
    for (int i = 0; i < known.n; i++)
        if (known.devices[i] == d)
            rank = known.ranks[i];
    pthread_mutex_unlock(&known.lock);
    return rank;
}

static int faulty_open(struct device **out, const struct device_options *options, struct error *err)
{
    int rc;

    if ((rc = fault(options->gpu, "open", err)) != OK || (rc = real->open(out, options, err)) != OK)
        return rc;
    pthread_mutex_lock(&known.lock);
    known.devices[known.n % MAX_DEVICES] = *out;
    known.ranks[known.n++ % MAX_DEVICES] = options->gpu;
    pthread_mutex_unlock(&known.lock);
    return OK;
}

static int fake_n_devices(int *n, struct error *err)
{
    (void)err;
    *n = number("FAULT_GPUS", 1);
    return OK;
}

static int fake_identify(char name[OPS_DEVICE_NAME], int gpu, struct error *err)
{
    (void)err;
    snprintf(name, OPS_DEVICE_NAME, "GPU-fake-%d", gpu);
    return OK;
}

/* What a CPU has no need of; `leaving` is memory like any other. */
static int fake_mark(struct device *d, int mark_number, struct error *err)
{
    (void)d;
    (void)mark_number;
    (void)err;
    return OK;
}

static int fake_download_marked(struct device *d, int mark_number, void *to, const void *from,
                                size_t bytes, struct error *err)
{
    (void)mark_number;
    return real->download(d, to, from, bytes, err);
}

#define FAULTY(op, parameters, arguments)                                                          \
    static int faulty_##op parameters                                                              \
    {                                                                                              \
        int rc = fault(rank_of(d), #op, err);                                                      \
                                                                                                   \
        return rc != OK ? rc : real->op arguments;                                                 \
    }

/* Asleep all stays where it is. */
static int fake_save(struct device *d, struct saved_weights **out, struct error *err)
{
    (void)d;
    (void)err;
    *out = NULL;
    return OK;
}

static size_t fake_saved_bytes(const struct saved_weights *w)
{
    (void)w;
    return 0;
}

static void fake_saved_free(struct saved_weights *w)
{
    (void)w;
}

static int faulty_sleep(struct device *d, struct error *err)
{
    return fault(rank_of(d), "sleep", err);
}

static int faulty_wake(struct device *d, const struct saved_weights *from, struct error *err)
{
    (void)from;
    return fault(rank_of(d), "wake", err);
}

FAULTY(alloc, (struct device * d, void **out, size_t bytes, struct error *err),
       (d, out, bytes, err))
FAULTY(upload, (struct device * d, void *to, const void *from, size_t bytes, struct error *err),
       (d, to, from, bytes, err))
FAULTY(download, (struct device * d, void *to, const void *from, size_t bytes, struct error *err),
       (d, to, from, bytes, err))
FAULTY(sync, (struct device * d, struct error *err), (d, err))
FAULTY(join, (struct device * d, struct group *group, struct error *err), (d, group, err))
FAULTY(all_reduce, (struct device * d, float *y, size_t n, struct error *err), (d, y, n, err))
FAULTY(all_gather, (struct device * d, void *to, const void *from, size_t bytes, struct error *err),
       (d, to, from, bytes, err))
FAULTY(broadcast, (struct device * d, void *data, size_t bytes, int root, struct error *err),
       (d, data, bytes, root, err))
FAULTY(matrix_load,
       (struct device * d, struct matrix **out, const struct matrix_part *parts, int n_parts, int K,
        const struct column_cuts *cuts, struct error *err),
       (d, out, parts, n_parts, K, cuts, err))
FAULTY(table_load,
       (struct device * d, struct table **out, const void *data, enum dtype type, int V, int D,
        struct error *err),
       (d, out, data, type, V, D, err))
FAULTY(embed,
       (struct device * d, float *h, const struct table *table, const int32_t *ids, int T,
        float scale, struct error *err),
       (d, h, table, ids, T, scale, err))
FAULTY(matmul,
       (struct device * d, void *y, const void *x, const struct matrix *w, const void *bias, int T,
        struct error *err),
       (d, y, x, w, bias, T, err))
FAULTY(attention,
       (struct device * d, void *o, const void *qkv, const int32_t *begin, int B, int T, int H,
        int K, int E, float scale, int window, struct error *err),
       (d, o, qkv, begin, B, T, H, K, E, scale, window, err))
FAULTY(fill_rows,
       (struct device * d, void *h, const void *x, const void *registers, enum dtype type,
        const int32_t *first, const int32_t *count, int B, int p_begin, int P, int R, int W,
        struct error *err),
       (d, h, x, registers, type, first, count, B, p_begin, P, R, W, err))
FAULTY(full_attention,
       (struct device * d, void *o, const void *q, const void *g, int q_stride, const void *kv,
        int kv_stride, int T, int Q, int P, int kv_rows, int H, int E, float scale,
        struct error *err),
       (d, o, q, g, q_stride, kv, kv_stride, T, Q, P, kv_rows, H, E, scale, err))
FAULTY(encode,
       (struct device * d, void *y, enum dtype type, const float *x, size_t n, int32_t *has_nan,
        struct error *err),
       (d, y, type, x, n, has_nan, err))

static const struct ops *wrap(const struct ops *ops)
{
    static struct ops table;

    real = ops;
    table = *ops;
    table.open = faulty_open;
    table.alloc = faulty_alloc;
    table.upload = faulty_upload;
    table.download = faulty_download;
    table.sync = faulty_sync;
    table.join = faulty_join;
    table.all_reduce = faulty_all_reduce;
    table.all_gather = faulty_all_gather;
    table.broadcast = faulty_broadcast;
    table.matrix_load = faulty_matrix_load;
    table.table_load = faulty_table_load;
    table.embed = faulty_embed;
    table.matmul = faulty_matmul;
    table.attention = faulty_attention;
    table.fill_rows = faulty_fill_rows;
    table.full_attention = faulty_full_attention;
    table.encode = faulty_encode;
    if (getenv("FAULT_GPUS") != NULL) {
        table.n_devices = fake_n_devices;
        table.identify = fake_identify;
        table.is_host = false;
        table.save = fake_save;
        table.saved_bytes = fake_saved_bytes;
        table.saved_free = fake_saved_free;
        table.sleep = faulty_sleep;
        table.wake = faulty_wake;
        table.mark = fake_mark;
        table.download_marked = fake_download_marked;
    }
    return &table;
}

/* The linker's names, for calls of ops_cpu() and of the real one. */
const struct ops *__real_ops_cpu(void);
const struct ops *__wrap_ops_cpu(void);

const struct ops *__wrap_ops_cpu(void)
{
    return wrap(__real_ops_cpu());
}
