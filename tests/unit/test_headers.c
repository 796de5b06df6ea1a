#include "service/headers.h"

#include "tests/check.h"

static int choose(const char *accept)
{
    enum answer_format format;

    return headers_choose_format(&format, accept) ? (int)format : -1;
}

static void accept(void)
{
    CHECK_INT(choose(NULL), FORMAT_SAFETENSORS);
    CHECK_INT(choose(""), FORMAT_SAFETENSORS);
    CHECK_INT(choose("*/*"), FORMAT_SAFETENSORS);
    CHECK_INT(choose("application/*"), FORMAT_SAFETENSORS);
    CHECK_INT(choose("Application/JSON"), FORMAT_JSON);
    CHECK_INT(choose("text/html, application/x-npy;q=0.3, application/json ; q=0.7"), FORMAT_JSON);
    CHECK_INT(choose("application/json;q=0.5, */*;q=0.1"), FORMAT_JSON);
    CHECK_INT(choose("*/*, application/safetensors;q=0"), FORMAT_JSON);
    CHECK_INT(choose("text/*"), -1);
    CHECK_INT(choose("application/json;q=0"), -1);
    CHECK_INT(choose("application/jsonx"), -1);
    CHECK_INT(choose("a\"b,application/json"), -1); /* a quote that never ends */
    CHECK(headers_accept("text/html, */*;q=0.1", "application/yaml"));
    CHECK(!headers_accept("text/html", "application/yaml"));
}

static void content_type(void)
{
    CHECK(headers_body_is_json("application/json"));
    CHECK(headers_body_is_json("Application/Json ; charset=UTF-8"));
    CHECK(headers_body_is_json("application/json;charset=\"utf-8\""));
    CHECK(!headers_body_is_json("application/json; charset=latin1"));
    CHECK(!headers_body_is_json("application/json+x"));
    CHECK(!headers_body_is_json("text/json"));
    CHECK(!headers_body_is_json(""));
    CHECK(!headers_body_is_json(NULL));
}

static void check_prefer(const char *text, bool async, int wait_s)
{
    struct prefer p;

    headers_read_prefer(&p, text);
    if (p.respond_async != async || p.wait_s != wait_s)
        CHECK_FAIL("%s: %d, %d", text, p.respond_async, p.wait_s);
}

static void prefer(void)
{
    check_prefer(NULL, false, -1);
    check_prefer("wait=10", false, 10);
    check_prefer("Wait = 10", false, 10);
    check_prefer("respond-async, wait=0", true, 0);
    check_prefer("return=minimal; x=\"a,wait=9\", wait=7;y", false, 7);
    check_prefer("wait=3, wait=9", false, 3);
    check_prefer("wait", false, -1);
    check_prefer("wait=", false, -1);
    check_prefer("wait=1x", false, -1);
    check_prefer("wait=-1", false, -1);
    check_prefer("waiting=1", false, -1);
    check_prefer("respond-asynchronously", false, -1);
    check_prefer(",,;,=", false, -1);
    CHECK(true);
}

static void huge_wait(void)
{
    struct prefer p;

    headers_read_prefer(&p, "wait=99999999999999999999");
    CHECK(p.wait_s > 100000);
}

static void etag(void)
{
    CHECK(headers_match_etag("\"a.b\"", "\"a.b\""));
    CHECK(headers_match_etag("\"x\" , W/\"a.b\"", "\"a.b\""));
    CHECK(headers_match_etag("*", "\"a.b\""));
    CHECK(!headers_match_etag("\"a.b", "\"a.b\""));
    CHECK(!headers_match_etag("\"a.bc\"", "\"a.b\""));
    CHECK(!headers_match_etag("", "\"a.b\""));
    CHECK(!headers_match_etag(NULL, "\"a.b\""));
}

static void origin(void)
{
    CHECK(headers_origin_is_good("*"));
    CHECK(headers_origin_is_good("https://example.org"));
    CHECK(headers_origin_is_good("http://localhost:3000"));
    CHECK(headers_origin_is_good("http://127.0.0.1:8000"));
    CHECK(headers_origin_is_good("http://[::1]:8000"));
    CHECK(headers_origin_is_good("http://[::1]"));
    CHECK(headers_origin_is_good("https://example.org:80"));
    CHECK(!headers_origin_is_good(""));
    CHECK(!headers_origin_is_good("null"));
    CHECK(!headers_origin_is_good("example.org"));
    CHECK(!headers_origin_is_good("://example.org"));
    CHECK(!headers_origin_is_good("https://"));
    CHECK(!headers_origin_is_good("https://:80"));
    CHECK(!headers_origin_is_good("https://example.org/"));
    CHECK(!headers_origin_is_good("https://Example.org"));
    CHECK(!headers_origin_is_good("https://a.org,https://b.org"));
    CHECK(!headers_origin_is_good("https://a.org https://b.org"));
    CHECK(!headers_origin_is_good("https://*.example.org"));
    CHECK(!headers_origin_is_good("https://example.org:"));
    CHECK(!headers_origin_is_good("https://example.org:x"));
    CHECK(!headers_origin_is_good("https://example.org:123456"));
    CHECK(!headers_origin_is_good("https://example.org:8443/"));
    CHECK(!headers_origin_is_good("https://example.org:443")); /* browsers leave it out */
    CHECK(!headers_origin_is_good("http://example.org:80"));
    CHECK(!headers_origin_is_good("http://[::1"));
    CHECK(!headers_origin_is_good("http://[]"));
    CHECK(!headers_origin_is_good("http://a\r\nX: y"));
}

static void request_id(void)
{
    CHECK(headers_request_id_is_good("a-B_9.z"));
    CHECK(!headers_request_id_is_good(""));
    CHECK(!headers_request_id_is_good("a b"));
    CHECK(!headers_request_id_is_good(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

int main(void)
{
    RUN(accept);
    RUN(content_type);
    RUN(prefer);
    RUN(huge_wait);
    RUN(etag);
    RUN(origin);
    RUN(request_id);
    return check_result();
}
