/* test_residency.c - ranks that hold a share of the weights give what one rank gives that holds
 * all, and hold and read no more than their share.
 *
 * Both ways to share, both placements, any number of ranks: more than there are heads, and more
 * than there are layers. */
#include <pthread.h>

#include "engine/engine.h"
#include "engine/engine_private.h"
#include "engine/residency.h"
#include "engine/room.h"
#include "tests/golden/ranks.h"

static const double BOUND = 1e-5; /* sums of another order, in float32 */
static struct error err;

static void full_path(char out[4096], const char *name)
{
    if (strchr(name, ':') != NULL) /* a random model */
        snprintf(out, 4096, "%s", name);
    else if (strncmp(name, "models/", 7) == 0)
        snprintf(out, 4096, "%s/%s", PE_SCRATCH_DIR, name);
    else
        snprintf(out, 4096, "%s/golden/%s", PE_TESTS_DIR, name);
}

static struct engine *open_as(const char *model, const char *ltx, struct engine_options options)
{
    char model_path[4096], ltx_path[4096];
    struct engine *e;

    full_path(model_path, model);
    full_path(ltx_path, ltx != NULL ? ltx : "");
    options.model = model_path;
    options.ltx[0] = ltx != NULL ? ltx_path : NULL;
    options.n_threads = 2;
    CHECK_OK(engine_open(&e, &options, &err));
    return e;
}

/* ---- results ---- */

/* What the prompts of a batch want, by turns; states of layers on several ranks among them. */
static const int some_layers[] = {5, 0, 3};
static const struct engine_request requests[] = {
    {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32},
    {.level = ENGINE_HIDDEN_STATES, .dtype = DTYPE_F32},
    {.level = ENGINE_FEATURES, .dtype = DTYPE_F32},
    {.level = ENGINE_HIDDEN_STATES, .dtype = DTYPE_F32, .layers = some_layers, .n_layers = 3},
    {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32, .modalities = ENGINE_VIDEO},
};

static void fill_prompts(struct engine_prompt *prompts, int first, int n, bool only_states)
{
    for (int i = 0; i < n; i++)
        prompts[i] = (struct engine_prompt){
            ids[first + i], n_tokens[first + i],
            &requests[only_states ? 1 + (first + i) % 2 * 2 : (first + i) % 5]};
}

/* Of what every rank has of every prompt. */
static double placed_distance(struct engine *e, const struct engine_result *want, int n)
{
    double worst = 0.0;

    for (int r = 0; r < engine_info(e)->n_ranks; r++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < want[i].n_tensors; k++) {
                const struct engine_tensor *t = &want[i].tensors[k];
                float *got = malloc(t->bytes);
                CHECK(got != NULL);
                CHECK_OK(engine_read_placed(e, r, i, k, got, &err));
                if (t->dtype == DTYPE_F32)
                    worst = fmax(worst, relative(t->data, got, t->bytes / sizeof(float)));
                else
                    CHECK(memcmp(got, t->data, t->bytes) == 0);
                free(got);
            }
    return worst;
}

/* All prompts together in passes that two of them fill, and one alone. */
static double check_engine(struct engine *e, const struct engine_result *want, bool only_states,
                           enum engine_place place)
{
    struct engine_prompt prompts[N];
    struct engine_result got[N];
    double worst = 0.0;

    fill_prompts(prompts, 0, N, only_states);
    CHECK_OK(engine_encode(e, prompts, N, got, &err));
    CHECK(engine_info(e)->n_ranks == 1 || engine_last_route(e)->strategy == ENGINE_SHARDED);
    if (place == ENGINE_PLACE_ALL)
        worst = placed_distance(e, want, N);
    for (int i = 0; i < N; i++) {
        worst = fmax(worst, distance(&want[i], &got[i]));
        engine_result_free(&got[i]);
    }
    fill_prompts(prompts, 3, 1, only_states);
    CHECK_OK(engine_encode(e, prompts, 1, got, &err));
    worst = fmax(worst, distance(&want[3], &got[0]));
    engine_result_free(&got[0]);
    return worst;
}

static void check_shares(const char *model, const char *ltx, enum engine_backend backend)
{
    struct engine_options options = {.backend = backend, .n_ranks = 1};
    struct engine *one = open_as(model, ltx, options);
    struct engine_prompt prompts[N];
    struct engine_result want[N];

    fill_ids(one);
    fill_prompts(prompts, 0, N, ltx == NULL);
    CHECK_OK(engine_encode(one, prompts, N, want, &err));
    options.residency = ENGINE_RESIDENCY_SHARDED;
    options.max_batch_tokens = 400;
    for (int by = ENGINE_BY_TENSOR; by <= ENGINE_BY_LAYER; by++)
        for (int place = ENGINE_PLACE_OWNER; place <= ENGINE_PLACE_ALL; place++)
            for (size_t i = 0; i < n_counts; i++) {
                struct engine *e;
                double worst;
                options.shard_by = (enum engine_shard_by)by;
                options.place = (enum engine_place)place;
                options.n_ranks = rank_counts[i];
                e = open_as(model, ltx, options);
                worst = check_engine(e, want, ltx == NULL, options.place);
                printf("     %d ranks, by %s, %s: %.1e\n", rank_counts[i],
                       engine_shard_by_name(options.shard_by),
                       place == ENGINE_PLACE_ALL ? "to all" : "to owners", worst);
                CHECK(worst <= BOUND);
                engine_close(e);
            }
    for (int i = 0; i < N; i++)
        engine_result_free(&want[i]);
    engine_close(one);
}

static void gemma3_and_v2(void)
{
    check_shares("gemma3-tiny", "ltx-tiny-v2.safetensors", ENGINE_CPU);
}

static void gemma3_and_v1(void)
{
    check_shares("gemma3-tiny", "ltx-tiny-v1.safetensors", ENGINE_CPU);
}

static void gemma4_and_v2(void)
{
    check_shares("gemma4-tiny", "ltx-tiny-v2-gemma4.safetensors", ENGINE_CPU);
}

static void loop_nests(void)
{
    check_shares("gemma3-tiny", NULL, ENGINE_LOOPS);
}

/* Every type of block, cut inside blocks: a head has 64 numbers, a block up to 256. */
static void quantised_files(void)
{
    check_shares("models/mixed.gguf", "ltx-tiny-v2.safetensors", ENGINE_CPU);
}

/* ---- processes ---- */

/* A rank of a group of its own engines, as processes have them. */
struct member {
    pthread_t thread;
    struct engine_options options;
    struct engine_prompt prompts[N];
    struct engine_result results[N];
    struct error err;
    int rc;
};

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct engine *e;

    if ((m->rc = engine_open(&e, &m->options, &m->err)) != OK)
        return NULL;
    m->rc = engine_encode(e, m->prompts, N, m->results, &m->err);
    engine_close(e);
    return NULL;
}

/* Each prompt's result is with one rank, whole, whoever made its parts. */
static void check_members(enum engine_shard_by by, const struct engine_result *want,
                          const char *model, const char *ltx)
{
    enum { RANKS = 3 };
    static struct member members[RANKS];
    char id[ENGINE_GROUP_ID_SIZE];
    int seen[N] = {0};

    CHECK_OK(engine_make_group_id(id, &err));
    for (int r = 0; r < RANKS; r++) {
        members[r] = (struct member){.options = {.model = model,
                                                 .ltx = {ltx},
                                                 .n_ranks = RANKS,
                                                 .group = id,
                                                 .rank = r,
                                                 .residency = ENGINE_RESIDENCY_SHARDED,
                                                 .shard_by = by,
                                                 .n_threads = 1}};
        fill_prompts(members[r].prompts, 0, N, false);
        CHECK_INT(pthread_create(&members[r].thread, NULL, member_main, &members[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(members[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        if (members[r].rc != OK)
            CHECK_FAIL("rank %d: %s", r, members[r].err.text);
        for (int i = 0; i < N; i++)
            if (members[r].results[i].n_tensors > 0) {
                seen[i]++;
                CHECK(distance(&want[i], &members[r].results[i]) <= BOUND);
                engine_result_free(&members[r].results[i]);
            }
    }
    for (int i = 0; i < N; i++)
        CHECK_INT(seen[i], 1);
}

static void ranks_of_several_engines(void)
{
    char model[4096], ltx[4096];
    struct engine_options options = {.n_ranks = 1};
    struct engine_prompt prompts[N];
    struct engine_result want[N];
    struct engine *one = open_as("gemma3-tiny", "ltx-tiny-v2.safetensors", options);

    full_path(model, "gemma3-tiny");
    full_path(ltx, "ltx-tiny-v2.safetensors");
    fill_ids(one);
    fill_prompts(prompts, 0, N, false);
    CHECK_OK(engine_encode(one, prompts, N, want, &err));
    engine_close(one);
    check_members(ENGINE_BY_TENSOR, want, model, ltx);
    check_members(ENGINE_BY_LAYER, want, model, ltx);
    for (int i = 0; i < N; i++)
        engine_result_free(&want[i]);
}

/* ---- accounting ---- */

/* Of the loop nests, which store a number in four bytes and pad nothing. */
struct sizes {
    uint64_t bytes, loaded, most; /* of all ranks; of the largest: bytes */
};

static struct sizes sizes_of(const struct engine *e)
{
    struct sizes s = {0};

    for (int r = 0; r < engine_info(e)->n_ranks; r++) {
        const struct replica *replica = e->ranks[r]->replica;
        s.bytes += replica->bytes;
        s.loaded += replica->loaded_bytes;
        s.most = replica->bytes > s.most ? replica->bytes : s.most;
    }
    CHECK_INT(engine_info(e)->weights_bytes, s.most);
    return s;
}

/* Numbers of Gemma's matrices and the projection; of key and value rows that n ranks have twice. */
static uint64_t shared_numbers(const struct engine *e, int n, uint64_t *again)
{
    const struct gemma_config *c = &e->source.config;
    const struct ltx_config *l = &e->source.ltx_config;
    uint64_t D = (uint64_t)c->D, numbers;

    numbers = (uint64_t)(l->connectors[0].W + l->connectors[1].W) * D * (uint64_t)(c->L + 1);
    *again = 0;
    for (int i = 0; i < c->L; i++) {
        const struct gemma_attention *a = gemma_attention_of(c, i);
        int heads = 0;
        for (int r = 0; r < n; r++) {
            struct share_heads s = share_heads(c->H, a->K, r, n);
            heads += s.kv.end - s.kv.begin;
        }
        numbers += (uint64_t)(2 * c->H + 2 * a->K) * (uint64_t)a->E * D + 3 * (uint64_t)c->F * D;
        *again += (uint64_t)(2 * (heads - a->K)) * (uint64_t)a->E * D;
    }
    return numbers;
}

/* Matrices of Gemma and the projection are there once; norms and connectors on each rank. */
static void a_share_by_tensor_is_no_more_than_that(void)
{
    struct engine_options options = {.backend = ENGINE_LOOPS, .n_ranks = 1};
    struct engine *one = open_as("gemma3-tiny", "ltx-tiny-v2.safetensors", options);
    struct sizes all = sizes_of(one);

    options.residency = ENGINE_RESIDENCY_SHARDED;
    for (size_t i = 1; i < n_counts; i++) {
        uint64_t n = (uint64_t)rank_counts[i], again, numbers;
        struct engine *e;
        struct sizes s;
        options.n_ranks = rank_counts[i];
        numbers = shared_numbers(one, options.n_ranks, &again);
        e = open_as("gemma3-tiny", "ltx-tiny-v2.safetensors", options);
        s = sizes_of(e);
        printf("     %d ranks: %.3f of the bytes together, at most %.3f on one, %.3f read\n",
               options.n_ranks, (double)s.bytes / (double)all.bytes,
               (double)s.most / (double)all.bytes, (double)s.loaded / (double)all.loaded);
        CHECK_INT(s.bytes, n * (all.bytes - 4 * numbers) + 4 * (numbers + again));
        CHECK_INT(s.loaded, n * (all.loaded - 2 * numbers) + 2 * (numbers + again)); /* BF16 */
        CHECK(s.most < all.bytes);
        for (int r = 1; r < options.n_ranks; r++)
            CHECK(e->ranks[r]->replica != e->ranks[r - 1]->replica);
        engine_close(e);
    }
    engine_close(one);
}

/* A layer is on one rank; on each are the biases of the features that all of them make, and angles
 * of connectors of which it has a block. */
static void a_share_by_layer_is_no_more_than_that(void)
{
    struct engine_options options = {.backend = ENGINE_LOOPS, .n_ranks = 1};
    struct engine *one = open_as("gemma3-tiny", "ltx-tiny-v2.safetensors", options);
    const struct ltx_config *l = &one->source.ltx_config;
    uint64_t biases = (uint64_t)(l->connectors[0].W + l->connectors[1].W);
    struct sizes all = sizes_of(one);

    options.residency = ENGINE_RESIDENCY_SHARDED;
    options.shard_by = ENGINE_BY_LAYER;
    for (size_t i = 1; i < n_counts; i++) {
        uint64_t n = (uint64_t)rank_counts[i], want = all.bytes + (n - 1) * biases * 4;
        struct engine *e;
        struct sizes s;
        options.n_ranks = rank_counts[i];
        e = open_as("gemma3-tiny", "ltx-tiny-v2.safetensors", options);
        CHECK(engine_info(e)->shard_by == ENGINE_BY_LAYER);
        s = sizes_of(e);
        for (int m = 0; m < LTX_N_MODALITIES; m++) {
            uint64_t owners = 0;
            for (int r = 0; r < options.n_ranks; r++)
                owners += e->ranks[r]->replica->ltx_weights->connectors[m].cos != NULL;
            want += (owners - 1) * (uint64_t)LTX_ROWS * (uint64_t)l->connectors[m].W * 4;
        }
        printf("     %d ranks: %.3f of the bytes together, at most %.3f on one, %.3f read\n",
               options.n_ranks, (double)s.bytes / (double)all.bytes,
               (double)s.most / (double)all.bytes, (double)s.loaded / (double)all.loaded);
        CHECK_INT(s.bytes, want);
        CHECK_INT(s.loaded, all.loaded + (n - 1) * biases * 2);
        CHECK(s.most < all.bytes * 3 / 4);
        engine_close(e);
    }
    engine_close(one);
}

/* The first rank tells of what it loads, and comes to an end. */
static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;

    last[0] = done;
    last[1] = total;
}

static void progress_is_of_the_share(void)
{
    for (int by = ENGINE_BY_TENSOR; by <= ENGINE_BY_LAYER; by++) {
        uint64_t last[2] = {0};
        struct engine_options options = {.n_ranks = 3,
                                         .residency = ENGINE_RESIDENCY_SHARDED,
                                         .shard_by = (enum engine_shard_by)by,
                                         .progress = note_progress,
                                         .progress_arg = last};
        struct engine *e = open_as("models/mixed.gguf", "ltx-tiny-v2.safetensors", options);
        CHECK(last[0] > 0);
        CHECK_INT(last[0], last[1]);
        CHECK_INT(last[0], e->ranks[0]->replica->loaded_bytes);
        engine_close(e);
    }
}

/* ---- choosing ---- */

static void a_cpu_has_one_copy_unless_told(void)
{
    struct engine_options options = {.n_ranks = 2};
    struct engine *e = open_as("gemma3-tiny", NULL, options);

    CHECK(engine_info(e)->residency == ENGINE_RESIDENCY_REPLICATED);
    engine_close(e);
    options.residency = ENGINE_RESIDENCY_SHARDED;
    e = open_as("gemma3-tiny", NULL, options);
    CHECK(engine_info(e)->residency == ENGINE_RESIDENCY_SHARDED);
    CHECK(engine_info(e)->shard_by == ENGINE_BY_TENSOR);
    engine_close(e);
    options.n_ranks = 1; /* a share of one is all */
    e = open_as("gemma3-tiny", NULL, options);
    CHECK(engine_info(e)->residency == ENGINE_RESIDENCY_REPLICATED);
    engine_close(e);
}

static void shares_cannot_be_replicated(void)
{
    struct engine_options options = {.model = "random:gemma-3-tiny",
                                     .n_ranks = 2,
                                     .strategy = ENGINE_REPLICATED,
                                     .residency = ENGINE_RESIDENCY_SHARDED};
    struct engine *e;

    CHECK_ERR(engine_open(&e, &options, &err), ERR_INPUT,
              "with sharded residency no rank has all of the weights");
    options.residency = ENGINE_RESIDENCY_AUTO;
    CHECK_OK(engine_open(&e, &options, &err));
    CHECK(engine_info(e)->residency == ENGINE_RESIDENCY_REPLICATED);
    engine_close(e);
}

/* Ranks of devices with so much memory each, which are no hosts. */
struct chooser {
    pthread_t thread;
    struct device *device;
    struct home home;
    struct rank rank;
    struct portion portion;
    struct error err;
    int rc;
    const char *id;
    int number, n_ranks;
    uint64_t free;
};

static _Thread_local uint64_t free_here;

static int stub_memory(struct device *d, struct device_memory *out, struct error *e)
{
    (void)d;
    (void)e;
    *out = (struct device_memory){.total = 80000000000u, .free = free_here};
    return OK;
}

static void *choose_main(void *arg)
{
    struct chooser *c = arg;
    struct group *group;

    free_here = c->free;
    if ((c->rc = group_join(&group, c->id, c->number, c->n_ranks, 10000, 10000, &c->err)) != OK)
        return NULL;
    c->rank.options.group = group;
    c->rank.number = c->number; /* as rank_open() has it */
    c->rank.n_ranks = c->n_ranks;
    c->rc = residency_choose(&c->rank, &c->portion, &c->err);
    group_leave(group);
    return NULL;
}

enum { CHOOSERS = 2 };

static void choose(struct chooser *choosers, const struct source *source, const struct ops *ops,
                   const uint64_t *free_bytes, enum engine_residency residency,
                   enum engine_shard_by by)
{
    char id[GROUP_ID_SIZE];

    CHECK_OK(group_make_id(id, &err));
    for (int r = 0; r < CHOOSERS; r++) {
        choosers[r] =
            (struct chooser){.id = id, .number = r, .n_ranks = CHOOSERS, .free = free_bytes[r]};
        choosers[r].rank.ops = ops;
        choosers[r].home = (struct home){0};
        choosers[r].rank.options = (struct rank_options){.source = source,
                                                         .home = &choosers[r].home,
                                                         .ops = ops,
                                                         .compute = DTYPE_BF16,
                                                         .max_batch_tokens = 1024,
                                                         .residency = residency,
                                                         .shard_by = by};
        CHECK_INT(pthread_create(&choosers[r].thread, NULL, choose_main, &choosers[r]), 0);
    }
    for (int r = 0; r < CHOOSERS; r++)
        pthread_join(choosers[r].thread, NULL);
}

static uint64_t room_for(const struct source *s, const struct ops *ops, struct portion portion)
{
    struct room room;

    CHECK_OK(room_count(&room, &s->config, &s->ltx_config, DTYPE_BF16, &portion, portion.rank, ops,
                        DTYPE_BF16, 1024, &err));
    return room_total(&room);
}

/* Auto: all where every device has room for it; else shares, if only one of them lacks a byte. */
static void memory_decides(void)
{
    struct engine_options options = {.model = "random:gemma-3-12b", .ltx = {"random:ltx-2.3"}};
    static struct chooser c[CHOOSERS];
    struct ops ops = *ops_loops();
    struct source source;
    uint64_t all, share, memory[CHOOSERS];

    ops.is_host = false;
    ops.memory = stub_memory;
    CHECK_OK(source_open(&source, &options, &err));
    all = room_for(&source, &ops, portion_all(CHOOSERS));
    share = room_for(&source, &ops, portion_by_tensor(0, CHOOSERS));
    printf("     all: %.1f GB, a share of two: %.1f GB\n", (double)all / 1e9, (double)share / 1e9);
    CHECK(share < all * 2 / 3);

    memory[0] = memory[1] = all;
    choose(c, &source, &ops, memory, ENGINE_RESIDENCY_AUTO, ENGINE_BY_TENSOR);
    CHECK(c[0].rc == OK && c[1].rc == OK);
    CHECK(c[0].portion.kind == PORTION_ALL && c[1].portion.kind == PORTION_ALL);

    memory[1] = all - 1;
    choose(c, &source, &ops, memory, ENGINE_RESIDENCY_AUTO, ENGINE_BY_TENSOR);
    CHECK(c[0].rc == OK && c[1].rc == OK);
    CHECK(c[0].portion.kind == PORTION_TENSOR && c[1].portion.kind == PORTION_TENSOR);
    CHECK(c[0].portion.rank == 0 && c[1].portion.rank == 1);

    choose(c, &source, &ops, memory, ENGINE_RESIDENCY_AUTO, ENGINE_BY_LAYER);
    CHECK(c[0].rc == OK && c[1].rc == OK);
    CHECK(c[0].portion.kind == PORTION_LAYER && c[1].portion.kind == PORTION_LAYER);
    CHECK(c[0].portion.begin[1] > 10 && c[0].portion.begin[1] == c[1].portion.begin[1]);

    choose(c, &source, &ops, memory, ENGINE_RESIDENCY_REPLICATED, ENGINE_BY_TENSOR);
    for (int r = 0; r < CHOOSERS; r++) { /* the other one learns of it before it loads */
        CHECK_INT(c[r].rc, ERR_MEM);
        CHECK(strstr(c[r].err.text, "the model needs ") != NULL);
    }

    memory[0] = share - 1;
    choose(c, &source, &ops, memory, ENGINE_RESIDENCY_AUTO, ENGINE_BY_TENSOR);
    for (int r = 0; r < CHOOSERS; r++) {
        CHECK_INT(c[r].rc, ERR_MEM);
        CHECK(strstr(c[r].err.text, "rank 0's share of the model needs ") != NULL);
        CHECK(strstr(c[r].err.text, " GB are enough in float8 (it loses accuracy)") != NULL);
    }
    source_close(&source);
}

int main(int argc, char **argv)
{
    choose_counts(argc, argv);
    RUN(gemma3_and_v2);
    RUN(gemma3_and_v1);
    RUN(gemma4_and_v2);
    RUN(loop_nests);
    RUN(quantised_files);
    RUN(ranks_of_several_engines);
    RUN(a_share_by_tensor_is_no_more_than_that);
    RUN(a_share_by_layer_is_no_more_than_that);
    RUN(progress_is_of_the_share);
    RUN(a_cpu_has_one_copy_unless_told);
    RUN(shares_cannot_be_replicated);
    RUN(memory_decides);
    return check_result();
}
