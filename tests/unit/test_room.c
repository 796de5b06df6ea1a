/* test_room.c - what a model takes is counted before it is there, and what does not fit says what
 * would. */
#include "engine/room.h"

#include "engine/engine.h"
#include "engine/random_model.h"
#include "engine/rank.h"
#include "tests/check.h"

static const struct portion all = {.n_ranks = 1};
static struct error err;

/* ---- counting ---- */

static uint64_t taken; /* by the ops below, so far */

static int watched_alloc(struct device *d, void **out, size_t bytes, struct error *e)
{
    taken += bytes;
    return ops_loops()->alloc(d, out, bytes, e);
}

/* A device that is no host is one to room_count(), whatever computes. */
static struct ops watched(void)
{
    struct ops ops = *ops_loops();

    ops.alloc = watched_alloc;
    return ops;
}

static void check_portion(const char *gemma_name, const char *ltx_name, int max_batch_tokens,
                          const struct portion *portion, int rank)
{
    struct device_options device_options = {.act = DTYPE_F32, .n_threads = 1};
    struct ops ops = watched();
    struct gemma_config config;
    struct ltx_config ltx_config;
    struct weights *weights;
    struct ltx_weights *ltx_weights = NULL;
    struct device *device;
    struct gemma *gemma;
    struct ltx *ltx = NULL;
    struct room room;

    CHECK_OK(random_model_gemma(&config, gemma_name, &err));
    if (ltx_name != NULL)
        CHECK_OK(random_model_ltx(&ltx_config, ltx_name, &err));
    CHECK_OK(room_count(&room, &config, ltx_name != NULL ? &ltx_config : NULL, DTYPE_BF16, portion,
                        rank, &ops, DTYPE_F32, max_batch_tokens, &err));

    CHECK_OK(ops.open(&device, &device_options, &err));
    CHECK_OK(weights_random(&weights, &config, portion, &ops, device, &err));
    if (ltx_name != NULL)
        CHECK_OK(ltx_weights_random(&ltx_weights, &ltx_config, config.L + 1, config.D, portion,
                                    &ops, device, DTYPE_F32, &err));
    CHECK_INT(room.weights, weights->bytes + (ltx_weights != NULL ? ltx_weights->bytes : 0));
    taken = 0;
    CHECK_OK(gemma_create(&gemma, &config, weights, device, rank, portion->n_ranks, DTYPE_F32,
                          ENGINE_MAX_TOKENS, max_batch_tokens, &err));
    if (ltx_name != NULL)
        CHECK_OK(ltx_create(&ltx, ltx_weights, device, rank, portion->n_ranks, DTYPE_F32,
                            max_batch_tokens, &err));
    CHECK_INT(room.activations, taken);
    ltx_free(ltx);
    gemma_free(gemma);
    ltx_weights_free(ltx_weights);
    weights_free(weights);
    ops.close(device);
}

static void check_count(const char *gemma_name, const char *ltx_name, int max_batch_tokens)
{
    check_portion(gemma_name, ltx_name, max_batch_tokens, &all, 0);
}

static void a_count_is_what_is_taken(void)
{
    check_count("random:gemma-3-tiny", NULL, 1024);
    check_count("random:gemma-3-tiny", NULL, 100);
}

static void a_count_is_what_is_taken_with_ltx(void)
{
    check_count("random:gemma-3-tiny", "random:ltx-tiny", 2048);
}

/* All of it in a group of three, which takes places for what they exchange; a part of each layer;
 * some layers. */
static void a_count_is_what_a_rank_takes(void)
{
    static const uint64_t bytes[] = {100, 10, 10, 10, 10, 10, 10, 10, 40, 40, 20, 20};
    static const int n_blocks[] = {2, 2};

    for (int rank = 0; rank < 3; rank++) {
        struct portion portions[] = {portion_all(3), portion_by_tensor(rank, 3),
                                     portion_by_layer(rank, 3, bytes, 7, n_blocks)};
        for (size_t i = 0; i < sizeof(portions) / sizeof(portions[0]); i++)
            check_portion("random:gemma-3-tiny", "random:ltx-tiny", 1024, &portions[i], rank);
    }
}

static void a_share_of_the_table_is_its_rows(void)
{
    static const uint64_t bytes[] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const int n_blocks[] = {0, 0};
    struct ops gpu = *ops_loops();
    struct gemma_config c;
    uint64_t tables[2] = {0};

    gpu.is_host = false;
    CHECK_OK(random_model_gemma(&c, "random:gemma-3-tiny", &err));
    for (int rank = 0; rank < 3; rank++) {
        struct portion portions[] = {portion_by_tensor(rank, 3),
                                     portion_by_layer(rank, 3, bytes, 7, n_blocks)};
        for (int i = 0; i < 2; i++) {
            struct room host, device;
            CHECK_OK(room_count(&host, &c, NULL, DTYPE_BF16, &portions[i], rank, ops_loops(),
                                DTYPE_BF16, 100, &err));
            CHECK_OK(room_count(&device, &c, NULL, DTYPE_BF16, &portions[i], rank, &gpu, DTYPE_BF16,
                                100, &err));
            tables[i] += device.weights - host.weights;
            CHECK(i == 1 || device.weights - host.weights < (uint64_t)c.V * c.D * 2 / 2);
        }
    }
    CHECK_INT(tables[0], (uint64_t)c.V * c.D * 2);
    CHECK_INT(tables[1], (uint64_t)c.V * c.D * 2);
}

static void a_gpu_holds_the_table_too(void)
{
    struct ops gpu = *ops_loops();
    struct gemma_config c;
    struct room host, device, decoded;

    gpu.is_host = false;
    CHECK_OK(random_model_gemma(&c, "random:gemma-3-tiny", &err));
    CHECK_OK(room_count(&host, &c, NULL, DTYPE_BF16, &all, 0, ops_loops(), DTYPE_BF16, 100, &err));
    CHECK_OK(room_count(&device, &c, NULL, DTYPE_BF16, &all, 0, &gpu, DTYPE_BF16, 100, &err));
    CHECK_OK(room_count(&decoded, &c, NULL, DTYPE_Q8_0, &all, 0, &gpu, DTYPE_BF16, 100, &err));
    CHECK_INT(device.weights - host.weights, (uint64_t)c.V * c.D * 2);
    CHECK_INT(decoded.weights - host.weights, (uint64_t)c.V * c.D * 4); /* to float32 */
}

/* A byte a number and a scale a row; where N or K is no multiple of 16, bfloat16's. */
static void float8_takes_a_byte_a_number(void)
{
    struct gemma_config c;
    struct room bf16_room, f8_room;
    uint64_t numbers, rows;

    CHECK_OK(random_model_gemma(&c, "random:gemma-3-tiny", &err));
    numbers =
        (512u + 2u * 320u) * 128u + 128u * 256u + 128u * 320u; /* qkv, gate and up; out; down */
    rows = 512u + 2u * 320u + 2u * 128u;
    CHECK_OK(
        room_count(&bf16_room, &c, NULL, DTYPE_BF16, &all, 0, ops_loops(), DTYPE_BF16, 2000, &err));
    CHECK_OK(room_count(&f8_room, &c, NULL, DTYPE_BF16, &all, 0, ops_loops(), DTYPE_F8_E4M3, 2000,
                        &err));
    CHECK_INT(bf16_room.weights - f8_room.weights, 7 * (numbers - rows * sizeof(float)));
    CHECK_INT(f8_room.activations - bf16_room.activations, 2000 * (320 + sizeof(float)));
    c.F = 328;
    CHECK_OK(
        room_count(&bf16_room, &c, NULL, DTYPE_BF16, &all, 0, ops_loops(), DTYPE_BF16, 100, &err));
    CHECK_OK(
        room_count(&f8_room, &c, NULL, DTYPE_BF16, &all, 0, ops_loops(), DTYPE_F8_E4M3, 100, &err));
    numbers = 512u * 128u + 2u * 328u * 128u + 128u * 256u;
    rows = 512u + 2u * 328u + 128u;
    CHECK_INT(bf16_room.weights - f8_room.weights, 7 * (numbers - rows * sizeof(float)));
    CHECK_INT(f8_room.activations - bf16_room.activations, /* a connector's, at the least */
              ENGINE_ROWS * (256 + sizeof(float)));
}

/* ---- deciding ---- */

/* 20 GB of weights and 1 GB for 1000 tokens in bfloat16; twice that in float32, half in float8. */
static int count(void *arg, struct room *out, enum dtype compute, int max_batch_tokens,
                 struct error *e)
{
    uint64_t times = compute == DTYPE_F32 ? 4 : compute == DTYPE_BF16 ? 2 : 1;

    (void)e;
    ++*(int *)arg;
    out->weights = 10000000000u * times;
    out->activations = 500000u * times * (uint64_t)max_batch_tokens;
    return OK;
}

static int check(double free_gb, enum dtype act, int tokens)
{
    struct device_memory memory = {.total = 80000000000u, .free = (size_t)(free_gb * 1e9)};
    int n = 0;

    err = (struct error){0};
    return room_check("the model", &memory, act, tokens, 1000, count, &n, &err);
}

static void what_fits_is_let_through(void)
{
    CHECK_INT(check(24.6, DTYPE_BF16, 4000), OK); /* 20 + 4 + 0.54 */
    CHECK_INT(check(49, DTYPE_F32, 4000), OK);
}

static void a_smaller_batch_is_proposed(void)
{
    CHECK_INT(check(24.5, DTYPE_BF16, 4000), ERR_MEM);
    CHECK_TEXT(err.text,
               "the model needs 24.5 GB of the GPU's memory (weights 20.0, batches of "
               "4000 tokens 4.0, the rest 0.5), and 24.5 of its 80.0 GB are free: 22.5 GB "
               "are enough for batches of 2000 tokens");
    CHECK_INT(check(21.6, DTYPE_BF16, 3000), ERR_MEM); /* not 750, which no prompt fits */
    CHECK(strstr(err.text, ": 21.5 GB are enough for batches of 1000 tokens") != NULL);
}

static void bfloat16_is_proposed(void)
{
    CHECK_INT(check(30, DTYPE_F32, 4000), ERR_MEM);
    CHECK(strstr(err.text, ": 24.5 GB are enough in bfloat16") != NULL);
    CHECK(strstr(err.text, "in bfloat16 for batches") == NULL);
    CHECK_INT(check(22, DTYPE_F32, 4000), ERR_MEM);
    CHECK(strstr(err.text, ": 21.5 GB are enough in bfloat16 for batches of 1000 tokens") != NULL);
    CHECK_INT(check(43, DTYPE_F32, 4000), ERR_MEM); /* a smaller batch changes no number */
    CHECK(strstr(err.text, ": 42.5 GB are enough for batches of 1000 tokens") != NULL);
}

static void float8_is_the_last_resort(void)
{
    CHECK_INT(check(15, DTYPE_BF16, 4000), ERR_MEM);
    CHECK(strstr(err.text, ": 12.5 GB are enough in float8 (it loses accuracy)") != NULL);
    CHECK(strstr(err.text, "accuracy) for") == NULL);
    CHECK_INT(check(12, DTYPE_F32, 4000), ERR_MEM);
    CHECK(strstr(err.text, ": 11.5 GB are enough in float8 (it loses accuracy) for batches of "
                           "2000 tokens") != NULL);
    CHECK_INT(check(12.6, DTYPE_F8_E4M3, 4000), OK);
    CHECK_INT(check(12, DTYPE_F8_E4M3, 4000), ERR_MEM);
    CHECK(strstr(err.text, ": 11.5 GB are enough for batches of 2000 tokens") != NULL);
}

static void another_gpu_is_proposed(void)
{
    CHECK_INT(check(10, DTYPE_BF16, 4000), ERR_MEM);
    CHECK(strstr(err.text, "10.0 of its 80.0 GB are free: no smaller batch would fit") != NULL);
    CHECK_INT(check(10, DTYPE_F32, 1000), ERR_MEM);
    CHECK(strstr(err.text, "it takes another GPU") != NULL);
}

int main(void)
{
    RUN(a_count_is_what_is_taken);
    RUN(a_count_is_what_is_taken_with_ltx);
    RUN(a_count_is_what_a_rank_takes);
    RUN(a_share_of_the_table_is_its_rows);
    RUN(a_gpu_holds_the_table_too);
    RUN(float8_takes_a_byte_a_number);
    RUN(what_fits_is_let_through);
    RUN(a_smaller_batch_is_proposed);
    RUN(bfloat16_is_proposed);
    RUN(float8_is_the_last_resort);
    RUN(another_gpu_is_proposed);
    return check_result();
}
