/* test_tokenizer_json.c - the pull reader: what it takes, what it refuses and where it says so. */
#include "tests/check.h"
#include "tokenizer/json_reader.h"

static struct error err;
static struct json_reader r;

static void start(const char *json)
{
    json_reader_init(&r, json, strlen(json), "t.json");
}

/* Skips the one value of `json`, which must be all of it. */
static int skip_all(const char *json)
{
    int rc;

    start(json);
    return (rc = json_skip(&r, &err)) != OK ? rc : json_finish(&r, &err);
}

static void walks_an_object(void)
{
    struct json_text text;
    int64_t number;
    bool more, flag;

    start(" {\"a\": [1, -20], \"b\" : {\"c\":true},\"d\":null, \"e\":[]} ");
    CHECK_OK(json_enter(&r, JSON_OBJECT, &err));
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK(more && json_text_is(&text, "a"));
    CHECK_OK(json_enter(&r, JSON_ARRAY, &err));
    CHECK_OK(json_next_item(&r, &more, &err));
    CHECK(more);
    CHECK_OK(json_read_int(&r, &number, &err));
    CHECK_INT(number, 1);
    CHECK_OK(json_next_item(&r, &more, &err));
    CHECK_OK(json_read_int(&r, &number, &err));
    CHECK_INT(number, -20);
    CHECK_OK(json_next_item(&r, &more, &err));
    CHECK(!more);
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK(more && json_text_is(&text, "b"));
    CHECK_OK(json_enter(&r, JSON_OBJECT, &err));
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK_OK(json_read_bool(&r, &flag, &err));
    CHECK(flag);
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK(!more);
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK_OK(json_read_scalar(&r, &text, &err));
    CHECK(json_text_is(&text, "null"));
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK_OK(json_enter(&r, JSON_ARRAY, &err));
    CHECK_OK(json_next_item(&r, &more, &err));
    CHECK(!more);
    CHECK_OK(json_next_key(&r, &text, &more, &err));
    CHECK(!more);
    CHECK_OK(json_finish(&r, &err));
}

static void decodes_escapes(void)
{
    struct json_text text;

    start("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u2581\\ud83e\\udd8A\\u0000z\"");
    CHECK_OK(json_read_text(&r, &text, &err));
    CHECK_INT(text.len, 9 + 1 + 2 + 3 + 4 + 1 + 1);
    CHECK(memcmp(text.data, "a\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x96\x81\xf0\x9f\xa6\x8a\0z", text.len) ==
          0);
    start("\"\xf0\x9f\xa6\x8a\"");
    CHECK_OK(json_read_text(&r, &text, &err));
    CHECK(text.len == 4 && text.data == r.data + 1); /* in place, not copied */
}

static void takes_what_is_json(void)
{
    static const char *const good[] = {
        "0",
        "-0",
        "10.5e+3",
        "1E9",
        "-0.0e-0",
        "\"\"",
        "[]",
        "{}",
        "true",
        " null ",
        "[[],{\"a\":{}}]",
        "{\"a\":1,\"a\":2}",
        "\"\x7f\"",
        "[1,2]",
        "\t[\r\n]",
        "\"\xed\x9f\xbf\"",
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK_OK(skip_all(good[i]));
}

static void refuses_what_is_not(void)
{
    static const struct {
        const char *json, *words;
    } bad[] = {
        {"", "the file ends where a value should be"},
        {"  \n", "line 2, byte 3: the file ends"},
        {"{", "the file ends where"},
        {"[1", "the file ends where ',' or ']'"},
        {"[1,]", "found ']', expected a value"},
        {"[,1]", "found ',', expected a value"},
        {"[1 2]", "line 1, byte 3: found '2', expected ',' or ']'"},
        {"{\"a\"}", "expected ':'"},
        {"{\"a\":1,}", "expected a string"},
        {"{a:1}", "expected a string"},
        {"{\"a\":1]", "expected ',' or '}'"},
        {"[1}", "expected ',' or ']'"},
        {"01", "expected the end of the file"},
        {"+1", "expected a value"},
        {".5", "expected a value"},
        {"1.", "a digit"},
        {"1.e3", "expected a digit"},
        {"1e", "a digit"},
        {"-", "a digit"},
        {"tru", "expected true"},
        {"nulll", "expected the end"},
        {"NaN", "expected a value"},
        {"// c\n1", "expected a value"},
        {"'a'", "expected a value"},
        {"\"a", "the file ends where the end of a string"},
        {"\"a\nb\"", "found byte 0x0A, expected a string without bare control"},
        {"\"\\x\"", "expected an escape"},
        {"\"\\", "where an escape"},
        {"\"\\u12\"", "four hexadecimal digits"},
        {"\"\\u12g4\"", "found 'g', expected four hexadecimal digits"},
        {"\"\\ud800\"", "the second half of a surrogate pair"},
        {"\"\\ud800\\n\"", "expected the second half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "the first half of a surrogate pair without"},
        {"\"\\udc00\"", "the second half of a surrogate pair without"},
        {"\"\x80\"", "found byte 0x80, expected UTF-8"},
        {"\"\xc0\xaf\"", "expected UTF-8"},
        {"\"\xed\xa0\x80\"", "expected UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "expected UTF-8"},
        {"\"\xe2\x96\"", "expected UTF-8"},
        {"1 1", "expected the end of the file"},
        {"\xef\xbb\xbf{}", "found byte 0xEF, expected a value"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_ERR(skip_all(bad[i].json), ERR_FORMAT, bad[i].words);
}

static void limits_depth_and_text(void)
{
    static char json[JSON_MAX_TEXT + 16];
    struct json_text text;

    memset(json, '[', JSON_MAX_DEPTH);
    memset(json + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    json[2 * JSON_MAX_DEPTH] = '\0';
    CHECK_OK(skip_all(json));
    memset(json, '[', JSON_MAX_DEPTH + 1);
    CHECK_ERR(skip_all(json), ERR_FORMAT, "nested more than 64 deep");

    memset(json, 'a', sizeof(json) - 1);
    json[0] = json[JSON_MAX_TEXT + 1] = '"';
    json[JSON_MAX_TEXT + 2] = '\0';
    start(json);
    CHECK_OK(json_read_text(&r, &text, &err));
    CHECK_INT(text.len, JSON_MAX_TEXT);
    memcpy(json + 1, "\\n", 2); /* one byte less, decoded */
    start(json);
    CHECK_OK(json_read_text(&r, &text, &err));
    CHECK_INT(text.len, JSON_MAX_TEXT - 1);
    memset(json + 1, 'a', JSON_MAX_TEXT + 1);
    json[JSON_MAX_TEXT + 2] = '"';
    json[JSON_MAX_TEXT + 3] = '\0';
    start(json);
    CHECK_ERR(json_read_text(&r, &text, &err), ERR_FORMAT, "a string of more than 4096 bytes");
    CHECK_OK(skip_all(json)); /* but it may be there */
    memcpy(json + JSON_MAX_TEXT - 1, "\\na", 3);
    memcpy(json + JSON_MAX_TEXT + 2, "a\"", 3);
    start(json);
    CHECK_ERR(json_read_text(&r, &text, &err), ERR_FORMAT, "a string of more than 4096 bytes");
}

static void whole_numbers(void)
{
    static const char *const bad[] = {"1.0",   "1e2", "9999999999999999999", "-1000000000000000000",
                                      "\"1\"", "null"};
    int64_t number;

    start("-999999999999999999"); /* 18 digits */
    CHECK_OK(json_read_int(&r, &number, &err));
    CHECK_INT(number, -999999999999999999);
    start("999999999999999999");
    CHECK_OK(json_read_int(&r, &number, &err));
    CHECK_INT(number, 999999999999999999);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        start(bad[i]);
        CHECK_ERR(json_read_int(&r, &number, &err), ERR_FORMAT, "number");
    }
}

static void comes_back_to_a_value(void)
{
    struct json_text text;
    size_t at;

    start("[\"x\", 5]");
    CHECK_OK(json_enter(&r, JSON_ARRAY, &err));
    at = r.at;
    CHECK_OK(json_skip(&r, &err));
    json_seek(&r, at);
    CHECK_OK(json_read_text(&r, &text, &err));
    CHECK(json_text_is(&text, "x"));
}

int main(void)
{
    RUN(walks_an_object);
    RUN(decodes_escapes);
    RUN(takes_what_is_json);
    RUN(refuses_what_is_not);
    RUN(limits_depth_and_text);
    RUN(whole_numbers);
    RUN(comes_back_to_a_value);
    return check_result();
}
