#include "jobs/payload.h"

#include "tests/check.h"

static struct error err;

static void round_trip(void)
{
    int32_t ids[] = {2, 0, INT32_MAX};
    struct payload p = {"hidden_states", "bfloat16", 2, {0, 255}, "", true, 60, 3, ids}, q;
    struct buf text = {.max = PAYLOAD_MAX_BYTES};

    CHECK_OK(payload_write(&text, &p, &err));
    CHECK_TEXT(text.data,
               "{\"v\":2,\"output\":\"hidden_states\",\"layers\":[0,255],\"modalities\":\"\","
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
    CHECK_ERR(payload_read(&q, text.data, text.len, &err), ERR_FORMAT, "byte 135 of 136");
    buf_free(&text);
}

static void modalities(void)
{
    static const char *const texts[] = {"video", "audio", "video,audio"};
    int32_t ids[] = {2};

    for (int i = 0; i < 3; i++) {
        struct payload p = {.output = "embeddings", .dtype = "float16", .n_ids = 1, .ids = ids}, q;
        struct buf text = {.max = PAYLOAD_MAX_BYTES};
        char want[128];

        snprintf(p.modalities, sizeof(p.modalities), "%s", texts[i]);
        CHECK_OK(payload_write(&text, &p, &err));
        snprintf(want, sizeof(want), "\"layers\":[],\"modalities\":\"%s\",\"dtype\"", texts[i]);
        CHECK(strstr(text.data, want) != NULL);
        CHECK_OK(payload_read(&q, text.data, text.len, &err));
        CHECK_TEXT(q.output, "embeddings");
        CHECK_TEXT(q.modalities, texts[i]);
        CHECK_INT(q.n_layers, 0);
        payload_free(&q);
        buf_free(&text);
    }
}

static void check_refused(const char *text)
{
    struct payload p;

    CHECK_ERR(payload_read(&p, text, strlen(text), &err), ERR_FORMAT, "payload");
    CHECK(p.ids == NULL);
}

#define LEVEL(version, output, layers, modalities, ttl, ids)                                       \
    "{\"v\":" version ",\"output\":\"" output "\",\"layers\":[" layers                             \
    "],\"modalities\":\"" modalities "\",\"dtype\":\"float32\",\"truncated\":false,\"ttl_s\":" ttl \
    ",\"ids\":[" ids "]}"
#define PAYLOAD(version, layers, ttl, ids) LEVEL(version, "hidden_states", layers, "", ttl, ids)

static void bounds(void)
{
    static const char *const good[] = {
        PAYLOAD("2", "0", "0", "1"),
        LEVEL("2", "features", "", "audio", "2592000", "1,0"),
        LEVEL("2", "a_level_that_comes", "", "video", "0", "1"),
    };
    struct payload p;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CHECK_OK(payload_read(&p, good[i], strlen(good[i]), &err));
        payload_free(&p);
    }
    check_refused(PAYLOAD("1", "0", "0", "1"));
    check_refused(PAYLOAD("3", "0", "0", "1"));
    check_refused(PAYLOAD("2", "", "0", "1"));
    check_refused(PAYLOAD("2", "256", "0", "1"));
    check_refused(PAYLOAD("2", "-1", "0", "1"));
    check_refused(PAYLOAD("2", "00", "0", "1"));
    check_refused(PAYLOAD("2", "0", "2592001", "1"));
    check_refused(PAYLOAD("2", "0", "0", ""));
    check_refused(PAYLOAD("2", "0", "0", "1,"));
    check_refused(PAYLOAD("2", "0", "0", "1, 2"));
    check_refused(PAYLOAD("2", "0", "0", "2147483648"));
    check_refused(PAYLOAD("2", "0", "0", "99999999999999999999999999"));
    check_refused(LEVEL("2", "", "", "video", "0", "1"));
    check_refused(LEVEL("2", "X", "", "video", "0", "1"));
    check_refused(LEVEL("2", "aaaaaaaaaaaaaaaaaaaaaaaa", "", "video", "0", "1"));
    check_refused(LEVEL("2", "hidden_states", "0", "video", "0", "1"));
    check_refused(LEVEL("2", "hidden_states", "", "", "0", "1"));
    check_refused(LEVEL("2", "features", "0", "video", "0", "1"));
    check_refused(LEVEL("2", "features", "", "", "0", "1"));
    check_refused(LEVEL("2", "features", "", "audio,video", "0", "1"));
    check_refused(LEVEL("2", "features", "", "video,", "0", "1"));
    check_refused(LEVEL("2", "features", "", "smell", "0", "1"));
}

static void writer_takes_what_the_reader_takes(void)
{
    int32_t ids[] = {-1};
    struct payload p = {"hidden_states", "bfloat16", 1, {0}, "", false, 0, 1, ids};
    struct buf text = {.max = 4096};

    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "negative");
    ids[0] = 1;
    p.layers[0] = 256;
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "layer 256");
    p.layers[0] = 0;
    p.n_ids = 0;
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    p.n_ids = 1;
    snprintf(p.modalities, sizeof(p.modalities), "video");
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    snprintf(p.output, sizeof(p.output), "features");
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds"); /* with a layer */
    p.n_layers = 0;
    CHECK_OK(payload_write(&text, &p, &err));
    snprintf(p.modalities, sizeof(p.modalities), "audio,video");
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    snprintf(p.modalities, sizeof(p.modalities), "audio");
    p.output[0] = '"';
    CHECK_ERR(payload_write(&text, &p, &err), ERR_INPUT, "bounds");
    buf_free(&text);
}

int main(void)
{
    RUN(round_trip);
    RUN(modalities);
    RUN(bounds);
    RUN(writer_takes_what_the_reader_takes);
    return check_result();
}
