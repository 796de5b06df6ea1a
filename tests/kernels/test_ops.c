/* test_ops.c - every op of the fast tables, CPU and CUDA, against the loop nests, on odd shapes.
 *
 * Tolerance: both sides sum the same float32 products in another order, so they differ by a few
 * roundings of the largest partial sum; 2e-5 of the largest number is ten times what was seen.
 * bf16 results may fall on the other side of a rounding: one step is 2^-8 of the number. In float8
 * a GPU's tensor cores align what they add to the largest and cut it off, at 2^-13 of that; over
 * the few hundred such steps of a row of these tests that is less than 2^-8 of the largest number.
 *
 * `test_ops TABLE [WORD ..]` tests that table alone ("cpu", "cuda"), and of it what the words name:
 * types (F32, BF16, F8_E4M3) and groups of tests (below). A GPU's sanitizer that cannot see through
 * the library's products takes `test_ops cuda BF16 F8_E4M3 few-rows norms rows attention float8`.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>

#include "base/clock.h"
#include "kernels/cpu/device.h"
#include "kernels/random_matrix.h"
#include "tests/check.h"

#define EXACT      1e-6
#define REORDERED  2e-5
#define BF16_STEPS (1.0 / 128)
#define CUT_OFF    (1.0 / 256)

enum { MAX_ROWS = 300 }; /* of any product here */

static struct error err;
static const struct ops *fast, *loops;
static struct device *fast_device, *loops_device;
static enum dtype act;
static bool float8;
static const char *only; /* the table that is tested; NULL: all */
static char **asked;     /* what is tested of it; none: all */
static int n_asked;

/* ---- memory: all of a case's is released at once ---- */

enum { MAX_HELD = 2048 };
static void *host_held[MAX_HELD], *device_held[MAX_HELD];
static int n_host_held, n_device_held;

static void *host(size_t bytes)
{
    void *memory = calloc(1, bytes + 64);

    CHECK(memory != NULL && n_host_held < MAX_HELD);
    return host_held[n_host_held++] = memory;
}

/* A copy of host memory on the fast table's device. */
static void *on_device(const void *from, size_t bytes)
{
    void *memory;

    CHECK(n_device_held < MAX_HELD);
    CHECK_OK(fast->alloc(fast_device, &memory, bytes, &err));
    device_held[n_device_held++] = memory;
    CHECK_OK(fast->upload(fast_device, memory, from, bytes, &err));
    return memory;
}

static void *back(const void *from, size_t bytes)
{
    void *memory = host(bytes);

    CHECK_OK(fast->download(fast_device, memory, from, bytes, &err));
    return memory;
}

static void release_case(void)
{
    while (n_host_held > 0)
        free(host_held[--n_host_held]);
    while (n_device_held > 0)
        fast->release(fast_device, device_held[--n_device_held]);
}

/* ---- numbers ---- */

static float *random_floats(size_t n, unsigned seed)
{
    float *x = host(n * sizeof(float));
    uint64_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(state >> 40) / (float)(1 << 23) - 1.0f;
    }
    return x;
}

static size_t act_bytes(size_t n)
{
    return n * dtype_info(act)->bytes;
}

/* Random activations of the device's compute type. */
static void *random_act(size_t n, unsigned seed)
{
    void *y = host(act_bytes(n));

    dtype_encode(y, random_floats(n, seed), act, n);
    return y;
}

static void check_close(const char *what, const float *got, const float *want, size_t n,
                        double tolerance)
{
    double size = 0.0;

    for (size_t i = 0; i < n; i++)
        size = fmax(size, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * size + 1e-30))
            CHECK_FAIL("%s: index %zu: got %.9g, want %.9g", what, i, (double)got[i],
                       (double)want[i]);
}

static void check_act_close(const char *what, const void *got, const void *want, size_t n)
{
    float *a = host(n * sizeof(float)), *b = host(n * sizeof(float));

    dtype_decode(a, got, act, n);
    dtype_decode(b, want, act, n);
    check_close(what, a, b, n, act == DTYPE_F32 ? REORDERED : BF16_STEPS);
}

/* What goes from a product to the next op: float32, or act. */
static enum dtype mid(void)
{
    return fast->mid_is_act ? act : DTYPE_F32;
}

static size_t mid_bytes(size_t n)
{
    return n * dtype_info(mid())->bytes;
}

/* A copy on the fast table's device, as mid; x becomes what that holds. */
static void *mid_on_device(float *x, size_t n)
{
    void *encoded = host(mid_bytes(n));

    dtype_encode(encoded, x, mid(), n);
    dtype_decode(x, encoded, mid(), n);
    return on_device(encoded, mid_bytes(n));
}

static float *mid_back(const void *from, size_t n)
{
    float *x = host(n * sizeof(float));

    dtype_decode(x, back(from, mid_bytes(n)), mid(), n);
    return x;
}

static void check_mid_close(const char *what, const float *got, const float *want, size_t n)
{
    check_close(what, got, want, n, mid() == DTYPE_F32 ? REORDERED : BF16_STEPS);
}

/* Of sums that are stored as float32. */
static double sums_tolerance(void)
{
    return float8 && !fast->is_host ? CUT_OFF : REORDERED;
}

static const int lengths[] = {0, 1, 2, 7, 13, 64, 129, MAX_ROWS};
enum { N_LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };
#define F32_BYTES(n) ((size_t)(n) * sizeof(float))

/* ---- the ops ---- */

static void embed_matches(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0};
    enum { V = 50, D = 96, T = 13 };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        size_t bytes;
        CHECK(dtype_bytes(&bytes, types[i], (size_t)V * D));
        float *numbers = random_floats((size_t)V * D, 1), *want = host(F32_BYTES(T * D));
        uint8_t *table = host(bytes);
        int32_t ids[T];
        struct table *a, *b;
        if (types[i] == DTYPE_Q8_0) /* blocks of a half scale and 32 signed bytes */
            for (size_t j = 0; j < bytes; j++)
                table[j] = j % 34 == 0 ? 0x66 : j % 34 == 1 ? 0x2e : (uint8_t)(j * 7);
        else
            dtype_encode(table, numbers, types[i], (size_t)V * D);
        for (int t = 0; t < T; t++)
            ids[t] = t % 5 == 3 ? -t : (t * 17) % V; /* below 0: zeros */
        int32_t *ids_there = on_device(ids, sizeof(ids));
        float *h = on_device(want, F32_BYTES(T * D));
        CHECK_OK(fast->table_load(fast_device, &a, table, types[i], V, D, &err));
        CHECK_OK(loops->table_load(loops_device, &b, table, types[i], V, D, &err));
        CHECK_OK(fast->embed(fast_device, h, a, ids_there, T, 1.5f, &err));
        CHECK_OK(loops->embed(loops_device, want, b, ids, T, 1.5f, &err));
        check_close("embed", back(h, F32_BYTES(T * D)), want, T * D, EXACT);
        CHECK(want[0] != 0.0f && want[2 * D] != 0.0f);
        for (int d = 0; d < D; d++)
            CHECK(want[3 * D + d] == 0.0f);
        fast->table_free(fast_device, a);
        loops->table_free(loops_device, b);
        release_case();
    }
}

static void rmsnorm_matches(void)
{
    static const int widths[] = {1, 5, 48, 128, 640, 650, 3840, 4100};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            int D = widths[i], T = lengths[j];
            size_t n = (size_t)T * D;
            float *x = random_floats(n, 1), *w = random_floats((size_t)D, 2);
            float *h = random_floats(n, 3), scale = j % 2 == 0 ? 1.0f : 0.37f;
            float *ones = host(F32_BYTES(D));
            void *want = host(act_bytes(n));
            for (int d = 0; d < D; d++)
                ones[d] = 1.0f;
            void *x_there = on_device(x, F32_BYTES(n)), *w_there = on_device(w, F32_BYTES(D));
            void *h_there = on_device(h, F32_BYTES(n)), *y_there = on_device(want, act_bytes(n));
            CHECK_OK(
                fast->rmsnorm(fast_device, y_there, act, D, x_there, w_there, T, D, 1e-6f, &err));
            CHECK_OK(loops->rmsnorm(loops_device, want, act, D, x, w, T, D, 1e-6f, &err));
            check_act_close("rmsnorm", back(y_there, act_bytes(n)), want, n);
            CHECK_OK(fast->add_rmsnorm(fast_device, h_there, x_there, w_there, scale, T, D, 1e-6f,
                                       &err));
            CHECK_OK(loops->add_rmsnorm(loops_device, h, x, w, scale, T, D, 1e-6f, &err));
            check_close("add_rmsnorm", back(h_there, F32_BYTES(n)), h, n, REORDERED);
            if (fast->add_rmsnorm_rmsnorm != NULL) {
                float *next_w = random_floats((size_t)D, 22);
                CHECK_OK(fast->add_rmsnorm_rmsnorm(fast_device, h_there, y_there, x_there, w_there,
                                                   scale, on_device(next_w, F32_BYTES(D)), T, D,
                                                   1e-6f, &err));
                CHECK_OK(loops->add_rmsnorm(loops_device, h, x, w, scale, T, D, 1e-6f, &err));
                CHECK_OK(loops->rmsnorm(loops_device, want, act, D, h, next_w, T, D, 1e-6f, &err));
                check_close("sum", back(h_there, F32_BYTES(n)), h, n, REORDERED);
                check_act_close("norm of the sum", back(y_there, act_bytes(n)), want, n);
            }
            /* without weights */
            CHECK_OK(fast->rmsnorm(fast_device, y_there, act, D, x_there, NULL, T, D, 1e-6f, &err));
            CHECK_OK(loops->rmsnorm(loops_device, want, act, D, x, ones, T, D, 1e-6f, &err));
            check_act_close("without weights", back(y_there, act_bytes(n)), want, n);
            CHECK_OK(loops->rmsnorm(loops_device, want, act, D, x, NULL, T, D, 1e-6f, &err));
            check_act_close("without weights", back(y_there, act_bytes(n)), want, n);
            /* in place */
            CHECK_OK(fast->rmsnorm(fast_device, x_there, DTYPE_F32, D, x_there, w_there, T, D,
                                   1e-6f, &err));
            CHECK_OK(loops->rmsnorm(loops_device, x, DTYPE_F32, D, x, w, T, D, 1e-6f, &err));
            check_close("rmsnorm in place", back(x_there, F32_BYTES(n)), x, n, REORDERED);
            release_case();
        }
}

/* Columns of wider rows: each its own numbers, and nothing beside them. */
static void norms_lie_side_by_side(void)
{
    static const int widths[] = {5, 48, 640};
    enum { T = 21, PARTS = 3 };

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        size_t D = (size_t)widths[i], stride = PARTS * D, n = T * stride;
        void *before = random_act(n, 5), *want = host(act_bytes(n));
        void *y_there = on_device(before, act_bytes(n));
        memcpy(want, before, act_bytes(n));
        for (int part = 0; part < PARTS; part += 2) { /* what is between stays */
            float *x = random_floats(T * D, 30 + (unsigned)part), *w = random_floats(D, 2);
            void *normed = host(act_bytes(T * D));
            CHECK_OK(fast->rmsnorm(fast_device, (char *)y_there + act_bytes(part * D), act,
                                   (int)stride, on_device(x, F32_BYTES(T * D)),
                                   on_device(w, F32_BYTES(D)), T, (int)D, 1e-6f, &err));
            CHECK_OK(
                loops->rmsnorm(loops_device, normed, act, (int)D, x, w, T, (int)D, 1e-6f, &err));
            for (size_t t = 0; t < T; t++)
                memcpy((char *)want + act_bytes(t * stride + part * D),
                       (char *)normed + act_bytes(t * D), act_bytes(D));
        }
        check_act_close("side by side", back(y_there, act_bytes(n)), want, n);
        release_case();
    }
}

/* What the loop nests alone cannot show of themselves: both sides against the formula. */
static void the_sum_is_scaled(void)
{
    enum { T = 3, D = 48 };
    static const float scales[] = {1.0f, 0.37f, -2.5f};
    float *x = random_floats(T * D, 1), *w = random_floats(D, 2), *h = random_floats(T * D, 3);

    for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        float *want = host(F32_BYTES(T * D)), *there = on_device(h, F32_BYTES(T * D));
        for (int t = 0; t < T; t++) {
            double sum = 0.0;
            for (int d = 0; d < D; d++)
                sum += (double)x[t * D + d] * (double)x[t * D + d];
            for (int d = 0; d < D; d++) {
                double normed = (double)x[t * D + d] / sqrt(sum / D + 1e-6) * (double)w[d];
                want[t * D + d] = (float)(((double)h[t * D + d] + normed) * (double)scales[i]);
            }
        }
        CHECK_OK(fast->add_rmsnorm(fast_device, there, on_device(x, F32_BYTES(T * D)),
                                   on_device(w, F32_BYTES(D)), scales[i], T, D, 1e-6f, &err));
        check_close("scaled sum", back(there, F32_BYTES(T * D)), want, T * D, REORDERED);
    }
    release_case();
}

static void matmul_matches(void)
{
    static const int shapes[][2] = {{1, 1}, {3, 5}, {64, 32}, {129, 48}, {320, 128}, {257, 130}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            int N = shapes[i][0], K = shapes[i][1], T = lengths[j], first = N / 3;
            size_t n = (size_t)T * N;
            float *w = random_floats((size_t)N * K, 4), *want = host(F32_BYTES(n));
            void *x = random_act((size_t)T * K, 5);
            void *x_there = on_device(x, act_bytes((size_t)T * K));
            void *y_there = on_device(want, F32_BYTES(n));
            float *bias = j % 2 == 0 ? NULL : random_floats((size_t)N, 21);
            void *bias_there = bias == NULL ? NULL : mid_on_device(bias, (size_t)N);
            struct matrix_part parts[] = {
                {.data = w, .type = DTYPE_F32, .rows = first},
                {.data = w + (size_t)first * K, .type = DTYPE_F32, .rows = N - first}};
            struct matrix *a, *b;
            CHECK_OK(fast->matrix_load(fast_device, &a, parts, 2, K, NULL, &err));
            CHECK_OK(loops->matrix_load(loops_device, &b, parts, 2, K, NULL, &err));
            CHECK(fast->matrix_bytes(a) >= (float8 ? (size_t)N * K : act_bytes((size_t)N * K)));
            CHECK_OK(fast->matmul(fast_device, y_there, x_there, a, bias_there, T, &err));
            CHECK_OK(loops->matmul(loops_device, want, x, b, bias, T, &err));
            check_mid_close("matmul", mid_back(y_there, n), want, n);
            if (fast->matmul_gelu != NULL) {
                void *y = host(act_bytes(n));
                CHECK_OK(fast->matmul_gelu(fast_device, y_there, x_there, a, bias_there, T, &err));
                CHECK_OK(loops->gelu(loops_device, y, want, T, N, &err));
                check_act_close("matmul_gelu", back(y_there, act_bytes(n)), y, n);
            }
            fast->matrix_free(fast_device, a);
            loops->matrix_free(loops_device, b);
            release_case();
        }
}

/* The same numbers, wherever they are made. */
static void random_matrices_match(void)
{
    enum { N = 144, K = 96, T = 5 };
    float *want = host(F32_BYTES(T * N)), *y_there = on_device(want, F32_BYTES(T * N));
    void *x = random_act((size_t)T * K, 5), *x_there = on_device(x, act_bytes((size_t)T * K));
    struct matrix *a, *b;

    CHECK_OK(random_matrix_create(fast, fast_device, &a, N, K, 0.3f, 7, NULL, &err));
    CHECK_OK(random_matrix_create(loops, loops_device, &b, N, K, 0.3f, 7, NULL, &err));
    CHECK_OK(fast->linear(fast_device, y_there, x_there, a, NULL, false, T, &err));
    CHECK_OK(loops->linear(loops_device, want, x, b, NULL, false, T, &err));
    check_close("random", back(y_there, F32_BYTES(T * N)), want, T * N, sums_tolerance());
    CHECK(want[0] != 0.0f && want[0] != want[1]);
    fast->matrix_free(fast_device, a);
    loops->matrix_free(loops_device, b);
    release_case();
}

/* linear with and without a bias, stored and added. */
static void linear_matches(void)
{
    static const int shapes[][2] = {{1, 1}, {3, 5}, {129, 48}, {320, 128}, {257, 130}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++)
            for (int kind = 0; kind < 4; kind++) {
                int N = shapes[i][0], K = shapes[i][1], T = lengths[j];
                size_t n = (size_t)T * N;
                float *w = random_floats((size_t)N * K, 4), *y = random_floats(n, 20);
                float *bias = random_floats((size_t)N, 21);
                float *bias_there = on_device(bias, F32_BYTES(N)), *y_there;
                void *x = random_act((size_t)T * K, 5);
                void *x_there = on_device(x, act_bytes((size_t)T * K));
                struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N};
                struct matrix *a, *b;
                bool add = kind % 2 == 1, biased = kind >= 2;
                for (size_t k = 0; k < n && !add; k++)
                    y[k] = NAN; /* what was there must not matter */
                y_there = on_device(y, F32_BYTES(n));
                CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, K, NULL, &err));
                CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, K, NULL, &err));
                CHECK_OK(fast->linear(fast_device, y_there, x_there, a, biased ? bias_there : NULL,
                                      add, T, &err));
                CHECK_OK(loops->linear(loops_device, y, x, b, biased ? bias : NULL, add, T, &err));
                check_close("linear", back(y_there, F32_BYTES(n)), y, n, sums_tolerance());
                fast->matrix_free(fast_device, a);
                loops->matrix_free(loops_device, b);
                release_case();
            }
}

/* Some rows times a matrix of several blocks, none of them whole. */
static void rows_match(const int *rows, int n_rows)
{
    enum { GEGLU_ROWS = 768 };
    int N = float8 ? 1040 : 1028, K = float8 ? 1168 : 1160;
    float *w = random_floats((size_t)N * K, 4);
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N},
                       part2 = {.data = w, .type = DTYPE_F32, .rows = GEGLU_ROWS};
    struct matrix *a, *b, *a2, *b2;

    if (fast->is_host) /* one path for all, which the other tests have */
        return release_case();
    CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, K, NULL, &err));
    CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, K, NULL, &err));
    CHECK_OK(fast->matrix_load(fast_device, &a2, &part2, 1, K, NULL, &err));
    CHECK_OK(loops->matrix_load(loops_device, &b2, &part2, 1, K, NULL, &err));
    for (int i = 0; i < n_rows; i++) {
        int T = rows[i];
        size_t n = (size_t)T * N;
        float *y = random_floats(n, 20), *want = host(F32_BYTES(n));
        float *bias = random_floats((size_t)N, 21), *y_there = on_device(y, F32_BYTES(n));
        void *x = random_act((size_t)T * K, 5), *bias_there = mid_on_device(bias, (size_t)N);
        void *x_there = on_device(x, act_bytes((size_t)T * K));
        CHECK_OK(fast->linear(fast_device, y_there, x_there, a, on_device(bias, F32_BYTES(N)), true,
                              T, &err));
        CHECK_OK(loops->linear(loops_device, y, x, b, bias, true, T, &err));
        check_close("added", back(y_there, F32_BYTES(n)), y, n, sums_tolerance());
        CHECK_OK(fast->matmul(fast_device, y_there, x_there, a, bias_there, T, &err));
        CHECK_OK(loops->matmul(loops_device, want, x, b, bias, T, &err));
        check_mid_close("stored", mid_back(y_there, n), want, n);
        if (fast->matmul_geglu != NULL) {
            int F = GEGLU_ROWS / 2;
            void *gu = on_device(y, F32_BYTES((size_t)T * 2 * F));
            void *made = host(act_bytes((size_t)T * F));
            CHECK_OK(fast->matmul_geglu(fast_device, y_there, x_there, a2, gu, T, &err));
            CHECK_OK(loops->matmul(loops_device, want, x, b2, NULL, T, &err));
            CHECK_OK(loops->geglu(loops_device, made, want, T, F, &err));
            check_act_close("geglu", back(y_there, act_bytes((size_t)T * F)), made, (size_t)T * F);
        }
    }
    fast->matrix_free(fast_device, a);
    loops->matrix_free(loops_device, b);
    fast->matrix_free(fast_device, a2);
    loops->matrix_free(loops_device, b2);
    release_case();
}

/* Few: a path of its own on some GPUs. */
static void few_rows_match(void)
{
    static const int rows[] = {1, 32, 33, 61, 64, 91, 96, 128};

    rows_match(rows, sizeof(rows) / sizeof(rows[0]));
}

static void more_rows_match(void)
{
    static const int rows[] = {129, 130, 257};

    rows_match(rows, sizeof(rows) / sizeof(rows[0]));
}

/* ---- views ---- */

struct cut {
    struct row_range ranges[3];
    int n_ranges, k_begin, K;
};

enum { VIEWED_N = 544, VIEWED_K = 592 };
static const struct column_cuts viewed_cuts = {6, {5, 37, 48, 69, 160, 304}};
static const struct cut cuts[] = {
    {{{0, 544}}, 1, 0, 592},   /* all of it */
    {{{128, 272}}, 1, 0, 592}, /* some rows */
    {{{0, 192}, {272, 192}}, 2, 0, 592} /* half of gate, half of up */,
    {{{64, 128}, {256, 64}, {400, 64}}, 3, 0, 592}, /* query, key and value heads */
    {{{0, 544}}, 1, 304, 288},                      /* some columns */
    {{{16, 48}, {96, 16}}, 2, 160, 144},
};
/* on no boundary: not in float8 */
static const struct cut odd_cuts[] = {
    {{{3, 5}, {100, 7}}, 2, 0, 592},
    {{{0, 544}}, 1, 37, 11},
    {{{10, 20}, {30, 10}, {7, 3}}, 3, 5, 64},
};

/* What the whole matrix gives for the rows of x [T, K], of which the other columns are zero, and of
 * that the columns [T, n] of the view's rows. All is meant so: in float8, too, a view's rows have
 * the scales that they have in the whole matrix. */
static float *product_of_the_whole(const struct matrix *whole, const struct cut *c, const void *x,
                                   int T, int n)
{
    char *wide = host(act_bytes((size_t)T * VIEWED_K));
    float *all = host(F32_BYTES(T * VIEWED_N)), *want = host(F32_BYTES(T * n));

    for (int t = 0; t < T; t++)
        memcpy(wide + act_bytes((size_t)t * VIEWED_K + (size_t)c->k_begin),
               (const char *)x + act_bytes((size_t)t * (size_t)c->K), act_bytes((size_t)c->K));
    CHECK_OK(loops->linear(loops_device, all, wide, whole, NULL, false, T, &err));
    for (int t = 0; t < T; t++) {
        float *to = want + (size_t)t * n;
        for (int r = 0; r < c->n_ranges; r++)
            for (int i = 0; i < c->ranges[r].n; i++)
                *to++ = all[(size_t)t * VIEWED_N + c->ranges[r].begin + i];
    }
    return want;
}

static void view_matches(const struct matrix *viewed, const struct matrix *whole,
                         const struct cut *c, int T, bool gelu)
{
    int n = 0;

    for (int r = 0; r < c->n_ranges; r++)
        n += c->ranges[r].n;
    size_t size = (size_t)T * n;
    void *x = random_act((size_t)T * (size_t)c->K, 5);
    void *x_there = on_device(x, act_bytes((size_t)T * (size_t)c->K));
    float *bias = random_floats((size_t)n, 21), *want = product_of_the_whole(whole, c, x, T, n);
    float *sum = random_floats(size, 20), *biased = host(F32_BYTES(size));
    float *y_there = on_device(sum, F32_BYTES(size)), *bias_there = on_device(bias, F32_BYTES(n));
    void *mid_bias = mid_on_device(bias, (size_t)n), *made = host(act_bytes(size));
    struct matrix *view;

    CHECK_OK(fast->matrix_view(fast_device, &view, viewed, c->ranges, c->n_ranges, c->k_begin, c->K,
                               &err));
    CHECK_INT(fast->matrix_bytes(view), 0);
    CHECK_OK(fast->linear(fast_device, y_there, x_there, view, bias_there, true, T, &err));
    bias = back(bias_there, F32_BYTES(n)); /* as it was before mid rounded it */
    for (size_t i = 0; i < size; i++)
        sum[i] += want[i] + bias[i % n];
    check_close("added", back(y_there, F32_BYTES(size)), sum, size, sums_tolerance());
    CHECK_OK(fast->linear(fast_device, y_there, x_there, view, NULL, false, T, &err));
    check_close("stored", back(y_there, F32_BYTES(size)), want, size, sums_tolerance());
    bias = mid_back(mid_bias, (size_t)n);
    for (size_t i = 0; i < size; i++)
        biased[i] = want[i] + bias[i % n];
    CHECK_OK(fast->matmul(fast_device, y_there, x_there, view, mid_bias, T, &err));
    check_mid_close("matmul", mid_back(y_there, size), biased, size);
    if (fast->matmul_gelu != NULL && gelu) {
        CHECK_OK(fast->matmul_gelu(fast_device, y_there, x_there, view, mid_bias, T, &err));
        CHECK_OK(loops->gelu(loops_device, made, biased, T, n, &err));
        check_act_close("gelu", back(y_there, act_bytes(size)), made, size);
    }
    if (fast->matmul_geglu != NULL && n % 2 == 0) {
        void *gu = on_device(biased, F32_BYTES(size));
        CHECK_OK(fast->matmul_geglu(fast_device, y_there, x_there, view, gu, T, &err));
        CHECK_OK(loops->geglu(loops_device, made, want, T, n / 2, &err));
        check_act_close("geglu", back(y_there, act_bytes(size / 2)), made, size / 2);
    }
    fast->matrix_free(fast_device, view);
    release_case();
}

/* Each view for each number of rows; gelu: also its product with GELU, which is the library's. */
static void views_match(const struct cut *of, size_t n_cuts, const int *rows, size_t n_rows,
                        bool gelu)
{
    float *w = random_floats((size_t)VIEWED_N * VIEWED_K, 4);
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = VIEWED_N};
    struct row_range none = {5, 0}, first = {0, 16};
    struct matrix *viewed, *whole, *view;

    CHECK_OK(fast->matrix_load(fast_device, &viewed, &part, 1, VIEWED_K, &viewed_cuts, &err));
    CHECK_OK(loops->matrix_load(loops_device, &whole, &part, 1, VIEWED_K, NULL, &err));
    release_case();
    for (size_t i = 0; i < n_cuts; i++)
        for (size_t j = 0; j < n_rows; j++)
            view_matches(viewed, whole, &of[i], rows[j], gelu);
    CHECK_ERR(fast->matrix_view(fast_device, &view, viewed, &none, 1, 0, VIEWED_K, &err), ERR_INPUT,
              "without rows");
    CHECK_ERR(fast->matrix_view(fast_device, &view, viewed, &first, 1, 0, 0, &err), ERR_INPUT,
              "columns");
    fast->matrix_free(fast_device, viewed);
    loops->matrix_free(loops_device, whole);
}

static void views_of_few_rows_match(void)
{
    static const int rows[] = {1, 61, 128};

    views_match(cuts, sizeof(cuts) / sizeof(cuts[0]), rows, sizeof(rows) / sizeof(rows[0]),
                fast->is_host);
}

static void views_of_more_rows_match(void)
{
    static const int rows[] = {130, 200};

    views_match(cuts, sizeof(cuts) / sizeof(cuts[0]), rows, sizeof(rows) / sizeof(rows[0]), true);
}

static void odd_views_match(void)
{
    static const int rows[] = {1, 61, 130};

    views_match(odd_cuts, sizeof(odd_cuts) / sizeof(odd_cuts[0]), rows,
                sizeof(rows) / sizeof(rows[0]), true);
}

/* What cannot be multiplied by is refused when the view is made. */
static void float8_refuses_odd_views(void)
{
    float *w = random_floats((size_t)VIEWED_N * VIEWED_K, 4);
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = VIEWED_N};
    struct matrix *viewed, *view;

    CHECK_OK(fast->matrix_load(fast_device, &viewed, &part, 1, VIEWED_K, &viewed_cuts, &err));
    for (size_t i = 0; i < sizeof(odd_cuts) / sizeof(odd_cuts[0]); i++)
        CHECK_ERR(fast->matrix_view(fast_device, &view, viewed, odd_cuts[i].ranges,
                                    odd_cuts[i].n_ranges, odd_cuts[i].k_begin, odd_cuts[i].K, &err),
                  ERR_INPUT, "float8");
    fast->matrix_free(fast_device, viewed);
    release_case();
}

/* A row of a product does not depend on how many there are: on a CPU not by a bit. (cuBLASLt picks
 * another kernel for another T.) */
static void matmul_rows_are_independent(void)
{
    enum { N = 320, K = 128, T = 200 };
    float *w = random_floats((size_t)N * K, 6), *zeros = host(F32_BYTES(T * N)), *all;
    void *x = random_act((size_t)T * K, 7);
    void *x_there = on_device(x, act_bytes((size_t)T * K));
    void *y_there = on_device(zeros, F32_BYTES(T * N));
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N};
    struct matrix *m;

    CHECK_OK(fast->matrix_load(fast_device, &m, &part, 1, K, NULL, &err));
    CHECK_OK(fast->matmul(fast_device, y_there, x_there, m, NULL, T, &err));
    all = mid_back(y_there, (size_t)T * N);
    for (int t = 0; t < T; t += 9) { /* one, and as many as follow in a short batch */
        const char *row = (const char *)x_there + act_bytes((size_t)t * K);
        float *one;
        CHECK_OK(fast->matmul(fast_device, y_there, row, m, NULL, 1, &err));
        one = mid_back(y_there, N);
        if (fast->is_host)
            CHECK(memcmp(one, all + (size_t)t * N, F32_BYTES(N)) == 0);
        else
            check_close("row", one, all + (size_t)t * N, N,
                        mid() == DTYPE_F32 ? EXACT : BF16_STEPS);
        free(host_held[--n_host_held]); /* both of mid_back() */
        free(host_held[--n_host_held]);
    }
    fast->matrix_free(fast_device, m);
    release_case();
}

/* The nearest of all values of E4M3, the even one of two. */
static double nearest_float8(double x)
{
    double best = 0.0;

    for (int byte = 0; byte < 0x7f; byte++) {
        int exponent = byte >> 3, mantissa = byte & 7;
        double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        double now = fabs(fabs(x) - size), before = fabs(fabs(x) - best);
        if (now < before || (now == before && byte % 2 == 0))
            best = size;
    }
    return copysign(best, x);
}

/* A row of bf16 numbers, rounded to E4M3 by the scale that is returned. Many of them lie just in
 * the middle, so they are scaled in float32, as everywhere. */
static double round_row(double *row, int K)
{
    float largest = 0.0f, inverse;

    for (int k = 0; k < K; k++)
        largest = fmaxf(largest, (float)fabs(row[k]));
    inverse = 1.0f / (largest / 448.0f);
    for (int k = 0; k < K && largest > 0.0f; k++)
        row[k] = nearest_float8((double)((float)row[k] * inverse));
    return (double)(largest / 448.0f);
}

/* Both sides against what ops.h says of float8: rows of x and w of very different sizes, one of
 * them zero and one with a number far above its others; and a matrix that stays bf16. */
static void float8_products_by_the_formula(void)
{
    enum { T = 5, K = 48, MAX_N = 32 };
    static const int sizes[] = {32, 24}; /* the second is no multiple of 16 */

    for (int kind = 0; kind < 2; kind++) {
        int N = sizes[kind];
        float *w = random_floats(MAX_N * K, 4), *x = random_floats(T * K, 5);
        float *want = host(F32_BYTES(T * MAX_N)), *y = host(F32_BYTES(T * MAX_N)), *y_there;
        double *exact_w = host((size_t)N * K * sizeof(double)), exact_x[T * K], w_scale[MAX_N];
        struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N};
        void *x_act = host(act_bytes(T * K));
        struct matrix *a, *b;
        for (int i = 0; i < N * K; i++) {
            w[i] *= ldexpf(1.0f, i / K % 9 - 4);
            exact_w[i] = (double)bf16_to_float(bf16_from_float(w[i]));
        }
        for (int i = 0; i < T * K; i++)
            x[i] *= i / K == 1 ? 0.0f : i == 2 * K + 7 ? 100.0f : ldexpf(1.0f, i / K * 2);
        dtype_encode(x_act, x, act, T * K);
        dtype_decode(x, x_act, act, T * K);
        for (int n = 0; n < N; n++)
            w_scale[n] = kind == 0 ? round_row(exact_w + (size_t)n * K, K) : 1.0;
        for (int t = 0; t < T; t++) {
            double scale = 1.0;
            for (int k = 0; k < K; k++)
                exact_x[t * K + k] = (double)x[t * K + k];
            if (kind == 0)
                scale = round_row(exact_x + (size_t)t * K, K);
            for (int n = 0; n < N; n++) {
                double sum = 0.0;
                for (int k = 0; k < K; k++)
                    sum += exact_x[t * K + k] * exact_w[n * K + k];
                want[t * N + n] = (float)(sum * scale * w_scale[n]);
            }
        }
        y_there = on_device(y, F32_BYTES(T * N));
        CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, K, NULL, &err));
        CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, K, NULL, &err));
        CHECK_OK(fast->linear(fast_device, y_there, on_device(x_act, act_bytes(T * K)), a, NULL,
                              false, T, &err));
        CHECK_OK(loops->linear(loops_device, y, x_act, b, NULL, false, T, &err));
        for (int t = 0; t < T; t++) { /* each row for itself: their sizes differ */
            const float *got = back(y_there, F32_BYTES(T * N));
            check_close("float8", got + (size_t)t * N, want + (size_t)t * N, (size_t)N,
                        sums_tolerance());
            check_close("loops", y + (size_t)t * N, want + (size_t)t * N, (size_t)N, REORDERED);
        }
        fast->matrix_free(fast_device, a);
        loops->matrix_free(loops_device, b);
        release_case();
    }
}

/* A number that is none stays visible, and in its own row. */
static void float8_keeps_nan_to_its_row(void)
{
    enum { T = 3, N = 16, K = 32 };
    float *w = random_floats(N * K, 4), *x = random_floats(T * K, 5);
    float *y_there = on_device(host(F32_BYTES(T * N)), F32_BYTES(T * N));
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N};
    void *x_act = host(act_bytes(T * K));
    const float *got;
    struct matrix *m;

    x[K + 5] = NAN;
    dtype_encode(x_act, x, act, T * K);
    CHECK_OK(fast->matrix_load(fast_device, &m, &part, 1, K, NULL, &err));
    CHECK_OK(fast->linear(fast_device, y_there, on_device(x_act, act_bytes(T * K)), m, NULL, false,
                          T, &err));
    got = back(y_there, F32_BYTES(T * N));
    for (int i = 0; i < T * N; i++)
        CHECK(isnan(got[i]) == (i / N == 1));
    fast->matrix_free(fast_device, m);
    release_case();
}

/* More rows than the device was opened for are refused, not written past their place. */
static void float8_refuses_too_many_rows(void)
{
    enum { T = MAX_ROWS + 1, N = 16, K = 32 };
    float *w = random_floats(N * K, 4);
    void *y = on_device(host(F32_BYTES(T * N)), F32_BYTES(T * N));
    void *x = on_device(random_act(T * K, 5), act_bytes(T * K));
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = N};
    struct matrix *m;

    CHECK_OK(fast->matrix_load(fast_device, &m, &part, 1, K, NULL, &err));
    CHECK_ERR(fast->linear(fast_device, y, x, m, NULL, false, T, &err), ERR_SIZE,
              "301 rows in float8, room for 300");
    fast->matrix_free(fast_device, m);
    release_case();
}

/* ---- views ---- */

enum { VIEW_N = 336, VIEW_K = 192, MAX_RANGES = 3 };

/* Rows as q, k and v heads lie; as gate and up; some that end where a panel does; one; all. */
static const struct row_range view_rows[][MAX_RANGES] = {{{32, 64}, {144, 48}, {240, 96}},
                                                         {{3, 50}, {131, 61}, {200, 130}},
                                                         {{16, 80}, {184, 80}},
                                                         {{0, 128}, {256, 80}},
                                                         {{335, 1}},
                                                         {{0, VIEW_N}}};
enum { N_VIEW_ROWS = sizeof(view_rows) / sizeof(view_rows[0]) };

/* Cuts as float8 and GPUs have them, and anywhere. */
static const struct column_cuts view_cuts[] = {{2, {64, 144}}, {4, {37, 37, 130, 191}}};

/* The view's rows and columns of w, one after another; their number. */
static int take_view(float *to, const float *w, const struct row_range *ranges, int k, int K)
{
    int N = 0;

    for (int i = 0; i < MAX_RANGES; i++)
        for (int row = 0; row < ranges[i].n; row++, N++)
            memcpy(to + (size_t)N * K, w + (size_t)(ranges[i].begin + row) * VIEW_K + k,
                   F32_BYTES(K));
    return N;
}

/* What ops.h says of float8: weights by the scales of whole rows, x by those of what is read. */
static void float8_view_by_the_formula(float *y, const double *rounded, const double *scales,
                                       const void *x_act, const struct row_range *ranges, int k,
                                       int K, int T, int N)
{
    float row[VIEW_K];
    double x[VIEW_K];

    for (int t = 0; t < T; t++) {
        double x_scale;
        int n = 0;
        dtype_decode(row, (const char *)x_act + act_bytes((size_t)t * K), act, (size_t)K);
        for (int i = 0; i < K; i++)
            x[i] = (double)row[i];
        x_scale = round_row(x, K);
        for (int i = 0; i < MAX_RANGES; i++)
            for (int r = ranges[i].begin; r < ranges[i].begin + ranges[i].n; r++, n++) {
                double sum = 0.0;
                for (int j = 0; j < K; j++)
                    sum += x[j] * rounded[r * VIEW_K + k + j];
                y[(size_t)t * N + n] = (float)(sum * x_scale * scales[r]);
            }
    }
}

/* One view's products with T rows, stored and added, against the loop nest on a matrix of those
 * rows and columns alone; in float8, where that would have other scales, against the formula. */
static void check_view(const struct matrix *a, const struct matrix *whole, const float *w,
                       const double *rounded, const double *scales, const struct row_range *ranges,
                       int k, int K, int T)
{
    float *alone = host(F32_BYTES(VIEW_N * VIEW_K));
    int N = take_view(alone, w, ranges, k, K);
    size_t n = (size_t)T * N;
    float *y = random_floats(n, 20), *want = host(F32_BYTES(n)), *got = host(F32_BYTES(n));
    float *bias = random_floats((size_t)N, 21), *y_there = on_device(y, F32_BYTES(n));
    void *x = random_act((size_t)T * K, 5), *x_there = on_device(x, act_bytes((size_t)T * K));
    struct matrix_part part = {.data = alone, .type = DTYPE_F32, .rows = N};
    struct matrix *view, *loops_view, *b;

    CHECK_OK(fast->matrix_view(fast_device, &view, a, ranges, MAX_RANGES, k, K, &err));
    CHECK_OK(loops->matrix_view(loops_device, &loops_view, whole, ranges, MAX_RANGES, k, K, &err));
    CHECK_INT(fast->matrix_bytes(view), 0);
    CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, K, NULL, &err));
    CHECK_OK(loops->linear(loops_device, got, x, loops_view, NULL, false, T, &err));
    if (rounded != NULL) {
        float8_view_by_the_formula(want, rounded, scales, x, ranges, k, K, T, N);
        check_close("the meaning", got, want, n, REORDERED);
        memcpy(want, got, F32_BYTES(n));
    } else {
        CHECK_OK(loops->linear(loops_device, want, x, b, NULL, false, T, &err));
        CHECK(n == 0 || memcmp(got, want, F32_BYTES(n)) == 0);
    }
    CHECK_OK(fast->linear(fast_device, y_there, x_there, view, on_device(bias, F32_BYTES(N)), true,
                          T, &err));
    for (size_t i = 0; i < n; i++)
        y[i] += want[i] + bias[i % (size_t)N];
    check_close("added", back(y_there, F32_BYTES(n)), y, n, sums_tolerance());
    CHECK_OK(fast->linear(fast_device, y_there, x_there, view, NULL, false, T, &err));
    got = back(y_there, F32_BYTES(n));
    check_close("stored", got, want, n, sums_tolerance());
    if (fast->is_host && T > 0) { /* a row does not depend on the others here, either */
        const char *last = (const char *)x_there + act_bytes((size_t)(T - 1) * K);
        CHECK_OK(fast->linear(fast_device, y_there, last, view, NULL, false, 1, &err));
        CHECK(memcmp(back(y_there, F32_BYTES(N)), got + (size_t)(T - 1) * N, F32_BYTES(N)) == 0);
    }
    CHECK_OK(
        fast->matmul(fast_device, y_there, x_there, view, mid_on_device(bias, (size_t)N), T, &err));
    for (size_t i = 0; i < n; i++)
        want[i] += bias[i % (size_t)N];
    check_mid_close("matmul", mid_back(y_there, n), want, n);
    fast->matrix_free(fast_device, view);
    loops->matrix_free(loops_device, loops_view);
    loops->matrix_free(loops_device, b);
}

static void cut_views_match(void)
{
    static const int rows[] = {0, 1, 7, 129, 260};
    int n_cuts = float8 || !fast->is_host ? 1 : 2; /* a GPU reads many numbers at a time */
    float *w = random_floats(VIEW_N * VIEW_K, 4);
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = VIEW_N};
    double *rounded = NULL, *scales = NULL;
    struct matrix *a, *b;

    if (float8) {
        rounded = calloc(VIEW_N * VIEW_K, sizeof(*rounded));
        scales = calloc(VIEW_N, sizeof(*scales));
        CHECK(rounded != NULL && scales != NULL);
        for (int i = 0; i < VIEW_N * VIEW_K; i++) {
            w[i] *= ldexpf(1.0f, i % VIEW_K / 64); /* a row's parts have other sizes */
            rounded[i] = (double)bf16_to_float(bf16_from_float(w[i]));
        }
        for (int n = 0; n < VIEW_N; n++)
            scales[n] = round_row(rounded + (size_t)n * VIEW_K, VIEW_K);
    }
    CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, VIEW_K, NULL, &err));
    for (int which = 0; which < n_cuts; which++) {
        const struct column_cuts *c = &view_cuts[which];
        CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, VIEW_K, c, &err));
        for (int i = 0; i < N_VIEW_ROWS; i++)
            for (int from = -1; from < c->n; from++) /* from a cut to each after it */
                for (int to = from + 1; to <= c->n; to++) {
                    int k = from < 0 ? 0 : c->at[from], end = to == c->n ? VIEW_K : c->at[to];
                    if (end == k)
                        continue;
                    int T = rows[(i + from + to + 1) % 5];
                    check_view(a, b, w, rounded, scales, view_rows[i], k, end - k, T);
                }
        fast->matrix_free(fast_device, a);
    }
    loops->matrix_free(loops_device, b);
    free(rounded);
    free(scales);
    release_case();
}

/* Shares of the columns, each with its columns of x, sum up to the whole: which is as it was. */
static void views_of_columns_sum_up(void)
{
    enum { T = 61 };
    int K0 = view_cuts[0].at[0];
    float *w = random_floats(VIEW_N * VIEW_K, 4), *want = host(F32_BYTES(T * VIEW_N));
    float *y_there = on_device(want, F32_BYTES(T * VIEW_N));
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = VIEW_N};
    struct row_range all = {0, VIEW_N};
    char *x = random_act(T * VIEW_K, 5), *x_there = on_device(x, act_bytes(T * VIEW_K));
    struct matrix *a, *b, *view;

    CHECK_OK(loops->matrix_load(loops_device, &b, &part, 1, VIEW_K, NULL, &err));
    CHECK_OK(loops->linear(loops_device, want, x, b, NULL, false, T, &err));
    CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, VIEW_K, &view_cuts[0], &err));
    CHECK_OK(fast->linear(fast_device, y_there, x_there, a, NULL, false, T, &err));
    check_close("whole", back(y_there, F32_BYTES(T * VIEW_N)), want, T * VIEW_N, sums_tolerance());
    for (int half = 0; half < 2; half++) {
        int k = half * K0, K = half ? VIEW_K - K0 : K0;
        void *columns = on_device(host(act_bytes((size_t)T * K)), act_bytes((size_t)T * K));
        CHECK_OK(fast->copy_rows(fast_device, columns, act_bytes((size_t)K),
                                 x_there + act_bytes((size_t)k), act_bytes(VIEW_K),
                                 act_bytes((size_t)K), T, &err));
        CHECK_OK(fast->matrix_view(fast_device, &view, a, &all, 1, k, K, &err));
        CHECK_OK(fast->linear(fast_device, y_there, columns, view, NULL, half == 1, T, &err));
        fast->matrix_free(fast_device, view);
    }
    /* in float8 x is rounded by other scales: half a step of E4M3 is 2^-4 of a number, of many */
    check_close("sum", back(y_there, F32_BYTES(T * VIEW_N)), want, T * VIEW_N,
                float8 ? 1.0 / 16 : REORDERED);
    fast->matrix_free(fast_device, a);
    loops->matrix_free(loops_device, b);
    release_case();
}

static void what_is_no_view_is_refused(void)
{
    static const struct row_range ranges[] = {{0, 0}, {330, 7}, {-1, 2}, {0, 2}};
    float *w = random_floats(VIEW_N * VIEW_K, 4);
    struct matrix_part part = {.data = w, .type = DTYPE_F32, .rows = VIEW_N};
    struct matrix *a, *view = NULL;

    CHECK_OK(fast->matrix_load(fast_device, &a, &part, 1, VIEW_K, &view_cuts[0], &err));
    for (int i = 0; i < 3; i++)
        CHECK_ERR(fast->matrix_view(fast_device, &view, a, &ranges[i], 1, 0, VIEW_K, &err),
                  ERR_INPUT, "a view of");
    CHECK_ERR(fast->matrix_view(fast_device, &view, a, ranges, 0, 0, VIEW_K, &err), ERR_INPUT,
              "a view of");
    CHECK_ERR(fast->matrix_view(fast_device, &view, a, &ranges[3], 1, 64, 0, &err), ERR_INPUT,
              "a view of");
    CHECK_ERR(fast->matrix_view(fast_device, &view, a, &ranges[3], 1, 64, VIEW_K, &err), ERR_INPUT,
              "a view of");
    if (fast->is_host && fast->matrix_view != loops->matrix_view) /* packed */
        CHECK_ERR(fast->matrix_view(fast_device, &view, a, &ranges[3], 1, 64, 65, &err), ERR_INPUT,
                  "a view of columns 64 to 128 of a matrix that was loaded without these cuts");
    CHECK(view == NULL);
    fast->matrix_free(fast_device, a);
    release_case();
}

static const int heads[][3] = {{4, 1, 256}, {4, 2, 64},  {3, 3, 6},
                               {2, 1, 32},  {1, 1, 512}, {2, 2, 128}};
enum { N_HEADS = sizeof(heads) / sizeof(heads[0]) };

static void qk_norm_rope_matches(void)
{
    enum { POSITIONS = 40 };

    for (size_t i = 0; i < N_HEADS; i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            int H = heads[i][0], K = heads[i][1], E = heads[i][2], T = lengths[j];
            size_t n = (size_t)T * (H + 2 * K) * E, n_angles = (size_t)POSITIONS * E / 2;
            float *qkv = random_floats(n, 8), *q_w = random_floats((size_t)E, 9);
            float *k_w = random_floats((size_t)E, 10), *cos = random_floats(n_angles, 11);
            float *sin = random_floats(n_angles, 12);
            int32_t *positions = host((size_t)T * sizeof(int32_t));
            bool norm_v = j % 2 == 0;
            for (int t = 0; t < T; t++)
                positions[t] = (t * 7) % POSITIONS;
            void *there = mid_on_device(qkv, n);
            CHECK_OK(fast->qk_norm_rope(
                fast_device, there, on_device(q_w, F32_BYTES(E)), on_device(k_w, F32_BYTES(E)),
                on_device(cos, F32_BYTES(n_angles)), on_device(sin, F32_BYTES(n_angles)),
                on_device(positions, (size_t)T * sizeof(int32_t)), T, H, K, E, 1e-6f, norm_v,
                &err));
            CHECK_OK(loops->qk_norm_rope(loops_device, qkv, q_w, k_w, cos, sin, positions, T, H, K,
                                         E, 1e-6f, norm_v, &err));
            check_mid_close("qk_norm_rope", mid_back(there, n), qkv, n);
            release_case();
        }
}

/* Value heads: untouched to the bit, or normed without a weight. */
static void values_are_normed_when_asked(void)
{
    enum { T = 3, H = 2, K = 2, E = 32, STRIDE = (H + 2 * K) * E };
    float *ones = host(F32_BYTES(E)), *zeros = host(F32_BYTES(E));
    int32_t *positions = host(T * sizeof(int32_t));

    for (int e = 0; e < E; e++)
        ones[e] = 1.0f;
    for (int norm_v = 0; norm_v < 2; norm_v++) {
        float *qkv = random_floats(T * STRIDE, 8);
        void *there = mid_on_device(qkv, T * STRIDE);
        const float *got;
        CHECK_OK(fast->qk_norm_rope(
            fast_device, there, on_device(ones, F32_BYTES(E)), on_device(ones, F32_BYTES(E)),
            on_device(ones, F32_BYTES(E)), on_device(zeros, F32_BYTES(E)),
            on_device(positions, T * sizeof(int32_t)), T, H, K, E, 0.5f, norm_v == 1, &err));
        got = mid_back(there, T * STRIDE);
        for (int head = 0; head < T * (H + 2 * K); head++) {
            const float *x = qkv + (size_t)head * E, *y = got + (size_t)head * E;
            bool is_value = head % (H + 2 * K) >= H + K;
            double sum = 0.0, step = mid() == DTYPE_F32 ? 1e-5 : BF16_STEPS;
            for (int e = 0; e < E; e++)
                sum += (double)x[e] * (double)x[e];
            for (int e = 0; e < E; e++) {
                double want = (double)x[e] / sqrt(sum / E + 0.5);
                if (is_value && norm_v == 0 ? y[e] != x[e] : fabs((double)y[e] - want) > step)
                    CHECK_FAIL("norm_v %d, head %d: got %.9g from %.9g", norm_v, head, (double)y[e],
                               (double)x[e]);
            }
        }
    }
    release_case();
}

static const int32_t packs[][5] = {{0, 1}, {0, 13}, {0, 1, 2, 40}, {0, 63, 64, 129}, {0, 300}};
static const int n_prompts[] = {1, 1, 3, 3, 1};
enum { N_PACKS = sizeof(packs) / sizeof(packs[0]) };

static void attention_matches(void)
{
    static const int windows[] = {1, 5, 32, 100, INT_MAX};

    for (size_t i = 0; i < N_HEADS; i++)
        for (size_t p = 0; p < N_PACKS; p++)
            for (size_t j = 0; j < sizeof(windows) / sizeof(windows[0]); j++) {
                int H = heads[i][0], K = heads[i][1], E = heads[i][2], B = n_prompts[p];
                int T = packs[p][B];
                size_t n_in = (size_t)T * (H + 2 * K) * E, n = (size_t)T * H * E;
                float scale = 6.0f / sqrtf((float)E), *qkv = random_floats(n_in, 13);
                void *want = host(act_bytes(n)), *o_there = on_device(want, act_bytes(n));
                /* scores of some units: far from flat, and themselves rounded to 1e-6 */
                CHECK_OK(fast->attention(fast_device, o_there, mid_on_device(qkv, n_in),
                                         on_device(packs[p], sizeof(packs[p])), B, T, H, K, E,
                                         scale, windows[j], &err));
                CHECK_OK(loops->attention(loops_device, want, qkv, packs[p], B, T, H, K, E, scale,
                                          windows[j], &err));
                check_act_close("attention", back(o_there, act_bytes(n)), want, n);
                release_case();
            }
}

static void geglu_matches(void)
{
    static const int widths[] = {1, 7, 32, 320, 2048};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            int F = widths[i], T = lengths[j];
            size_t n = (size_t)T * F;
            float *gu = random_floats(2 * n, 14);
            void *want = host(act_bytes(n)), *y_there = on_device(want, act_bytes(n));
            for (size_t x = 0; x < 2 * n; x++) /* to the ends of the exponential's range */
                gu[x] *= x % 3 == 0 ? 40.0f : 3.0f;
            CHECK_OK(fast->geglu(fast_device, y_there, mid_on_device(gu, 2 * n), T, F, &err));
            CHECK_OK(loops->geglu(loops_device, want, gu, T, F, &err));
            check_act_close("geglu", back(y_there, act_bytes(n)), want, n);
            release_case();
        }
}

static void gelu_matches(void)
{
    static const int widths[] = {1, 7, 32, 320, 2048};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            int F = widths[i], T = lengths[j];
            size_t n = (size_t)T * F;
            float *x = random_floats(n, 15);
            void *want = host(act_bytes(n)), *y_there = on_device(want, act_bytes(n));
            for (size_t k = 0; k < n; k++) /* to the ends of the exponential's range */
                x[k] *= k % 3 == 0 ? 40.0f : 3.0f;
            CHECK_OK(fast->gelu(fast_device, y_there, mid_on_device(x, n), T, F, &err));
            CHECK_OK(loops->gelu(loops_device, want, x, T, F, &err));
            check_act_close("gelu", back(y_there, act_bytes(n)), want, n);
            release_case();
        }
}

static void range_norm_matches(void)
{
    static const int widths[] = {1, 5, 48, 128, 650};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (size_t p = 0; p < N_PACKS; p++) {
            int D = widths[i], B = n_prompts[p], T = packs[p][B];
            size_t n = (size_t)T * D;
            float *x = random_floats(n, 16), *scratch = random_floats((size_t)T * 3, 17);
            void *want = host(act_bytes(n)), *y_there = on_device(want, act_bytes(n));
            for (int b = 0; b < B; b++) /* each prompt about its own mean, all on one side of 0 */
                for (size_t k = (size_t)packs[p][b] * D; k < (size_t)packs[p][b + 1] * D; k++)
                    x[k] = x[k] * (float)(b + 1) + 7.0f * (float)(b + 1);
            CHECK_OK(fast->range_norm(fast_device, y_there, on_device(x, F32_BYTES(n)),
                                      on_device(packs[p], sizeof(packs[p])),
                                      on_device(scratch, F32_BYTES(T * 3)), B, T, D, &err));
            CHECK_OK(loops->range_norm(loops_device, want, x, packs[p], scratch, B, T, D, &err));
            check_act_close("range_norm", back(y_there, act_bytes(n)), want, n);
            release_case();
        }
}

/* The loop nest itself, on numbers that can be worked out by hand. */
static void range_norm_by_hand(void)
{
    static const float x[] = {1, 2, 3, 6, -5, 5};
    static const float want[] = {-3.2f, -1.6f, 0.0f, 4.8f, -4.0f, 4.0f};
    static const int32_t begin[] = {0, 2, 3};
    float scratch[9], got[6];
    void *y = host(act_bytes(6));

    CHECK_OK(loops->range_norm(loops_device, y, x, begin, scratch, 2, 3, 2, &err));
    dtype_decode(got, y, act, 6);
    check_close("by hand", got, want, 6, act == DTYPE_F32 ? 1e-5 : BF16_STEPS);
    release_case();
}

static void scale_columns_matches(void)
{
    static const int widths[][3] = {{1, 0, 1}, {5, 2, 9}, {130, 6, 136}, {600, 192, 800}};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++)
            for (int kind = 0; kind < 4; kind++) { /* with a bias; to some columns of wider rows */
                int N = widths[i][0], first = widths[i][1], x_stride = widths[i][2];
                int T = lengths[j], y_stride = kind >= 2 ? N + 2 * first + 3 : N;
                int y_first = kind >= 2 ? first : 0;
                size_t n = (size_t)T * y_stride, n_x = (size_t)T * x_stride;
                float *x = random_floats(n_x, 26), *bias = random_floats((size_t)N, 27);
                float *want = random_floats(n, 28), *y_there = on_device(want, F32_BYTES(n));
                float *x_there = on_device(x, F32_BYTES(n_x));
                bool biased = kind % 2 == 0;
                CHECK_OK(fast->scale_columns(
                    fast_device, y_there + y_first, y_stride, x_there + first, x_stride, 0.73f,
                    biased ? on_device(bias, F32_BYTES(N)) : NULL, T, N, &err));
                for (int t = 0; t < T; t++)
                    for (int k = 0; k < N; k++)
                        want[t * y_stride + y_first + k] =
                            x[t * x_stride + first + k] * 0.73f + (biased ? bias[k] : 0.0f);
                check_close("scale_columns", back(y_there, F32_BYTES(n)), want, n, EXACT);
                release_case();
            }
}

static void clear_and_copy_rows_match(void)
{
    static const size_t rows[][4] = {/* bytes of a row, from where on, how far apart: y, x */
                                     {1, 0, 1, 1},     {4, 8, 20, 4},         {16, 16, 48, 16},
                                     {36, 4, 44, 100}, {4096, 0, 4096, 8192}, {0, 0, 16, 16}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int j = 0; j < N_LENGTHS; j++) {
            size_t bytes = rows[i][0], at = rows[i][1], y_stride = rows[i][2];
            size_t x_stride = rows[i][3], T = (size_t)lengths[j];
            size_t n = at + T * y_stride, n_x = at + T * x_stride;
            char *x = (char *)random_floats(n_x / sizeof(float) + 1, 31);
            char *want = (char *)random_floats(n / sizeof(float) + 1, 32);
            char *there = on_device(want, n), *x_there = on_device(x, n_x);
            CHECK_OK(fast->copy_rows(fast_device, there + at, y_stride, x_there + at, x_stride,
                                     bytes, (int)T, &err));
            for (size_t t = 0; t < T; t++)
                memcpy(want + at + t * y_stride, x + at + t * x_stride, bytes);
            CHECK(memcmp(back(there, n), want, n) == 0);
            CHECK_OK(fast->clear(fast_device, there + at, n - at, &err));
            memset(want + at, 0, n - at);
            CHECK(memcmp(back(there, n), want, n) == 0);
            release_case();
        }
}

/* Whole prompts, and their rows in two parts. */
static void fill_rows_matches(void)
{
    enum { P = 24, R = 6, B = 4, X = 40 };
    static const int32_t first[B] = {10, 0, 39, 3}, count[B] = {P, 1, 0, 7};
    static const int widths[] = {5, 8, 260};
    static const int parts[][2] = {{0, P}, {0, 5}, {5, P - 5}};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        for (size_t j = 0; j < sizeof(types) / sizeof(types[0]); j++)
            for (size_t part = 0; part < sizeof(parts) / sizeof(parts[0]); part++) {
                int begin = parts[part][0], rows = parts[part][1];
                size_t W = (size_t)widths[i], row = W * dtype_info(types[j])->bytes;
                size_t n = (size_t)(B * rows) * row;
                char *x = host(X * row), *registers = host(R * row), *want = host(n);
                void *got = on_device(want, n);
                dtype_encode(x, random_floats(X * W, 18), types[j], X * W);
                dtype_encode(registers, random_floats(R * W, 19), types[j], R * W);
                CHECK_OK(fast->fill_rows(
                    fast_device, got, on_device(x, X * row), on_device(registers, R * row),
                    types[j], on_device(first, sizeof(first)), on_device(count, sizeof(count)), B,
                    begin, rows, R, (int)W, &err));
                for (int b = 0; b < B; b++)
                    for (int r = 0, p = begin; r < rows; r++, p++)
                        memcpy(want + (size_t)(b * rows + r) * row,
                               p < count[b] ? x + (size_t)(first[b] + p) * row
                                            : registers + (size_t)(p % R) * row,
                               row);
                CHECK(memcmp(back(got, n), want, n) == 0);
                release_case();
            }
}

/* heads, width of a head, and rows of a block, of connectors */
static const int blocks[][3] = {{3, 64, 64}, {2, 32, 100},  {1, 512, 7},  {3, 6, 33},
                                {5, 128, 1}, {8, 128, 130}, {8, 64, 256}, {8, 128, 128}};
enum { N_BLOCKS = sizeof(blocks) / sizeof(blocks[0]) };

static void wide_qk_norm_rope_matches(void)
{
    for (size_t i = 0; i < N_BLOCKS; i++)
        for (int kind = 0; kind < 4; kind++) {
            int H = blocks[i][0], E = blocks[i][1], P = blocks[i][2], T = 3 * P, W = H * E;
            int stride = 3 * W + (kind % 2 == 1 ? H : 0);
            size_t n = (size_t)T * stride, n_angles = (size_t)P * W / 2;
            float *qkv = random_floats(n, 8), *q_w = random_floats((size_t)W, 9);
            float *k_w = random_floats((size_t)W, 10), *cos = random_floats(n_angles, 11);
            float *sin = random_floats(n_angles, 12);
            void *there = mid_on_device(qkv, n);
            CHECK_OK(fast->wide_qk_norm_rope(
                fast_device, there, on_device(q_w, F32_BYTES(W)), on_device(k_w, F32_BYTES(W)),
                on_device(cos, F32_BYTES(n_angles)), on_device(sin, F32_BYTES(n_angles)), T, P, H,
                E, stride, kind >= 2, 1e-6f, &err));
            CHECK_OK(loops->wide_qk_norm_rope(loops_device, qkv, q_w, k_w, cos, sin, T, P, H, E,
                                              stride, kind >= 2, 1e-6f, &err));
            check_mid_close("wide_qk_norm_rope", mid_back(there, n), qkv, n);
            release_case();
        }
}

/* A connector's rows as its products leave them: q, k, v and gates of a row side by side. */
static void full_attention_matches(void)
{
    for (size_t i = 0; i < N_BLOCKS; i++)
        for (int gated = 0; gated < 2; gated++) {
            int H = blocks[i][0], E = blocks[i][1], P = blocks[i][2], T = 3 * P, W = H * E;
            int stride = 3 * W + gated * H;
            size_t n_in = (size_t)T * stride, n = (size_t)T * W;
            float scale = 6.0f / sqrtf((float)E), *qkvg = random_floats(n_in, 13);
            void *want = host(act_bytes(n)), *o_there = on_device(want, act_bytes(n));
            char *there = mid_on_device(qkvg, n_in);
            CHECK_OK(fast->full_attention(
                fast_device, o_there, there, gated ? there + mid_bytes(3 * (size_t)W) : NULL,
                stride, there + mid_bytes((size_t)W), stride, T, P, P, P, H, E, scale, &err));
            CHECK_OK(loops->full_attention(loops_device, want, qkvg,
                                           gated ? qkvg + 3 * (size_t)W : NULL, stride, qkvg + W,
                                           stride, T, P, P, P, H, E, scale, &err));
            check_act_close("full_attention", back(o_there, act_bytes(n)), want, n);
            release_case();
        }
}

/* Some of a block's queries over all its keys, which lie elsewhere: the same as those rows of the
 * whole, which the test above has checked, on keys with room for more after each block. */
static void full_attention_of_some_queries_matches(void)
{
    enum { B = 2, SPARE = 3 };

    for (size_t i = 0; i < N_BLOCKS; i++)
        for (int gated = 0; gated < 2; gated++) {
            int H = blocks[i][0], E = blocks[i][1], P = blocks[i][2], W = H * E;
            int Q = (P + 2) / 3, begin = P - Q, kv_rows = P + SPARE;
            int stride = 3 * W + gated * H, q_stride = W + gated * H + 8, kv_stride = 2 * W + 8;
            size_t n_all = (size_t)B * P * stride, n = (size_t)B * Q * W;
            size_t n_q = (size_t)B * Q * q_stride, n_kv = (size_t)B * kv_rows * kv_stride;
            float scale = 6.0f / sqrtf((float)E), *all = random_floats(n_all, 13);
            float *q = random_floats(n_q, 33), *kv = random_floats(n_kv, 34);
            void *whole = host(act_bytes((size_t)B * P * W)), *want = host(act_bytes(n));
            void *o_there = on_device(want, act_bytes(n));
            char *q_there;
            mid_on_device(all, n_all); /* rounded as q and kv will be */
            for (int row = 0; row < B * P; row++) {
                int b = row / P, p = row % P;
                const float *from = all + (size_t)row * stride;
                memcpy(kv + (size_t)(b * kv_rows + p) * kv_stride, from + W, F32_BYTES(2 * W));
                if (p < begin)
                    continue;
                float *to = q + (size_t)(b * Q + p - begin) * q_stride;
                memcpy(to, from, F32_BYTES(W));
                memcpy(to + W, from + 3 * W, F32_BYTES(gated * H));
            }
            q_there = mid_on_device(q, n_q);
            CHECK_OK(fast->full_attention(fast_device, o_there, q_there,
                                          gated ? q_there + mid_bytes((size_t)W) : NULL, q_stride,
                                          mid_on_device(kv, n_kv), kv_stride, B * Q, Q, P, kv_rows,
                                          H, E, scale, &err));
            CHECK_OK(loops->full_attention(loops_device, whole, all, gated ? all + 3 * W : NULL,
                                           stride, all + W, stride, B * P, P, P, P, H, E, scale,
                                           &err));
            for (int b = 0; b < B; b++)
                memcpy((char *)want + act_bytes((size_t)b * Q * W),
                       (char *)whole + act_bytes((size_t)(b * P + begin) * W),
                       act_bytes((size_t)Q * W));
            check_act_close("some queries", back(o_there, act_bytes(n)), want, n);
            if (fast->is_host) { /* the loop nest itself, to the bit */
                CHECK_OK(loops->full_attention(loops_device, whole, q, gated ? q + W : NULL,
                                               q_stride, kv, kv_stride, B * Q, Q, P, kv_rows, H, E,
                                               scale, &err));
                CHECK(memcmp(whole, want, act_bytes(n)) == 0);
            }
            release_case();
        }
}

/* Blocks as connectors have them, whole and one of four parts of their queries, and more tiles of
 * them than a GPU has processors: one takes several. The loop nest would take minutes: here the
 * CPU's vector loops are what is right. */
static void full_attention_of_many_tiles_matches(void)
{
    static const int shapes[][3] = {{16, 64, 1024}, {8, 128, 1024}, {8, 128, 384}};
    struct device_options options = {.act = DTYPE_F32, .n_threads = 8};
    struct device *cpu;

    CHECK_OK(ops_cpu()->open(&cpu, &options, &err));
    for (int i = 0; i < 12; i++) {
        int H = shapes[i / 4][0], E = shapes[i / 4][1], P = shapes[i / 4][2], W = H * E;
        int gated = i % 2, Q = i % 4 >= 2 ? P / 4 : P, stride = 3 * W + gated * H;
        size_t n_in = (size_t)3 * P * stride, n = (size_t)3 * Q * W;
        float scale = 6.0f / sqrtf((float)E), *qkvg = random_floats(n_in, 14),
              *got = host(F32_BYTES(n)), *want = host(F32_BYTES(n));
        void *o_there = on_device(host(act_bytes(n)), act_bytes(n));
        char *there = mid_on_device(qkvg, n_in);
        CHECK_OK(fast->full_attention(
            fast_device, o_there, there, gated ? there + mid_bytes(3 * (size_t)W) : NULL, stride,
            there + mid_bytes((size_t)W), stride, 3 * Q, Q, P, P, H, E, scale, &err));
        CHECK_OK(ops_cpu()->full_attention(cpu, want, qkvg, gated ? qkvg + 3 * W : NULL, stride,
                                           qkvg + W, stride, 3 * Q, Q, P, P, H, E, scale, &err));
        dtype_decode(got, back(o_there, act_bytes(n)), act, n);
        check_close("full_attention of many tiles", got, want, n,
                    act == DTYPE_F32 ? REORDERED : BF16_STEPS);
        release_case();
    }
    ops_cpu()->close(cpu);
}

static float *awkward_floats(size_t n)
{
    static const float awkward[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, 65519.0f, 65520.0f,
                                    -7e37f,   3.4e38f,  1e-45f,   -6e-8f,    2.9e-8f,  6.1e-5f,
                                    1.00390f, 1.01171f, 0.33f,    1.00048f};
    float *x = random_floats(n, 15);

    for (size_t i = 0; i < n; i += 3)
        x[i] = awkward[i / 3 % (sizeof(awkward) / sizeof(awkward[0]))];
    return x;
}

static void encode_matches(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const size_t counts[] = {0, 1, 3, 4, 61, 4096, 40003, 1100000};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            size_t n = counts[j], bytes = n * dtype_info(types[i])->bytes;
            float *x = awkward_floats(n);
            void *want = host(bytes), *there = on_device(want, bytes);
            int32_t none = 0, *has_nan = on_device(&none, sizeof(none));
            CHECK_OK(fast->encode(fast_device, there, types[i], on_device(x, F32_BYTES(n)), n,
                                  has_nan, &err));
            CHECK(dtype_encode(want, x, types[i], n));
            CHECK(n == 0 || memcmp(back(there, bytes), want, bytes) == 0);
            CHECK(*(int32_t *)back(has_nan, sizeof(none)) == 0);
            for (size_t at = 0; n > 0 && at < n; at += n / 2 + 1) { /* the first, one inside */
                float *bad = awkward_floats(n), got;
                bad[at] = NAN;
                has_nan = on_device(&none, sizeof(none));
                CHECK_OK(fast->encode(fast_device, there, types[i], on_device(bad, F32_BYTES(n)), n,
                                      has_nan, &err));
                dtype_decode(&got, (char *)back(there, bytes) + at * dtype_info(types[i])->bytes,
                             types[i], 1);
                CHECK(isnan(got) && *(int32_t *)back(has_nan, sizeof(none)) == 1);
            }
            release_case();
        }
}

/* What was marked leaves while later calls go on with other memory. */
static void marked_downloads_match(void)
{
    enum { N = 1 << 20 };
    const size_t sizes[OPS_MARKS] = {N * sizeof(float), 100, 1, 0};
    float *x = random_floats(N, 16), *got = host(F32_BYTES(N));
    void *parts[OPS_MARKS], *other = on_device(x, F32_BYTES(N));
    int32_t none = 0, *has_nan = on_device(&none, sizeof(none));

    for (int i = 0; i < OPS_MARKS; i++) {
        void *there = on_device(x + i, F32_BYTES(N - OPS_MARKS));
        parts[i] = on_device(got, F32_BYTES(N));
        CHECK_OK(
            fast->encode(fast_device, parts[i], DTYPE_F32, there, N - OPS_MARKS, has_nan, &err));
        CHECK_OK(fast->mark(fast_device, i, &err));
        for (int k = 0; k < 20; k++)
            CHECK_OK(
                fast->encode(fast_device, other, DTYPE_F32, there, N - OPS_MARKS, has_nan, &err));
    }
    for (int i = 0; i < OPS_MARKS; i++) {
        size_t bytes = sizes[i] < F32_BYTES(N - OPS_MARKS) ? sizes[i] : F32_BYTES(N - OPS_MARKS);
        memset(got, 0, F32_BYTES(N));
        CHECK_OK(fast->download_marked(fast_device, i, got, parts[i], bytes, &err));
        CHECK(memcmp(got, x + i, bytes) == 0);
        CHECK(((char *)got)[bytes] == 0); /* and no more */
    }
    release_case();
}

/* ---- collectives: ranks are threads, each with a device of its own, on the CPU ----
 *
 * A GPU has one rank in a process (NCCL): its collectives are tested by groups of one here. */

struct collective_rank {
    char *id;
    int rank, n_ranks;
    size_t n;     /* of an all_reduce; of the others, bytes */
    float *sums;  /* [n] */
    char *pieces; /* all_gather: [n_ranks, n] */
    char *told;   /* broadcast: [n] */
    struct error err;
    int rc;
    pthread_t thread;
};

static void fill_piece(char *to, int rank, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (char)(i * 7 + (size_t)rank * 31);
}

/* Each op twice in a row, so that one finds the slots as the other left them. */
static int collectives_of(struct collective_rank *r, struct device *d, void *sums, void *pieces,
                          void *told)
{
    const struct ops *ops = fast;
    char *own = (char *)pieces + (size_t)r->rank * r->n;
    size_t all = (size_t)r->n_ranks * r->n, sums_bytes = r->n * sizeof(float);
    void *apart = NULL;
    int rc;

    fill_piece(r->pieces + (size_t)r->rank * r->n, r->rank, r->n);
    fill_piece(r->told, r->rank, r->n);
    if ((rc = ops->alloc(d, &apart, r->n + 1, &r->err)) != OK ||
        (rc = ops->upload(d, sums, r->sums, sums_bytes, &r->err)) != OK ||
        (rc = ops->upload(d, pieces, r->pieces, all, &r->err)) != OK ||
        (rc = ops->upload(d, told, r->told, r->n, &r->err)) != OK ||
        (rc = ops->all_reduce(d, sums, r->n, &r->err)) != OK ||
        (rc = ops->all_gather(d, pieces, own, r->n, &r->err)) != OK ||
        (rc = ops->broadcast(d, told, r->n, r->n_ranks - 1, &r->err)) != OK ||
        (rc = ops->copy_rows(d, apart, r->n, told, r->n, r->n, 1, &r->err)) != OK ||
        (rc = ops->broadcast(d, told, r->n, 0, &r->err)) != OK ||
        (rc = ops->all_gather(d, pieces, apart, 0, &r->err)) != OK ||
        (rc = ops->copy_rows(d, apart, r->n, own, r->n, r->n, 1, &r->err)) != OK ||
        (rc = ops->all_gather(d, pieces, apart, r->n, &r->err)) != OK ||
        (rc = ops->all_reduce(d, sums, r->n, &r->err)) != OK ||
        (rc = ops->download(d, r->sums, sums, sums_bytes, &r->err)) != OK ||
        (rc = ops->download(d, r->pieces, pieces, all, &r->err)) != OK ||
        (rc = ops->download(d, r->told, told, r->n, &r->err)) != OK)
        goto out;
    rc = ops->sync(d, &r->err);
out:
    ops->release(d, apart);
    return rc;
}

static void *collective_rank_main(void *arg)
{
    struct collective_rank *r = arg;
    struct device_options options = {.act = DTYPE_F32, .n_threads = r->rank % 2 + 1};
    void *sums = NULL, *pieces = NULL, *told = NULL;
    struct group *group = NULL;
    struct device *d = NULL;

    if ((r->rc = group_join(&group, r->id, r->rank, r->n_ranks, 60000, 60000, &r->err)) != OK ||
        (r->rc = fast->open(&d, &options, &r->err)) != OK ||
        (r->rc = fast->join(d, group, &r->err)) != OK ||
        (r->rc = fast->alloc(d, &sums, r->n * sizeof(float), &r->err)) != OK ||
        (r->rc = fast->alloc(d, &pieces, (size_t)r->n_ranks * r->n, &r->err)) != OK ||
        (r->rc = fast->alloc(d, &told, r->n, &r->err)) != OK)
        goto out;
    r->rc = collectives_of(r, d, sums, pieces, told);
out:
    if (d != NULL) {
        fast->release(d, sums);
        fast->release(d, pieces);
        fast->release(d, told);
    }
    fast->close(d);
    group_leave(group);
    return NULL;
}

static void collectives_match(void)
{
    static const size_t counts[] = {0, 1, 3, 1001, GROUP_SLOT_BYTES / 8, 700001};
    int most = fast->is_host ? GROUP_MAX_RANKS : 1;

    for (int n_ranks = 1; n_ranks <= most; n_ranks += n_ranks == 3 ? 5 : 1)
        for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            struct collective_rank ranks[GROUP_MAX_RANKS];
            size_t n = counts[j];
            float *want = host(F32_BYTES(n));
            char id[GROUP_ID_SIZE], *piece = host(n);
            CHECK_OK(group_make_id(id, &err));
            for (int r = 0; r < n_ranks; r++) {
                ranks[r] = (struct collective_rank){.id = id,
                                                    .rank = r,
                                                    .n_ranks = n_ranks,
                                                    .n = n,
                                                    .sums = random_floats(n, 40 + (unsigned)r),
                                                    .pieces = host(n * (size_t)n_ranks),
                                                    .told = host(n)};
                for (size_t i = 0; i < n; i++) /* the meaning: in the order of ranks */
                    want[i] = r == 0 ? ranks[r].sums[i] : want[i] + ranks[r].sums[i];
            }
            for (size_t i = 0; i < n; i++) { /* and once more, of equal numbers */
                float once = want[i];
                for (int r = 1; r < n_ranks; r++)
                    want[i] += once;
            }
            for (int r = 0; r < n_ranks; r++)
                CHECK(pthread_create(&ranks[r].thread, NULL, collective_rank_main, &ranks[r]) == 0);
            for (int r = 0; r < n_ranks; r++)
                pthread_join(ranks[r].thread, NULL);
            for (int r = 0; r < n_ranks; r++) {
                if (ranks[r].rc != OK)
                    CHECK_FAIL("rank %d of %d: %s", r, n_ranks, ranks[r].err.text);
                CHECK(n == 0 || memcmp(ranks[r].sums, want, F32_BYTES(n)) == 0);
                for (int from = 0; from < n_ranks; from++) {
                    fill_piece(piece, from, n);
                    CHECK(memcmp(ranks[r].pieces + (size_t)from * n, piece, n) == 0);
                }
                fill_piece(piece, n_ranks - 1, n); /* the last one's to the first's, then to all */
                CHECK(memcmp(ranks[r].told, piece, n) == 0);
            }
            release_case();
        }
}

/* One rank never comes to the sum, or says why. */
static void *absent_rank_main(void *arg)
{
    struct collective_rank *r = arg;
    struct group *group;

    if ((r->rc = group_join(&group, r->id, r->rank, r->n_ranks, 60000, 200, &r->err)) != OK)
        return NULL;
    if (r->n != 0)
        group_abort(group, "its device is broken");
    while (group_check(group, NULL) == OK)
        clock_pause_ms(5);
    group_leave(group);
    return NULL;
}

static void a_rank_that_never_comes_is_an_error(void)
{
    struct device_options options = {.act = DTYPE_F32, .n_threads = 1};
    char id[GROUP_ID_SIZE];

    for (int says_why = 0; says_why < 2; says_why++) {
        struct collective_rank other = {.id = id, .rank = 1, .n_ranks = 2, .n = (size_t)says_why};
        const char *words = says_why ? "group: rank 1 failed: its device is broken"
                                     : "group: rank 1 did not come within 200 ms";
        float *x = random_floats(100, 1);
        struct group *group;
        struct device *d;
        CHECK_OK(group_make_id(id, &err));
        CHECK(pthread_create(&other.thread, NULL, absent_rank_main, &other) == 0);
        CHECK_OK(group_join(&group, id, 0, 2, 60000, 200, &err));
        CHECK_OK(fast->open(&d, &options, &err));
        CHECK_OK(fast->join(d, group, &err));
        CHECK_ERR(fast->all_reduce(d, x, 100, &err), ERR_GPU, words);
        CHECK_ERR(fast->sync(d, &err), ERR_GPU, words);
        CHECK_ERR(fast->download(d, x, x + 50, 4, &err), ERR_GPU, words);
        pthread_join(other.thread, NULL);
        CHECK(other.rc == OK);
        fast->close(d);
        group_leave(group);
        release_case();
    }
}

/* ---- which of them ---- */

static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F8_E4M3};
static const char *const groups[] = {"products", "few-rows",  "float8",     "norms",
                                     "rows",     "attention", "collectives"};
enum { N_TYPES = sizeof(types) / sizeof(types[0]), N_GROUPS = sizeof(groups) / sizeof(groups[0]) };

static bool is_type(const char *word)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(word, dtype_info(types[i])->name) == 0)
            return true;
    return false;
}

static bool is_group(const char *word)
{
    for (int i = 0; i < N_GROUPS; i++)
        if (strcmp(word, groups[i]) == 0)
            return true;
    return false;
}

/* Whether this word is among those given, or none of its kind. */
static bool chosen(const char *word, bool (*kind)(const char *word))
{
    bool one_of_them = false;

    for (int i = 0; i < n_asked; i++) {
        if (strcmp(asked[i], word) == 0)
            return true;
        one_of_them |= kind(asked[i]);
    }
    return !one_of_them;
}

static void run_products(void)
{
    RUN(matmul_matches);
    RUN(random_matrices_match);
    RUN(linear_matches);
    RUN(more_rows_match);
    if (fast->matrix_view != NULL)
        RUN(views_of_more_rows_match);
    if (fast->matrix_view != NULL && !float8)
        RUN(odd_views_match);
    RUN(matmul_rows_are_independent);
    RUN(cut_views_match);
    RUN(views_of_columns_sum_up);
    RUN(what_is_no_view_is_refused);
}

static void run_few_rows(void)
{
    RUN(few_rows_match);
    if (fast->matrix_view != NULL)
        RUN(views_of_few_rows_match);
}

static void run_float8(void)
{
    RUN(float8_products_by_the_formula);
    RUN(float8_keeps_nan_to_its_row);
    RUN(float8_refuses_too_many_rows);
    if (fast == ops_cuda())
        RUN(float8_refuses_odd_views);
}

static void run_norms(void)
{
    RUN(rmsnorm_matches);
    RUN(norms_lie_side_by_side);
    RUN(the_sum_is_scaled);
    RUN(qk_norm_rope_matches);
    RUN(values_are_normed_when_asked);
    RUN(range_norm_matches);
    RUN(range_norm_by_hand);
    RUN(wide_qk_norm_rope_matches);
}

static void run_rows(void)
{
    RUN(embed_matches);
    RUN(geglu_matches);
    RUN(gelu_matches);
    RUN(scale_columns_matches);
    RUN(clear_and_copy_rows_match);
    RUN(fill_rows_matches);
    RUN(encode_matches);
    if (fast->mark != NULL)
        RUN(marked_downloads_match);
}

static void run_attention(void)
{
    RUN(attention_matches);
    RUN(full_attention_matches);
    RUN(full_attention_of_some_queries_matches);
    if (fast == ops_cuda())
        RUN(full_attention_of_many_tiles_matches);
}

static void run_collectives(void)
{
    RUN(collectives_match);
    if (fast->is_host)
        RUN(a_rank_that_never_comes_is_an_error);
}

/* What float8 leaves as it is in bf16 is not run again. */
static void run_chosen(void)
{
    if (chosen("products", is_group))
        run_products();
    if (chosen("few-rows", is_group))
        run_few_rows();
    if (float8 && chosen("float8", is_group))
        run_float8();
    if (!float8 && chosen("norms", is_group))
        run_norms();
    if (!float8 && chosen("rows", is_group))
        run_rows();
    if (!float8 && chosen("attention", is_group))
        run_attention();
    if (!float8 && chosen("collectives", is_group))
        run_collectives();
}

/* `type`: F32, BF16, or F8_E4M3 for products in float8. `name`: a table's, or "simd ..", which has
 * the threads of "cpu" and loops for other processors. */
static void run_all(const struct ops *table, const char *name, enum dtype type, int n_threads)
{
    struct device_options options = {.n_threads = n_threads, .max_rows = MAX_ROWS};

    if ((ONLY_THREADS && (n_threads == 1 || strncmp(name, "simd", 4) == 0)) ||
        (only != NULL && strcmp(only, name) != 0) || !chosen(dtype_info(type)->name, is_type))
        return;
    fast = table;
    loops = ops_loops();
    float8 = options.float8 = type == DTYPE_F8_E4M3;
    act = options.act = float8 ? DTYPE_BF16 : type;
    err = (struct error){0};
    if (table == NULL) {
        printf("SKIPPED %s in %s: not in this build\n", name, dtype_info(type)->name);
        return;
    }
    if (fast->open(&fast_device, &options, &err) != OK) {
        /* only a GPU or bfloat16 arithmetic may be missing here */
        bool may_lack = table == ops_cuda() || act == DTYPE_BF16;
        printf("%s %s in %s: %s\n", may_lack && err.code == ERR_INPUT ? "SKIPPED" : "FAIL", name,
               dtype_info(type)->name, err.text);
        if (!may_lack || err.code != ERR_INPUT)
            exit(EXIT_FAILURE);
        return;
    }
    if (loops->open(&loops_device, &options, &err) != OK) {
        printf("%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    printf("%s, %s, %d threads\n", name, dtype_info(type)->name, n_threads);
    run_chosen();
    fast->close(fast_device);
    loops->close(loops_device);
}

int main(int argc, char **argv)
{
    struct ops level = *ops_loops();

    only = argc > 1 ? argv[1] : NULL;
    asked = argv + 2;
    n_asked = argc > 2 ? argc - 2 : 0;
    for (int i = 0; i < n_asked; i++)
        if (!is_type(asked[i]) && !is_group(asked[i])) {
            printf("test_ops: \"%s\" is no type and no group of tests\n", asked[i]);
            return EXIT_FAILURE;
        }

    run_all(ops_cpu(), "cpu", DTYPE_F32, 1);
    run_all(ops_cpu(), "cpu", DTYPE_F32, 3);
    run_all(ops_cpu(), "cpu", DTYPE_BF16, 2);
    run_all(ops_cpu(), "cpu", DTYPE_F8_E4M3, 2);
    simd_fill_baseline(&level);
    run_all(&level, "simd baseline", DTYPE_F32, 1);
    run_all(&level, "simd baseline", DTYPE_BF16, 2);
    run_all(&level, "simd baseline", DTYPE_F8_E4M3, 1);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        simd_fill_v3(&level);
        run_all(&level, "simd v3", DTYPE_F32, 2);
        run_all(&level, "simd v3", DTYPE_BF16, 1);
        run_all(&level, "simd v3", DTYPE_F8_E4M3, 2);
    }
#endif
    run_all(ops_cuda(), "cuda", DTYPE_F32, 1);
    run_all(ops_cuda(), "cuda", DTYPE_BF16, 1);
    run_all(ops_cuda(), "cuda", DTYPE_F8_E4M3, 1);
    return check_result();
}
