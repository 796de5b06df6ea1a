/* test_tokenizer.c - texts to ids with small vocabularies, and every way a vocabulary is refused.
 *
 * The vocabulary of most tests is written here as a tokenizer.json: ids 0..3 are special, 4..259
 * the bytes, and then come a few pieces over the letters a, b, c. */
#include <math.h>

#include "base/crc32c.h"
#include "tests/check.h"
#include "tokenizer/tokenizer.h"

#define META "\xe2\x96\x81"

enum {
    BOS = 2,
    BYTE = 4, /* + the byte */
    SPACE = 260,
    A,
    B,
    C,
    AB,
    BC,
    ABC,
    AA,
    SPACE_A,
    SPACES, /* two */
    E_ACUTE,
    TURN, /* added, in the vocabulary */
    N_VOCAB,
    TURN_END = N_VOCAB, /* the rest is only among the added tokens */
    LESS_A,
    A_LESS_TUR = N_VOCAB + 3, /* 274 is a hole */
    N_IDS,
};

static struct error err;

/* The parts of a tokenizer.json; NULL means the usual. */
struct parts {
    const char *added, *normalizer, *pre_tokenizer, *post_processor, *settings, *vocab, *merges;
};

#define ADDED_TAIL                                                                                 \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"               \
    "\"special\":true}"
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" META "\"}"
#define SPLIT                                                                                      \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\","      \
    "\"invert\":false}"
#define ADDS_BOS                                                                                   \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\","            \
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"                    \
    "\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[2],\"tokens\":[\"<bos>\"]}}}"
#define ADDS_NOTHING                                                                               \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"   \
    "\"pair\":[],\"special_tokens\":{}}"
#define SETTINGS                                                                                   \
    "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"<unk>\",\"continuing_subword_prefix\":"     \
    "null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":true,"                   \
    "\"ignore_merges\":false"
#define VOCAB_TAIL                                                                                 \
    "\"" META "\":260,\"a\":261,\"b\":262,\"c\":263,\"ab\":264,\"bc\":265,\"abc\":266,\"aa\":267," \
    "\"" META "a\":268,\"" META META "\":269,\"\\u00e9\":270,\"<turn>\":271"
#define MERGES                                                                                     \
    "[\"" META "\",\"" META "\"],[\"b\",\"c\"],[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"bc\"],"       \
    "[\"a\",\"a\"],[\"" META "\",\"a\"]"

static const char added_usual[] =
    "{\"id\":2,\"content\":\"<bos>\"" ADDED_TAIL ",{\"id\":1,\"content\":\"<eos>\"" ADDED_TAIL
    ",{\"id\":269,\"content\":\"" META META "\"" ADDED_TAIL
    ",{\"id\":271,\"content\":\"<turn>\"" ADDED_TAIL
    ",{\"id\":272,\"content\":\"<turn>end\"" ADDED_TAIL ",{\"id\":273,\"content\":\"<a\"" ADDED_TAIL
    ",{\"id\":275,\"content\":\"a<tur\"" ADDED_TAIL;

#define OR(part, usual) ((part) != NULL ? (part) : (usual))

static void add_byte_pieces(struct buf *json, int except)
{
    CHECK_OK(buf_printf(json, &err, "\"<pad>\":0,\"<eos>\":1,\"<bos>\":2,\"<unk>\":3,"));
    for (int b = 0; b < 256; b++)
        if (b != except)
            CHECK_OK(buf_printf(json, &err, "\"<0x%02X>\":%d,", b, BYTE + b));
}

static struct buf make_json(const struct parts *p)
{
    struct buf json = {.max = 1 << 20};

    CHECK_OK(buf_printf(&json, &err,
                        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                        "\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
                        "\"post_processor\":%s,\"decoder\":{\"type\":\"Fuse\"},\"model\":{%s,"
                        "\"vocab\":{",
                        OR(p->added, added_usual), OR(p->normalizer, REPLACE),
                        OR(p->pre_tokenizer, SPLIT), OR(p->post_processor, ADDS_BOS),
                        OR(p->settings, SETTINGS)));
    add_byte_pieces(&json, -1);
    CHECK_OK(buf_printf(&json, &err, "%s},\"merges\":[%s]}}", OR(p->vocab, VOCAB_TAIL),
                        OR(p->merges, MERGES)));
    return json;
}

static struct tokenizer *make(const struct parts *p)
{
    struct buf json = make_json(p);
    struct tokenizer *t;

    CHECK_OK(tokenizer_from_json(&t, json.data, json.len, "t.json", &err));
    buf_free(&json);
    return t;
}

static void refuse(const struct parts *p, const char *words)
{
    struct buf json = make_json(p);
    struct tokenizer *t;

    CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT, words);
    CHECK(t == NULL);
    CHECK(strncmp(err.text, "t.json: ", 8) == 0);
    buf_free(&json);
}

static const struct parts usual = {0};

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

static void check_list(const struct token_list *got, const char *text, const int32_t *want,
                       size_t n)
{
    for (size_t i = 0; i < got->n && i < n; i++)
        if (got->ids[i] != want[i])
            CHECK_FAIL("\"%s\": id %zu is %d, want %d", text, i, (int)got->ids[i], (int)want[i]);
    if (got->n != n)
        CHECK_FAIL("\"%s\": %zu ids, want %zu", text, got->n, n);
}

static void check_raw(const struct tokenizer *t, const char *text, const int32_t *want, size_t n)
{
    struct token_list got;

    CHECK_OK(tokenizer_encode_raw(t, text, strlen(text), &got, &err));
    CHECK(got.n_uncut == got.n);
    check_list(&got, text, want, n);
    token_list_free(&got);
}

static void check_prompt(const struct tokenizer *t, const char *text, const int32_t *want, size_t n)
{
    struct token_list got;

    CHECK_OK(tokenizer_encode(t, text, strlen(text), 0, &got, &err));
    check_list(&got, text, want, n);
    token_list_free(&got);
}

static void joins_by_rank_then_leftmost(void)
{
    struct tokenizer *t = make(&usual);

    check_raw(t, "a", IDS(A));
    check_raw(t, "abc", IDS(ABC));   /* b c first, then a bc */
    check_raw(t, "aab", IDS(A, AB)); /* a b has the lower rank */
    check_raw(t, "aaa", IDS(AA, A));
    check_raw(t, "aaaa", IDS(AA, AA));
    check_raw(t, "bcab", IDS(BC, AB));
    check_raw(t, "abcabc", IDS(ABC, ABC));
    tokenizer_free(t);
}

static void spaces_become_meta(void)
{
    struct tokenizer *t = make(&usual);

    check_raw(t, " ", IDS(SPACE));
    check_raw(t, "a b", IDS(A, SPACE, B));
    check_raw(t, " a", IDS(SPACE_A));
    check_raw(t, META "a", IDS(SPACE_A));
    check_raw(t, "   a", IDS(SPACES, SPACE_A));
    check_raw(t, "a" META META "a", IDS(A, SPACES, A)); /* literal: an added token, in raw text */
    check_raw(t, " " META, IDS(SPACES));
    tokenizer_free(t);
}

static void unknown_characters_become_bytes(void)
{
    struct tokenizer *t = make(&usual);
    struct token_list got;

    check_raw(t, "\xc3\xa9", IDS(E_ACUTE));
    check_raw(t, "\xc3\xa8", IDS(BYTE + 0xc3, BYTE + 0xa8));
    check_raw(t, "e\xcc\x81", IDS(BYTE + 'e', BYTE + 0xcc, BYTE + 0x81)); /* not composed */
    check_raw(t, "\xf0\x9f\xa6\x8a", IDS(BYTE + 0xf0, BYTE + 0x9f, BYTE + 0xa6, BYTE + 0x8a));
    check_raw(t, "a\nb", IDS(A, BYTE + '\n', B));
    check_raw(t, "<0x41>",
              IDS(BYTE + '<', BYTE + '0', BYTE + 'x', BYTE + '4', BYTE + '1', BYTE + '>'));
    CHECK_OK(tokenizer_encode_raw(t, "a\0b", 3, &got, &err));
    check_list(&got, "a, U+0000, b", IDS(A, BYTE, B));
    token_list_free(&got);
    tokenizer_free(t);
}

static void added_tokens_are_found_first(void)
{
    struct tokenizer *t = make(&usual);

    check_raw(t, "<turn>", IDS(TURN));
    check_raw(t, "b<turn>bc", IDS(B, TURN, BC));
    check_raw(t, "ab<turn><bos>bc", IDS(AB, TURN, BOS, BC)); /* nothing joins across them */
    tokenizer_free(t);
}

static void added_tokens_overlap(void)
{
    struct tokenizer *t = make(&usual);

    check_raw(t, "<turn>end", IDS(TURN_END)); /* the longest */
    check_raw(t, "<turn>en", IDS(TURN, BYTE + 'e', BYTE + 'n'));
    check_raw(t, "<<a", IDS(BYTE + '<', LESS_A));
    check_raw(t, "<a<turn>", IDS(LESS_A, TURN));
    check_raw(t, "a<turn>", IDS(A_LESS_TUR, BYTE + 'n', BYTE + '>')); /* the leftmost */
    check_raw(t, "<turn", IDS(BYTE + '<', BYTE + 't', BYTE + 'u', BYTE + 'r', BYTE + 'n'));
    check_raw(t, META META META, IDS(SPACES, SPACE));
    tokenizer_free(t);
}

static void strips_like_python(void)
{
    static const char *const spaces[] = {
        "\t",           "\n",           "\v",           "\f",           "\r",
        "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x8a",
        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80",
    };
    static const char *const others[] = {
        "\x08",         "\x0e",         "\x1b",         "\x7f",         "\xc2\x84",
        "\xc2\x86",     "\xe1\x9a\x81", "\xe2\x80\x8b", "\xe2\x80\xb0", "\xe2\x81\xa0",
        "\xe3\x80\x81", "\xef\xbb\xbf", META,
    };
    char text[16];
    const char *at;
    size_t len;

    for (size_t i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        snprintf(text, sizeof(text), "%sx %s ", spaces[i], spaces[i]);
        at = text;
        len = strlen(text);
        tokenizer_strip(&at, &len);
        CHECK(len == 1 && *at == 'x');
        at = spaces[i];
        len = strlen(spaces[i]);
        tokenizer_strip(&at, &len);
        CHECK_INT(len, 0);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        at = others[i];
        len = strlen(others[i]);
        tokenizer_strip(&at, &len);
        CHECK(at == others[i] && len == strlen(others[i]));
    }
    at = " \x80 a \xe2\x80 "; /* what is no character is no space */
    len = strlen(at);
    tokenizer_strip(&at, &len);
    CHECK(len == 6 && memcmp(at, "\x80 a \xe2\x80", 6) == 0);
}

static void prompts_begin_with_bos(void)
{
    const struct parts none = {.post_processor = ADDS_NOTHING}, null = {.post_processor = "null"};
    struct tokenizer *t = make(&usual);
    struct token_list got;

    check_prompt(t, "", IDS(BOS));
    check_prompt(t, " \n ", IDS(BOS));
    check_prompt(t, " abc\n", IDS(BOS, ABC));
    check_prompt(t, "<bos>a", IDS(BOS, BOS, A));
    check_raw(t, " abc", IDS(SPACE, ABC));
    check_raw(t, "", (const int32_t[]){0}, 0);
    CHECK_OK(tokenizer_encode(t, NULL, 0, 0, &got, &err));
    check_list(&got, "NULL", IDS(BOS));
    token_list_free(&got);
    tokenizer_free(t);
    for (int i = 0; i < 2; i++) {
        t = make(i == 0 ? &none : &null);
        check_prompt(t, "", IDS(BOS));
        check_prompt(t, "abc", IDS(BOS, ABC));
        check_prompt(t, " <bos>a", IDS(BOS, A));
        check_prompt(t, "<bos>", IDS(BOS));
        check_prompt(t, "<bos><bos>", IDS(BOS, BOS));
        check_prompt(t, "a<bos>", IDS(BOS, A, BOS));
        check_raw(t, "<bos>a", IDS(BOS, A));
        tokenizer_free(t);
    }
}

static void cuts_to_the_limit(void)
{
    struct tokenizer *t = make(&usual);
    struct token_list got;

    CHECK_OK(tokenizer_encode(t, "acacac", 6, 3, &got, &err));
    check_list(&got, "acacac", IDS(BOS, A, C));
    CHECK_INT(got.n_uncut, 7);
    token_list_free(&got);
    CHECK_OK(tokenizer_encode(t, "ac", 2, 3, &got, &err));
    CHECK(got.n == 3 && got.n_uncut == 3);
    token_list_free(&got);
    CHECK(got.ids == NULL && got.n == 0);
    tokenizer_free(t);
}

static void refuses_text_that_is_not_utf8(void)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"ab\x80", "not UTF-8 at byte 2 (0x80)"},
        {"  \xc0\xaf", "at byte 2 (0xC0)"},
        {"\xc3", "at byte 0 (0xC3)"},
        {"a\xed\xa0\x80", "at byte 1 (0xED)"},
        {"\xe0\x80\x80", "at byte 0"},
        {"\xf0\x8f\xbf\xbf", "at byte 0"},
        {"\xf4\x90\x80\x80", "at byte 0"},
        {"\xf5\x80\x80\x80", "at byte 0"},
        {"\xff", "at byte 0"},
        {"\xe2\x96\x81\xe2\x96", "at byte 3 (0xE2)"},
        {"\xf0\x9f\xa6"
         "a",
         "at byte 0"},
    };
    struct tokenizer *t = make(&usual);
    struct token_list got;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t len = strlen(bad[i].text);

        CHECK_ERR(tokenizer_encode(t, bad[i].text, len, 0, &got, &err), ERR_INPUT, bad[i].words);
        CHECK(got.ids == NULL && got.n == 0);
        CHECK_ERR(tokenizer_encode_raw(t, bad[i].text, len, &got, &err), ERR_INPUT, bad[i].words);
    }
    check_raw(t, "\xed\x9f\xbf", IDS(BYTE + 0xed, BYTE + 0x9f, BYTE + 0xbf));
    tokenizer_free(t);
}

static void takes_long_texts(void)
{
    const size_t size = (size_t)1 << 20;
    struct tokenizer *t = make(&usual);
    struct token_list got;
    char *text = malloc(size);

    CHECK(text != NULL);
    memset(text, 'a', size);
    CHECK_OK(tokenizer_encode_raw(t, text, size, &got, &err));
    CHECK_INT(got.n, size / 2);
    CHECK(got.ids[0] == AA && got.ids[size / 2 - 1] == AA);
    token_list_free(&got);
    memset(text, '<', size);
    CHECK_OK(tokenizer_encode_raw(t, text, size, &got, &err));
    CHECK_INT(got.n, size);
    token_list_free(&got);
    free(text);
    tokenizer_free(t);
}

static void names_its_pieces(void)
{
    struct tokenizer *t = make(&usual);
    const char *piece;
    size_t len;

    CHECK_INT(tokenizer_n_ids(t), N_IDS);
    CHECK_INT(tokenizer_bos(t), BOS);
    piece = tokenizer_piece(t, SPACE_A, &len);
    CHECK(len == 4 && memcmp(piece, META "a", 4) == 0);
    piece = tokenizer_piece(t, BYTE + 10, &len);
    CHECK(len == 6 && memcmp(piece, "<0x0A>", 6) == 0);
    piece = tokenizer_piece(t, TURN_END, &len);
    CHECK(len == 9 && memcmp(piece, "<turn>end", 9) == 0);
    CHECK(tokenizer_piece(t, 274, &len) == NULL && len == 0); /* the hole */
    CHECK(tokenizer_piece(t, -1, &len) == NULL);
    CHECK(tokenizer_piece(t, N_IDS, &len) == NULL);
    tokenizer_free(t);
}

static void takes_older_and_reordered_files(void)
{
    const struct parts older = {
        .merges = "\"" META " " META "\",\"b c\",\"a b\",\"ab c\",\"a bc\",\"a a\",\"" META " a\"",
        .pre_tokenizer = "null",
        .settings = "\"type\":\"BPE\",\"byte_fallback\":true",
    };
    struct buf json = make_json(&usual), turned = {.max = 1 << 20};
    struct tokenizer *t = make(&older);
    char *model, *vocab, *merges;

    check_raw(t, "aabc   a", IDS(A, ABC, SPACES, SPACE_A));
    tokenizer_free(t);

    /* the model first, and in it the merges first */
    model = strstr(json.data, "\"model\":{");
    vocab = strstr(json.data, "\"vocab\":");
    merges = strstr(json.data, ",\"merges\":");
    CHECK(model != NULL && vocab != NULL && merges != NULL);
    CHECK_OK(buf_printf(&turned, &err, "{\"model\":{%.*s,%.*s,%.*s},%.*s}",
                        (int)(strlen(merges) - 3), merges + 1, (int)(merges - vocab), vocab,
                        (int)(vocab - model - 10), model + 9, (int)(model - json.data - 2),
                        json.data + 1));
    CHECK_OK(tokenizer_from_json(&t, turned.data, turned.len, "turned", &err));
    check_raw(t, "aabc   ab<turn>", IDS(A, ABC, SPACES, SPACE, AB, TURN));
    tokenizer_free(t);
    buf_free(&turned);
    buf_free(&json);
}

static void refuses_other_tokenizers(void)
{
#define ADDED(id, content, flags) "{\"id\":" id ",\"content\":" content "," flags "}"
#define MERGE(a, b)               MERGES ",[" a "," b "]"
    static const struct {
        struct parts parts;
        const char *words;
    } bad[] = {
        {{.settings = "\"type\":\"WordPiece\",\"byte_fallback\":true"},
         "model.type is \"WordPiece\", expected \"BPE\""},
        {{.settings = "\"byte_fallback\":true"}, "model.type is missing, expected \"BPE\""},
        {{.settings = "\"type\":\"BPE\""}, "model.byte_fallback is missing, expected \"true\""},
        {{.settings = "\"type\":\"BPE\",\"byte_fallback\":false"}, "model.byte_fallback is \"fal"},
        {{.settings = SETTINGS ",\"new\":[1]"},
         "model.new.0 is \"1\", a setting that is not known"},
        {{.settings = SETTINGS ",\"type\":\"BPE\""}, "model.type is given twice"},
        {{.settings = "\"type\":\"BPE\",\"byte_fallback\":true,\"dropout\":0.1"},
         "model.dropout is \"0.1\", expected \"null\""},
        {{.settings = "\"type\":\"BPE\",\"byte_fallback\":true,\"ignore_merges\":true"},
         "model.ignore_merges is \"true\", expected \"false\""},
        {{.settings = "\"type\":\"BPE\",\"byte_fallback\":true,\"end_of_word_suffix\":\"</w>\""},
         "model.end_of_word_suffix is \"</w>\""},
        {{.normalizer = "null"}, "normalizer is no object"},
        {{.normalizer = "{\"type\":\"NFC\"}"}, "normalizer.type is \"NFC\", expected \"Replace\""},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}"},
         "normalizer.content is \"_\", expected \"\\xE2\\x96\\x81\""},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"},\"content\":\"_\"}"},
         "normalizer.pattern.Regex is \" \", a setting that is not known"},
        {{.normalizer = "{\"type\":\"Replace\"}"}, "normalizer.pattern.String is missing"},
        {{.pre_tokenizer = "{\"type\":\"Metaspace\"}"}, "pre_tokenizer.type is \"Metaspace\""},
        {{.pre_tokenizer = "[]"}, "pre_tokenizer is no object"},
        {{.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
                           "\"Removed\",\"invert\":false}"},
         "pre_tokenizer.behavior is \"Removed\", expected \"MergedWithPrevious\""},
        {{.post_processor = "{\"type\":\"ByteLevel\"}"}, "post_processor.type is \"ByteLevel\""},
        {{.post_processor =
              "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\"}},"
              "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<eos>\"}}]}"},
         "post_processor.single.2.SpecialToken.id is \"<eos>\""},
        {{.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":[]}"},
         "post_processor.single is \"[]\""},
        {{.post_processor = "{\"type\":\"TemplateProcessing\"}"},
         "post_processor.single.0.SpecialToken.id is missing"},
        {{.post_processor =
              "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\"}},"
              "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\","
              "\"ids\":[1],\"tokens\":[\"<bos>\"]}}}"},
         "post_processor.special_tokens.<bos>.ids.0 is \"1\", expected \"2\""},
        {{.settings = "\"type\":\"BPE\",\"byte_fallback\":true,\"dropout\":[]"},
         "model.dropout is \"[]\""},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern.String\":\" \",\"content\":\"x\"}"},
         "a setting with a strange name"},
        {{.added = ADDED("2", "\"<bos>\"", "\"lstrip\":true")},
         "added token \"<bos>\" has lstrip true, expected false"},
        {{.added = ADDED("2", "\"<bos>\"", "\"rstrip\":true")}, "has rstrip true"},
        {{.added = ADDED("2", "\"<bos>\"", "\"single_word\":true")}, "has single_word true"},
        {{.added = ADDED("2", "\"<bos>\"", "\"normalized\":true")}, "has normalized true"},
        {{.added = ADDED("2", "\"<bos>\"", "\"odd\":1")}, "has \"odd\", which is not known"},
        {{.added = ADDED("2", "\"\"", "\"special\":true")}, "an added token of 0 bytes"},
        {{.added = "{\"id\":2}"}, "an added token lacks its content"},
        {{.added = "{\"content\":\"x\"}"}, "an added token lacks its id"},
        {{.added = ADDED("5", "\"<bos>\"", "\"special\":true")},
         "added token \"<bos>\" has id 5, but 2 in the vocabulary"},
        {{.added = ADDED("2", "\"x\"", "\"special\":true")}, "id 2 is given twice"},
        {{.added = ADDED("-1", "\"x\"", "\"special\":true")}, "has id -1, ids are 0 to"},
        {{.added = ADDED("1048576", "\"x\"", "\"special\":true")}, "has id 1048576, ids are 0 to"},
        {{.added = ADDED("2", "\"<bos>\"", "\"special\":true") "," ADDED("2", "\"<bos>\"",
                                                                         "\"special\":true")},
         "added token \"<bos>\" is given twice"},
        {{.vocab = VOCAB_TAIL ",\"a\":300"}, "ids 261 and 300 are both the piece \"a\""},
        {{.vocab = VOCAB_TAIL ",\"d\":261"}, "id 261 is given twice, the second time to \"d\""},
        {{.vocab = VOCAB_TAIL ",\"d\":1.5"}, "no whole number"},
        {{.vocab = VOCAB_TAIL ",\"\":300"}, "piece 300 has 0 bytes"},
        {{.vocab = VOCAB_TAIL ",\"d\":9999999"}, "piece \"d\" has id 9999999"},
        {{.vocab = "\"a\":260", .merges = "", .added = ""}, "the vocabulary lacks U+2581"},
        {{.merges = MERGE("\"a\"", "\"d\"")}, "a merge of \"d\", which is not in the vocabulary"},
        {{.merges = MERGE("\"b\"", "\"b\"")}, "lacks what \"b\" and \"b\" join to"},
        {{.merges = MERGE("\"b\"", "\"c\"")}, "the merge of \"b\" and \"c\" is given twice"},
        {{.merges = MERGE("\"b\"", "\"c\",\"a\"")}, "a merge of more than 2 parts"},
        {{.merges = "[\"a\"]"}, "a merge of 1 parts, expected 2"},
        {{.merges = "\"ab\""}, "a merge that is not two parts"},
        {{.merges = "\"a b c\""}, "a merge that is not two parts"},
        {{.merges = "7"}, "found '7', expected an array"},
        {{.merges = MERGES "]}},[{{["}, "t.json: line 1"},
    };
#undef MERGE
#undef ADDED

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse(&bad[i].parts, bad[i].words);
}

/* What the parts above cannot say. */
static void refuses_incomplete_files(void)
{
    static const char *const sections[] = {"model", "added_tokens", "normalizer"};
    struct tokenizer *t;

    CHECK_ERR(tokenizer_from_json(&t, NULL, 0, "t.json", &err), ERR_FORMAT, "the file ends");
    CHECK_ERR(tokenizer_from_compact(&t, NULL, 0, "c", &err), ERR_FORMAT, "does not begin with");
    CHECK_ERR(tokenizer_from_json(&t, "", 0, "t.json", &err), ERR_FORMAT, "the file ends");
    CHECK_ERR(tokenizer_from_json(&t, "[]", 2, "t.json", &err), ERR_FORMAT, "expected an object");
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        struct buf json = make_json(&usual);
        char words[64], *at;

        /* under another name it is a section that is not known; without any, it is missing */
        snprintf(words, sizeof(words), "\"%s\":", sections[i]);
        at = strstr(json.data, words);
        CHECK(at != NULL);
        at[1] = 'X';
        CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT,
                  "is a section that is not known here");
        memset(at + 1, ' ', strlen(sections[i]));
        memcpy(at, "\"decoder\"", 9);
        if (strlen(sections[i]) >= 7) {
            at[strlen(sections[i]) + 1] = ' ';
            snprintf(words, sizeof(words), "%s is missing", sections[i]);
            CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT,
                      words);
        }
        buf_free(&json);
    }
    CHECK_ERR(tokenizer_from_json(&t, "{}", 2, "t.json", &err), ERR_FORMAT, "model is missing");
}

static void refuses_a_vocabulary_without_all_bytes(void)
{
    struct buf json = make_json(&usual);
    char *byte = strstr(json.data, "\"<0xA7>\"");
    struct tokenizer *t;

    CHECK(byte != NULL);
    byte[4] = 'B'; /* <0xB7> twice: another sentence */
    CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT,
              "are both the piece \"<0xB7>\"");
    byte[4] = 'a';
    CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT,
              "the vocabulary lacks <0xA7>; all 256 byte tokens are needed");
    buf_free(&json);
}

static void refuses_a_vocabulary_without_bos(void)
{
    struct buf json = make_json(&(struct parts){.added = ""});
    struct tokenizer *t;
    char *bos = strstr(json.data, "\"<bos>\":2");

    CHECK(bos != NULL);
    bos[2] = 'B';
    CHECK_ERR(tokenizer_from_json(&t, json.data, json.len, "t.json", &err), ERR_FORMAT,
              "the vocabulary lacks <bos>");
    buf_free(&json);
}

static struct buf save(const struct tokenizer *t)
{
    struct buf bytes = {.max = 1 << 20};

    CHECK_OK(tokenizer_save(t, &bytes, &err));
    return bytes;
}

static void compact_form_comes_back_the_same(void)
{
    const struct parts none = {.post_processor = "null"};

    for (int i = 0; i < 2; i++) {
        struct tokenizer *t = make(i == 0 ? &usual : &none), *copy;
        struct buf first = save(t), second;
        size_t len;

        CHECK_OK(tokenizer_from_compact(&copy, first.data, first.len, "compact", &err));
        second = save(copy);
        CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
        tokenizer_free(t);
        buf_free(&first); /* nothing points there any more */
        CHECK_INT(tokenizer_n_ids(copy), N_IDS);
        CHECK(tokenizer_piece(copy, 274, &len) == NULL);
        check_raw(copy, "aabc   a <turn>endz",
                  IDS(A, ABC, SPACES, SPACE_A, SPACE, TURN_END, BYTE + 'z'));
        if (i == 0)
            check_prompt(copy, "<bos>a", IDS(BOS, BOS, A));
        else
            check_prompt(copy, "<bos>a", IDS(BOS, A));
        tokenizer_free(copy);
        buf_free(&second);
    }
}

static void damage_to_the_compact_form_is_refused(void)
{
    struct tokenizer *t = make(&usual), *copy;
    struct buf bytes = save(t);

    for (size_t i = 0; i < bytes.len; i++) {
        bytes.data[i] ^= 0x10;
        CHECK_ERR(tokenizer_from_compact(&copy, bytes.data, bytes.len, "c", &err), ERR_FORMAT,
                  "c:");
        CHECK(copy == NULL);
        bytes.data[i] ^= 0x10;
    }
    for (size_t len = 0; len < bytes.len; len++)
        CHECK_ERR(tokenizer_from_compact(&copy, bytes.data, len, "c", &err), ERR_FORMAT, "c:");
    buf_free(&bytes);
    tokenizer_free(t);
}

static void seal(struct buf *bytes)
{
    uint32_t crc = crc32c(0, bytes->data, bytes->len - 4);

    for (int i = 0; i < 4; i++)
        bytes->data[bytes->len - 4 + (size_t)i] = (char)(crc >> 8 * i);
}

/* With a right checksum, whatever loads must still be safe to use. */
static void forged_compact_forms_are_harmless(void)
{
    static const char text[] = "<turn>end aabc  \xc3\xa9 \xf0\x9f\xa6\x8a <a<turn>";
    struct tokenizer *t = make(&usual), *copy;
    struct buf bytes = save(t);
    size_t n_refused = 0;

    for (size_t i = 0; i < bytes.len - 4; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct token_list got;

            bytes.data[i] = (char)(bytes.data[i] ^ 1 << bit);
            seal(&bytes);
            if (tokenizer_from_compact(&copy, bytes.data, bytes.len, "forged", NULL) != OK) {
                n_refused++;
            } else {
                CHECK_OK(tokenizer_encode(copy, text, sizeof(text) - 1, 0, &got, &err));
                CHECK(got.n <= sizeof(text));
                token_list_free(&got);
                tokenizer_free(copy);
            }
            bytes.data[i] = (char)(bytes.data[i] ^ 1 << bit);
        }
    }
    CHECK(n_refused > bytes.len); /* of the eight a byte */
    seal(&bytes);
    CHECK_OK(tokenizer_from_compact(&copy, bytes.data, bytes.len, "whole again", &err));
    tokenizer_free(copy);
    buf_free(&bytes);
    tokenizer_free(t);
}

/* One wrong entry each, at an offset into the section named, under a right checksum. */
static void forged_tables_are_named(void)
{
    enum { PIECES, TEXT, BYTES, CHARS, ADDED, ROWS, PAIRS };
    static const struct {
        int section;
        size_t offset;
        unsigned char put[3];
        const char *words;
    } forged[] = {
        {PIECES, 0, {0xff, 0xff, '<'}, "a piece is too long"},
        {PIECES, 2 * BOS, {0, 0, 5}, "the pieces do not fill their space"},
        {TEXT, 0, {0xff, 0xff, 0xff}, "a piece is not UTF-8"},
        {BYTES, 0, {BYTE + 1, 0, 0}, "a byte token is another piece"},
        {BYTES, 0, {0xff, 0xff, 0xff}, "a byte token is another piece"},
        {CHARS, 0, {0xff, 0xff, 0xff}, "a character has no piece"},
        {CHARS, 0, {BOS, 0, 0}, "a character is a longer piece"},
        {CHARS, 0, {B & 0xff, B >> 8, 0}, "the characters are out of order"}, /* b, b, ... */
        {ADDED, 0, {274 & 0xff, 274 >> 8, 0}, "an added token has no piece"},
        {ADDED, 3, {LESS_A & 0xff, LESS_A >> 8, 0}, "the added tokens are out of order"},
        {ROWS, 0, {8, 0, 0}, "more pairs than it says"},
        {ROWS, 3 * A, {0, 0, 0}, "fewer pairs than it says"},
        {PAIRS, 0, {274 & 0xff, 274 >> 8, 0}, "a pair has no piece"},
        {PAIRS, 6, {274 & 0xff, 274 >> 8, 0}, "a pair has no piece"},
        {PAIRS, 9, {SPACE & 0xff, SPACE >> 8, 0}, "the pairs are out of order"}, /* the second */
        {PAIRS, 9, {A & 0xff, A >> 8, 0}, NULL},
        {PAIRS, 3, {0xff, 0, 0}, "two pairs have one rank"},
        {PAIRS, 3, {1, 0, 0}, "two pairs have one rank"},
    };
    struct tokenizer *t = make(&usual), *copy;
    struct buf whole = save(t);
    size_t at[PAIRS + 1], n_chars = 5, n_added = 7, n_pairs = 7;

    at[PAIRS] = whole.len - 4 - 9 * n_pairs;
    at[ROWS] = at[PAIRS] - (size_t)3 * N_IDS;
    at[ADDED] = at[ROWS] - 3 * n_added;
    at[CHARS] = at[ADDED] - 3 * n_chars;
    at[BYTES] = at[CHARS] - 3 * 256;
    at[PIECES] = 8 + 8 * 4;
    at[TEXT] = at[PIECES] + 2 * (size_t)N_IDS;
    for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
        size_t to = at[forged[i].section] + forged[i].offset;
        char kept[3];

        memcpy(kept, whole.data + to, 3);
        memcpy(whole.data + to, forged[i].put, 3);
        seal(&whole);
        if (forged[i].words == NULL) {
            CHECK_OK(tokenizer_from_compact(&copy, whole.data, whole.len, "c", &err));
            tokenizer_free(copy);
        } else {
            CHECK_ERR(tokenizer_from_compact(&copy, whole.data, whole.len, "c", &err), ERR_FORMAT,
                      forged[i].words);
        }
        memcpy(whole.data + to, kept, 3);
    }
    buf_free(&whole);
    tokenizer_free(t);
}

/* A vocabulary with scores: the 256 bytes from id 4, then `pieces`. */
struct piece {
    const char *text;
    float score;
    int32_t kind;
};
#define MAX_PIECES 300

struct vocab_arrays {
    char byte_text[256][8];
    const char *text[MAX_PIECES];
    size_t len[MAX_PIECES];
    float scores[MAX_PIECES];
    int32_t kinds[MAX_PIECES];
};

static void put_piece(struct vocab_arrays *a, struct tokenizer_vocab *v, const char *text,
                      float score, int32_t kind)
{
    size_t i = v->n_pieces++;

    a->text[i] = text;
    a->len[i] = strlen(text);
    a->scores[i] = score;
    a->kinds[i] = kind;
}

/* Borrows from `a`. */
static struct tokenizer_vocab make_vocab(struct vocab_arrays *a, const struct piece *pieces,
                                         size_t n)
{
    static const char *const special[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
    struct tokenizer_vocab v = {0, a->text, a->len, a->scores, a->kinds, BOS, true};

    for (int i = 0; i < 4; i++)
        put_piece(a, &v, special[i], -1000, i == 3 ? PIECE_UNKNOWN : PIECE_CONTROL);
    for (unsigned b = 0; b < 256; b++) {
        snprintf(a->byte_text[b], sizeof(a->byte_text[b]), "<0x%02X>", b);
        put_piece(a, &v, a->byte_text[b], 0, PIECE_BYTE);
    }
    for (size_t i = 0; i < n; i++)
        put_piece(a, &v, pieces[i].text, pieces[i].score, pieces[i].kind);
    return v;
}

static const struct piece scored[] = {
    {META, -90, PIECE_NORMAL},         /* 260 */
    {"a", -91, PIECE_NORMAL},          /* 261 */
    {"b", -92, PIECE_NORMAL},          /* 262 */
    {"c", -93, PIECE_NORMAL},          /* 263 */
    {"ab", -2, PIECE_NORMAL},          /* 264 */
    {"bc", -1, PIECE_NORMAL},          /* 265: before ab */
    {"ca", -2, PIECE_NORMAL},          /* 266: after ab, whose id is lower */
    {"cc", -5, PIECE_UNUSED},          /* 267: never reached */
    {"  ", -1000, PIECE_USER_DEFINED}, /* 268: as llama.cpp writes runs of U+2581 */
    {"   ", -1000, PIECE_USER_DEFINED}, {META "a", 0, PIECE_NORMAL}, /* 270 */
    {"<x>", -1000, PIECE_USER_DEFINED},
};
#define N_SCORED (sizeof(scored) / sizeof(scored[0]))

static void scores_stand_for_merges(void)
{
    static struct vocab_arrays a;
    struct tokenizer_vocab v = make_vocab(&a, scored, N_SCORED);
    struct tokenizer *t, *copy;
    struct buf bytes;

    CHECK_OK(tokenizer_from_vocab(&t, &v, "vocab", &err));
    bytes = save(t);
    CHECK_OK(tokenizer_from_compact(&copy, bytes.data, bytes.len, "compact", &err));
    buf_free(&bytes);
    for (int i = 0; i < 2; i++) {
        const struct tokenizer *one = i == 0 ? t : copy;

        check_raw(one, "abc", IDS(261, 265));
        check_raw(one, "cab", IDS(263, 264));
        check_raw(one, "cc", IDS(263, 263));
        check_raw(one, "a<x>b", IDS(261, 271, 262));
        check_raw(one, "<unk><bos>", IDS(3, 2));
        check_raw(one, "  ", IDS(268));
        check_raw(one, "   a", IDS(269, 261));  /* runs before anything else */
        check_raw(one, "    a", IDS(269, 270)); /* the longest from the left */
        check_raw(one, META META, IDS(268));
        check_raw(one, "a" META META META "a", IDS(261, 269, 261));
        check_prompt(one, "<bos>a", IDS(BOS, BOS, 261));
    }
    tokenizer_free(copy);
    tokenizer_free(t);
    v.add_bos = false;
    CHECK_OK(tokenizer_from_vocab(&t, &v, "vocab", &err));
    check_prompt(t, "<bos>a", IDS(BOS, 261));
    tokenizer_free(t);
}

/* Three cuts of one piece at once: the shortest left part goes first wherever it stands. */
static void cuts_of_one_piece_by_left_part(void)
{
    static const struct piece pieces[] = {
        {META, -90, PIECE_NORMAL}, /* 260 */
        {"a", -91, PIECE_NORMAL},  /* 261 */
        {"b", -92, PIECE_NORMAL},  /* 262 */
        {"aa", -1, PIECE_NORMAL},  /* 263 */
        {"aab", -2, PIECE_NORMAL}, /* 264 */
        {"ab", -3, PIECE_NORMAL},  /* 265 */
    };
    static struct vocab_arrays a;
    struct tokenizer_vocab v = make_vocab(&a, pieces, sizeof(pieces) / sizeof(pieces[0]));
    struct tokenizer *t;

    CHECK_OK(tokenizer_from_vocab(&t, &v, "vocab", &err));
    check_raw(t, "aab", IDS(264));
    check_raw(t, "aaab", IDS(263, 265));
    check_raw(t, "aaaab", IDS(263, 264));
    tokenizer_free(t);
}

static void refuses_bad_vocabularies(void)
{
    static struct vocab_arrays a;
    struct tokenizer_vocab v = make_vocab(&a, scored, N_SCORED);
    struct tokenizer *t;
    char spaces[400];

    a.scores[262] = NAN;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT,
              "v: the score of piece 262 is not a number");
    a.scores[262] = 0;
    a.kinds[262] = 7;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT,
              "piece 262 is of kind 7, kinds are 1 to 6");
    a.kinds[262] = PIECE_NORMAL;
    a.text[262] = "a";
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT,
              "ids 261 and 262 are both the piece \"a\"");
    a.text[262] = "\xff";
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT,
              "piece 262 \"\\xFF\" is not UTF-8");
    a.text[262] = "b";
    memset(spaces, ' ', sizeof(spaces));
    a.text[268] = spaces;
    a.len[268] = sizeof(spaces);
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT,
              "piece 268 is 400 spaces, at most 341");
    a.text[268] = "  ";
    a.len[268] = 2;
    a.len[262] = 0;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT, "piece 262 has 0 bytes");
    a.len[262] = 1;
    a.text[BYTE + 1] = "<0x1>";
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT, "the vocabulary lacks <0x01>");
    a.text[BYTE + 1] = "<0x01>";
    v.bos_id = (int32_t)v.n_pieces;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT, "the vocabulary lacks <bos>");
    v.bos_id = -1;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT, "the vocabulary lacks <bos>");
    v.bos_id = BOS;
    CHECK_OK(tokenizer_from_vocab(&t, &v, "v", &err));
    tokenizer_free(t);
    v.n_pieces = SIZE_MAX;
    CHECK_ERR(tokenizer_from_vocab(&t, &v, "v", &err), ERR_FORMAT, "pieces, at most");
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *out = fopen(path, "wb");

    CHECK(out != NULL && fwrite(data, 1, size, out) == size && fclose(out) == 0);
}

static void loads_either_kind_of_file(void)
{
    const char *path = PE_SCRATCH_DIR "/test_tokenizer.scratch";
    struct buf json = make_json(&usual), compact;
    struct tokenizer *t;

    write_file(path, json.data, json.len);
    CHECK_OK(tokenizer_load(&t, path, &err));
    compact = save(t);
    tokenizer_free(t);
    write_file(path, compact.data, compact.len);
    CHECK_OK(tokenizer_load(&t, path, &err));
    check_raw(t, "abc", IDS(ABC));
    tokenizer_free(t);
    write_file(path, "", 0);
    CHECK_ERR(tokenizer_load(&t, path, &err), ERR_FORMAT, path);
    remove(path);
    CHECK_ERR(tokenizer_load(&t, path, &err), ERR_IO, path);
    CHECK(t == NULL);
    tokenizer_free(NULL);
    buf_free(&compact);
    buf_free(&json);
}

int main(void)
{
    RUN(joins_by_rank_then_leftmost);
    RUN(spaces_become_meta);
    RUN(unknown_characters_become_bytes);
    RUN(added_tokens_are_found_first);
    RUN(added_tokens_overlap);
    RUN(strips_like_python);
    RUN(prompts_begin_with_bos);
    RUN(cuts_to_the_limit);
    RUN(refuses_text_that_is_not_utf8);
    RUN(takes_long_texts);
    RUN(names_its_pieces);
    RUN(takes_older_and_reordered_files);
    RUN(refuses_other_tokenizers);
    RUN(refuses_incomplete_files);
    RUN(refuses_a_vocabulary_without_all_bytes);
    RUN(refuses_a_vocabulary_without_bos);
    RUN(compact_form_comes_back_the_same);
    RUN(damage_to_the_compact_form_is_refused);
    RUN(forged_compact_forms_are_harmless);
    RUN(forged_tables_are_named);
    RUN(scores_stand_for_merges);
    RUN(cuts_of_one_piece_by_left_part);
    RUN(refuses_bad_vocabularies);
    RUN(loads_either_kind_of_file);
    return check_result();
}
