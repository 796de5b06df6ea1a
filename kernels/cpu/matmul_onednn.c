/* matmul_onednn.c - matmul by oneDNN on processors with AVX-512, float32 or bf16 with float32 sums.
 *
 * A weight matrix is cut into panels of PANEL columns of y (rows of w), each packed once, at load,
 * in the blocked layout oneDNN asks for; it does not depend on the number of tokens. A product is
 * cut into tiles of up to TILE tokens by one panel, or by a piece of it; the pool's threads take
 * tiles as they come, and each calls oneDNN as a single thread. (Letting oneDNN's own OpenMP team
 * run beside our pool would put two thread pools on the same cores.) A tile's result is made in the
 * thread's own memory and stored into y, a bias and what was there added on the way: oneDNN's fast
 * kernels write dense rows only, and a panel's rows in y are not.
 *
 * Where a matrix may be cut by columns (a rank's share of them), each panel is packed as so many
 * chunks, one after another: a product over some of them adds up their results, and one over all
 * does, too. A packed layout cannot be cut at any other place. As the fast kernels read dense rows
 * only, each thread copies a tile's rows of x apart for that, once for all panels that it takes.
 *
 * Primitives are JIT-compiled for a shape (about 0.2 ms) and kept in the device: a forward pass
 * over a token count seen before creates none. With TILE as the bound there are at most TILE of
 * them for each shape of a panel. Not taken: oneDNN's run-time M, which falls back to a slower
 * kernel. */
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/device.h"

/* of the OpenMP runtime oneDNN is linked with; <omp.h> would tie us to one compiler's */
int omp_get_max_threads(void);
void omp_set_num_threads(int n);

enum { PANEL = 128, TILE = 128, ALIGN = 64 };

#define DNNL_TRY(call)                                                                             \
    do {                                                                                           \
        dnnl_status_t status_ = (call);                                                            \
        if (status_ != dnnl_success) {                                                             \
            rc = error_set(err, status_ == dnnl_out_of_memory ? ERR_MEM : ERR_INPUT,               \
                           "oneDNN: %s: status %d", #call, (int)status_);                          \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

enum { ARGS = 4 }; /* of a product: x, w, y, scratch */

/* A compiled product of x [M, K] and a chunk [N, K]. */
struct plan {
    struct plan *next; /* in its bucket */
    int M, N, K;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t *args; /* [n_threads, ARGS]; a task sets where each memory is */
    int n_args;
    size_t scratch_bytes;
};

enum { BUCKETS = 1024 };

struct matmul_plans {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* [n_threads] */
    float *tiles;           /* [n_threads, 2, TILE, PANEL]: a tile of y, and what comes to it */
    void **scratch;         /* [n_threads]; oneDNN's own would be shared between threads */
    size_t scratch_bytes;
    char *rows; /* [n_threads, rows_bytes]: a tile of x, chunk after chunk; NULL: none is cut */
    size_t rows_bytes;
    int *rows_tile;       /* [n_threads]: which one of the run; -1: none yet */
    struct error *errors; /* [n_threads]: what went wrong in the tasks of one run */
    struct plan *buckets[BUCKETS];
};

/* Values of E4M3 go as bf16. */
static dnnl_data_type_t dnnl_type(enum dtype type)
{
    return type == DTYPE_F32 ? dnnl_f32 : dnnl_bf16;
}

static void plan_free(struct plan *plan)
{
    if (plan == NULL)
        return;
    for (int i = 0; i < plan->n_args; i++)
        dnnl_memory_destroy(plan->args[i].memory);
    if (plan->primitive != NULL)
        dnnl_primitive_destroy(plan->primitive);
    free(plan->args);
    free(plan);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The layout oneDNN wants for a chunk of a panel. M = 64 stands for all: measured, the layout is
 * the same. */
static int packed_layout(dnnl_memory_desc_t *out, dnnl_engine_t engine, enum dtype type, int N,
                         int K, struct error *err)
{
    dnnl_dims_t x_dims = {64, K}, w_dims = {K, N}, y_dims = {64, N};
    dnnl_memory_desc_t x, w, y;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_matmul_desc_t desc;
    int rc = OK;

    DNNL_TRY(dnnl_memory_desc_init_by_tag(&x, 2, x_dims, dnnl_type(type), dnnl_ab));
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&w, 2, w_dims, dnnl_type(type), dnnl_format_tag_any));
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&y, 2, y_dims, dnnl_f32, dnnl_ab));
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &x, &w, NULL, &y));
    DNNL_TRY(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL));
    *out = *dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
out:
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return rc;
}

/* ---- the device ---- */

static void onednn_close(struct device *d)
{
    struct matmul_plans *p = d == NULL ? NULL : d->plans;

    if (p != NULL) {
        for (int i = 0; i < BUCKETS; i++)
            for (struct plan *plan = p->buckets[i]; plan != NULL;) {
                struct plan *next = plan->next;
                plan_free(plan);
                plan = next;
            }
        for (int i = 0; p->streams != NULL && i < pool_n_threads(d->pool); i++)
            if (p->streams[i] != NULL)
                dnnl_stream_destroy(p->streams[i]);
        for (int i = 0; p->scratch != NULL && i < pool_n_threads(d->pool); i++)
            free(p->scratch[i]);
        if (p->engine != NULL)
            dnnl_engine_destroy(p->engine);
        free(p->streams);
        free(p->tiles);
        free(p->scratch);
        free(p->rows);
        free(p->rows_tile);
        free(p->errors);
        free(p);
    }
    cpu_close(d);
}

static int onednn_open(struct device **out, const struct device_options *options, struct error *err)
{
    struct device *d = NULL;
    struct matmul_plans *p;
    size_t n = (size_t)options->n_threads;
    int rc;

    *out = NULL;
    if ((rc = cpu_open(&d, options, err)) != OK)
        return rc;
    if ((p = d->plans = calloc(1, sizeof(*p))) == NULL ||
        (p->streams = calloc(n, sizeof(*p->streams))) == NULL ||
        (p->tiles = aligned_alloc(ALIGN, n * 2 * TILE * PANEL * sizeof(float))) == NULL ||
        (p->scratch = calloc(n, sizeof(*p->scratch))) == NULL ||
        (p->rows_tile = calloc(n, sizeof(*p->rows_tile))) == NULL ||
        (p->errors = calloc(n, sizeof(*p->errors))) == NULL) {
        rc = error_set(err, ERR_MEM, "cpu: no memory for matmul plans");
        goto out;
    }
    if (options->act == DTYPE_BF16 &&
        (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) !=
            dnnl_cpu_isa_avx512_core_bf16) {
        rc = error_set(err, ERR_INPUT,
                       "cpu: this processor has no bfloat16 arithmetic; compute in float32");
        goto out;
    }
    DNNL_TRY(dnnl_engine_create(&p->engine, dnnl_cpu, 0));
    for (size_t i = 0; i < n; i++)
        DNNL_TRY(dnnl_stream_create(&p->streams[i], p->engine, dnnl_stream_default_flags));
    *out = d;
    d = NULL;
out:
    onednn_close(d);
    return rc;
}

/* The first failure of a run's tasks; clears them for the next run. */
static int run_result(struct device *d, struct error *err)
{
    int rc = OK;

    for (int i = 0; i < pool_n_threads(d->pool); i++) {
        struct error *e = &d->plans->errors[i];
        if (e->code != OK && rc == OK)
            rc = error_set(err, e->code, "%s", e->text);
        *e = (struct error){0};
    }
    return rc;
}

/* ---- weights ---- */

static int panel_rows(const struct matrix *m, int panel)
{
    int rest = m->rows - panel * PANEL;

    return rest < PANEL ? rest : PANEL;
}

struct load_args {
    struct device *d;
    struct matrix *m;
    const struct matrix_part *parts;
    int n_parts;
};

/* Chunk c of a panel's N rows, which are there as [N, columns] float32. */
static int pack_chunk(char *panel, float *rows, const struct matrix *m, int N, int c,
                      dnnl_engine_t engine, struct error *err)
{
    int K = m->chunk[c + 1] - m->chunk[c], rc = OK;
    /* rows of w are columns of oneDNN's [K, N] */
    dnnl_dims_t dims = {K, N}, strides = {1, m->columns};
    dnnl_memory_desc_t plain_md, packed_md;
    dnnl_memory_t plain_memory = NULL, packed_memory = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_exec_arg_t args[2];

    if ((rc = packed_layout(&packed_md, engine, m->type, N, K, err)) != OK)
        goto out;
    DNNL_TRY(dnnl_memory_desc_init_by_strides(&plain_md, 2, dims, dnnl_f32, strides));
    DNNL_TRY(dnnl_memory_create(&plain_memory, &plain_md, engine, rows + m->chunk[c]));
    DNNL_TRY(dnnl_memory_create(&packed_memory, &packed_md, engine, panel + m->chunk_at[c]));
    DNNL_TRY(dnnl_reorder_primitive_desc_create(&pd, &plain_md, engine, &packed_md, engine, NULL));
    DNNL_TRY(dnnl_primitive_create(&reorder, pd));
    DNNL_TRY(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, plain_memory};
    args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, packed_memory};
    DNNL_TRY(dnnl_primitive_execute(reorder, stream, 2, args));
    DNNL_TRY(dnnl_stream_wait(stream));
out:
    if (stream != NULL)
        dnnl_stream_destroy(stream);
    if (reorder != NULL)
        dnnl_primitive_destroy(reorder);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (packed_memory != NULL)
        dnnl_memory_destroy(packed_memory);
    if (plain_memory != NULL)
        dnnl_memory_destroy(plain_memory);
    return rc;
}

static int load_panel(const struct load_args *a, int panel, struct error *err)
{
    struct matrix *m = a->m;
    int N = panel_rows(m, panel), K = m->columns, rc = OK;
    char *packed = (char *)m->data + panel * m->panel_bytes;
    float *rows = aligned_alloc(ALIGN, round_up((size_t)N * K * sizeof(float), ALIGN));

    if (rows == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory to load a matrix of %d columns", K);
    omp_set_num_threads(1);
    matrix_parts_decode(rows, a->parts, a->n_parts, K, panel * PANEL, N);
    cpu_round_weights(rows, m, panel * PANEL, N);
    for (int c = 0; rc == OK && c < m->n_chunks; c++)
        rc = pack_chunk(packed, rows, m, N, c, a->d->plans->engine, err);
    free(rows);
    return rc;
}

static void load_panel_task(void *arg, int panel, int thread)
{
    const struct load_args *a = arg;

    load_panel(a, panel, &a->d->plans->errors[thread]);
}

/* Where the chunks of a panel begin. All panels take the room of a full one; only the last may need
 * less. */
static int lay_out_chunks(struct matrix *m, const struct column_cuts *cuts, dnnl_engine_t engine,
                          struct error *err)
{
    int rc;

    for (int i = 0; cuts != NULL && i < cuts->n; i++) /* shares of a rank may be empty */
        if (cuts->at[i] > m->chunk[m->n_chunks] && cuts->at[i] < m->columns)
            m->chunk[++m->n_chunks] = cuts->at[i];
    m->chunk[++m->n_chunks] = m->columns;
    for (int c = 0; c < m->n_chunks; c++) {
        dnnl_memory_desc_t layout;
        if ((rc = packed_layout(&layout, engine, m->type, panel_rows(m, 0),
                                m->chunk[c + 1] - m->chunk[c], err)) != OK)
            return rc;
        m->chunk_at[c] = m->panel_bytes;
        m->panel_bytes += round_up(dnnl_memory_desc_get_size(&layout), ALIGN);
    }
    return OK;
}

/* Room for a tile of x with so many columns, for each thread. */
static int reserve_rows(struct device *d, int columns, struct error *err)
{
    struct matmul_plans *p = d->plans;
    size_t bytes = round_up((size_t)TILE * columns * dtype_info(d->act)->bytes, ALIGN);

    if (bytes <= p->rows_bytes)
        return OK;
    free(p->rows);
    p->rows_bytes = 0;
    if ((p->rows = aligned_alloc(ALIGN, (size_t)pool_n_threads(d->pool) * bytes)) == NULL)
        return error_set(err, ERR_MEM, "cpu: no memory for rows of %d columns", columns);
    p->rows_bytes = bytes;
    return OK;
}

static int onednn_matrix_load(struct device *d, struct matrix **out,
                              const struct matrix_part *parts, int n_parts, int K,
                              const struct column_cuts *cuts, struct error *err)
{
    int omp_threads = omp_get_max_threads(), rc;
    struct load_args args = {.d = d, .parts = parts, .n_parts = n_parts};
    struct matrix *m;

    *out = NULL;
    if ((rc = cpu_matrix_create(d, &m, parts, n_parts, K, PANEL, err)) != OK)
        return rc;
    if ((rc = lay_out_chunks(m, cuts, d->plans->engine, err)) != OK)
        goto out;
    m->bytes = (size_t)m->n_pieces * m->panel_bytes;
    if ((rc = cpu_alloc(d, &m->data, m->bytes, err)) != OK)
        goto out;
    args.m = m;
    pool_run(d->pool, load_panel_task, &args, m->n_pieces);
    if ((rc = run_result(d, err)) != OK)
        goto out;
    *out = m;
    m = NULL;
out:
    omp_set_num_threads(omp_threads);
    cpu_matrix_free(d, m);
    return rc;
}

/* The chunk that begins at column k, n_chunks the one after the last; -1: none. */
static int chunk_from(const struct matrix *m, int k)
{
    for (int c = 0; c <= m->n_chunks; c++)
        if (m->chunk[c] == k)
            return c;
    return -1;
}

static int onednn_matrix_view(struct device *d, struct matrix **out, const struct matrix *m,
                              const struct row_range *ranges, int n_ranges, int k_begin, int K,
                              struct error *err)
{
    int rc = cpu_matrix_view(d, out, m, ranges, n_ranges, k_begin, K, err);

    if (rc != OK || (chunk_from(m, k_begin) >= 0 && chunk_from(m, k_begin + K) >= 0))
        return rc;
    cpu_matrix_free(d, *out);
    *out = NULL;
    return error_set(
        err, ERR_INPUT,
        "cpu: a view of columns %d to %d of a matrix that was loaded without these cuts", k_begin,
        k_begin + K - 1);
}

/* ---- products ---- */

static int plan_create(struct plan **out, const struct device *d, int M, int N, int K,
                       struct error *err)
{
    static const int names[ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                    DNNL_ARG_SCRATCHPAD};
    dnnl_dims_t x_dims = {M, K}, y_dims = {M, N};
    dnnl_memory_desc_t layouts[ARGS]; /* x, w, y, scratch */
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_engine_t engine = d->plans->engine;
    dnnl_matmul_desc_t desc;
    struct plan *plan;
    int n_args = ARGS * pool_n_threads(d->pool), rc;

    *out = NULL;
    if ((plan = calloc(1, sizeof(*plan))) == NULL ||
        (plan->args = calloc((size_t)n_args, sizeof(*plan->args))) == NULL) {
        rc = error_set(err, ERR_MEM, "cpu: no memory for a matmul plan");
        goto out;
    }
    plan->M = M;
    plan->N = N;
    plan->K = K;
    if ((rc = packed_layout(&layouts[1], engine, d->act, N, K, err)) != OK)
        goto out;
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&layouts[0], 2, x_dims, dnnl_type(d->act), dnnl_ab));
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&layouts[2], 2, y_dims, dnnl_f32, dnnl_ab));
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &layouts[0], &layouts[1], NULL, &layouts[2]));
    DNNL_TRY(dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL));
    layouts[3] = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    plan->scratch_bytes = dnnl_memory_desc_get_size(&layouts[3]);
    DNNL_TRY(dnnl_primitive_create(&plan->primitive, pd));
    for (; plan->n_args < n_args; plan->n_args++) {
        dnnl_exec_arg_t *arg = &plan->args[plan->n_args];
        arg->arg = names[plan->n_args % ARGS];
        DNNL_TRY(dnnl_memory_create(&arg->memory, &layouts[plan->n_args % ARGS], engine,
                                    DNNL_MEMORY_NONE));
    }
    *out = plan;
    plan = NULL;
out:
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
    plan_free(plan);
    return rc;
}

/* Every thread's scratch space holds at least `bytes`. */
static int reserve_scratch(struct device *d, size_t bytes, struct error *err)
{
    struct matmul_plans *p = d->plans;

    if (bytes <= p->scratch_bytes)
        return OK;
    p->scratch_bytes = 0;
    for (int i = 0; i < pool_n_threads(d->pool); i++) {
        free(p->scratch[i]);
        if ((p->scratch[i] = aligned_alloc(ALIGN, round_up(bytes, ALIGN))) == NULL)
            return error_set(err, ERR_MEM, "cpu: no memory for %zu bytes of scratch", bytes);
    }
    p->scratch_bytes = bytes;
    return OK;
}

static int plan_get(const struct plan **out, struct device *d, int M, int N, int K,
                    struct error *err)
{
    uint32_t hash = ((uint32_t)M * 31u + (uint32_t)N) * 31u + (uint32_t)K * 7u;
    struct plan **bucket = &d->plans->buckets[hash % BUCKETS], *plan;
    int rc;

    for (plan = *bucket; plan != NULL; plan = plan->next)
        if (plan->M == M && plan->N == N && plan->K == K) {
            *out = plan;
            return reserve_scratch(d, plan->scratch_bytes, err);
        }
    if ((rc = plan_create(&plan, d, M, N, K, err)) != OK)
        return rc;
    plan->next = *bucket;
    *bucket = plan;
    *out = plan;
    return reserve_scratch(d, plan->scratch_bytes, err);
}

struct matmul_args {
    struct device *d;
    float *y;
    const void *x;
    const struct matrix *w;
    const float *bias; /* or NULL */
    bool add;
    int T;
    int first_chunk, end_chunk;
    /* [the tile is cut short][the panel is][chunk] */
    const struct plan *plans[2][2][GROUP_MAX_RANKS];
};

/* M rows of x from row t on, each chunk dense as the product reads it. */
static const char *tile_rows(const struct matmul_args *a, int t, int M, int thread)
{
    struct matmul_plans *p = a->d->plans;
    const struct matrix *w = a->w;
    size_t size = dtype_info(a->d->act)->bytes, row = w->K * size;
    const char *x = (const char *)a->x + t * row;
    char *rows, *to;

    if (a->end_chunk - a->first_chunk == 1)
        return x;
    rows = to = p->rows + (size_t)thread * p->rows_bytes;
    for (int c = a->first_chunk; p->rows_tile[thread] != t && c < a->end_chunk; c++) {
        size_t at = (size_t)(w->chunk[c] - w->k_begin) * size;
        size_t n = (size_t)(w->chunk[c + 1] - w->chunk[c]) * size;
        for (int m = 0; m < M; m++, to += n)
            memcpy(to, x + m * row + at, n);
    }
    p->rows_tile[thread] = t;
    return rows;
}

/* A tile's rows of x by one chunk of a panel, to `to` [M, N]. */
static int multiply_chunk(const struct matmul_plans *p, const struct plan *plan, const char *x,
                          const char *chunk, float *to, int thread, struct error *err)
{
    const dnnl_exec_arg_t *args = plan->args + (size_t)thread * ARGS;
    union {
        const char *read_only;
        void *address;
    } from = {x}, w = {chunk}; /* oneDNN's handles take no const */
    int rc = OK;

    DNNL_TRY(dnnl_memory_set_data_handle(args[0].memory, from.address));
    DNNL_TRY(dnnl_memory_set_data_handle(args[1].memory, w.address));
    DNNL_TRY(dnnl_memory_set_data_handle(args[2].memory, to));
    DNNL_TRY(dnnl_memory_set_data_handle(args[3].memory, p->scratch[thread]));
    DNNL_TRY(dnnl_primitive_execute(plan->primitive, p->streams[thread], ARGS, args));
    DNNL_TRY(dnnl_stream_wait(p->streams[thread]));
out:
    return rc;
}

static int matmul_tile(const struct matmul_args *a, int index, int thread, struct error *err)
{
    const struct matrix *w = a->w;
    struct piece piece = w->pieces[index % w->n_pieces];
    int t = index / w->n_pieces * TILE, panel = piece.row / PANEL, rc;
    const struct plan *const *plans = a->plans[t + TILE > a->T][(panel + 1) * PANEL > w->rows];
    int M = plans[a->first_chunk]->M, N = plans[a->first_chunk]->N;
    const char *x = tile_rows(a, t, M, thread);
    const char *data = (const char *)w->data + panel * w->panel_bytes;
    float *result = a->d->plans->tiles + (size_t)thread * 2 * TILE * PANEL;
    float *more = result + TILE * PANEL;
    float *y = a->y + (size_t)t * w->N + piece.column;
    const float *bias = a->bias != NULL ? a->bias + piece.column : NULL;

    omp_set_num_threads(1);
    for (int c = a->first_chunk; c < a->end_chunk; c++) {
        float *to = c == a->first_chunk ? result : more;
        if ((rc = multiply_chunk(a->d->plans, plans[c], x, data + w->chunk_at[c], to, thread,
                                 err)) != OK)
            return rc;
        for (int i = 0; to == more && i < M * N; i++)
            result[i] += more[i];
        x += (size_t)M * plans[c]->K * dtype_info(a->d->act)->bytes;
    }
    for (int m = 0; m < M; m++) {
        float *row = result + (size_t)m * N + piece.row % PANEL;
        scale_sums(row, a->d, w, t + m, piece.row, piece.n);
        store_row(y + (size_t)m * w->N, row, bias, a->add, piece.n);
    }
    return OK;
}

static void matmul_tile_task(void *arg, int index, int thread)
{
    const struct matmul_args *a = arg;

    matmul_tile(a, index, thread, &a->d->plans->errors[thread]);
}

/* The plans for all tiles and panels, whole ones and those that are cut short. */
static int get_plans(struct matmul_args *a, struct error *err)
{
    const struct matrix *w = a->w;
    int rows[2] = {a->T >= TILE ? TILE : 0, a->T % TILE};
    int columns[2] = {w->rows >= PANEL ? PANEL : 0, w->rows % PANEL}, rc = OK;

    omp_set_num_threads(1); /* a primitive keeps the team size it was created under */
    for (int tile = 0; tile < 2; tile++)
        for (int panel = 0; panel < 2; panel++)
            for (int c = a->first_chunk; c < a->end_chunk && rows[tile] * columns[panel] > 0; c++)
                if ((rc = plan_get(&a->plans[tile][panel][c], a->d, rows[tile], columns[panel],
                                   w->chunk[c + 1] - w->chunk[c], err)) != OK)
                    return rc;
    return OK;
}

static int onednn_linear(struct device *d, float *y, const void *x, const struct matrix *w,
                         const float *bias, bool add, int T, struct error *err)
{
    struct matmul_args args = {.d = d, .y = y, .x = x, .w = w, .bias = bias, .add = add, .T = T};
    int omp_threads = omp_get_max_threads(), rc;

    if (T == 0)
        return OK;
    if ((rc = cpu_float8_rows(d, &args.x, w, T, err)) != OK)
        return rc;
    for (int i = 0; i < pool_n_threads(d->pool); i++)
        d->plans->rows_tile[i] = -1;
    args.first_chunk = chunk_from(w, w->k_begin);
    args.end_chunk = chunk_from(w, w->k_begin + w->K);
    /* a matrix may have been loaded by another device */
    if (args.end_chunk - args.first_chunk > 1 && (rc = reserve_rows(d, w->K, err)) != OK)
        return rc;
    if ((rc = get_plans(&args, err)) == OK) {
        pool_run(d->pool, matmul_tile_task, &args, (T + TILE - 1) / TILE * w->n_pieces);
        rc = run_result(d, err);
    }
    omp_set_num_threads(omp_threads);
    return rc;
}

static int onednn_matmul(struct device *d, void *y, const void *x, const struct matrix *w,
                         const void *bias, int T, struct error *err)
{
    return onednn_linear(d, y, x, w, bias, false, T, err);
}

void onednn_fill(struct ops *ops)
{
    /* Its kernels for AVX-512 sum a row in the same order whatever M is; those below pick another
     * order by M, so a prompt's numbers would depend on its neighbours: measured, 1e-6 and more. */
    if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) != dnnl_cpu_isa_avx512_core)
        return;
    ops->open = onednn_open;
    ops->close = onednn_close;
    ops->matrix_load = onednn_matrix_load;
    ops->matrix_view = onednn_matrix_view;
    ops->matmul = onednn_matmul;
    ops->linear = onednn_linear;
}
