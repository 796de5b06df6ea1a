/* test_tokens.c - texts to ids, against ids of the reference tokenizer.
 *
 * Three vocabularies: the tiny one of the fixtures (always), Gemma 3's tokenizer.json (33 MB, where
 * PE_GEMMA3_TOKENIZER or the shared fixtures have it, .xz or not) and Gemma 3's as a GGUF file
 * carries it, with scores instead of merges (where a model was downloaded). The last two answer
 * the same 2294 texts, and every id must be the reference's. */
#include <jansson.h>

#include "base/file.h"
#include "engine/files/model_file.h"
#include "tests/check.h"
#include "tokenizer/tokenizer.h"

#define N_TEXTS 2294
#define GGUF    PE_MODELS_DIR "/gemma-3-270m-q4_k_m.gguf"

/* Texts for which the GGUF vocabulary has other ids, and why. */
static const struct excuse {
    const char *text, *reason;
} excuses[] = {
    {"<image_soft_token>", "the file has no such token: added at 262144 by the vision model only"},
};
#define N_EXCUSES (int)(sizeof(excuses) / sizeof(excuses[0]))

static struct error err;

static void check_ids(const struct token_list *got, size_t skip, const json_t *want, size_t n_want,
                      const char *text)
{
    for (size_t i = 0; i < got->n && i + skip < n_want; i++) {
        json_int_t id = json_integer_value(json_array_get(want, i + skip));

        if (id != got->ids[i])
            CHECK_FAIL("\"%.60s\": id %zu is %d, want %lld", text, i, (int)got->ids[i],
                       (long long)id);
    }
    if (got->n + skip != n_want)
        CHECK_FAIL("\"%.60s\": %zu ids, want %zu", text, got->n, n_want - skip);
}

/* The same tokenizer by way of its compact form. */
static struct tokenizer *through_compact(const struct tokenizer *t)
{
    struct buf bytes = {.max = 10 * 1000 * 1000}; /* that of Gemma 3 must stay below 10 MB */
    struct tokenizer *copy = NULL;

    CHECK_OK(tokenizer_save(t, &bytes, &err));
    CHECK_OK(tokenizer_from_compact(&copy, bytes.data, bytes.len, "compact", &err));
    buf_free(&bytes);
    return copy;
}

static void check_tiny(const struct tokenizer *t, const char *expected_ids)
{
    json_t *prompts = json_load_file(PE_TESTS_DIR "/golden/prompts.json", 0, NULL);
    json_t *expected = json_load_file(expected_ids, 0, NULL);
    const json_t *ids = json_object_get(expected, "token_ids");

    CHECK(json_array_size(prompts) == 12);
    CHECK(json_array_size(ids) == 12);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        const json_t *want = json_array_get(ids, i);
        struct token_list got;

        CHECK_OK(tokenizer_encode(t, json_string_value(prompt), json_string_length(prompt), 1024,
                                  &got, &err));
        check_ids(&got, 0, want, json_array_size(want), json_string_value(prompt));
        CHECK((got.n < got.n_uncut) == (i == 8 || i == 9)); /* the two long ones */
        token_list_free(&got);
    }
    json_decref(expected);
    json_decref(prompts);
}

static void tiny(void)
{
    static const char ids[] = PE_TESTS_DIR "/golden/expected-gemma3-tiny.json";
    struct tokenizer *t, *copy;

    CHECK_OK(tokenizer_load(&t, PE_TESTS_DIR "/golden/gemma3-tiny/tokenizer.json", &err));
    check_tiny(t, ids);
    copy = through_compact(t);
    check_tiny(copy, ids);
    tokenizer_free(copy);
    tokenizer_free(t);
}

/* How many ids `text` becomes; all of them begin with <bos>. */
static size_t count_ids(const struct tokenizer *t, const char *text)
{
    struct token_list ids;
    size_t n;

    CHECK_OK(tokenizer_encode(t, text, strlen(text), 0, &ids, &err));
    CHECK(ids.n > 0);
    CHECK_INT(ids.ids[0], tokenizer_bos(t));
    n = ids.n;
    token_list_free(&ids);
    return n;
}

/* Gemma 4's post-processor adds no <bos>: it goes before ids that do not begin with one. Gemma 3's
 * adds it whatever the text brings. */
static void tiny_gemma4(void)
{
    static const char ids[] = PE_TESTS_DIR "/golden/expected-gemma4-tiny.json";
    static const char *const models[] = {PE_TESTS_DIR "/golden/gemma4-tiny", PE_TESTS_DIR
                                         "/golden/gemma4-tiny-te-single-file.safetensors"};
    struct tokenizer *t, *copy, *gemma3;

    CHECK_OK(tokenizer_load(&gemma3, PE_TESTS_DIR "/golden/gemma3-tiny/tokenizer.json", &err));
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        CHECK_OK(model_file_load_tokenizer(&t, models[i], &err));
        copy = through_compact(t);
        check_tiny(t, ids);
        check_tiny(copy, ids);
        CHECK_INT(count_ids(t, ""), 1);
        CHECK_INT(count_ids(t, "<bos>"), 1);
        CHECK_INT(count_ids(t, "  <bos>"), 1);
        CHECK_INT(count_ids(copy, "<bos>"), 1);
        CHECK_INT(count_ids(t, "<bos><bos>"), 2);
        CHECK_INT(count_ids(gemma3, "<bos>"), 2);
        tokenizer_free(copy);
        tokenizer_free(t);
    }
    tokenizer_free(gemma3);
}

static bool is_excused(const char *text)
{
    for (int i = 0; i < N_EXCUSES; i++)
        if (strcmp(text, excuses[i].text) == 0)
            return true;
    return false;
}

/* Every line `[text, ids]`, whose ids are <bos> and those of the text as it is. An excused text
 * must really differ, so that the table cannot grow old. */
static void check_texts(const struct tokenizer *t, bool may_excuse)
{
    FILE *lines = popen("gzip -dc '" PE_TESTS_DIR "/golden/gemma3-tokens.jsonl.gz'", "r");
    int n = 0, n_excused = 0;
    json_t *line;

    CHECK(lines != NULL);
    while ((line = json_loadf(lines, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)) != NULL) {
        const json_t *text = json_array_get(line, 0), *want = json_array_get(line, 1);
        const char *bytes = json_string_value(text);
        struct token_list got;

        n++;
        CHECK_INT(json_integer_value(json_array_get(want, 0)), tokenizer_bos(t));
        CHECK_OK(tokenizer_encode_raw(t, bytes, json_string_length(text), &got, &err));
        if (may_excuse && is_excused(bytes)) {
            CHECK(got.n + 1 != json_array_size(want));
            n_excused++;
        } else {
            check_ids(&got, 1, want, json_array_size(want), bytes);
        }
        token_list_free(&got);
        json_decref(line);
    }
    pclose(lines);
    CHECK_INT(n, N_TEXTS);
    CHECK_INT(n_excused, may_excuse ? N_EXCUSES : 0);
}

/* A whole file, unpacked where its name ends in .xz. */
static bool read_file(const char *path, struct buf *out)
{
    const char *tool = strlen(path) > 3 && strcmp(path + strlen(path) - 3, ".xz") == 0 ? "xz" : "";
    char command[1200], block[1 << 16];
    FILE *in;
    size_t n;

    if (!file_exists(path))
        return false;
    snprintf(command, sizeof(command), "xz -dc '%s'", path);
    if ((in = *tool != '\0' ? popen(command, "r") : fopen(path, "rb")) == NULL)
        return false;
    while ((n = fread(block, 1, sizeof(block), in)) > 0)
        if (buf_append(out, block, n, &err) != OK)
            break;
    if (*tool != '\0')
        pclose(in);
    else
        fclose(in);
    return out->len > 0;
}

static bool find_gemma3(struct buf *json)
{
    const char *path = getenv("PE_GEMMA3_TOKENIZER");

    if (path != NULL)
        return read_file(path, json);
    return read_file(PE_TESTS_DIR "/../../shared/fixtures/gemma3-tokenizer.json.xz", json);
}

static struct buf gemma3_json = {.max = (size_t)1 << 27};

static void gemma3_merges(void)
{
    struct tokenizer *t, *copy;

    CHECK_OK(tokenizer_from_json(&t, gemma3_json.data, gemma3_json.len, "tokenizer.json", &err));
    CHECK_INT(tokenizer_n_ids(t), 262145);
    CHECK_INT(tokenizer_bos(t), 2);
    check_texts(t, false);
    copy = through_compact(t);
    check_texts(copy, false);
    tokenizer_free(copy);
    tokenizer_free(t);
}

static void gemma3_scores(void)
{
    struct tokenizer *t, *copy;
    struct model_file *file;

    CHECK_OK(model_file_open(&file, GGUF, &err));
    CHECK_OK(model_file_tokenizer(file, &t, &err));
    model_file_close(file);
    CHECK_INT(tokenizer_bos(t), 2);
    check_texts(t, true);
    copy = through_compact(t);
    check_texts(copy, true);
    tokenizer_free(copy);
    tokenizer_free(t);
}

int main(void)
{
    RUN(tiny);
    RUN(tiny_gemma4);
    if (find_gemma3(&gemma3_json))
        RUN(gemma3_merges);
    else
        printf("skip gemma3_merges: no tokenizer.json of Gemma 3 (PE_GEMMA3_TOKENIZER)\n");
    if (file_exists(GGUF))
        RUN(gemma3_scores);
    else
        printf("skip gemma3_scores: no %s\n", GGUF);
    buf_free(&gemma3_json);
    return check_result();
}
