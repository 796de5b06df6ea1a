/* test_residence.c - weights that sleep, and weights that engines share.
 *
 * On the loop nests with a way to sleep of this test's own: what a device took while it loaded is
 * copied away and overwritten with NaNs, so that whoever computes with it unawares gets no numbers.
 * Matrices stay: their memory is the table's secret. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine_private.h"
#include "tests/check.h"

static struct error err;

/* ---- the table ---- */

enum { MAX_DEVICES = 16, MAX_TAKEN = 256 };

struct taken {
    float *data;
    size_t bytes;
};

static struct sleeper {
    struct device *device; /* NULL: free */
    bool loaded, asleep;
    struct taken list[MAX_TAKEN]; /* while it loaded */
    int n;
} sleepers[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `device` of all */

struct saved_weights {
    size_t bytes;
    char data[];
};

/* What was asked of all devices, and what is to fail. */
static atomic_int n_opened, n_to_sleep, n_matrices, n_saves, n_copies, n_sleeps, n_wakes;
static atomic_bool host_is_full;
static struct device *_Atomic full; /* others have its memory */

static struct ops table;

static struct sleeper *sleeper_of(const struct device *d)
{
    struct sleeper *found = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES && found == NULL; i++)
        if (sleepers[i].device == d)
            found = &sleepers[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static int open_device(struct device **out, const struct device_options *options, struct error *e)
{
    int rc = ops_loops()->open(out, options, e);

    n_opened++;
    n_to_sleep += options->sleeps;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES; i++)
        if (rc == OK && sleepers[i].device == NULL) {
            sleepers[i] = (struct sleeper){.device = *out};
            break;
        }
    pthread_mutex_unlock(&lock);
    return rc;
}

static void close_device(struct device *d)
{
    struct sleeper *s = d != NULL ? sleeper_of(d) : NULL;

    if (s != NULL) {
        pthread_mutex_lock(&lock);
        s->device = NULL;
        pthread_mutex_unlock(&lock);
    }
    ops_loops()->close(d);
}

static int take(struct device *d, void **out, size_t bytes, struct error *e)
{
    struct sleeper *s = sleeper_of(d);
    int rc = ops_loops()->alloc(d, out, bytes, e);

    if (rc == OK && !s->loaded && s->n < MAX_TAKEN)
        s->list[s->n++] = (struct taken){*out, bytes};
    return rc;
}

static int load_matrix(struct device *d, struct matrix **out, const struct matrix_part *parts,
                       int n_parts, int K, const struct column_cuts *cuts, struct error *e)
{
    n_matrices++;
    return ops_loops()->matrix_load(d, out, parts, n_parts, K, cuts, e);
}

static int end_loading(struct device *d, struct error *e)
{
    (void)e;
    sleeper_of(d)->loaded = true;
    return OK;
}

static int save(struct device *d, struct saved_weights **out, struct error *e)
{
    const struct sleeper *s = sleeper_of(d);
    size_t at = 0;

    *out = NULL;
    if (host_is_full)
        return error_set(e, ERR_MEM, "test: the host is full");
    for (int i = 0; i < s->n; i++)
        at += s->list[i].bytes;
    *out = malloc(sizeof(**out) + at);
    (*out)->bytes = at;
    at = 0;
    for (int i = 0; i < s->n; at += s->list[i++].bytes)
        memcpy((*out)->data + at, s->list[i].data, s->list[i].bytes);
    n_saves++;
    n_copies++;
    return OK;
}

static size_t saved_bytes(const struct saved_weights *w)
{
    return w->bytes;
}

static void free_saved(struct saved_weights *w)
{
    n_copies -= w != NULL;
    free(w);
}

static int sleep_device(struct device *d, struct error *e)
{
    struct sleeper *s = sleeper_of(d);

    (void)e;
    if (s->asleep)
        return OK;
    for (int i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->list[i].bytes / sizeof(float); k++)
            s->list[i].data[k] = NAN;
    s->asleep = true;
    n_sleeps++;
    return OK;
}

static int wake_device(struct device *d, const struct saved_weights *from, struct error *e)
{
    struct sleeper *s = sleeper_of(d);
    size_t at = 0;

    if (full == d)
        return error_set(e, ERR_MEM, "test: others have the memory");
    if (!s->asleep)
        return OK;
    for (int i = 0; i < s->n; at += s->list[i++].bytes)
        memcpy(s->list[i].data, from->data + at, s->list[i].bytes);
    s->asleep = false;
    n_wakes++;
    return at == from->bytes ? OK : error_set(e, ERR_INPUT, "test: another's copy");
}

static int mark(struct device *d, int i, struct error *e)
{
    (void)d;
    (void)i;
    (void)e;
    return OK;
}

static int download_marked(struct device *d, int i, void *to, const void *from, size_t bytes,
                           struct error *e)
{
    (void)i;
    return ops_loops()->download(d, to, from, bytes, e);
}

/* Where it is not the host's memory, each rank loads for itself, as on GPUs. */
static void fill_table(bool is_host)
{
    table = *ops_loops();
    table.name = "test";
    table.is_host = is_host;
    table.open = open_device;
    table.close = close_device;
    table.alloc = take;
    table.matrix_load = load_matrix;
    table.loading_end = end_loading;
    table.save = save;
    table.saved_bytes = saved_bytes;
    table.saved_free = free_saved;
    table.sleep = sleep_device;
    table.wake = wake_device;
    table.mark = mark;
    table.download_marked = download_marked;
    n_opened = n_to_sleep = n_matrices = n_saves = n_copies = n_sleeps = n_wakes = 0;
    host_is_full = false;
    full = NULL;
}

/* ---- engines ---- */

static struct engine_options options_of(const char *model, int n_ranks, const struct engine *share)
{
    return (struct engine_options){.model = model,
                                   .n_ranks = n_ranks,
                                   .n_threads = n_ranks,
                                   .max_batch_tokens = 16,
                                   .sleeps = true,
                                   .share = share};
}

static const char tiny[] = PE_TESTS_DIR "/golden/gemma3-tiny";

static struct engine *open_tiny(int n_ranks, const struct engine *share)
{
    struct engine_options options = options_of(tiny, n_ranks, share);
    struct engine *e;

    CHECK_OK(engine_open_on(&e, &options, &table, &err));
    return e;
}

static struct engine_result encode(struct engine *e)
{
    static const int32_t ids[] = {2, 7, 99, 12};
    static const struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {ids, 4, &request};
    struct engine_result result;

    CHECK_OK(engine_encode(e, &prompt, 1, &result, &err));
    return result;
}

static bool is_same(const struct engine_result *a, const struct engine_result *b)
{
    return memcmp(a->tensors[0].data, b->tensors[0].data, a->tensors[0].bytes) == 0;
}

/* What e gives now is what was given before, to the bit. */
static void check_gives(struct engine *e, const struct engine_result *want)
{
    struct engine_result got = encode(e);

    CHECK(is_same(&got, want));
    engine_result_free(&got);
}

static void sleeps_and_wakes(void)
{
    struct engine_result want;
    struct engine *e;
    double seconds = -1.0;

    fill_table(true);
    e = open_tiny(1, NULL);
    want = encode(e);
    CHECK(!engine_is_asleep(e) && engine_last_route(e)->wake_ms == 0.0);
    CHECK_OK(engine_wake(e, &seconds, &err));
    CHECK(seconds == 0.0 && n_wakes == 0);

    CHECK_OK(engine_sleep(e, &err));
    CHECK(engine_is_asleep(e) && isnan((double)e->ranks[0]->replica->weights->final_norm[0]));
    CHECK_OK(engine_sleep(e, &err));
    CHECK(n_sleeps == 1);
    CHECK_OK(engine_wake(e, &seconds, &err));
    CHECK(!engine_is_asleep(e) && seconds > 0.0);
    check_gives(e, &want);
    CHECK(engine_last_route(e)->wake_ms == 0.0);

    CHECK_OK(engine_sleep(e, &err));
    check_gives(e, &want); /* which wakes it */
    CHECK(!engine_is_asleep(e) && engine_last_route(e)->wake_ms > 0.0);
    CHECK(n_saves == 1 && n_sleeps == 2 && n_wakes == 2);

    CHECK_OK(engine_sleep(e, &err));
    engine_close(e); /* as it is */
    CHECK(n_copies == 0);
    engine_result_free(&want);
}

static void all_ranks_wake_from_one_copy(void)
{
    for (int is_host = 0; is_host < 2; is_host++) {
        int n_homes = is_host ? 1 : 2;
        struct engine_result want;
        struct engine *e;
        fill_table(is_host);
        e = open_tiny(2, NULL);
        CHECK_INT(n_to_sleep, n_homes); /* the others have no weights */
        want = encode(e);
        for (int i = 1; i <= 2; i++) {
            CHECK_OK(engine_sleep(e, &err));
            check_gives(e, &want);
            CHECK_INT(n_saves, 1);
            CHECK_INT(n_sleeps, i * n_homes);
            CHECK_INT(n_wakes, i * n_homes);
        }
        engine_close(e);
        CHECK(n_copies == 0);
        engine_result_free(&want);
    }
}

/* Of shares each has a copy of its own, and gets that one back. */
static void shares_wake_from_copies_of_their_own(void)
{
    for (int by = ENGINE_BY_TENSOR; by <= ENGINE_BY_LAYER; by++) {
        struct engine_options options = options_of(tiny, 2, NULL);
        struct engine_result want;
        struct engine *e;
        fill_table(by == ENGINE_BY_TENSOR);
        options.residency = ENGINE_RESIDENCY_SHARDED;
        options.shard_by = (enum engine_shard_by)by;
        CHECK_OK(engine_open_on(&e, &options, &table, &err));
        CHECK_INT(n_to_sleep, 2);
        want = encode(e);
        for (int i = 1; i <= 2; i++) {
            CHECK_OK(engine_sleep(e, &err));
            check_gives(e, &want);
            CHECK_INT(n_saves, 2);
            CHECK_INT(n_wakes, 2 * i);
        }
        engine_close(e);
        CHECK(n_copies == 0);
        engine_result_free(&want);
    }
}

/* What is held otherwise is loaded for itself. */
static void other_shares_are_not_shared(void)
{
    struct engine_result result;
    struct engine_options options;
    struct engine *all, *by_tensor, *by_layer, *again;

    fill_table(true);
    all = open_tiny(2, NULL);
    options = options_of(tiny, 2, all);
    options.residency = ENGINE_RESIDENCY_SHARDED;
    CHECK_OK(engine_open_on(&by_tensor, &options, &table, &err));
    CHECK(!engine_info(by_tensor)->shares_weights);
    options.share = by_tensor;
    options.shard_by = ENGINE_BY_LAYER;
    CHECK_OK(engine_open_on(&by_layer, &options, &table, &err));
    CHECK(!engine_info(by_layer)->shares_weights);
    options.share = by_layer;
    CHECK_OK(engine_open_on(&again, &options, &table, &err));
    CHECK(engine_info(again)->shares_weights);
    CHECK(engine_info(again)->residency == ENGINE_RESIDENCY_SHARDED);
    CHECK(engine_info(again)->shard_by == ENGINE_BY_LAYER);
    engine_close(by_layer);
    result = encode(again);
    engine_result_free(&result);
    engine_close(again);
    engine_close(by_tensor);
    engine_close(all);
}

static void what_cannot_sleep_says_so(void)
{
    struct engine_options options = options_of(tiny, 1, NULL);
    struct engine *e;

    CHECK_ERR(engine_open(&e, &options, &err), ERR_INPUT, "the backend cpu has no device memory");
    CHECK(e == NULL);
    options.sleeps = false;
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK_ERR(engine_sleep(e, &err), ERR_INPUT, "not opened to sleep");
    CHECK(!engine_is_asleep(e));
    engine_close(e);
}

static void without_room_on_the_host_it_stays_awake(void)
{
    struct engine_result want;
    struct engine *e;

    fill_table(false);
    e = open_tiny(2, NULL);
    want = encode(e);
    host_is_full = true;
    CHECK_ERR(engine_sleep(e, &err), ERR_MEM, "the host is full");
    CHECK(!engine_is_asleep(e) && n_sleeps == 0);
    check_gives(e, &want);
    host_is_full = false;
    CHECK_OK(engine_sleep(e, &err));
    check_gives(e, &want);
    engine_close(e);
    engine_result_free(&want);
}

static void without_room_on_a_device_it_sleeps_on(void)
{
    static const int32_t ids[] = {2};
    static const struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {ids, 1, &request};
    struct engine_result want, none;
    struct engine *e;

    fill_table(false);
    e = open_tiny(2, NULL);
    want = encode(e);
    CHECK_OK(engine_sleep(e, &err));
    full = e->ranks[1]->device;
    CHECK_ERR(engine_wake(e, NULL, &err), ERR_MEM, "others have the memory");
    CHECK(engine_is_asleep(e));
    for (int r = 0; r < 2; r++) /* no rank alone keeps others' room */
        CHECK(sleeper_of(e->ranks[r]->device)->asleep);
    CHECK_ERR(engine_encode(e, &prompt, 1, &none, &err), ERR_MEM, "others have the memory");
    CHECK_ERR(engine_compute(e, &prompt, 1, &err), ERR_MEM, "others have the memory");
    CHECK(engine_is_asleep(e));
    full = NULL;
    check_gives(e, &want);
    engine_close(e);
    engine_result_free(&want);
}

static void a_second_engine_takes_no_weights(void)
{
    for (int is_host = 0; is_host < 2; is_host++)
        for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
            for (int first_closed = 0; first_closed < 2; first_closed++) {
                struct engine *e[2];
                struct engine_result want;
                int loaded;
                fill_table(is_host);
                e[0] = open_tiny(n_ranks, NULL);
                want = encode(e[0]);
                loaded = n_matrices;
                CHECK(loaded > 0 && !engine_info(e[0])->shares_weights);
                e[1] = open_tiny(n_ranks, e[0]);
                CHECK(engine_info(e[1])->shares_weights);
                CHECK_INT(n_matrices, loaded);
                for (int r = 0; r < n_ranks; r++)
                    CHECK(e[1]->ranks[r]->replica == e[0]->ranks[r]->replica);
                CHECK_INT(engine_info(e[1])->weights_bytes, engine_info(e[0])->weights_bytes);
                check_gives(e[1], &want);
                engine_close(e[first_closed]);
                check_gives(e[!first_closed], &want);
                CHECK_OK(engine_sleep(e[!first_closed], &err));
                check_gives(e[!first_closed], &want);
                CHECK(n_sleeps > 0);
                engine_close(e[!first_closed]);
                for (int i = 0; i < MAX_DEVICES; i++)
                    CHECK(sleepers[i].device == NULL);
                CHECK(n_copies == 0);
                engine_result_free(&want);
            }
}

static void shared_weights_sleep_when_all_do(void)
{
    struct engine_result want;
    struct engine *a, *b;

    fill_table(false);
    a = open_tiny(2, NULL);
    b = open_tiny(2, a);
    want = encode(a);
    CHECK_OK(engine_sleep(a, &err));
    CHECK(engine_is_asleep(a) && !engine_is_asleep(b) && n_sleeps == 0);
    check_gives(b, &want);
    CHECK_OK(engine_sleep(b, &err));
    CHECK(n_sleeps == 2);
    check_gives(a, &want);
    CHECK(n_wakes == 2 && engine_is_asleep(b));
    check_gives(b, &want);
    CHECK(n_wakes == 2);

    /* opened while the weights sleep: it wakes them, as it computes with them */
    CHECK_OK(engine_sleep(a, &err));
    CHECK_OK(engine_sleep(b, &err));
    engine_close(b);
    b = open_tiny(2, a);
    CHECK(engine_is_asleep(a) && !engine_is_asleep(b) && n_wakes == 4);
    check_gives(b, &want);

    /* whoever is left asleep is not kept awake by one that went */
    CHECK_INT(n_sleeps, 4);
    engine_close(b);
    CHECK_INT(n_sleeps, 6);
    check_gives(a, &want);
    engine_close(a);
    engine_result_free(&want);
}

static void only_the_same_is_shared(void)
{
    struct engine_options options;
    struct engine *a, *b;
    char copy[512], link[512];

    snprintf(copy, sizeof(copy), "%s/residence-copy", PE_SCRATCH_DIR);
    snprintf(link, sizeof(link), "%s/residence-link", PE_SCRATCH_DIR);
    CHECK(system("rm -rf '" PE_SCRATCH_DIR "/residence-copy' '" PE_SCRATCH_DIR
                 "/residence-link' && "
                 "cp -r '" PE_TESTS_DIR "/golden/gemma3-tiny' '" PE_SCRATCH_DIR
                 "/residence-copy' && ln -s '" PE_TESTS_DIR "/golden/gemma3-tiny' '" PE_SCRATCH_DIR
                 "/residence-link'") == 0);
    fill_table(true);
    a = open_tiny(1, NULL);
    for (int i = 0; i < 6; i++) {
        options = options_of(i == 0 ? copy : i == 1 ? link : tiny, 1, a);
        options.compute = i == 2 ? DTYPE_BF16 : DTYPE_F32;
        options.n_ranks = i == 3 ? 2 : 1;
        options.sleeps = i != 4;
        options.ltx[0] = i == 5 ? PE_TESTS_DIR "/golden/ltx-tiny-v2.safetensors" : NULL;
        CHECK_OK(engine_open_on(&b, &options, &table, &err));
        CHECK_INT(engine_info(b)->shares_weights, i == 1);
        engine_close(b);
    }
    engine_close(a);

    /* another backend; and what is random by its name */
    options = options_of("random:gemma-3-tiny", 1, NULL);
    CHECK_OK(engine_open_on(&a, &options, &table, &err));
    options.share = a;
    CHECK_OK(engine_open_on(&b, &options, &table, &err));
    CHECK(engine_info(b)->shares_weights);
    engine_close(b);
    options.sleeps = false;
    CHECK_OK(engine_open(&b, &options, &err));
    CHECK(!engine_info(b)->shares_weights);
    engine_close(b);
    engine_close(a);
}

/* Room for rounded rows is each device's own, and as wide as matrices that another has loaded. */
static void float8_weights_are_shared(void)
{
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        struct engine_options options = {.model = tiny,
                                         .backend = ENGINE_LOOPS,
                                         .compute = DTYPE_F8_E4M3,
                                         .n_ranks = n_ranks,
                                         .n_threads = 2};
        struct engine_result want;
        struct engine *a, *b;
        CHECK_OK(engine_open(&a, &options, &err));
        CHECK(a->ranks[0]->replica == a->ranks[n_ranks - 1]->replica);
        want = encode(a);
        options.share = a;
        CHECK_OK(engine_open(&b, &options, &err));
        CHECK(engine_info(b)->shares_weights);
        engine_close(a);
        check_gives(b, &want);
        engine_close(b);
        engine_result_free(&want);
    }
}

struct stress {
    struct engine *e;
    const struct engine_result *want;
    bool failed;
};

static void *come_and_go(void *arg)
{
    static const int32_t ids[] = {2, 7, 99, 12};
    static const struct engine_request request = {.dtype = DTYPE_F32};
    struct engine_prompt prompt = {ids, 4, &request};
    struct stress *s = arg;

    for (int i = 0; i < 50; i++) {
        struct engine_result got;
        if (engine_sleep(s->e, NULL) != OK || engine_encode(s->e, &prompt, 1, &got, NULL) != OK) {
            s->failed = true;
            return NULL;
        }
        s->failed |= !is_same(&got, s->want);
        engine_result_free(&got);
    }
    return NULL;
}

static void engines_of_several_threads_sleep_and_wake(void)
{
    struct engine_result want;
    struct stress s[3];
    pthread_t threads[3];

    fill_table(false);
    for (int i = 0; i < 3; i++)
        s[i] = (struct stress){open_tiny(2, i > 0 ? s[0].e : NULL), &want, false};
    want = encode(s[0].e);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, come_and_go, &s[i]) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(!s[i].failed);
        engine_close(s[i].e);
    }
    CHECK(n_copies == 0);
    engine_result_free(&want);
}

int main(void)
{
    RUN(sleeps_and_wakes);
    RUN(all_ranks_wake_from_one_copy);
    RUN(shares_wake_from_copies_of_their_own);
    RUN(other_shares_are_not_shared);
    RUN(what_cannot_sleep_says_so);
    RUN(without_room_on_the_host_it_stays_awake);
    RUN(without_room_on_a_device_it_sleeps_on);
    RUN(a_second_engine_takes_no_weights);
    RUN(shared_weights_sleep_when_all_do);
    RUN(only_the_same_is_shared);
    RUN(float8_weights_are_shared);
    RUN(engines_of_several_threads_sleep_and_wake);
    return check_result();
}
