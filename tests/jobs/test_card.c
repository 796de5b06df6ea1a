/* test_card.c - model cards and tokenizers in Redis. */
#include "tests/check.h"

#include "jobs/card.h"
#include "tests/jobs/redis_server.h"

static struct error err;
static struct redis_server server;
static struct redis *q;
static char digest[CARD_DIGEST_SIZE]; /* of the tokenizer below */
static const char tokenizer[] = "a tokenizer in its compact form";

static struct model_card card(const char *id, char weights, int64_t registered_ms)
{
    struct model_card c = {.n_states = 49,
                           .width = 3840,
                           .max_tokens = 1024,
                           .vocabulary = 262208,
                           .has_hidden_states = true,
                           .registered_ms = registered_ms};

    snprintf(c.id, sizeof(c.id), "%s", id);
    memset(c.weights, weights, sizeof(c.weights) - 1);
    snprintf(c.tokenizer, sizeof(c.tokenizer), "%s", digest);
    snprintf(c.architecture, sizeof(c.architecture), "gemma3");
    snprintf(c.engine_version, sizeof(c.engine_version), "0.1.0");
    return c;
}

static void flush(void)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(q, &reply, &err, "FLUSHALL"));
    freeReplyObject(reply);
}

static int put(const struct model_card *c)
{
    err = (struct error){0};
    return card_register(q, c, tokenizer, sizeof(tokenizer) - 1, &err);
}

static long long n_tokenizers(void)
{
    redisReply *reply;
    long long n;

    CHECK_OK(redis_commandf(q, &reply, &err, "KEYS pe:tokenizer:*"));
    n = (long long)reply->elements;
    freeReplyObject(reply);
    return n;
}

static void cards_come_back(void)
{
    struct model_card a = card("gemma-3-12b", 'a', 100), b = card("gemma-3-12b", 'b', 300),
                      c = card("other.model_1", 'a', 200), list[CARD_MAX];
    struct buf out = {.max = 1 << 20};
    size_t n;

    flush();
    CHECK_OK(card_list(q, list, CARD_MAX, &n, &err));
    CHECK_INT(n, 0);
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    CHECK_OK(put(&c));
    CHECK_OK(card_list(q, list, CARD_MAX, &n, &err));
    CHECK_INT(n, 3);
    CHECK(memcmp(&list[0], &b, sizeof(b)) == 0); /* the newest first */
    CHECK(memcmp(&list[1], &c, sizeof(c)) == 0);
    CHECK(memcmp(&list[2], &a, sizeof(a)) == 0);
    CHECK_INT(n_tokenizers(), 1);
    CHECK_OK(card_tokenizer(q, &list[0], &out, &err));
    CHECK(out.len == sizeof(tokenizer) - 1 && memcmp(out.data, tokenizer, out.len) == 0);
    a.registered_ms = 400;
    CHECK_OK(put(&a)); /* over its older self */
    CHECK_OK(card_list(q, list, CARD_MAX, &n, &err));
    CHECK(n == 3 && list[0].registered_ms == 400);
    CHECK_OK(card_list(q, list, 2, &n, &err)); /* room for two: the newest two */
    CHECK(n == 2 && list[0].registered_ms == 400);
    buf_free(&out);
}

static void what_nobody_could_read_is_not_stored(void)
{
    struct model_card c;
    size_t n;
    struct model_card list[1];

    flush();
    c = card("a:b", 'a', 1);
    CHECK_ERR(put(&c), ERR_INPUT, "id");
    c = card("", 'a', 1);
    CHECK_ERR(put(&c), ERR_INPUT, "id");
    c = card("m", 'g', 1); /* no hex digit */
    CHECK_ERR(put(&c), ERR_INPUT, "SHA-256");
    c = card("m", 'a', 1);
    c.tokenizer[0] = c.tokenizer[0] == '0' ? '1' : '0';
    CHECK_ERR(put(&c), ERR_INPUT, "another digest");
    c = card("m", 'a', 1);
    c.width = 0;
    CHECK_ERR(put(&c), ERR_FORMAT, "width");
    c = card("m", 'a', 1);
    c.architecture[0] = (char)0xff;
    CHECK(put(&c) == ERR_INPUT);
    CHECK_OK(card_list(q, list, 1, &n, &err));
    CHECK_INT(n, 0);
    CHECK_INT(n_tokenizers(), 0);
}

static void the_last_card_takes_its_tokenizer_along(void)
{
    struct model_card a = card("m", 'a', 1), b = card("m", 'b', 2), list[2];
    struct buf out = {.max = 1 << 20};
    size_t n;

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    CHECK_OK(card_remove(q, "m", a.weights, &err));
    CHECK_INT(n_tokenizers(), 1);
    CHECK_OK(card_remove(q, "m", a.weights, &err)); /* gone already */
    CHECK_INT(n_tokenizers(), 1);
    CHECK_OK(card_remove(q, "m", b.weights, &err));
    CHECK_INT(n_tokenizers(), 0);
    CHECK_OK(card_list(q, list, 2, &n, &err));
    CHECK_INT(n, 0);
    CHECK_ERR(card_tokenizer(q, &a, &out, &err), ERR_FORMAT, "missing");
    CHECK_ERR(card_remove(q, "m", "short", &err), ERR_INPUT, "SHA-256");
}

static void set_card(const char *name, const char *text)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(q, &reply, &err, "HSET pe:cards %s %s", name, text));
    freeReplyObject(reply);
}

static void a_bad_card_takes_no_other_with_it(void)
{
    static const char *const edits[][2] = {
        /* what of a good card is replaced, by what */
        {"{", "["},
        {"\"version\":1", "\"version\":2"},
        {"\"id\":\"m\"", "\"id\":\"n\""},
        {"\"id\":\"m\"", "\"id\":\"m\",\"id\":\"m\""},
        {"\"id\":\"m\"", "\"id\":7"},
        {"\"gemma3\"", "\"gemma3\\u0001\""},
        {"\"gemma3\"", "\"a name that is far too long for it\""},
        {"\"width\":3840", "\"width\":-1"},
        {"\"width\":3840", "\"width\":3840.5"},
        {"\"width\":3840", "\"width\":99999999999"},
        {"\"width\":3840", "\"wide\":3840"},
        {"\"width\":3840", "\"width\":3840,\"more\":1"},
        {"true", "1"},
    };
    struct model_card a = card("m", 'a', 1), b = card("fine", 'b', 2), list[4];
    char name[80], good[1024], text[1200];
    redisReply *reply;
    size_t n;

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    snprintf(name, sizeof(name), "m:%s", a.weights);
    CHECK_OK(redis_commandf(q, &reply, &err, "HGET pe:cards %s", name));
    snprintf(good, sizeof(good), "%s", reply->str);
    freeReplyObject(reply);
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char *at = strstr(good, edits[i][0]);

        CHECK(at != NULL);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, edits[i][1],
                 at + strlen(edits[i][0]));
        set_card(name, text);
        CHECK_OK(card_list(q, list, 4, &n, &err)); /* the other one is served all the same */
        CHECK_INT(n, 1);
        CHECK_TEXT(list[0].weights, b.weights);
    }
    /* it can be removed all the same; the tokenizer stays, as nobody knows whose it was */
    CHECK_OK(card_remove(q, "m", a.weights, &err));
    CHECK_OK(card_list(q, list, 4, &n, &err));
    CHECK_INT(n, 1);
    CHECK_INT(n_tokenizers(), 1);
    set_card("evil\n\x1b[31m", "{}");
    CHECK_OK(card_list(q, list, 4, &n, &err)); /* logged by a name that no terminal obeys */
    CHECK_INT(n, 1);
}

static void a_damaged_tokenizer_is_noticed(void)
{
    struct model_card a = card("m", 'a', 1);
    struct buf out = {.max = 1 << 20};
    redisReply *reply;

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(redis_commandf(q, &reply, &err, "SETRANGE pe:tokenizer:%s 3 x", digest));
    freeReplyObject(reply);
    CHECK_ERR(card_tokenizer(q, &a, &out, &err), ERR_FORMAT, "digest");
    CHECK(out.len == 0);
    buf_free(&out);
}

static void find_digest(void)
{
    struct model_card c;
    FILE *file;
    char command[256];

    snprintf(command, sizeof(command), "printf '%s' | sha256sum", tokenizer);
    CHECK((file = popen(command, "r")) != NULL);
    CHECK(fread(digest, 1, sizeof(digest) - 1, file) == sizeof(digest) - 1);
    pclose(file);
    c = card("m", 'a', 1);
    CHECK_INT(strlen(c.tokenizer), 64);
}

int main(void)
{
    redis_server_need();
    if (!redis_server_start(&server, "test_card", "") ||
        redis_open(&q, server.url, 5000, &err) != OK) {
        printf("redis-server does not start; see %s/redis.log\n", server.dir);
        return EXIT_FAILURE;
    }
    RUN(find_digest);
    RUN(cards_come_back);
    RUN(what_nobody_could_read_is_not_stored);
    RUN(the_last_card_takes_its_tokenizer_along);
    RUN(a_bad_card_takes_no_other_with_it);
    RUN(a_damaged_tokenizer_is_noticed);
    redis_close(q);
    redis_server_stop(&server);
    return check_result();
}
