#include "service/request.h"

#include "tests/check.h"

static struct request r;
static struct problem p;

static bool parse(const char *body)
{
    request_free(&r);
    p = (struct problem){0};
    return request_parse_encode(&r, body, strlen(body), &p);
}

static void check_problem(const char *body, enum problem_kind kind, const char *words)
{
    if (parse(body))
        CHECK_FAIL("%s was taken", body);
    if (p.kind != kind)
        CHECK_FAIL("%s: %s: %s", body, problem_code(p.kind), p.detail);
    if (strstr(p.detail, words) == NULL)
        CHECK_FAIL("%s: \"%s\" does not say \"%s\"", body, p.detail, words);
}

static void all_fields(void)
{
    CHECK(parse("{\"prompts\":[\"a\",\"\\u0000b\"],\"negative_prompt\":\"\",\"model\":\"m-1\","
                "\"output\":\"hidden_states\",\"layers\":[7,0],\"dtype\":\"float32\","
                "\"on_overflow\":\"error\",\"cache\":\"bypass\"}"));
    CHECK_INT(r.n_prompts, 3);
    CHECK_INT(r.prompts[1].len, 2);
    CHECK_INT(r.prompts[1].text[0], 0);
    CHECK_INT(r.prompts[2].len, 0);
    CHECK(r.has_negative && r.overflow_is_error);
    CHECK_TEXT(r.model, "m-1");
    CHECK_INT(r.n_layers, 2);
    CHECK_INT(r.layers[0], 7);
    CHECK_INT(r.dtype, DTYPE_NAME_FLOAT32);
    CHECK_INT(r.cache, CACHE_BYPASS);
    request_free(&r);
}

static void defaults(void)
{
    CHECK(parse(" {\"prompt\":\"\"} "));
    CHECK_INT(r.n_prompts, 1);
    CHECK(!r.has_negative && !r.overflow_is_error && r.model == NULL && r.n_layers == 0);
    CHECK(!r.has_output && r.modalities == 0);
    CHECK_TEXT(request_dtype_name(r.dtype), "bfloat16");
    CHECK_INT(request_dtype_bytes(r.dtype), 2);
    CHECK_INT(r.cache, CACHE_USE);
    request_free(&r);
}

static void no_json(void)
{
    check_problem("", PROBLEM_BAD_JSON, "empty");
    check_problem("{\"prompt\":\"secret", PROBLEM_BAD_JSON, "line 1");
    CHECK(strstr(p.detail, "secret") == NULL);
    check_problem("{\"prompt\":\"x\"}}", PROBLEM_BAD_JSON, "");
    check_problem("{\"prompt\":\"\xed\xa0\x80\"}", PROBLEM_BAD_UTF8, "byte 11");
    check_problem("{\"prompt\":\"\xf4\x90\x80\x80\"}", PROBLEM_BAD_UTF8, "byte 11");
    check_problem("{\"prompt\":\"\xe2\x82", PROBLEM_BAD_UTF8, "byte 11");
    check_problem("{\"prompt\":1,\"prompt\":2}", PROBLEM_DUPLICATE_FIELD, "twice");
    check_problem("\"x\"", PROBLEM_INVALID_FIELD, "object");
}

static void deep_and_long(void)
{
    char body[3 * REQUEST_MAX_TOKENS];
    size_t len = (size_t)snprintf(body, sizeof(body), "{\"prompts\":[");

    CHECK(!parse(
        "{\"prompt\":[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]}")); /* 16 levels: only the type is wrong */
    CHECK_INT(p.kind, PROBLEM_INVALID_FIELD);
    check_problem("{\"prompt\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", PROBLEM_TOO_COMPLEX, "16");
    check_problem("{\"prompt\":\"[[[[[[[[[[[[[[[[[[[[[[[[\",\"x\":1}", PROBLEM_UNKNOWN_FIELD,
                  "'x'");
    for (int i = 0; i < REQUEST_MAX_TOKENS; i++)
        len += (size_t)snprintf(body + len, sizeof(body) - len, "1,");
    snprintf(body + len, sizeof(body) - len, "1]}");
    check_problem(body, PROBLEM_TOO_COMPLEX, "4096");
}

static void wrong_fields(void)
{
    check_problem("{}", PROBLEM_INVALID_FIELD, "either");
    check_problem("{\"prompt\":\"a\",\"prompts\":[\"b\"]}", PROBLEM_INVALID_FIELD, "either");
    check_problem("{\"prompt\":[]}", PROBLEM_INVALID_FIELD, "'prompt'");
    check_problem("{\"prompts\":{}}", PROBLEM_INVALID_FIELD, "1 to 32");
    check_problem("{\"prompt\":\"\",\"prompt \":1}", PROBLEM_UNKNOWN_FIELD, "a field has a name");
    check_problem("{\"prompt\":\"\",\"layers\":[256]}", PROBLEM_INVALID_FIELD, "0 to 255");
    check_problem("{\"prompt\":\"\",\"layers\":[0,0]}", PROBLEM_INVALID_FIELD, "twice");
    check_problem("{\"prompt\":\"\",\"dtype\":\"bf16\"}", PROBLEM_INVALID_FIELD,
                  "bfloat16, float16, float32");
    check_problem("{\"prompt\":\"\",\"dtype\":\"float16\\u0000\"}", PROBLEM_INVALID_FIELD, "dtype");
    check_problem("{\"prompt\":\"\",\"model\":\"m\\u0000\"}", PROBLEM_INVALID_FIELD, "model");
    check_problem("{\"prompt\":\"\",\"model\":\"\"}", PROBLEM_INVALID_FIELD, "model");
}

static void modalities(void)
{
    CHECK(parse("{\"prompt\":\"a\",\"output\":\"features\"}"));
    CHECK_TEXT(request_modalities_name(r.modalities), "");
    CHECK(parse("{\"prompt\":\"a\",\"output\":\"features\",\"modalities\":[\"audio\"]}"));
    CHECK_TEXT(request_modalities_name(r.modalities), "audio");
    CHECK(parse("{\"modalities\":[\"audio\",\"video\"],\"prompt\":\"a\","
                "\"output\":\"embeddings\"}"));
    CHECK_TEXT(request_modalities_name(r.modalities), "video,audio");
    check_problem("{\"prompt\":\"a\",\"output\":\"hidden_states\",\"modalities\":[\"video\"]}",
                  PROBLEM_INVALID_FIELD, "applies to features and embeddings");
    check_problem("{\"prompt\":\"a\",\"output\":\"features\",\"modalities\":[]}",
                  PROBLEM_INVALID_FIELD, "'modalities' must be a list");
    check_problem("{\"prompt\":\"a\",\"output\":\"features\",\"modalities\":\"video\"}",
                  PROBLEM_INVALID_FIELD, "'modalities' must be a list");
    check_problem("{\"prompt\":\"a\",\"output\":\"features\",\"modalities\":[\"video\",1]}",
                  PROBLEM_INVALID_FIELD, "item 1");
    check_problem("{\"prompt\":\"a\",\"output\":\"features\",\"modalities\":[\"audio\\u0000\"]}",
                  PROBLEM_INVALID_FIELD, "item 0");
    check_problem("{\"prompt\":\"a\",\"output\":\"features\","
                  "\"modalities\":[\"audio\",\"video\",\"audio\"]}",
                  PROBLEM_INVALID_FIELD, "audio is wanted twice");
}

/* What the request says of the level is right or wrong when the model has settled it. */
static void the_default_output_is_the_models(void)
{
    CHECK(parse("{\"prompt\":\"a\"}"));
    CHECK(request_settle_output(&r, OUTPUT_EMBEDDINGS, &p));
    CHECK_TEXT(request_output_name(r.output), "embeddings");
    CHECK(parse("{\"prompt\":\"a\",\"output\":\"features\"}"));
    CHECK(r.has_output && request_settle_output(&r, OUTPUT_HIDDEN_STATES, &p));
    CHECK_TEXT(request_output_name(r.output), "features");
    CHECK(parse("{\"prompt\":\"a\",\"layers\":[0]}"));
    CHECK(request_settle_output(&r, OUTPUT_HIDDEN_STATES, &p));
    CHECK(parse("{\"prompt\":\"a\",\"layers\":[0]}"));
    CHECK(!request_settle_output(&r, OUTPUT_EMBEDDINGS, &p));
    CHECK_INT(p.kind, PROBLEM_INVALID_FIELD);
    CHECK_TEXT(p.detail, "'layers' applies to hidden_states, not to embeddings, which is this "
                         "model's default output");
    CHECK(parse("{\"prompt\":\"a\",\"modalities\":[\"video\"]}"));
    CHECK(request_settle_output(&r, OUTPUT_EMBEDDINGS, &p));
    CHECK(parse("{\"prompt\":\"a\",\"modalities\":[\"video\"]}"));
    CHECK(!request_settle_output(&r, OUTPUT_HIDDEN_STATES, &p));
    CHECK(strstr(p.detail, "'modalities' applies to features and embeddings") != NULL);
    check_problem("{\"prompt\":\"a\",\"output\":\"features\",\"layers\":[0]}",
                  PROBLEM_INVALID_FIELD, "'layers' applies to hidden_states, not to features");
}

static void at_most_32(void)
{
    char body[1024] = "{\"prompts\":[\"0\"";
    size_t len = strlen(body);

    for (int i = 1; i < 32; i++)
        len += (size_t)snprintf(body + len, sizeof(body) - len, ",\"%d\"", i);
    snprintf(body + len, sizeof(body) - len, "]}");
    CHECK(parse(body));
    CHECK_INT(r.n_prompts, 32);
    snprintf(body + len, sizeof(body) - len, "],\"negative_prompt\":\"\"}");
    check_problem(body, PROBLEM_INVALID_FIELD, "negative one included");
}

static void tokenize_knows_less(void)
{
    static const char body[] = "{\"prompt\":\"a\",\"dtype\":\"float16\"}";

    request_free(&r);
    p = (struct problem){0};
    CHECK(!request_parse_tokenize(&r, body, strlen(body), &p));
    CHECK_INT(p.kind, PROBLEM_UNKNOWN_FIELD);
}

int main(void)
{
    RUN(all_fields);
    RUN(defaults);
    RUN(no_json);
    RUN(deep_and_long);
    RUN(wrong_fields);
    RUN(modalities);
    RUN(the_default_output_is_the_models);
    RUN(at_most_32);
    RUN(tokenize_knows_less);
    request_free(&r);
    return check_result();
}
