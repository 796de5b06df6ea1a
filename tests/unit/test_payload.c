#include "jobs/payload.h"

#include "tests/check.h"

static struct error err;

static void round_trip(void)
{
    int32_t ids[] = {2, 0, INT32_MAX};
    struct payload p = {"hidden_states", "bfloat16", 2, {0, 255}, true, 60, 3, ids}, q;
    struct buf text = {.max = PAYLOAD_MAX_BYTES};

    CHECK_OK(payload_write(&text, &p, &err));
    CHECK_TEXT(text.data, "{\"v\":1,\"output\":\"hidden_states\",\"layers\":[0,255],"
                          "\"dtype\":\"bfloat16\",\"truncated\":true,\"ttl_s\":60,"
                          "\"ids\":[2,0,2147483647]}");
    CHECK_OK(payload_read(&q, text.data, text.len, &err));
    CHECK_TEXT(q.output, p.output);
    CHECK_TEXT(q.dtype, p.dtype);
    CHECK_INT(q.n_layers, 2);
    CHECK_INT(q.layers[1], 255);
    CHECK(q.truncated);
    CHECK_INT(q.ttl_s, 60);
    CHECK_INT(q.n_ids, 3);
    CHECK_INT(q.ids[2], INT32_MAX);
    /* every cut of it, and a byte more, is refused */
    for (size_t n = 0; n < text.len; n++) {
        payload_free(&q);
        CHECK_ERR(payload_read(&q, text.data, n, &err), ERR_FORMAT, "payload");
    }
    CHECK_OK(buf_append(&text, " ", 1, &err));
    CHECK_ERR(payload_read(&q, text.data, text.len, &err), ERR_FORMAT, "byte 119 of 120");
    buf_free(&text);
}

static void check_refused(const char *text)
{
    struct payload p;

    CHECK_ERR(payload_read(&p, text, strlen(text), &err), ERR_FORMAT, "payload");
    CHECK(p.ids == NULL);
}

#define PAYLOAD(version, output, layers, ttl, ids)                                                 \
    "{\"v\":" version ",\"output\":\"" output "\",\"layers\":[" layers "],\"dtype\":\"float32\","  \
    "\"truncated\":false,\"ttl_s\":" ttl ",\"ids\":[" ids "]}"

static void bounds(void)
{
    struct payload p;

    CHECK_OK(payload_read(&p, PAYLOAD("1", "x", "0", "0", "1"),
                          strlen(PAYLOAD("1", "x", "0", "0", "1")), &err));
    payload_free(&p);
    check_refused(PAYLOAD("2", "x", "0", "0", "1"));
    check_refused(PAYLOAD("1", "", "0", "0", "1"));
    check_refused(PAYLOAD("1", "X", "0", "0", "1"));
    check_refused(PAYLOAD("1", "aaaaaaaaaaaaaaaaaaaaaaaa", "0", "0", "1"));
    check_refused(PAYLOAD("1", "x", "", "0", "1"));
    check_refused(PAYLOAD("1", "x", "256", "0", "1"));
    check_refused(PAYLOAD("1", "x", "-1", "0", "1"));
    check_refused(PAYLOAD("1", "x", "00", "0", "1"));
    check_refused(PAYLOAD("1", "x", "0", "2592001", "1"));
    check_refused(PAYLOAD("1", "x", "0", "0", ""));
    check_refused(PAYLOAD("1", "x", "0", "0", "1,"));
    check_refused(PAYLOAD("1", "x", "0", "0", "1, 2"));
    check_refused(PAYLOAD("1", "x", "0", "0", "2147483648"));
    check_refused(PAYLOAD("1", "x", "0", "0", "99999999999999999999999999"));
}

static void writer_takes_what_the_reader_takes(void)
{
    int32_t ids[] = {-1};
    struct payload p = {"hidden_states", "bfloat16", 1, {0}, false, 0, 1, ids};
    struct buf text = {.max = 4096};

    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "negative");
    ids[0] = 1;
    p.layers[0] = 256;
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "layer 256");
    p.layers[0] = 0;
    p.n_ids = 0;
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    p.n_ids = 1;
    p.output[0] = '"';
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    buf_free(&text);
}

int main(void)
{
    RUN(round_trip);
    RUN(bounds);
    RUN(writer_takes_what_the_reader_takes);
    return check_result();
}
