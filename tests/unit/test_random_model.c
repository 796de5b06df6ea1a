/* An engine of random weights: what it says of itself. */
#include "engine/engine.h"
#include "tests/check.h"

static struct error err;

static struct engine *open_random(const char *model, const char *ltx)
{
    const struct engine_options options = {
        .model = model, .ltx = {ltx}, .n_threads = 1, .max_batch_tokens = 16};
    struct engine *engine;

    CHECK_OK(engine_open(&engine, &options, &err));
    CHECK(engine_info(engine)->is_random);
    return engine;
}

static void digests_follow_from_the_names(void)
{
    static const char *const ltx[] = {NULL, "random:ltx-tiny", "random:ltx-tiny"};
    char digests[3][ENGINE_DIGEST_SIZE];

    for (int i = 0; i < 3; i++) {
        struct engine *engine = open_random("random:gemma-3-tiny", ltx[i]);
        CHECK_OK(engine_weights_digest(engine, digests[i], &err));
        CHECK_INT(strlen(digests[i]), ENGINE_DIGEST_SIZE - 1);
        engine_close(engine);
    }
    CHECK_TEXT(digests[1], digests[2]);
    CHECK(strcmp(digests[0], digests[1]) != 0);
}

static void all_levels_are_numbers(void)
{
    static const enum engine_level levels[] = {ENGINE_HIDDEN_STATES, ENGINE_FEATURES,
                                               ENGINE_EMBEDDINGS};
    struct engine *engine = open_random("random:gemma-3-tiny", "random:ltx-tiny");
    const int32_t ids[] = {2, 1366, 7}; /* the tiny tokenizer's last token is in the vocabulary */

    for (int i = 0; i < 3; i++) {
        const struct engine_request request = {.level = levels[i], .dtype = DTYPE_F32};
        const struct engine_prompt prompt = {ids, 3, &request};
        struct engine_result result;
        CHECK_OK(engine_encode(engine, &prompt, 1, &result, &err)); /* no NaN */
        engine_result_free(&result);
    }
    engine_close(engine);
}

int main(void)
{
    RUN(digests_follow_from_the_names);
    RUN(all_levels_are_numbers);
    return check_result();
}
