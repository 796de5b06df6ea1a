#include "service/formats/answer.h"

#include <jansson.h>

#include "tests/check.h"

static struct error err;

/* Two prompts, [1, 2, 3] BF16 and [2] I32 each; their bytes are 0, 1, 2, .. and 100, 101, .. */
static struct answer_prompt prompts[2];
static const struct answer answer = {.model = "tiny \"1\"",
                                     .weights = "ab12",
                                     .tokenizer = "cd34",
                                     .gemma_version = "",
                                     .output = "hidden_states",
                                     .layers = "5",
                                     .modalities = "",
                                     .extractor = "",
                                     .ltx_version = "",
                                     .negative_index = -1,
                                     .n_prompts = 2,
                                     .prompts = prompts};
static uint8_t bytes[2][20];

static void set_up(void)
{
    for (int i = 0; i < 2; i++) {
        prompts[i] = (struct answer_prompt){.n_tokens = 2, .truncated = i == 1, .n_tensors = 2};
        prompts[i].tensors[0] = (struct answer_tensor){"hidden_states", "BF16", 3, {1, 2, 3}, 12};
        prompts[i].tensors[1] = (struct answer_tensor){"token_ids", "I32", 1, {2}, 8};
        for (int k = 0; k < 20; k++)
            bytes[i][k] = (uint8_t)(100 * i + k);
    }
}

/* Gives bytes in runs that end at multiples of `piece`; where `late` is set, a piece is not there
 * when it is first asked for. */
struct source {
    size_t piece;
    bool late;
    size_t last; /* prompt and piece that was asked for */
};

static long read_source(void *arg, size_t prompt, size_t offset, const uint8_t **data)
{
    struct source *s = arg;
    size_t end = (offset / s->piece + 1) * s->piece;

    if (s->late && 100 * prompt + end > s->last) {
        s->last = 100 * prompt + end;
        return 0;
    }
    *data = bytes[prompt] + offset;
    return (long)((end < 20 ? end : 20) - offset);
}

/* The whole answer, read in runs of up to `cap` bytes. */
static void read_all(struct buf *out, const struct layout *l, size_t cap, struct source *source)
{
    char room[64];
    int waits = 0;

    while (out->len < l->bytes) {
        long n = layout_read(l, out->len, room, cap, read_source, source);
        CHECK(n >= 0 && n <= (long)cap);
        CHECK(n > 0 || (source->late && ++waits < 1000));
        CHECK_OK(buf_append(out, room, (size_t)n, &err));
    }
}

static void check_same_in_all_ways(const struct layout *l)
{
    struct buf want = {.max = 4096}, got = {.max = 4096};

    read_all(&want, l, sizeof(char[64]), &(struct source){.piece = 20});
    for (size_t piece = 1; piece <= 20; piece++)
        for (size_t cap = 4; cap < 12; cap++) {
            read_all(&got, l, cap, &(struct source){.piece = piece, .late = piece % 2 == 0});
            CHECK(got.len == want.len && memcmp(got.data, want.data, want.len) == 0);
            buf_free(&got);
        }
    buf_free(&want);
}

static void safetensors(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"layers\":\"5\",\"model\":\"tiny \\\"1\\\"\",\"output\":"
        "\"hidden_states\",\"tokenizer\":\"cd34\",\"tokens\":\"2,2\",\"truncated\":\"false,true\","
        "\"weights\":\"ab12\",\"widths\":\"3\"},"
        "\"p0.hidden_states\":{\"dtype\":\"BF16\",\"shape\":[1,2,3],\"data_offsets\":[0,12]},"
        "\"p0.token_ids\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[12,20]},"
        "\"p1.hidden_states\":{\"dtype\":\"BF16\",\"shape\":[1,2,3],\"data_offsets\":[20,32]},"
        "\"p1.token_ids\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[32,40]}}";
    struct buf all = {.max = 4096};
    struct layout l;

    CHECK_OK(layout_safetensors(&l, &answer, &err));
    read_all(&all, &l, 64, &(struct source){.piece = 20});
    CHECK_INT(all.len, l.bytes);
    CHECK(memcmp(all.data + 8, header, strlen(header)) == 0);
    CHECK(memcmp(all.data + all.len - 40, bytes[0], 20) == 0);
    CHECK(memcmp(all.data + all.len - 20, bytes[1], 20) == 0);
    check_same_in_all_ways(&l);
    buf_free(&all);
    layout_free(&l);
}

static void negative_index_is_metadata(void)
{
    struct answer a = answer;
    struct layout l;

    a.negative_index = 1;
    CHECK_OK(layout_safetensors(&l, &a, &err));
    CHECK(strstr(l.text.data + 8, "\",\"negative_index\":\"1\",\"output\"") != NULL);
    layout_free(&l);
}

/* One prompt of embeddings: [1, 2] BF16 twice, a mask of one row, an id. */
static struct answer_prompt embedded = {.n_tokens = 1,
                                        .n_tensors = 4,
                                        .tensors = {{"video", "F16", 2, {1, 2}, 4},
                                                    {"audio", "F16", 2, {1, 1}, 2},
                                                    {"mask", "I64", 1, {1}, 8},
                                                    {"token_ids", "I32", 1, {1}, 4}}};

static struct answer embeddings(void)
{
    return (struct answer){.model = "m",
                           .weights = "ab12",
                           .tokenizer = "cd34",
                           .gemma_version = "g \"4\"",
                           .output = "embeddings",
                           .layers = "",
                           .modalities = "video,audio",
                           .extractor = "v2",
                           .ltx_version = "2.5.0 \"a\"",
                           .negative_index = -1,
                           .n_prompts = 1,
                           .prompts = &embedded};
}

static void levels_without_layers(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"extractor\":\"v2\",\"gemma_version\":\"g "
        "\\\"4\\\"\",\"ltx_version\":\"2.5.0 \\\"a\\\"\","
        "\"modalities\":\"video,audio\",\"model\":\"m\",\"output\":\"embeddings\",\"tokenizer\":"
        "\"cd34\",\"tokens\":\"1\","
        "\"truncated\":\"false\",\"weights\":\"ab12\",\"widths\":\"2,1\"},"
        "\"p0.video\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[0,4]},"
        "\"p0.audio\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[4,6]},"
        "\"p0.mask\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[6,14]},"
        "\"p0.token_ids\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[14,18]}}";
    struct buf all = {.max = 4096};
    struct answer a = embeddings();
    struct layout l;
    json_t *root;

    CHECK_OK(layout_safetensors(&l, &a, &err));
    CHECK(memcmp(l.text.data + 8, header, strlen(header)) == 0);
    layout_free(&l);
    CHECK_OK(layout_json(&l, &a, &err));
    read_all(&all, &l, 64, &(struct source){.piece = 20});
    CHECK((root = json_loadb(all.data, all.len, JSON_REJECT_DUPLICATES, NULL)) != NULL);
    CHECK(json_object_get(root, "layers") == NULL);
    CHECK_TEXT(json_string_value(json_object_get(root, "output")), "embeddings");
    CHECK_TEXT(json_string_value(json_object_get(root, "extractor")), "v2");
    CHECK_TEXT(json_string_value(json_object_get(root, "ltx_version")), "2.5.0 \"a\"");
    CHECK_TEXT(json_string_value(json_object_get(root, "gemma_version")), "g \"4\"");
    CHECK_TEXT(json_string_value(json_object_get(root, "tokenizer")), "cd34");
    CHECK_INT(json_array_size(json_object_get(root, "widths")), 2);
    CHECK_INT(json_integer_value(json_array_get(json_object_get(root, "widths"), 0)), 2);
    CHECK_INT(json_array_size(json_object_get(root, "modalities")), 2);
    CHECK_TEXT(json_string_value(json_array_get(json_object_get(root, "modalities"), 1)), "audio");
    json_decref(root);
    buf_free(&all);
    layout_free(&l);
    a.modalities = "audio";
    a.ltx_version = "";
    CHECK_OK(layout_json(&l, &a, &err));
    CHECK(strstr(l.text.data, ",\"output\":\"embeddings\",\"modalities\":[\"audio\"],"
                              "\"extractor\":\"v2\",\"widths\":[2,1],\"prompts\":[") != NULL);
    layout_free(&l);
}

static void npy_takes_one_modality(void)
{
    struct answer a = embeddings();
    struct answer_prompt one = embedded;
    struct layout l;

    CHECK_ERR(layout_npy(&l, &a, &err), ERR_INPUT, "has video and audio; ask for one");
    one.tensors[1] = one.tensors[2];
    one.tensors[2] = one.tensors[3];
    one.n_tensors = 3;
    a.prompts = &one;
    CHECK_OK(layout_npy(&l, &a, &err));
    CHECK_INT(l.bytes, 128 + 4);
    layout_free(&l);
}

static void json(void)
{
    struct buf all = {.max = 4096};
    struct layout l;
    json_t *root, *tensor;

    CHECK_OK(layout_json(&l, &answer, &err));
    read_all(&all, &l, 64, &(struct source){.piece = 20});
    CHECK((root = json_loadb(all.data, all.len, JSON_REJECT_DUPLICATES, NULL)) != NULL);
    CHECK_TEXT(json_string_value(json_object_get(root, "model")), "tiny \"1\"");
    CHECK_TEXT(json_string_value(json_object_get(root, "weights")), "ab12");
    tensor = json_object_get(
        json_object_get(json_array_get(json_object_get(root, "prompts"), 1), "tensors"),
        "token_ids");
    CHECK_TEXT(json_string_value(json_object_get(tensor, "data")), "cHFyc3R1dnc="); /* 112 .. 119 */
    tensor = json_object_get(
        json_object_get(json_array_get(json_object_get(root, "prompts"), 0), "tensors"),
        "hidden_states");
    CHECK_TEXT(json_string_value(json_object_get(tensor, "data")), "AAECAwQFBgcICQoL");
    json_decref(root);
    check_same_in_all_ways(&l);
    buf_free(&all);
    layout_free(&l);
    prompts[1].tensors[0].bytes = ANSWER_JSON_MAX;
    CHECK_ERR(layout_json(&l, &answer, &err), ERR_SIZE, "safetensors");
    set_up();
}

static void npy(void)
{
    struct answer a = answer;
    struct buf all = {.max = 4096};
    struct layout l;

    CHECK_ERR(layout_npy(&l, &a, &err), ERR_INPUT, "one prompt, not 2");
    a.n_prompts = 1;
    CHECK_ERR(layout_npy(&l, &a, &err), ERR_INPUT, "BF16");
    memcpy(prompts[0].tensors[0].dtype, "F16", 4);
    CHECK_OK(layout_npy(&l, &a, &err));
    read_all(&all, &l, 64, &(struct source){.piece = 20});
    CHECK_INT(all.len, 128 + 12);
    CHECK(memcmp(all.data,
                 "\x93NUMPY\x01\x00\x76\x00{'descr': '<f2', 'fortran_order': False, "
                 "'shape': (1, 2, 3,), }",
                 10 + 59) == 0);
    CHECK_INT(all.data[127], '\n');
    CHECK(memcmp(all.data + 128, bytes[0], 12) == 0);
    buf_free(&all);
    layout_free(&l);
    set_up();
}

static long broken(void *arg, size_t prompt, size_t offset, const uint8_t **data)
{
    (void)arg, (void)prompt, (void)offset, (void)data;
    return -1;
}

static void failure_of_the_source(void)
{
    struct layout l;
    char room[16];

    CHECK_OK(layout_json(&l, &answer, &err));
    CHECK_INT(layout_read(&l, l.segments[0].bytes, room, sizeof(room), broken, NULL), -1);
    CHECK_INT(layout_read(&l, l.segments[0].bytes + 1, room, sizeof(room), broken, NULL), -1);
    CHECK_INT(layout_read(&l, l.bytes, room, sizeof(room), broken, NULL), 0);
    layout_free(&l);
}

int main(void)
{
    set_up();
    RUN(safetensors);
    RUN(negative_index_is_metadata);
    RUN(json);
    RUN(levels_without_layers);
    RUN(npy_takes_one_modality);
    RUN(npy);
    RUN(failure_of_the_source);
    return check_result();
}
