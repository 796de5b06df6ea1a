/* safetensors files built here byte by byte: what is read, and every refusal. */
#include "engine/files/safetensors.h"

#include "base/file.h"
#include "tests/check.h"

static struct error err;

/* A file of this header and `data_size` bytes 0, 1, 2 ...; on the heap, to the byte, so that the
 * sanitizer sees a read past its end. */
static uint8_t *build(const char *header, size_t data_size, size_t *size)
{
    size_t len = strlen(header);
    uint8_t *bytes = calloc(1, 8 + len + data_size);

    if (bytes == NULL)
        abort();
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(len >> 8 * i);
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < data_size; i++)
        bytes[8 + len + i] = (uint8_t)i;
    *size = 8 + len + data_size;
    return bytes;
}

/* Out of order, with an empty tensor, a scalar and trailing blanks in the header. */
static const char sound[] = "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\"},"
                            "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                            "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
                            "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]},"
                            "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}   ";

static void a_sound_file_is_read(void)
{
    struct safetensors *s;
    const struct tensor *t;
    const char *key, *value;
    size_t size;
    uint8_t *bytes = build(sound, 20, &size);

    CHECK_OK(safetensors_parse(&s, bytes, size, "x.safetensors", &err));
    CHECK_INT(safetensors_n_tensors(s), 4);
    CHECK_TEXT(safetensors_tensor_at(s, 0)->name, "a"); /* in the order of the bytes */
    CHECK_TEXT(safetensors_tensor_at(s, 3)->name, "one");
    CHECK(safetensors_tensor_at(s, 4) == NULL);
    t = safetensors_find(s, "b");
    CHECK(t != NULL);
    CHECK_INT(t->type, DTYPE_BF16);
    CHECK_INT(t->n_dims, 2);
    CHECK_TEXT(tensor_shape_text(t->n_dims, t->shape).text, "[2,3]");
    CHECK_INT(t->bytes, 12);
    CHECK_INT(((const uint8_t *)t->data)[0], 4);
    CHECK_TEXT(t->file, "x.safetensors");
    CHECK_INT(safetensors_find(s, "one")->n_dims, 0);
    CHECK_INT(safetensors_find(s, "none")->bytes, 0);
    CHECK(safetensors_find(s, "c") == NULL);
    CHECK_INT(safetensors_n_metadata(s), 2);
    safetensors_metadata_at(s, 0, &key, &value);
    CHECK_TEXT(key, "format");
    CHECK_TEXT(value, "pt");
    CHECK_TEXT(safetensors_metadata(s, "note"), "");
    CHECK(safetensors_metadata(s, "nothing") == NULL);
    CHECK(safetensors_recognise(bytes, size));
    safetensors_close(s);
    free(bytes);
}

static void every_cut_is_refused(void)
{
    struct safetensors *s;
    size_t size;
    uint8_t *bytes = build(sound, 20, &size);

    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *part = malloc(cut > 0 ? cut : 1);

        CHECK(part != NULL);
        memcpy(part, bytes, cut);
        CHECK_ERR(safetensors_parse(&s, part, cut, "cut.safetensors", &err), ERR_FORMAT,
                  "cut.safetensors: ");
        CHECK(s == NULL);
        free(part);
    }
    free(bytes);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data_size;
    const char *words;
} broken[] = {
    {"[]", 0, "x: not a safetensors file: the header is no JSON object"},
    {"{", 0, "x: bad JSON at line 1"},
    {"{} {}", 0, "x: bad JSON at line 1"},
    {"{}", 1, "x: 1 bytes after the last tensor"},
    {"{\"a\":" T("U8", "[4]", "[0,4]") ",\"a\":" T("U8", "[4]", "[4,8]") "}", 8, "duplicate"},
    {"{\"a\":7}", 0, "x: a: is an integer, expected an object"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1,
     "x: a: expected dtype, shape and data_offsets, and nothing else"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"z\":0}}", 1,
     "and nothing else"},
    {"{\"a\":" T("Q4_K", "[256]", "[0,144]") "}", 144, "x: a: dtype Q4_K is not known"},
    {"{\"a\":" T("f32", "[1]", "[0,4]") "}", 4, "x: a: dtype f32 is not known"},
    {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype an integer"},
    {"{\"a\":" T("U8", "{}", "[0,1]") "}", 1, "x: a: shape is an object, expected an array"},
    {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "x: a: dimension 0 of the shape is no size"},
    {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, "x: a: dimension 0 of the shape is no size"},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "x: a: 9 dimensions, at most 8"},
    {"{\"a\":" T("U8", "[4611686018427387904,4]", "[0,0]") "}", 0, "overflows"},
    {"{\"a\":" T("F64", "[4611686018427387904]", "[0,0]") "}", 0, "does not take the 0 bytes"},
    {"{\"a\":" T("U8", "[2]", "[0]") "}", 2, "x: a: data_offsets are not [begin, end]"},
    {"{\"a\":" T("U8", "[2]", "[2,0]") "}", 2, "x: a: data_offsets are not [begin, end]"},
    {"{\"a\":" T("U8", "[2]", "[-2,0]") "}", 2, "x: a: data_offsets are not [begin, end]"},
    {"{\"a\":" T("U8", "[2]", "[0,9223372036854775807]") "}", 2,
     "x: a: ends at byte 9223372036854775807 of the data, but the file has 2 (cut short?)"},
    {"{\"a\":" T("BF16", "[2,3]", "[0,11]") "}", 11,
     "x: a: BF16 [2,3] does not take the 11 bytes that it is given"},
    {"{\"a\":" T("U8", "[2]", "[1,3]") "}", 3,
     "x: a: begins at byte 1 of the data, expected 0 (a hole)"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3,
     "x: b: begins at byte 1 of the data, expected 2 (tensors overlap)"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, "tensors overlap"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 3, "x: 1 bytes after the last tensor"},
    {"{\"\":" T("U8", "[2]", "[0,2]") "}", 2, "its name is empty or has control characters"},
    {"{\"\\u001b\":" T("U8", "[2]", "[0,2]") "}", 2, "control characters"},
    {"{\"a\\u0000\":" T("U8", "[2]", "[0,2]") "}", 2, "bad JSON"},
    {"{\"__metadata__\":[]}", 0, "x: __metadata__ is an array, expected an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "x: __metadata__ k is an integer, expected a string"},
};

static void each_fault_has_its_sentence(void)
{
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct safetensors *s;
        size_t size;
        uint8_t *bytes = build(broken[i].header, broken[i].data_size, &size);

        CHECK_ERR(safetensors_parse(&s, bytes, size, "x", &err), ERR_FORMAT, broken[i].words);
        CHECK(s == NULL);
        free(bytes);
    }
}

static void a_header_length_beyond_reason_is_refused(void)
{
    uint8_t bytes[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    struct safetensors *s;

    CHECK_ERR(safetensors_parse(&s, bytes, sizeof(bytes), "x", &err), ERR_FORMAT,
              "x: not a safetensors file: a header of 18446744073709551615 bytes, at most");
    memset(bytes, 0, 8);
    CHECK_ERR(safetensors_parse(&s, bytes, sizeof(bytes), "x", &err), ERR_FORMAT,
              "x: not a safetensors file");
    CHECK(!safetensors_recognise(bytes, 8));
    CHECK_ERR(safetensors_parse(&s, NULL, 0, "x", &err), ERR_FORMAT, "too short");
}

static void deep_json_does_not_exhaust_the_stack(void)
{
    const size_t depth = 1000000;
    char *header = malloc(depth + 6);
    struct safetensors *s;
    uint8_t *bytes;
    size_t size;

    CHECK(header != NULL);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', depth);
    header[depth + 5] = '\0';
    bytes = build(header, 0, &size);
    CHECK_ERR(safetensors_parse(&s, bytes, size, "x", &err), ERR_FORMAT, "x: bad JSON");
    free(bytes);
    free(header);
}

static void the_tiny_model_opens(void)
{
    struct safetensors *s;
    const struct tensor *t;

    CHECK_OK(safetensors_open(&s, PE_TESTS_DIR "/golden/gemma3-tiny/model.safetensors", &err));
    CHECK_INT(safetensors_n_tensors(s), 132);
    CHECK_TEXT(safetensors_metadata(s, "format"), "pt");
    t = safetensors_find(s, "language_model.model.layers.6.mlp.down_proj.weight");
    CHECK(t != NULL);
    CHECK_TEXT(tensor_shape_text(t->n_dims, t->shape).text, "[128,320]");
    CHECK_TEXT(t->file, "model.safetensors");
    safetensors_close(s);
}

static void what_cannot_be_read_says_so(void)
{
    struct safetensors *s;

    CHECK_ERR(safetensors_open(&s, PE_TESTS_DIR "/no-such-file", &err), ERR_IO, "No such file");
    CHECK(s == NULL);
    CHECK_ERR(safetensors_open(&s, PE_TESTS_DIR, &err), ERR_IO, "is a directory");
    safetensors_close(NULL);
}

static void shapes_of_any_size_fit_their_text(void)
{
    size_t shape[TENSOR_MAX_DIMS];

    for (int i = 0; i < TENSOR_MAX_DIMS; i++)
        shape[i] = SIZE_MAX;
    CHECK_INT(strlen(tensor_shape_text(TENSOR_MAX_DIMS, shape).text), 8 * 20 + 7 + 2);
    CHECK_TEXT(tensor_shape_text(0, shape).text, "[]");
}

int main(void)
{
    RUN(a_sound_file_is_read);
    RUN(every_cut_is_refused);
    RUN(each_fault_has_its_sentence);
    RUN(a_header_length_beyond_reason_is_refused);
    RUN(deep_json_does_not_exhaust_the_stack);
    RUN(the_tiny_model_opens);
    RUN(what_cannot_be_read_says_so);
    RUN(shapes_of_any_size_fit_their_text);
    return check_result();
}
