/* A model in shards, written here: the index, its shards, and what can be wrong between them. */
#include "engine/files/safetensors_index.h"

#include <sys/stat.h>

#include "base/buf.h"
#include "tests/check.h"

#define FOLDER PE_SCRATCH_DIR "/safetensors-index"
#define INDEX  FOLDER "/model.safetensors.index.json"

static struct error err;

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
}

static void write_index(const char *json)
{
    mkdir(FOLDER, 0755); /* may be there already */
    write_file(INDEX, json, strlen(json));
}

/* A shard with one tensor of two bytes. */
static size_t shard_bytes(uint8_t *out, size_t cap, const char *tensor)
{
    int len = snprintf((char *)out + 8, cap - 8,
                       "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", tensor);

    memset(out, 0, 8);
    out[0] = (uint8_t)len;
    out[8 + len] = out[9 + len] = 7;
    return (size_t)len + 10;
}

static void write_shard(const char *path, const char *tensor, size_t cut)
{
    uint8_t bytes[300];
    size_t size = shard_bytes(bytes, sizeof(bytes), tensor);

    write_file(path, bytes, size - cut);
}

static const char two_shards[] =
    "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"b\":\"2.safetensors\","
    "\"a\":\"1.safetensors\"}}";

static void two_shards_open_as_one_model(void)
{
    struct safetensors_index *x;

    write_index(two_shards);
    write_shard(FOLDER "/1.safetensors", "a", 0);
    write_shard(FOLDER "/2.safetensors", "b", 0);
    CHECK_OK(safetensors_index_open(&x, INDEX, &err));
    CHECK_INT(safetensors_index_n_shards(x), 2);
    CHECK_TEXT(safetensors_index_shard_at(x, 1), "2.safetensors");
    CHECK_INT(safetensors_index_n_tensors(x), 2);
    CHECK_TEXT(safetensors_index_tensor_at(x, 0)->name, "a");
    CHECK_TEXT(safetensors_index_find(x, "b")->file, "2.safetensors");
    CHECK(safetensors_index_find(x, "c") == NULL);
    safetensors_index_close(x);
}

static void a_missing_shard_is_named(void)
{
    struct safetensors_index *x;

    write_index("{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}");
    write_shard(FOLDER "/1.safetensors", "a", 0);
    CHECK_ERR(safetensors_index_open(&x, INDEX, &err), ERR_IO, "3.safetensors: No such file");
    CHECK(x == NULL);
}

static void a_shard_cut_short_is_named(void)
{
    struct safetensors_index *x;

    write_index(two_shards);
    write_shard(FOLDER "/1.safetensors", "a", 0);
    write_shard(FOLDER "/2.safetensors", "b", 1);
    CHECK_ERR(safetensors_index_open(&x, INDEX, &err), ERR_FORMAT,
              "2.safetensors: b: ends at byte 2 of the data, but the file has 1 (cut short?)");
}

static void a_tensor_that_is_not_in_its_shard_is_named(void)
{
    struct safetensors_index *x;

    write_index(two_shards);
    write_shard(FOLDER "/1.safetensors", "a", 0);
    write_shard(FOLDER "/2.safetensors", "other", 0);
    CHECK_ERR(safetensors_index_open(&x, INDEX, &err), ERR_FORMAT,
              "2.safetensors: b: no such tensor, but model.safetensors.index.json says so");
}

static const struct {
    const char *json, *words;
} broken[] = {
    {"", "x: bad JSON"},
    {"[]", "x: the JSON is an array, expected an object"},
    {"{}", "x: weight_map is missing, expected an object"},
    {"{\"weight_map\":[]}", "x: weight_map is an array, expected an object"},
    {"{\"weight_map\":{}}", "x: weight_map is empty"},
    {"{\"weight_map\":{\"a\":1}}", "x: a: its shard is an integer, expected a file name"},
    {"{\"weight_map\":{\"a\":\"../secret\"}}", "x: a: its shard is no plain name of a file"},
    {"{\"weight_map\":{\"a\":\"..\"}}", "x: a: its shard is no plain name of a file"},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "x: a: its shard is no plain name of a file"},
    {"{\"weight_map\":{\"a\":\"sub/1.safetensors\"}}", "no plain name"},
    {"{\"weight_map\":{\"a\":\"\"}}", "no plain name"},
    {"{\"weight_map\":{\"a\":\"\\n\"}}", "no plain name"},
    {"{\"weight_map\":{\"\":\"1\"}}", "its name is empty or has control characters"},
    {"{\"weight_map\":{\"a\":\"1\",\"a\":\"2\"}}", "duplicate"},
};

static void each_fault_has_its_sentence(void)
{
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct safetensors_index *x;

        CHECK_ERR(safetensors_index_parse(&x, broken[i].json, strlen(broken[i].json), "x", &err),
                  ERR_FORMAT, broken[i].words);
        CHECK(x == NULL);
    }
}

static void every_cut_is_refused(void)
{
    for (size_t cut = 0; cut < strlen(two_shards); cut++) {
        struct safetensors_index *x;

        CHECK_ERR(safetensors_index_parse(&x, two_shards, cut, "x", &err), ERR_FORMAT, "x: ");
        CHECK(x == NULL);
    }
}

static void more_shards_than_any_model_has_are_refused(void)
{
    struct buf json = {.max = 1 << 16};
    struct safetensors_index *x;

    CHECK_OK(buf_printf(&json, &err, "{\"weight_map\":{\"t\":\"s\""));
    for (int i = 0; i < 1024; i++)
        CHECK_OK(buf_printf(&json, &err, ",\"t%d\":\"s%d\"", i, i));
    CHECK_OK(buf_printf(&json, &err, "}}"));
    CHECK_ERR(safetensors_index_parse(&x, json.data, json.len, "x", &err), ERR_FORMAT,
              "x: 1025 shards, at most 1024");
    buf_free(&json);
}

int main(void)
{
    RUN(two_shards_open_as_one_model);
    RUN(a_missing_shard_is_named);
    RUN(a_shard_cut_short_is_named);
    RUN(a_tensor_that_is_not_in_its_shard_is_named);
    RUN(each_fault_has_its_sentence);
    RUN(every_cut_is_refused);
    RUN(more_shards_than_any_model_has_are_refused);
    return check_result();
}
