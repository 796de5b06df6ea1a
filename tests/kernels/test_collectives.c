/* test_collectives.c - what ranks exchange, on CUDA: a group of one, and of two where there are two
 * GPUs; each rank a thread with a device of its own. Sums are of whole numbers, so they are exact.
 *
 * `test_collectives time` prints how long an all-reduce takes, in a recorded run. */
#include <pthread.h>

#include "base/clock.h"
#include "kernels/ops.h"
#include "tests/check.h"

enum { MAX_RANKS = 2, JOIN_MS = 60000, LONG_MS = 30000, SHORT_MS = 3000, LARGEST = 240000 };

static struct error err;
static const struct ops *ops;
static char id[GROUP_ID_SIZE];
static bool says_times;

/* One rank, in a thread of its own: CHECK is the main thread's alone. */
struct rank {
    int rank, n_ranks, deadline_ms;
    int (*body)(struct rank *r, struct error *err);
    struct device *d;
    struct group *group;
    float *host;           /* [n_ranks * LARGEST] */
    float *there, *beside; /* the same size, on the device */
    int rc;
    struct error err;
    pthread_t thread;
};

static int wrong(struct error *e, const char *what, int rank, size_t i, double got, double want)
{
    return error_set(e, ERR_FORMAT, "rank %d: %s: index %zu: got %g, want %g", rank, what, i, got,
                     want);
}

static float number_of(int rank, size_t i, int round)
{
    return (float)((i * 7 + (size_t)rank * 13 + (size_t)round) % 1001) - 500.0f;
}

static void fill(struct rank *r, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        r->host[i] = number_of(r->rank, i, round);
}

/* Numbers first .. first + n - 1 are those of one rank; of them all: the sum. */
static int check_numbers(struct rank *r, const char *what, size_t first, size_t n, int from,
                         int round, struct error *e)
{
    for (size_t i = 0; i < n; i++) {
        float want = 0.0f;
        for (int k = 0; k < r->n_ranks; k++)
            want += from < 0 || from == k ? number_of(k, i, round) : 0.0f;
        if (r->host[first + i] != want)
            return wrong(e, what, r->rank, i, (double)r->host[first + i], (double)want);
    }
    return OK;
}

static int exchange(struct rank *r, struct error *e)
{
    static const size_t counts[] = {0, 1, 3, 1000, 4097, LARGEST};
    int rc = OK;

    for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
        size_t n = counts[j], bytes = n * sizeof(float);
        fill(r, n, 1);
        if ((rc = ops->upload(r->d, r->there, r->host, bytes, e)) != OK ||
            (rc = ops->all_gather(r->d, r->beside, r->there, bytes, e)) != OK ||
            (rc = ops->all_reduce(r->d, r->there, n, e)) != OK ||
            (rc = ops->download(r->d, r->host, r->there, bytes, e)) != OK ||
            (rc = check_numbers(r, "all_reduce", 0, n, -1, 1, e)) != OK ||
            (rc = ops->download(r->d, r->host, r->beside, bytes * (size_t)r->n_ranks, e)) != OK)
            return rc;
        for (int k = 0; k < r->n_ranks && rc == OK; k++)
            rc = check_numbers(r, "all_gather", (size_t)k * n, n, k, 1, e);
        if (rc != OK)
            return rc;
        /* from its own place */
        fill(r, n, 2);
        if ((rc = ops->upload(r->d, r->beside + (size_t)r->rank * n, r->host, bytes, e)) != OK ||
            (rc = ops->all_gather(r->d, r->beside, r->beside + (size_t)r->rank * n, bytes, e)) !=
                OK ||
            (rc = ops->download(r->d, r->host, r->beside, bytes * (size_t)r->n_ranks, e)) != OK)
            return rc;
        for (int k = 0; k < r->n_ranks && rc == OK; k++)
            rc = check_numbers(r, "all_gather in place", (size_t)k * n, n, k, 2, e);
        for (int root = 0; root < r->n_ranks && rc == OK; root++) {
            fill(r, n, 3);
            if ((rc = ops->upload(r->d, r->there, r->host, bytes, e)) != OK ||
                (rc = ops->broadcast(r->d, r->there, bytes, root, e)) != OK ||
                (rc = ops->download(r->d, r->host, r->there, bytes, e)) != OK)
                return rc;
            rc = check_numbers(r, "broadcast", 0, n, root, 3, e);
        }
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* As part of a run that is recorded, replayed with other numbers. */
static int exchange_recorded(struct rank *r, struct error *e)
{
    enum { ROUNDS = 5, N = 4097 };
    int rc;

    for (int round = 0; round < ROUNDS; round++) {
        bool known;
        fill(r, N, round);
        if ((rc = ops->upload(r->d, r->there, r->host, N * sizeof(float), e)) != OK ||
            (rc = ops->record(r->d, 1, &known, e)) != OK)
            return rc;
        if (!known &&
            ((rc = ops->all_reduce(r->d, r->there, N, e)) != OK ||
             (rc = ops->all_gather(r->d, r->beside, r->there, N * sizeof(float), e)) != OK))
            return rc;
        if (known != (round >= 2))
            return error_set(e, ERR_FORMAT, "round %d: known %d", round, known);
        if ((rc = ops->replay(r->d, 1, e)) != OK ||
            (rc = ops->download(r->d, r->host, r->beside, (size_t)r->n_ranks * N * sizeof(float),
                                e)) != OK)
            return rc;
        for (int k = 0; k < r->n_ranks; k++)
            if ((rc = check_numbers(r, "recorded", (size_t)k * N, N, -1, round, e)) != OK)
                return rc;
    }
    return OK;
}

/* How long one takes among many in a run: 61 rows of 3840 numbers, as after a layer of Gemma 3 12B.
 */
static int exchange_timed(struct rank *r, struct error *e)
{
    enum { TIMES = 100, N = 61 * 3840, ROUNDS = 12 };
    double best = 1e9;
    int rc;

    for (int round = 0; round < ROUNDS; round++) {
        int64_t start;
        bool known;
        if ((rc = ops->sync(r->d, e)) != OK || (rc = group_barrier(r->group, e)) != OK)
            return rc;
        start = clock_now_ns();
        if ((rc = ops->record(r->d, 2, &known, e)) != OK)
            return rc;
        for (int i = 0; i < TIMES && !known; i++)
            if ((rc = ops->all_reduce(r->d, r->there, N, e)) != OK)
                return rc;
        if ((rc = ops->replay(r->d, 2, e)) != OK || (rc = ops->sync(r->d, e)) != OK)
            return rc;
        if (known && clock_ms_since(start) < best)
            best = clock_ms_since(start);
    }
    printf("rank %d of %d: an all-reduce of %d numbers %.1f us\n", r->rank, r->n_ranks, N,
           1e3 * best / TIMES);
    return OK;
}

/* A group that was aborted ends each wait, also of a rank that has nothing to wait for. */
static int wait_after_abort(struct rank *r, struct error *e)
{
    struct error got = {0};
    float number;

    if (r->rank == r->n_ranks - 1)
        group_abort(r->group, "a test");
    while (group_check(r->group, &got) == OK)
        clock_pause_ms(1);
    got = (struct error){0};
    if (ops->sync(r->d, &got) != ERR_GPU || strstr(got.text, "a test") == NULL)
        return error_set(e, ERR_FORMAT, "rank %d: sync: %d: %s", r->rank, (int)got.code, got.text);
    got = (struct error){0};
    if (ops->download(r->d, &number, r->there, sizeof(number), &got) != ERR_GPU)
        return error_set(e, ERR_FORMAT, "rank %d: download: %s", r->rank, got.text);
    return OK;
}

/* The last rank keeps the others waiting, on their GPUs, which ends with the deadline. */
static int wait_for_one_who_stays_away(struct rank *r, struct error *e)
{
    int64_t start = clock_now_ns();
    struct error got = {0};
    int rc = OK;

    /* connected before, as the first of its kind takes long */
    if ((rc = ops->all_reduce(r->d, r->there, LARGEST, e)) != OK ||
        (rc = ops->sync(r->d, e)) != OK || (rc = group_barrier(r->group, e)) != OK)
        return rc;
    if (r->rank == r->n_ranks - 1) {
        while (group_check(r->group, &got) == OK && clock_ms_since(start) < LONG_MS)
            clock_pause_ms(1);
        return got.code == ERR_GPU ? OK : error_set(e, ERR_FORMAT, "nobody missed the last rank");
    }
    start = clock_now_ns();
    if ((rc = ops->all_reduce(r->d, r->there, LARGEST, &got)) == OK)
        rc = ops->sync(r->d, &got);
    if (rc != ERR_GPU || strstr(got.text, "3000 ms") == NULL)
        return error_set(e, ERR_FORMAT, "rank %d: %d: %s", r->rank, rc, got.text);
    if (clock_ms_since(start) > 5 * SHORT_MS)
        return error_set(e, ERR_FORMAT, "rank %d: after %.0f ms", r->rank, clock_ms_since(start));
    return OK;
}

/* The same where what waits was recorded, and where it is under way. */
static int wait_in_a_recorded_run(struct rank *r, struct error *e)
{
    struct error got = {0};
    int64_t start;
    int rc = OK;

    for (int round = 0; round < 4 && rc == OK; round++) {
        bool known;
        if (round == 3 && r->rank == r->n_ranks - 1) {
            while (group_check(r->group, &got) == OK)
                clock_pause_ms(1);
            return OK;
        }
        start = clock_now_ns();
        if ((rc = ops->record(r->d, 3, &known, &got)) == OK &&
            (known || (rc = ops->all_reduce(r->d, r->there, LARGEST, &got)) == OK) &&
            (rc = ops->replay(r->d, 3, &got)) == OK)
            rc = ops->sync(r->d, &got);
        if (rc != OK && round < 3)
            return error_set(e, ERR_FORMAT, "rank %d, round %d: %s", r->rank, round, got.text);
    }
    if (rc != ERR_GPU || strstr(got.text, "3000 ms") == NULL)
        return error_set(e, ERR_FORMAT, "rank %d: %d: %s", r->rank, rc, got.text);
    if (clock_ms_since(start) > 5 * SHORT_MS)
        return error_set(e, ERR_FORMAT, "rank %d: after %.0f ms", r->rank, clock_ms_since(start));
    return OK;
}

static void *rank_main(void *arg)
{
    struct device_options options = {.act = DTYPE_BF16, .n_threads = 1};
    struct rank *r = arg;
    size_t bytes = (size_t)r->n_ranks * LARGEST * sizeof(float);
    int64_t start;

    options.gpu = r->rank;
    if ((r->rc = ops->open(&r->d, &options, &r->err)) != OK ||
        (r->rc = group_join(&r->group, id, r->rank, r->n_ranks, JOIN_MS, r->deadline_ms,
                            &r->err)) != OK ||
        (r->rc = ops->alloc(r->d, (void **)&r->there, bytes, &r->err)) != OK ||
        (r->rc = ops->alloc(r->d, (void **)&r->beside, bytes, &r->err)) != OK ||
        (r->rc = ops->clear(r->d, r->there, bytes, &r->err)) != OK)
        goto out;
    if ((r->host = malloc(bytes)) == NULL) {
        r->rc = error_set(&r->err, ERR_MEM, "no memory");
        goto out;
    }
    start = clock_now_ns();
    if ((r->rc = ops->join(r->d, r->group, &r->err)) != OK)
        goto out;
    if (says_times)
        printf("rank %d of %d: joined after %.0f ms\n", r->rank, r->n_ranks, clock_ms_since(start));
    r->rc = r->body(r, &r->err);
out:
    if (r->rc != OK && r->group != NULL)
        group_abort(r->group, r->err.text); /* the others need not wait */
    if (r->d != NULL) {
        ops->release(r->d, r->there);
        ops->release(r->d, r->beside);
    }
    ops->close(r->d);
    group_leave(r->group);
    free(r->host);
    return NULL;
}

static void in_ranks(int n_ranks, int deadline_ms, int (*body)(struct rank *r, struct error *err))
{
    struct rank ranks[MAX_RANKS] = {0};
    int failed = 0;

    CHECK_OK(group_make_id(id, &err));
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] =
            (struct rank){.rank = i, .n_ranks = n_ranks, .deadline_ms = deadline_ms, .body = body};
        CHECK(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) == 0);
    }
    for (int i = 0; i < n_ranks; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < n_ranks; i++)
        if (ranks[i].rc != OK) {
            printf("rank %d of %d: %s\n", i, n_ranks, ranks[i].err.text);
            failed++;
        }
    CHECK_INT(failed, 0);
}

static void one_rank_exchanges(void)
{
    in_ranks(1, LONG_MS, exchange);
}

static void one_rank_exchanges_in_recorded_runs(void)
{
    in_ranks(1, LONG_MS, exchange_recorded);
}

static void one_rank_learns_of_an_abort(void)
{
    in_ranks(1, LONG_MS, wait_after_abort);
}

static void two_ranks_exchange(void)
{
    in_ranks(2, LONG_MS, exchange);
}

static void two_ranks_exchange_in_recorded_runs(void)
{
    in_ranks(2, LONG_MS, exchange_recorded);
}

static void two_ranks_learn_of_an_abort(void)
{
    in_ranks(2, LONG_MS, wait_after_abort);
}

static void nobody_waits_for_ever(void)
{
    in_ranks(2, SHORT_MS, wait_for_one_who_stays_away);
}

static void one_rank_in_time(void)
{
    in_ranks(1, LONG_MS, exchange_timed);
}

static void two_ranks_in_time(void)
{
    in_ranks(2, LONG_MS, exchange_timed);
}

static void nobody_waits_for_ever_in_a_recorded_run(void)
{
    in_ranks(2, SHORT_MS, wait_in_a_recorded_run);
}

/* Whether there is such a GPU; else why not, in `err`. */
static bool has_gpu(int gpu)
{
    struct device_options options = {.act = DTYPE_BF16, .n_threads = 1, .gpu = gpu};
    struct device *d;
    int rc;

    err = (struct error){0};
    if ((rc = ops->open(&d, &options, &err)) == OK)
        ops->close(d);
    return rc == OK;
}

int main(int argc, char **argv)
{
    says_times = argc > 1 && strcmp(argv[1], "time") == 0;
    ops = ops_cuda();
    if (ops == NULL || !has_gpu(0)) {
        printf("SKIPPED: %s\n", ops == NULL ? "no CUDA in this build" : err.text);
        return ops == NULL || err.code == ERR_INPUT ? SKIP_EXIT : EXIT_FAILURE;
    }
    RUN(one_rank_exchanges);
    RUN(one_rank_exchanges_in_recorded_runs);
    RUN(one_rank_learns_of_an_abort);
    if (says_times)
        RUN(one_rank_in_time);
    if (!PE_HAVE_NCCL || !has_gpu(1)) {
        printf("SKIPPED two ranks: %s\n", PE_HAVE_NCCL ? err.text : "no NCCL in this build");
        return check_result();
    }
    RUN(two_ranks_exchange);
    RUN(two_ranks_exchange_in_recorded_runs);
    RUN(two_ranks_learn_of_an_abort);
    RUN(nobody_waits_for_ever);
    RUN(nobody_waits_for_ever_in_a_recorded_run);
    if (says_times)
        RUN(two_ranks_in_time);
    return check_result();
}
