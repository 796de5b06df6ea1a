/* test_safetensors_writer.c - what we write, our own strict reader reads. */
#include "engine/files/safetensors.h"
#include "service/formats/safetensors_writer.h"
#include "tests/check.h"

static struct error err;

static void the_reader_reads_it(void)
{
    static const struct safetensors_entry entries[] = {
        {"p0.hidden_states", "F32", 3, {1, 2, 3}, 24},
        {"p0.token_ids", "I32", 1, {2}, 8},
        {"odd \"name\"\\", "BF16", 2, {0, 5}, 0},
    };
    static const struct safetensors_metadata metadata[] = {{"output", "hidden_states"},
                                                           {"text", "tab\t quote\" \xc3\xa9"}};
    struct buf b = {.max = 4096};
    struct safetensors *s;
    float numbers[6] = {1, 2, 3, 4, 5, 6};
    int ids[2] = {2, 7};

    CHECK_OK(safetensors_write_header(&b, entries, 3, metadata, 2, &err));
    CHECK_INT(b.len % 8, 0);
    CHECK_OK(buf_append(&b, numbers, sizeof(numbers), &err));
    CHECK_OK(buf_append(&b, ids, sizeof(ids), &err));
    CHECK_OK(safetensors_parse(&s, b.data, b.len, "written", &err));
    CHECK_INT(safetensors_n_tensors(s), 3);
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = safetensors_find(s, entries[i].name);
        CHECK(t != NULL);
        CHECK_INT(t->bytes, entries[i].bytes);
        CHECK_INT(t->n_dims, entries[i].n_dims);
        for (int d = 0; d < t->n_dims; d++)
            CHECK_INT(t->shape[d], entries[i].shape[d]);
    }
    CHECK(memcmp(safetensors_find(s, "p0.hidden_states")->data, numbers, sizeof(numbers)) == 0);
    CHECK(memcmp(safetensors_find(s, "p0.token_ids")->data, ids, sizeof(ids)) == 0);
    CHECK_TEXT(safetensors_metadata(s, "output"), "hidden_states");
    CHECK_TEXT(safetensors_metadata(s, "text"), metadata[1].value);
    safetensors_close(s);
    buf_free(&b);
}

static void over_the_ceiling_is_an_error(void)
{
    static const struct safetensors_entry entry = {"x", "F32", 1, {1}, 4};
    struct buf b = {.max = 20};

    CHECK_ERR(safetensors_write_header(&b, &entry, 1, NULL, 0, &err), ERR_SIZE, "at most 20");
    buf_free(&b);
}

int main(void)
{
    RUN(the_reader_reads_it);
    RUN(over_the_ceiling_is_an_error);
    return check_result();
}
