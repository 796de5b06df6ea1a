/* test_sleep.c - weights that leave a GPU and come back: their bits, what was recorded with them,
 * and what the GPU has free meanwhile. On CUDA alone: no CPU sleeps.
 *
 * `test_sleep GB` also says how long that many take. */
#include <math.h>

#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/check.h"

enum { N = 5008, K = 4096, N_MATRICES = 8, T = 37, V = 300, ODD = 1003 };

static struct error err;
static const struct ops *ops;
static double large_gb;

/* A device with weights of all kinds: matrices larger than what the GPU's memory is taken by, a
 * table, and some small ones in between. */
struct scene {
    struct device *d;
    struct matrix *matrices[N_MATRICES];
    struct table *table;
    float *small[N_MATRICES]; /* [ODD] */
    size_t bytes;
    /* no weights: they stay */
    float *h, *y; /* [T, K], [T, N] */
    void *x;      /* [T, K] act */
    int32_t *ids;
};

static float small_number(int i, int k)
{
    return (float)(i * 1000 + k) / 7.0f;
}

static int load_weights(struct scene *s)
{
    static float numbers[V * K], small[ODD];
    int rc;

    for (size_t i = 0; i < (size_t)V * K; i++)
        numbers[i] = (float)(i % 1009) / 1009.0f - 0.5f;
    if ((rc = ops->table_load(s->d, &s->table, numbers, DTYPE_F32, V, K, &err)) != OK)
        return rc;
    s->bytes = ops->table_bytes(s->table);
    for (int i = 0; i < N_MATRICES; i++) {
        void *memory;
        for (int k = 0; k < ODD; k++)
            small[k] = small_number(i, k);
        if ((rc = ops->matrix_random(s->d, &s->matrices[i], N, K, 0.01f, (uint64_t)i, &err)) !=
                OK ||
            (rc = ops->alloc(s->d, &memory, sizeof(small), &err)) != OK ||
            (rc = ops->upload(s->d, memory, small, sizeof(small), &err)) != OK ||
            (rc = ops->sync(s->d, &err)) != OK)
            return rc;
        s->small[i] = memory;
        s->bytes += ops->matrix_bytes(s->matrices[i]) + sizeof(small);
    }
    return ops->loading_end(s->d, &err);
}

static void open_scene(struct scene *s, enum dtype type, bool sleeps)
{
    struct device_options options = {.act = type == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16,
                                     .float8 = type == DTYPE_F8_E4M3,
                                     .max_rows = T,
                                     .n_threads = 4,
                                     .sleeps = sleeps};
    static int32_t ids[T];
    void *memory;

    *s = (struct scene){0};
    for (int t = 0; t < T; t++)
        ids[t] = t * 7 % V;
    CHECK_OK(ops->open(&s->d, &options, &err));
    CHECK_OK(load_weights(s));
    CHECK_OK(ops->alloc(s->d, &memory, sizeof(float) * T * K, &err));
    s->h = memory;
    CHECK_OK(ops->alloc(s->d, &memory, sizeof(float) * T * N, &err));
    s->y = memory;
    CHECK_OK(ops->alloc(s->d, &s->x, sizeof(float) * T * K, &err));
    CHECK_OK(ops->alloc(s->d, &memory, sizeof(ids), &err));
    s->ids = memory;
    CHECK_OK(ops->upload(s->d, s->ids, ids, sizeof(ids), &err));
    CHECK_OK(ops->sync(s->d, &err));
}

static void close_scene(struct scene *s)
{
    ops->release(s->d, s->h);
    ops->release(s->d, s->y);
    ops->release(s->d, s->x);
    ops->release(s->d, s->ids);
    ops->table_free(s->d, s->table);
    for (int i = 0; i < N_MATRICES; i++) {
        ops->matrix_free(s->d, s->matrices[i]);
        ops->release(s->d, s->small[i]);
    }
    ops->close(s->d);
}

/* From the table through all matrices to one sum, as a run of that key. */
static int run(struct scene *s, uint64_t key, enum dtype act, float *out)
{
    bool known;
    int rc;

    if ((rc = ops->record(s->d, key, &known, &err)) != OK)
        return rc;
    if (!known) {
        if ((rc = ops->embed(s->d, s->h, s->table, s->ids, T, 1.0f, &err)) != OK ||
            (rc = ops->rmsnorm(s->d, s->x, act, K, s->h, NULL, T, K, 1e-6f, &err)) != OK)
            return rc;
        for (int i = 0; i < N_MATRICES; i++)
            if ((rc = ops->linear(s->d, s->y, s->x, s->matrices[i], NULL, i > 0, T, &err)) != OK)
                return rc;
    }
    if ((rc = ops->replay(s->d, key, &err)) != OK)
        return rc;
    return ops->download(s->d, out, s->y, sizeof(float) * T * N, &err);
}

static size_t free_bytes(struct device *d)
{
    struct device_memory memory = {0};

    ops->memory(d, &memory, &err);
    return memory.free;
}

static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F8_E4M3};
static float want[T * N], got[T * N];

static void check_small(struct scene *s)
{
    float small[ODD];

    for (int i = 0; i < N_MATRICES; i++) {
        CHECK_OK(ops->download(s->d, small, s->small[i], sizeof(small), &err));
        for (int k = 0; k < ODD; k++)
            CHECK(small[k] == small_number(i, k));
    }
}

static void weights_and_what_was_recorded_come_back(void)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        enum dtype act = types[i] == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
        struct saved_weights *saved = NULL;
        struct scene s;
        size_t awake, asleep;
        open_scene(&s, types[i], true);
        for (int k = 0; k < 4; k++) /* from the third on it is replayed */
            CHECK_OK(run(&s, 1, act, want));
        CHECK_OK(ops->save(s.d, &saved, &err));
        CHECK(ops->saved_bytes(saved) >= s.bytes && ops->saved_bytes(saved) < s.bytes + 65536);
        for (int time = 0; time < 3; time++) {
            awake = free_bytes(s.d);
            CHECK_OK(ops->sleep(s.d, &err));
            asleep = free_bytes(s.d);
            if (asleep < awake + s.bytes)
                CHECK_FAIL("weights of %zu bytes, and %zu more are free", s.bytes, asleep - awake);
            CHECK_OK(ops->sleep(s.d, &err));
            CHECK_OK(ops->wake(s.d, saved, &err));
            CHECK_OK(ops->wake(s.d, saved, &err));
            memset(got, 0, sizeof(got));
            CHECK_OK(run(&s, 1, act, got)); /* replayed */
            CHECK(memcmp(got, want, sizeof(want)) == 0);
            CHECK_OK(run(&s, 2 + (uint64_t)time, act, got)); /* anew */
            CHECK(memcmp(got, want, sizeof(want)) == 0);
            check_small(&s);
        }
        CHECK_OK(ops->sleep(s.d, &err));
        ops->saved_free(saved);
        close_scene(&s); /* as it is */
    }
}

static void one_copy_is_right_for_all_who_loaded_the_same(void)
{
    struct saved_weights *saved = NULL;
    struct scene a, b;

    open_scene(&a, DTYPE_BF16, true);
    open_scene(&b, DTYPE_BF16, true);
    CHECK_OK(run(&b, 1, DTYPE_BF16, want));
    CHECK_OK(ops->save(a.d, &saved, &err));
    CHECK_OK(ops->sleep(a.d, &err));
    CHECK_OK(ops->sleep(b.d, &err));
    CHECK_OK(ops->wake(b.d, saved, &err));
    CHECK_OK(run(&b, 1, DTYPE_BF16, got));
    CHECK(memcmp(got, want, sizeof(want)) == 0);
    check_small(&b);
    close_scene(&a);
    close_scene(&b);
    ops->saved_free(saved);
}

static void sleeping_does_not_change_what_is_computed(void)
{
    struct scene sleeper, plain;
    float size = 0.0f;

    open_scene(&sleeper, DTYPE_BF16, true);
    open_scene(&plain, DTYPE_BF16, false);
    CHECK_OK(run(&sleeper, 1, DTYPE_BF16, got));
    CHECK_OK(run(&plain, 1, DTYPE_BF16, want));
    /* each has timed its products for itself, and may add up in another order */
    for (int i = 0; i < T * N; i++)
        size = fabsf(want[i]) > size ? fabsf(want[i]) : size;
    for (int i = 0; i < T * N; i++)
        CHECK(fabsf(got[i] - want[i]) <= 2e-5f * size);
    close_scene(&sleeper);
    close_scene(&plain);
}

/* Another program has the memory: what was asleep sleeps on, and wakes when that is gone. */
static void without_memory_it_sleeps_on(void)
{
    struct device_options options = {.act = DTYPE_BF16, .n_threads = 1};
    struct saved_weights *saved = NULL;
    struct device *other;
    struct scene s;
    void *memory = NULL;
    size_t all;

    open_scene(&s, DTYPE_BF16, true);
    CHECK_OK(run(&s, 1, DTYPE_BF16, want));
    CHECK_OK(ops->save(s.d, &saved, &err));
    CHECK_OK(ops->sleep(s.d, &err));
    CHECK_OK(ops->open(&other, &options, &err));
    all = free_bytes(other);
    CHECK_OK(ops->alloc(other, &memory, all - s.bytes / 2, &err));
    CHECK_ERR(ops->wake(s.d, saved, &err), ERR_MEM, "out of memory");
    CHECK(free_bytes(other) >= s.bytes / 2 - (4 << 20)); /* nor keeps a part */
    CHECK_ERR(ops->wake(s.d, saved, &err), ERR_MEM, "out of memory");
    ops->release(other, memory);
    CHECK_OK(ops->wake(s.d, saved, &err));
    CHECK_OK(run(&s, 1, DTYPE_BF16, got));
    CHECK(memcmp(got, want, sizeof(want)) == 0);
    ops->close(other);
    close_scene(&s);
    ops->saved_free(saved);
}

static void what_cannot_sleep_says_so(void)
{
    struct saved_weights *saved = NULL;
    struct scene s;

    open_scene(&s, DTYPE_BF16, false);
    CHECK_ERR(ops->save(s.d, &saved, &err), ERR_INPUT, "not opened to sleep");
    CHECK_ERR(ops->sleep(s.d, &err), ERR_INPUT, "not opened to sleep");
    close_scene(&s);
}

/* So many matrices of 400 MB. */
static void times(void)
{
    struct device_options options = {.act = DTYPE_BF16, .n_threads = 16, .sleeps = true};
    enum { MAX = 300, ROWS = 50000 };
    static struct matrix *matrices[MAX];
    struct saved_weights *saved = NULL;
    size_t bytes = 0;
    struct device *d;
    int n;

    CHECK_OK(ops->open(&d, &options, &err));
    for (n = 0; n < MAX && (double)bytes < large_gb * 1e9; n++) {
        CHECK_OK(ops->matrix_random(d, &matrices[n], ROWS, K, 0.01f, (uint64_t)n, &err));
        bytes += ops->matrix_bytes(matrices[n]);
    }
    CHECK_OK(ops->loading_end(d, &err));
    CHECK_OK(ops->sync(d, &err));
    for (int time = 0; time < 4; time++) {
        int64_t start = clock_now_ns();
        double save_s, sleep_s, wake_s;
        if (time == 0 || time == 2) {
            ops->saved_free(saved);
            start = clock_now_ns();
            CHECK_OK(ops->save(d, &saved, &err));
        }
        save_s = clock_ms_since(start) / 1e3;
        start = clock_now_ns();
        CHECK_OK(ops->sleep(d, &err));
        sleep_s = clock_ms_since(start) / 1e3;
        start = clock_now_ns();
        CHECK_OK(ops->wake(d, saved, &err));
        wake_s = clock_ms_since(start) / 1e3;
        printf("     %.1f GB: saved in %.2f s, asleep in %.3f s, awake in %.3f s (%.1f GB/s)\n",
               (double)bytes / 1e9, save_s, sleep_s, wake_s, (double)bytes / 1e9 / wake_s);
    }
    for (int i = 0; i < n; i++)
        ops->matrix_free(d, matrices[i]);
    ops->close(d);
    ops->saved_free(saved);
}

int main(int argc, char **argv)
{
    struct device *d = NULL;
    struct device_options options = {.act = DTYPE_BF16, .n_threads = 1};

    large_gb = argc > 1 ? strtod(argv[1], NULL) : 0.0;
    if ((ops = ops_cuda()) == NULL || ops->open(&d, &options, &err) != OK) {
        printf("skipped: %s\n", ops == NULL ? "this build has no CUDA" : err.text);
        return SKIP_EXIT;
    }
    ops->close(d);
    RUN(weights_and_what_was_recorded_come_back);
    RUN(one_copy_is_right_for_all_who_loaded_the_same);
    RUN(sleeping_does_not_change_what_is_computed);
    RUN(without_memory_it_sleeps_on);
    RUN(what_cannot_sleep_says_so);
    if (large_gb > 0.0)
        RUN(times);
    return check_result();
}
