/* GGUF files built here byte by byte: what is read, and every refusal. */
#include "engine/files/gguf.h"

#include "base/buf.h"
#include "tests/check.h"

static struct error err;

/* --- writing -------------------------------------------------------------------------------- */

static void put(struct buf *b, const void *data, size_t size)
{
    if (buf_append(b, data, size, NULL) != OK)
        abort();
}

static void put_int(struct buf *b, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++, x >>= 8)
        put(b, &(uint8_t){(uint8_t)x}, 1);
}

static void put_text(struct buf *b, const char *text)
{
    put_int(b, strlen(text), 8);
    put(b, text, strlen(text));
}

static void put_head(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    b->max = 1 << 20;
    put(b, "GGUF", 4);
    put_int(b, version, 4);
    put_int(b, n_tensors, 8);
    put_int(b, n_keys, 8);
}

/* An integer, bool or float (given by its bits) of `bytes` bytes. */
static void put_key(struct buf *b, const char *key, enum gguf_type type, uint64_t bits, int bytes)
{
    put_text(b, key);
    put_int(b, type, 4);
    put_int(b, bits, bytes);
}

static void put_array_head(struct buf *b, const char *key, uint32_t type, uint64_t n)
{
    put_text(b, key);
    put_int(b, GGUF_ARRAY, 4);
    put_int(b, type, 4);
    put_int(b, n, 8);
}

static void put_tensor(struct buf *b, const char *name, int n_dims, const uint64_t *dims,
                       uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put_int(b, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put_int(b, dims[i], 8);
    put_int(b, type, 4);
    put_int(b, offset, 8);
}

static void pad(struct buf *b, size_t alignment)
{
    while (b->len % alignment != 0)
        put_int(b, 0, 1);
}

static const uint64_t two_by_three[] = {3, 2}; /* the fastest dimension first */
static const uint64_t block_q8[] = {32};

/* Every kind of value, two tensors; 16 bytes of alignment. */
static void put_sound(struct buf *b, uint32_t version)
{
    put_head(b, version, 2, 14);
    put_key(b, "general.alignment", GGUF_U32, 16, 4);
    put_key(b, "u8", GGUF_U8, 200, 1);
    put_key(b, "i8", GGUF_I8, 0xff, 1);
    put_key(b, "u16", GGUF_U16, 65535, 2);
    put_key(b, "i16", GGUF_I16, 0xfffe, 2);
    put_key(b, "i32", GGUF_I32, 7, 4);
    put_key(b, "f32", GGUF_F32, 0x3fc00000, 4);
    put_key(b, "f64", GGUF_F64, 0xc004000000000000u, 8);
    put_key(b, "bool", GGUF_BOOL, 1, 1);
    put_key(b, "u64", GGUF_U64, UINT64_MAX, 8);
    put_key(b, "i64", GGUF_I64, 1ull << 40, 8);
    put_text(b, "text");
    put_int(b, GGUF_STRING, 4);
    put_text(b, "two\nlines");
    put_array_head(b, "texts", GGUF_STRING, 3);
    put_text(b, "a");
    put_text(b, "");
    put_text(b, "ccc");
    put_array_head(b, "numbers", GGUF_F32, 2);
    put_int(b, 0x3f800000, 4);
    put_int(b, 0xbf800000, 4);
    put_tensor(b, "z", 2, two_by_three, 0, 0); /* F32: 24 bytes, padded to 32 */
    put_tensor(b, "blk.0.attn_q.weight", 1, block_q8, 8, 32);
    pad(b, 16);
    for (uint64_t i = 0; i < 32 + 34; i++)
        put_int(b, i, 1);
}

/* --- tests ---------------------------------------------------------------------------------- */

static void a_sound_file_is_read(uint32_t version)
{
    struct buf b = {0};
    struct gguf *g;
    const struct tensor *t;

    put_sound(&b, version);
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x.gguf", &err));
    CHECK(gguf_recognise(b.data, b.len));
    CHECK_INT(gguf_version(g), version);
    CHECK_INT(gguf_n_tensors(g), 2);
    t = gguf_tensor_at(g, 0);
    CHECK_TEXT(t->name, "z");
    CHECK_TEXT(tensor_shape_text(t->n_dims, t->shape).text, "[2,3]");
    CHECK_INT(t->type, DTYPE_F32);
    CHECK_INT(t->bytes, 24);
    CHECK_INT(((const uint8_t *)t->data)[0], 0);
    CHECK_TEXT(t->file, "x.gguf");
    t = gguf_find(g, "blk.0.attn_q.weight");
    CHECK(t != NULL);
    CHECK_INT(t->type, DTYPE_Q8_0);
    CHECK_INT(((const uint8_t *)t->data)[0], 32);
    CHECK(gguf_find(g, "y") == NULL);
    CHECK(gguf_tensor_at(g, 2) == NULL);
    gguf_close(g);
    buf_free(&b);
}

static void version_2_is_read(void)
{
    a_sound_file_is_read(2);
}

static void version_3_is_read(void)
{
    a_sound_file_is_read(3);
}

static void values_come_back_as_they_were_written(void)
{
    struct buf b = {0};
    struct gguf_array a;
    struct gguf_text text;
    enum gguf_type type;
    const uint8_t *at;
    struct gguf *g;
    uint64_t whole;
    double number;
    bool flag;

    put_sound(&b, 3);
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x", &err));
    CHECK_OK(gguf_get_size(g, "u8", &whole, &err));
    CHECK_INT(whole, 200);
    CHECK_OK(gguf_get_size(g, "u16", &whole, &err));
    CHECK_INT(whole, 65535);
    CHECK_OK(gguf_get_size(g, "i32", &whole, &err));
    CHECK_INT(whole, 7);
    CHECK_OK(gguf_get_size(g, "i64", &whole, &err));
    CHECK(whole == 1ull << 40);
    CHECK_OK(gguf_get_size(g, "u64", &whole, &err));
    CHECK(whole == INT64_MAX); /* beyond any limit; not wrapped */
    CHECK_OK(gguf_get_number(g, "f32", &number, &err));
    CHECK(number == 1.5);
    CHECK_OK(gguf_get_number(g, "f64", &number, &err));
    CHECK(number == -2.5);
    CHECK_OK(gguf_get_number(g, "i16", &number, &err));
    CHECK(number == -2);
    CHECK_OK(gguf_get_bool(g, "bool", &flag, &err));
    CHECK(flag);
    CHECK_OK(gguf_get_text(g, "text", &text, &err));
    CHECK_INT(text.len, 9);
    CHECK(memcmp(text.data, "two\nlines", 9) == 0);
    CHECK_OK(gguf_get_array(g, "texts", GGUF_STRING, &a, &err));
    CHECK_INT(a.n, 3);
    at = a.data;
    CHECK_INT(gguf_array_next_text(&at).len, 1);
    CHECK_INT(gguf_array_next_text(&at).len, 0);
    text = gguf_array_next_text(&at);
    CHECK(text.len == 3 && memcmp(text.data, "ccc", 3) == 0);
    CHECK_OK(gguf_get_array(g, "numbers", GGUF_F32, &a, &err));
    CHECK(a.n == 2 && gguf_array_f32(&a, 1) == -1.0f);
    CHECK(gguf_has(g, "text") && !gguf_has(g, "tex"));
    CHECK(gguf_type_of(g, "numbers", &type) && type == GGUF_ARRAY);
    CHECK(gguf_type_of(g, "bool", &type) && type == GGUF_BOOL);
    CHECK(!gguf_type_of(g, "", &type));
    gguf_close(g);
    buf_free(&b);
}

static void a_value_of_another_kind_is_refused(void)
{
    struct buf b = {0};
    struct gguf_array a;
    struct gguf_text text;
    struct gguf *g;
    uint64_t whole;
    double number;
    bool flag;

    put_sound(&b, 3);
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x", &err));
    CHECK_ERR(gguf_get_size(g, "no", &whole, &err), ERR_FORMAT, "x: no is missing");
    CHECK_ERR(gguf_get_size(g, "f32", &whole, &err), ERR_FORMAT,
              "x: f32 is f32, expected an integer");
    CHECK_ERR(gguf_get_size(g, "i8", &whole, &err), ERR_FORMAT,
              "x: i8 is -1, expected no negative number");
    CHECK_ERR(gguf_get_number(g, "text", &number, &err), ERR_FORMAT,
              "x: text is string, expected a number");
    CHECK_ERR(gguf_get_bool(g, "u8", &flag, &err), ERR_FORMAT, "x: u8 is u8, expected a bool");
    CHECK_ERR(gguf_get_text(g, "texts", &text, &err), ERR_FORMAT,
              "x: texts is an array of string, expected a string");
    CHECK_ERR(gguf_get_array(g, "texts", GGUF_I32, &a, &err), ERR_FORMAT,
              "x: texts is an array of string, expected an array of i32");
    CHECK_ERR(gguf_get_array(g, "u8", GGUF_I32, &a, &err), ERR_FORMAT,
              "x: u8 is u8, expected an array of i32");
    gguf_close(g);
    buf_free(&b);
}

static void values_are_listed_as_one_printable_line(void)
{
    static const char *const want[] = {"16",
                                       "200",
                                       "-1",
                                       "65535",
                                       "-2",
                                       "7",
                                       "1.5",
                                       "-2.5",
                                       "true",
                                       "18446744073709551615",
                                       "1099511627776",
                                       "two lines",
                                       "[3 x string]",
                                       "[2 x f32]"};
    struct buf b = {0};
    struct gguf *g;
    char line[80];

    put_sound(&b, 3);
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x", &err));
    CHECK_INT(gguf_n_keys(g), sizeof(want) / sizeof(want[0]));
    CHECK_TEXT(gguf_key_at(g, 11), "text");
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_value_text(g, i, line, sizeof(line));
        CHECK_TEXT(line, want[i]);
        gguf_value_text(g, i, line, 3); /* cut, never past the end */
        CHECK(strlen(line) <= 2);
    }
    gguf_close(g);
    buf_free(&b);
}

static void a_long_text_is_listed_shortened_between_characters(void)
{
    struct buf b = {0};
    struct gguf *g;
    char line[80];

    put_head(&b, 3, 0, 1);
    put_text(&b, "k");
    put_int(&b, GGUF_STRING, 4);
    put_int(&b, 59 + 2 + 100, 8);
    for (int i = 0; i < 59; i++)
        put(&b, "x", 1);
    put(&b, "\xc3\xa9", 2); /* would be cut in two after 60 bytes */
    for (int i = 0; i < 100; i++)
        put(&b, "x", 1);
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x", &err));
    gguf_value_text(g, 0, line, sizeof(line));
    CHECK_TEXT(line, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (161 bytes)");
    gguf_close(g);
    buf_free(&b);
}

static void every_cut_is_refused(void)
{
    struct buf b = {0};
    struct gguf *g;

    put_sound(&b, 3);
    for (size_t cut = 0; cut < b.len; cut++) {
        uint8_t *part = malloc(cut > 0 ? cut : 1); /* to the byte, for the sanitizer */

        CHECK(part != NULL);
        memcpy(part, b.data, cut);
        CHECK_ERR(gguf_parse(&g, part, cut, "cut.gguf", &err), ERR_FORMAT, "cut.gguf: ");
        CHECK(g == NULL);
        free(part);
    }
    buf_free(&b);
}

static void no_single_changed_byte_does_harm(void)
{
    struct buf b = {0};
    struct gguf *g;

    put_sound(&b, 3);
    for (size_t i = 0; i < b.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            b.data[i] = (char)(b.data[i] ^ 1 << bit);
            (void)gguf_parse(&g, b.data, b.len, "x", NULL);
            gguf_close(g);
            b.data[i] = (char)(b.data[i] ^ 1 << bit);
        }
    buf_free(&b);
}

/* Parses what `b` holds, expects that sentence, and empties it. */
#define CHECK_REFUSED(b, words)                                                                    \
    do {                                                                                           \
        struct gguf *refused;                                                                      \
        CHECK_ERR(gguf_parse(&refused, (b)->data, (b)->len, "x", &err), ERR_FORMAT, words);        \
        CHECK(refused == NULL);                                                                    \
        buf_free(b);                                                                               \
    } while (0)

static void wrong_heads_are_refused(void)
{
    struct buf b = {.max = 100};

    put(&b, "GGML....", 8);
    CHECK_REFUSED(&b, "x: not a GGUF file: it does not begin with \"GGUF\"");
    put_head(&b, 1, 0, 0);
    CHECK_REFUSED(&b, "x: GGUF version 1, expected 2 or 3");
    put_head(&b, 0x03000000, 0, 0);
    CHECK_REFUSED(&b, "x: a big-endian GGUF file, expected little-endian");
    put_head(&b, 3, 0, 1ull << 60);
    CHECK_REFUSED(&b, "x: 1152921504606846976 keys and 0 tensors do not fit in the 0 bytes left");
    put_head(&b, 3, 1ull << 60, 0);
    CHECK_REFUSED(&b, "1152921504606846976 tensors do not fit");
}

static void wrong_values_are_refused(void)
{
    struct buf b = {0};

    put_head(&b, 3, 0, 1);
    put_key(&b, "k", (enum gguf_type)13, 0, 8);
    CHECK_REFUSED(&b, "x: k: value type 13 is not known");
    put_head(&b, 3, 0, 1);
    put_array_head(&b, "k", GGUF_ARRAY, 1);
    CHECK_REFUSED(&b, "x: k: an array of arrays is not supported");
    put_head(&b, 3, 0, 1);
    put_array_head(&b, "k", GGUF_U8, 1ull << 63);
    CHECK_REFUSED(&b, "x: k: an array of 9223372036854775808, but 0 bytes are left (cut short?)");
    put_head(&b, 3, 0, 1);
    put_array_head(&b, "k", GGUF_STRING, 2);
    put_text(&b, "one");
    CHECK_REFUSED(&b, "x: the file ends within k (cut short?)");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", GGUF_BOOL, 2, 1);
    CHECK_REFUSED(&b, "x: k: a bool is 2, expected 0 or 1");
    put_head(&b, 3, 0, 2);
    put_key(&b, "k", GGUF_U8, 2, 1);
    put_key(&b, "k", GGUF_U8, 2, 1);
    CHECK_REFUSED(&b, "x: k: there are two keys of this name");
    put_head(&b, 3, 0, 1);
    put_key(&b, "", GGUF_U32, 2, 4);
    CHECK_REFUSED(&b, "x: metadata key 0: its name is empty, too long or has control characters");
    put_head(&b, 3, 0, 1);
    put_key(&b, "general.alignment", GGUF_U32, 24, 4);
    CHECK_REFUSED(&b, "x: general.alignment is 24, expected a power of two up to 65536");
    put_head(&b, 3, 0, 1);
    put_key(&b, "general.alignment", GGUF_U32, 0, 4);
    CHECK_REFUSED(&b, "x: general.alignment is 0, expected a power of two");
    put_head(&b, 3, 0, 1);
    put_key(&b, "general.alignment", GGUF_BOOL, 1, 1);
    CHECK_REFUSED(&b, "x: general.alignment is bool, expected an integer");
}

/* A file of one tensor and `data_size` bytes of data. */
static void put_one(struct buf *b, int n_dims, const uint64_t *dims, uint32_t type, uint64_t offset,
                    size_t data_size)
{
    put_head(b, 3, 1, 0);
    put_tensor(b, "t", n_dims, dims, type, offset);
    pad(b, 32);
    for (size_t i = 0; i < data_size; i++)
        put_int(b, 0, 1);
}

static void wrong_tensors_are_refused(void)
{
    static const uint64_t five[] = {1, 1, 1, 1, 1}, zero[] = {4, 0},
                          huge[] = {1ull << 40, 1ull << 40};
    static const uint64_t bytes_overflow[] = {1ull << 62}, partial[] = {16, 2};
    struct buf b = {0};

    put_one(&b, 5, five, 0, 0, 4);
    CHECK_REFUSED(&b, "x: t: 5 dimensions, at most 4");
    put_one(&b, 2, zero, 0, 0, 4);
    CHECK_REFUSED(&b, "x: t: a dimension is 0 or the shape overflows");
    put_one(&b, 2, huge, 0, 0, 4);
    CHECK_REFUSED(&b, "or the shape overflows");
    put_one(&b, 1, bytes_overflow, 0, 0, 4);
    CHECK_REFUSED(&b, "x: t: rows of shape [4611686018427387904] are no whole blocks of F32");
    put_one(&b, 2, partial, 8, 0, 34); /* 32 numbers in all, but rows of 16 */
    CHECK_REFUSED(&b, "x: t: rows of shape [2,16] are no whole blocks of Q8_0");
    put_one(&b, 2, two_by_three, 4, 0, 24);
    CHECK_REFUSED(&b, "x: t: tensor type 4 is not known");
    put_one(&b, 2, two_by_three, 1000, 0, 24);
    CHECK_REFUSED(&b, "x: t: tensor type 1000 is not known");
    put_one(&b, 2, two_by_three, 0, 1, 64);
    CHECK_REFUSED(&b, "x: t: begins at byte 1 of the data, expected 0");
    put_one(&b, 2, two_by_three, 0, UINT64_MAX - 31, 64);
    CHECK_REFUSED(&b, "x: t: begins at byte 18446744073709551584 of the data, expected 0");
    put_one(&b, 2, two_by_three, 0, 0, 23);
    CHECK_REFUSED(&b, "x: t: 24 bytes at 0 of the data, but the file has 23 (cut short?)");

    put_head(&b, 3, 2, 0);
    put_tensor(&b, "t", 2, two_by_three, 0, 0);
    put_tensor(&b, "t", 2, two_by_three, 0, 32);
    pad(&b, 32);
    for (int i = 0; i < 64; i++)
        put_int(&b, 0, 1);
    CHECK_REFUSED(&b, "x: t: there are two tensors of this name");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "a\tb", 2, two_by_three, 0, 0);
    CHECK_REFUSED(&b, "x: tensor 0: its name is empty, too long or has control characters");
}

static void a_kind_that_is_never_computed_with_can_be_listed(void)
{
    static const uint64_t block[] = {256};
    struct buf b = {0};
    struct gguf *g;

    put_one(&b, 1, block, 17, 0, 74); /* IQ2_XS */
    CHECK_OK(gguf_parse(&g, b.data, b.len, "x", &err));
    CHECK_TEXT(dtype_info(gguf_tensor_at(g, 0)->type)->name, "IQ2_XS");
    CHECK(!dtype_info(gguf_tensor_at(g, 0)->type)->is_number);
    gguf_close(g);
    buf_free(&b);
}

int main(void)
{
    RUN(version_2_is_read);
    RUN(version_3_is_read);
    RUN(values_come_back_as_they_were_written);
    RUN(a_value_of_another_kind_is_refused);
    RUN(values_are_listed_as_one_printable_line);
    RUN(a_long_text_is_listed_shortened_between_characters);
    RUN(every_cut_is_refused);
    RUN(no_single_changed_byte_does_harm);
    RUN(wrong_heads_are_refused);
    RUN(wrong_values_are_refused);
    RUN(wrong_tensors_are_refused);
    RUN(a_kind_that_is_never_computed_with_can_be_listed);
    return check_result();
}
