/* test_card.c - model cards and tokenizers in Redis. */
#include "tests/check.h"

#include "jobs/card.h"
#include "tests/jobs/redis_server.h"

static struct error err;
static struct redis_server server;
static struct redis *q;
static char digest[CARD_DIGEST_SIZE]; /* of the tokenizer below */
static const char tokenizer[] = "a tokenizer in its compact form";

static struct model_card card(const char *id, char weights)
{
    struct model_card c = {.n_states = 49,
                           .width = 3840,
                           .max_tokens = 1024,
                           .vocabulary = 262208,
                           .has_hidden_states = true};

    snprintf(c.id, sizeof(c.id), "%s", id);
    memset(c.weights, weights, sizeof(c.weights) - 1);
    snprintf(c.compute, sizeof(c.compute), "bfloat16");
    snprintf(c.tokenizer, sizeof(c.tokenizer), "%s", digest);
    snprintf(c.architecture, sizeof(c.architecture), "gemma3");
    snprintf(c.engine_version, sizeof(c.engine_version), "0.1.0");
    snprintf(c.gemma_version, sizeof(c.gemma_version), "gemma4-12b-ltx-v1");
    return c;
}

/* One that serves features and embeddings too. */
static struct model_card ltx_card(const char *id, char weights)
{
    struct model_card c = card(id, weights);

    c.extractor = 2;
    c.rows = 1024;
    c.video_width = 4096;
    c.audio_width = 2048;
    snprintf(c.ltx_version, sizeof(c.ltx_version), "2.5.0");
    c.is_asleep = true;
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

static int renew(const struct model_card *c)
{
    err = (struct error){0};
    return card_register(q, c, NULL, 0, &err);
}

static bool drop(const struct model_card *c)
{
    bool removed;

    CHECK_OK(card_remove(q, c->id, c->weights, c->compute, &removed, &err));
    return removed;
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

static int64_t now_ms(void)
{
    redisReply *reply;
    int64_t ms;

    CHECK_OK(redis_commandf(q, &reply, &err, "TIME"));
    ms = atoll(reply->element[0]->str) * 1000 + atoll(reply->element[1]->str) / 1000;
    freeReplyObject(reply);
    return ms;
}

/* As if a card had been registered and seen so long ago. */
static void backdate(const struct model_card *c, int64_t registered_ago_ms, int64_t seen_ago_ms)
{
    redisReply *reply;
    int64_t now = now_ms();

    CHECK_OK(redis_commandf(q, &reply, &err, "HSET pe:cards:first %s:%s:%s %lld", c->id, c->weights,
                            c->compute, (long long)(now - registered_ago_ms)));
    freeReplyObject(reply);
    CHECK_OK(redis_commandf(q, &reply, &err, "HSET pe:cards:seen %s:%s:%s %lld", c->id, c->weights,
                            c->compute, (long long)(now - seen_ago_ms)));
    freeReplyObject(reply);
}

static struct model_card list[CARD_MAX];
static size_t n_cards;
static char left_out[512];

/* Lists, and the first letters of their weights must be these. */
static void check_order(size_t cap, const char *want)
{
    char got[CARD_MAX + 1] = "";

    CHECK_OK(card_list(q, list, cap, &n_cards, left_out, sizeof(left_out), &err));
    for (size_t i = 0; i < n_cards; i++)
        got[i] = list[i].weights[0];
    CHECK_TEXT(got, want);
}

static void cards_come_back(void)
{
    struct model_card a = ltx_card("gemma-3-12b", 'a'), b = card("other.model_1", 'b'), back;
    struct buf out = {.max = 1 << 20};
    int64_t before, after;

    flush();
    check_order(CARD_MAX, "");
    before = now_ms();
    CHECK_OK(put(&a));
    after = now_ms();
    check_order(CARD_MAX, "a");
    back = list[0];
    CHECK(back.registered_ms >= before && back.registered_ms <= after);
    CHECK(back.seen_ms == back.registered_ms && back.is_live);
    back.registered_ms = back.seen_ms = 0;
    back.is_live = false;
    CHECK(memcmp(&back, &a, sizeof(a)) == 0);
    CHECK_OK(put(&b));
    CHECK_INT(n_tokenizers(), 1);
    CHECK_OK(card_tokenizer(q, &a, &out, &err));
    CHECK(out.len == sizeof(tokenizer) - 1 && memcmp(out.data, tokenizer, out.len) == 0);
    buf_free(&out);
}

/* The same weights in another type of numbers are another model. */
static void what_it_computes_in_is_part_of_the_name(void)
{
    struct model_card a = card("m", 'a'), b = card("m", 'a');

    flush();
    snprintf(b.compute, sizeof(b.compute), "float32");
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    backdate(&a, 5000, 1000);
    check_order(CARD_MAX, "aa");
    CHECK_TEXT(list[0].compute, "float32");
    CHECK_TEXT(list[1].compute, "bfloat16");
    CHECK(drop(&b));
    check_order(CARD_MAX, "a");
    CHECK_TEXT(list[0].compute, "bfloat16");
}

static void the_live_and_new_come_first(void)
{
    struct model_card a = card("m", 'a'), b = card("m", 'b'), c = card("m", 'c'),
                      d = card("m", 'd');

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    CHECK_OK(put(&c));
    CHECK_OK(put(&d));
    backdate(&a, 900000, 1000);
    backdate(&b, 600000, CARD_LIVE_MS + 5000); /* gone */
    backdate(&c, 300000, CARD_LIVE_MS - 5000); /* still live */
    backdate(&d, 100000, CARD_LIVE_MS + 1000); /* gone a little later */
    check_order(CARD_MAX, "cadb");
    CHECK(list[0].is_live && list[1].is_live && !list[2].is_live && !list[3].is_live);
    check_order(3, "cad"); /* room for three */
    CHECK_OK(put(&b));     /* it comes back: live, and as old as it was */
    check_order(CARD_MAX, "cbad");
}

/* New weights come first; an engine of the old ones that starts again changes nothing; when the new
 * engines are gone, the old weights are served again. */
static void a_roll_back(void)
{
    struct model_card old = card("m", '1'), new = card("m", '2');
    int64_t registered_ms;

    flush();
    CHECK_OK(put(&old));
    backdate(&old, 3600000, 10000);
    CHECK_OK(put(&new));
    backdate(&new, 60000, 1000);
    check_order(CARD_MAX, "21");
    registered_ms = list[1].registered_ms;
    CHECK_OK(put(&old));
    check_order(CARD_MAX, "21");
    CHECK_INT(list[1].registered_ms, registered_ms);
    CHECK(list[1].seen_ms > registered_ms + 3500000);
    backdate(&new, 400000, CARD_LIVE_MS + 1);
    check_order(CARD_MAX, "12");
}

static void renewing(void)
{
    struct model_card a = card("m", 'a');
    redisReply *reply;

    flush();
    CHECK_ERR(renew(&a), ERR_FORMAT, "its tokenizer is missing");
    check_order(CARD_MAX, "");
    CHECK_OK(put(&a));
    backdate(&a, 3600000, CARD_LIVE_MS + 1000);
    check_order(CARD_MAX, "a");
    CHECK(!list[0].is_live);
    CHECK_OK(renew(&a));
    check_order(CARD_MAX, "a");
    CHECK(list[0].is_live && list[0].seen_ms - list[0].registered_ms > 3500000);

    /* Q lost the card, and then all */
    CHECK_OK(redis_commandf(q, &reply, &err, "DEL pe:cards pe:cards:first pe:cards:seen"));
    freeReplyObject(reply);
    CHECK_OK(renew(&a));
    check_order(CARD_MAX, "a");
    CHECK_INT(list[0].registered_ms, list[0].seen_ms);
    flush();
    CHECK_ERR(renew(&a), ERR_FORMAT, "its tokenizer is missing");
    CHECK_OK(put(&a));
    CHECK_OK(renew(&a));
    check_order(CARD_MAX, "a");
}

/* Engines that start at the same moment, with a tokenizer that none has stored yet, while an admin
 * removes the card: it is there in the end or not, and never without its tokenizer. */
static void many_register_at_once(void)
{
    enum { N = 6, ROUNDS = 500 };
    pid_t children[N];

    flush();
    fflush(stdout);
    for (int k = 0; k < N; k++)
        if ((children[k] = fork()) == 0) {
            struct model_card c = card("m", k == 0 ? 'b' : 'a');
            struct redis *mine = NULL;
            struct error why = {0};
            bool removed;
            int rc = redis_open(&mine, server.url, 5000, &why);

            for (int i = 0; i < ROUNDS && (rc == OK || rc == ERR_BUSY); i++) {
                why = (struct error){0}; /* disturbed too often is said, and no harm */
                if (i % 2 == k % 2)
                    rc = card_register(mine, &c, tokenizer, sizeof(tokenizer) - 1, &why);
                else
                    rc = card_remove(mine, c.id, c.weights, c.compute, &removed, &why);
            }
            if (rc != OK && rc != ERR_BUSY)
                fprintf(stderr, "child %d: %s\n", k, why.text);
            redis_close(mine);
            _exit(rc == OK || rc == ERR_BUSY ? 0 : 1);
        }
    for (int running = N; running > 0;) {
        int status;

        for (int k = 0; k < N; k++)
            if (children[k] > 0 && waitpid(children[k], &status, WNOHANG) == children[k]) {
                children[k] = 0;
                running--;
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            }
        /* in one moment, as a transaction has it */
        redisReply *reply;
        CHECK_OK(redis_commandf(q, &reply, &err, "EVAL %s 0",
                                "local n = redis.call('HLEN', 'pe:cards')\n"
                                "return { n, #redis.call('KEYS', 'pe:tokenizer:*'),\n"
                                "  redis.call('HLEN', 'pe:cards:first'),\n"
                                "  redis.call('HLEN', 'pe:cards:seen') }"));
        long long cards = reply->element[0]->integer, tokenizers = reply->element[1]->integer;
        long long first = reply->element[2]->integer, seen = reply->element[3]->integer;
        freeReplyObject(reply);
        CHECK_INT(tokenizers, cards > 0);
        CHECK(first == cards && seen == cards);
    }
}

static void what_nobody_could_read_is_not_stored(void)
{
    struct model_card c;

    flush();
    c = card("a:b", 'a');
    CHECK_ERR(put(&c), ERR_INPUT, "id");
    c = card("", 'a');
    CHECK_ERR(put(&c), ERR_INPUT, "id");
    c = card("m", 'g'); /* no hex digit */
    CHECK_ERR(put(&c), ERR_INPUT, "SHA-256");
    c = card("m", 'a');
    c.tokenizer[0] = c.tokenizer[0] == '0' ? '1' : '0';
    CHECK_ERR(put(&c), ERR_INPUT, "another digest");
    c = card("m", 'a');
    c.width = 0;
    CHECK_ERR(put(&c), ERR_FORMAT, "width");
    c = card("m", 'a');
    c.architecture[0] = (char)0xff;
    CHECK(put(&c) == ERR_INPUT);
    c = card("m", 'a');
    snprintf(c.compute, sizeof(c.compute), "bf:16");
    CHECK_ERR(put(&c), ERR_INPUT, "computes");
    c.compute[0] = '\0';
    CHECK_ERR(put(&c), ERR_INPUT, "computes");
    check_order(CARD_MAX, "");
    CHECK_INT(n_tokenizers(), 0);
}

static void the_last_card_takes_its_tokenizer_along(void)
{
    struct model_card a = card("m", 'a'), b = card("m", 'b');
    struct buf out = {.max = 1 << 20};
    redisReply *reply;
    bool removed;

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    CHECK(drop(&a));
    CHECK_INT(n_tokenizers(), 1);
    CHECK(!drop(&a)); /* gone already */
    CHECK_INT(n_tokenizers(), 1);
    CHECK(drop(&b));
    CHECK_OK(redis_commandf(q, &reply, &err, "DBSIZE")); /* nothing at all is left */
    CHECK_INT(reply->integer, 0);
    freeReplyObject(reply);
    CHECK_ERR(card_tokenizer(q, &a, &out, &err), ERR_FORMAT, "missing");
    CHECK_ERR(card_remove(q, "m", "short", "float32", &removed, &err), ERR_INPUT, "SHA-256");
    CHECK_OK(put(&a)); /* removed and registered again: a new one */
    check_order(CARD_MAX, "a");
    CHECK_INT(list[0].registered_ms, list[0].seen_ms);
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
        {"\"version\":4", "\"version\":3"},
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
        {"\"extractor\":2", "\"extractor\":3"},
        {"\"extractor\":2", "\"extractor\":0"}, /* and yet there are widths */
        {"\"rows\":1024", "\"rows\":0"},
        {"\"video_width\":4096", "\"video_width\":0"},
        {"\"audio_width\":2048", "\"audio_width\":-1"},
        {"\"2.5.0\"", "250"},
    };
    struct model_card a = ltx_card("m", 'a'), b = card("fine", 'b');
    char name[120], good[1024], text[1200], old[120];
    redisReply *reply;

    flush();
    CHECK_OK(put(&a));
    CHECK_OK(put(&b));
    snprintf(name, sizeof(name), "m:%s:%s", a.weights, a.compute);
    CHECK_OK(redis_commandf(q, &reply, &err, "HGET pe:cards %s", name));
    snprintf(good, sizeof(good), "%s", reply->str);
    freeReplyObject(reply);
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char *at = strstr(good, edits[i][0]);

        CHECK(at != NULL);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, edits[i][1],
                 at + strlen(edits[i][0]));
        set_card(name, text);
        check_order(CARD_MAX, "b"); /* the other one is served all the same */
    }
    set_card(name, good);
    CHECK_OK(redis_commandf(q, &reply, &err, "HDEL pe:cards:seen %s", name));
    freeReplyObject(reply);
    check_order(CARD_MAX, "b");
    snprintf(old, sizeof(old), "m:%s", a.weights); /* an older version's name */
    set_card(old, good);
    check_order(CARD_MAX, "b");
    CHECK_OK(redis_commandf(q, &reply, &err, "HDEL pe:cards %s", old));
    freeReplyObject(reply);
    set_card(name, "{}");
    /* it can be removed all the same; the tokenizer stays, as nobody knows whose it was */
    CHECK(drop(&a));
    check_order(CARD_MAX, "b");
    CHECK_INT(n_tokenizers(), 1);
    set_card("evil\n\x1b[31m", "{}");
    check_order(CARD_MAX, "b"); /* logged by a name that no terminal obeys */
}

static void keys_that_are_no_cards(void)
{
    struct model_card a = card("m", 'a');
    redisReply *reply;
    bool removed;

    flush();
    CHECK_OK(redis_commandf(q, &reply, &err, "SET pe:cards text"));
    freeReplyObject(reply);
    CHECK_ERR(put(&a), ERR_FORMAT, "is no hash");
    CHECK_ERR(card_list(q, list, CARD_MAX, &n_cards, left_out, sizeof(left_out), &err), ERR_FORMAT,
              "is no hash");
    CHECK_ERR(card_remove(q, "m", a.weights, a.compute, &removed, &err), ERR_INPUT, "WRONGTYPE");
    flush();
    CHECK_OK(put(&a)); /* the connection is in step */
    check_order(CARD_MAX, "a");
}

static void a_damaged_tokenizer_is_noticed(void)
{
    struct model_card a = card("m", 'a');
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
    c = card("m", 'a');
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
    RUN(what_it_computes_in_is_part_of_the_name);
    RUN(the_live_and_new_come_first);
    RUN(a_roll_back);
    RUN(renewing);
    RUN(many_register_at_once);
    RUN(what_nobody_could_read_is_not_stored);
    RUN(the_last_card_takes_its_tokenizer_along);
    RUN(a_bad_card_takes_no_other_with_it);
    RUN(keys_that_are_no_cards);
    RUN(a_damaged_tokenizer_is_noticed);
    redis_close(q);
    redis_server_stop(&server);
    return check_result();
}
