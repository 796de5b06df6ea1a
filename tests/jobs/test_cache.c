/* test_cache.c - results: whole or not at all, the first writer's, checked when read. */
#include "base/clock.h"
#include "base/crc32c.h"
#include "tests/check.h"

#include "jobs/cache.h"
#include "tests/jobs/redis_server.h"

enum { SIZE = 2 * CACHE_PIECE + 12345, TTL_MS = 3600000 };

static struct error err;
static struct redis_server servers[3];
static struct redis *admin;
static struct cache *cache;
static char *data;
static struct buf piece = {.max = CACHE_PIECE}, first_piece = {.max = CACHE_PIECE};
static bool stored, found, damaged;

/* A header for `bytes` bytes, as two tensors. */
static struct cache_header header(size_t bytes)
{
    struct cache_header h = {.n_tokens = 61, .truncated = true, .n_tensors = 2, .bytes = bytes};

    snprintf(h.model, sizeof(h.model), "gemma-3-12b");
    memset(h.weights, 'a', sizeof(h.weights) - 1);
    memset(h.tokenizer, 'b', sizeof(h.tokenizer) - 1);
    snprintf(h.gemma_version, sizeof(h.gemma_version), "gemma4 \"x\"");
    snprintf(h.output, sizeof(h.output), "hidden_states");
    snprintf(h.layers, sizeof(h.layers), "0,12,\"x\"");
    snprintf(h.modalities, sizeof(h.modalities), "video,audio");
    snprintf(h.extractor, sizeof(h.extractor), "v2");
    snprintf(h.ltx_version, sizeof(h.ltx_version), "2.5.0");
    snprintf(h.route, sizeof(h.route), "sharded over 4, one_prompt");
    snprintf(h.tensors[0].name, sizeof(h.tensors[0].name), "hidden_states");
    snprintf(h.tensors[0].dtype, sizeof(h.tensors[0].dtype), "BF16");
    h.tensors[0].n_dims = 3;
    h.tensors[0].shape[0] = 2;
    h.tensors[0].shape[1] = 61;
    h.tensors[0].shape[2] = 8;
    h.tensors[0].bytes = (size_t)2 * 61 * 8 * 2;
    snprintf(h.tensors[1].name, sizeof(h.tensors[1].name), "mask");
    snprintf(h.tensors[1].dtype, sizeof(h.tensors[1].dtype), "U8");
    h.tensors[1].n_dims = 1;
    h.tensors[1].bytes = h.tensors[1].shape[0] = bytes - h.tensors[0].bytes;
    return h;
}

static int put(const char *id, struct cache_header *h, const char *from, bool replace)
{
    /* cut where no piece ends; one part is empty */
    const void *parts[] = {from, from + 1000, from + 1000, from + CACHE_PIECE + 77};
    size_t bytes[] = {1000, 0, CACHE_PIECE - 923, h->bytes - CACHE_PIECE - 77};

    err = (struct error){0};
    return cache_put(cache, id, h, parts, bytes, 4, TTL_MS, replace, &stored, &err);
}

static long long ask(const char *command, const char *key)
{
    redisReply *reply;
    long long n;

    CHECK_OK(redis_commandf(admin, &reply, &err, "%s %s", command, key));
    n = reply->integer;
    freeReplyObject(reply);
    return n;
}

static long long n_keys(void)
{
    redisReply *reply;
    long long n;

    CHECK_OK(redis_commandf(admin, &reply, &err, "DBSIZE"));
    n = reply->integer;
    freeReplyObject(reply);
    return n;
}

static void flush(void)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(admin, &reply, &err, "FLUSHALL"));
    freeReplyObject(reply);
}

static void check_whole(const char *id, const char *want, size_t bytes)
{
    struct cache_header h;

    CHECK_OK(cache_get_begin(cache, id, &h, &first_piece, &found, &damaged, &err));
    CHECK(found && !damaged);
    CHECK_INT(h.bytes, bytes);
    CHECK_INT(h.crc32c, crc32c(0, want, bytes));
    CHECK(first_piece.len == CACHE_PIECE && memcmp(first_piece.data, want, CACHE_PIECE) == 0);
    for (size_t i = 0; i < cache_n_pieces(&h); i++) {
        CHECK_OK(cache_get_piece(cache, id, &h, i, &piece, &found, &damaged, &err));
        CHECK(found && !damaged);
        CHECK_INT(piece.len, i == 2 ? 12345 : CACHE_PIECE);
        CHECK(memcmp(piece.data, want + i * CACHE_PIECE, piece.len) == 0);
    }
}

static void a_result_comes_back_as_it_was(void)
{
    struct cache_header h = header(SIZE), back;
    bool exists;

    flush();
    CHECK_OK(cache_exists(cache, "aaa", &exists, &err));
    CHECK(!exists);
    CHECK_OK(put("aaa", &h, data, false));
    CHECK(stored);
    CHECK_INT(h.crc32c, crc32c(0, data, SIZE));
    check_whole("aaa", data, SIZE);
    CHECK_OK(cache_get_begin(cache, "aaa", &back, &first_piece, &found, &damaged, &err));
    CHECK_TEXT(back.model, "gemma-3-12b");
    CHECK_INT(strspn(back.weights, "a"), 64);
    CHECK_TEXT(back.output, "hidden_states");
    CHECK_TEXT(back.layers, "0,12,\"x\"");
    CHECK_TEXT(back.modalities, "video,audio");
    CHECK_TEXT(back.tokenizer, h.tokenizer);
    CHECK_TEXT(back.gemma_version, "gemma4 \"x\"");
    CHECK_TEXT(back.extractor, "v2");
    CHECK_TEXT(back.ltx_version, "2.5.0");
    CHECK_TEXT(back.route, "sharded over 4, one_prompt");
    CHECK(back.n_tokens == 61 && back.truncated && back.n_tensors == 2);
    CHECK_TEXT(back.tensors[0].name, "hidden_states");
    CHECK_TEXT(back.tensors[0].dtype, "BF16");
    CHECK(back.tensors[0].n_dims == 3 && back.tensors[0].shape[1] == 61);
    CHECK_INT(back.tensors[1].bytes, h.tensors[1].bytes);
    CHECK(memcmp(&back, &h, sizeof(h)) == 0);
    CHECK_OK(cache_exists(cache, "aaa", &exists, &err));
    CHECK(exists);
    CHECK_INT(n_keys(), 1); /* no temporary name is left */
    CHECK_INT(ask("HLEN", "r:aaa"), 4);
    CHECK(ask("PTTL", "r:aaa") >= TTL_MS - TTL_MS / 10 - 5000 &&
          ask("PTTL", "r:aaa") <= TTL_MS + TTL_MS / 10);
    CHECK_ERR(cache_get_piece(cache, "aaa", &h, 3, &piece, &found, &damaged, &err), ERR_INPUT,
              "piece 3 of 3");
    CHECK_OK(cache_delete(cache, "aaa", &err));
    CHECK_OK(cache_get_begin(cache, "aaa", &back, &first_piece, &found, &damaged, &err));
    CHECK(!found && !damaged && first_piece.len == 0);
    CHECK_OK(cache_get_piece(cache, "aaa", &h, 0, &piece, &found, &damaged, &err));
    CHECK(!found && !damaged);
}

static void lives_differ(void)
{
    long long least = TTL_MS * 2LL, most = 0;
    char id[16], key[16];

    flush();
    for (int i = 0; i < 20; i++) {
        struct cache_header h = header(SIZE);

        snprintf(id, sizeof(id), "j%d", i);
        snprintf(key, sizeof(key), "r:j%d", i);
        CHECK_OK(put(id, &h, data, false));
        long long ttl = ask("PTTL", key);
        least = ttl < least ? ttl : least;
        most = ttl > most ? ttl : most;
    }
    CHECK(most - least > TTL_MS / 20);
}

static void the_first_writer_wins(void)
{
    struct cache_header h = header(SIZE), other = header(SIZE - 5), first;
    long long ttl;

    flush();
    CHECK_OK(put("bbb", &h, data, false));
    CHECK(stored);
    ttl = ask("PTTL", "r:bbb");
    CHECK_OK(put("bbb", &other, data + 5, false));
    CHECK(!stored);
    check_whole("bbb", data, SIZE);
    CHECK(ask("PTTL", "r:bbb") <= ttl);
    CHECK_INT(n_keys(), 1);

    first = h;
    CHECK_OK(put("bbb", &other, data + 5, true));
    CHECK(stored);
    CHECK_OK(cache_get_begin(cache, "bbb", &h, &first_piece, &found, &damaged, &err));
    CHECK(found && h.bytes == SIZE - 5);
    CHECK_INT(n_keys(), 1);
    /* who read the old header must not take the new one's pieces, nor call them damaged */
    CHECK_OK(cache_get_piece(cache, "bbb", &first, 0, &piece, &found, &damaged, &err));
    CHECK(!found && !damaged);
    CHECK_INT(n_keys(), 1);
}

/* Two writers that both saw nothing: the one that comes second to RENAMENX leaves no trace. */
static void writers_race(void)
{
    redisReply *reply;

    flush();
    for (int i = 0; i < 30; i++) {
        struct cache_header h = header(SIZE);
        int pipes[2];
        pid_t other;
        char byte;

        CHECK(pipe(pipes) == 0);
        fflush(stdout);
        if ((other = fork()) == 0) {
            struct cache *mine;
            struct error no = {0};
            bool was_stored = false;
            const void *parts[] = {data + 5};
            const size_t bytes[] = {SIZE};

            _exit(cache_open(&mine, servers[0].url, 5000, &no) != OK ||
                          read(pipes[0], &byte, 1) < 0 ||
                          cache_put(mine, "race", &h, parts, bytes, 1, TTL_MS, false, &was_stored,
                                    &no) != OK
                      ? 2
                      : was_stored);
        }
        CHECK(write(pipes[1], "x", 1) == 1);
        CHECK_OK(put("race", &h, data, false));
        int status;
        CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status));
        close(pipes[0]);
        close(pipes[1]);
        CHECK_INT(WEXITSTATUS(status), !stored);
        check_whole("race", stored ? data : data + 5, SIZE);
        CHECK_INT(n_keys(), 1);
        CHECK_OK(redis_commandf(admin, &reply, &err, "DEL r:race"));
        freeReplyObject(reply);
    }
}

static void set(const char *id, const char *field, const void *value, size_t len)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(admin, &reply, &err, "HSET r:%s %s %b", id, field, value, len));
    freeReplyObject(reply);
}

static void damage_is_found_and_removed(void)
{
    struct cache_header h = header(SIZE);

    for (int kind = 0; kind < 4; kind++) {
        redisReply *reply;

        flush();
        CHECK_OK(put("ddd", &h, data, false));
        if (kind == 0) { /* one bit */
            data[CACHE_PIECE + 500] ^= 0x10;
            set("ddd", "1", data + CACHE_PIECE, CACHE_PIECE);
            data[CACHE_PIECE + 500] ^= 0x10;
        } else if (kind == 1) {
            set("ddd", "1", data + CACHE_PIECE, CACHE_PIECE - 1);
        } else if (kind == 2) {
            CHECK_OK(redis_commandf(admin, &reply, &err, "HDEL r:ddd 1"));
            freeReplyObject(reply);
        } else {
            set("ddd", "1", data, CACHE_PIECE); /* a good piece in the wrong place */
        }
        CHECK_OK(cache_get_begin(cache, "ddd", &h, &first_piece, &found, &damaged, &err));
        CHECK(found);
        CHECK_OK(cache_get_piece(cache, "ddd", &h, 0, &piece, &found, &damaged, &err));
        CHECK(found && !damaged);
        CHECK_OK(cache_get_piece(cache, "ddd", &h, 1, &piece, &found, &damaged, &err));
        CHECK(!found && damaged);
        CHECK_INT(n_keys(), 0);
        CHECK_OK(put("ddd", &h, data, false)); /* and it may be computed again */
        CHECK(stored);
    }
}

/* The first piece is checked with the header. */
static void damage_in_the_first_piece(void)
{
    struct cache_header h = header(SIZE), back;
    redisReply *reply;

    for (int kind = 0; kind < 3; kind++) {
        flush();
        CHECK_OK(put("ddd", &h, data, false));
        if (kind == 0) {
            set("ddd", "0", data + 1, CACHE_PIECE);
        } else if (kind == 1) {
            set("ddd", "0", data, CACHE_PIECE - 1);
        } else {
            CHECK_OK(redis_commandf(admin, &reply, &err, "HDEL r:ddd 0"));
            freeReplyObject(reply);
        }
        CHECK_OK(cache_get_begin(cache, "ddd", &back, &first_piece, &found, &damaged, &err));
        CHECK(!found && damaged && first_piece.len == 0);
        CHECK_INT(n_keys(), 0);
        CHECK_OK(put("ddd", &h, data, false));
        check_whole("ddd", data, SIZE);
    }
}

/* It becomes part of an HTTP header. */
static void a_route_is_plain_text(void)
{
    static const char *const bad[] = {"a\"b", "a\\b", "a\nb", "caf\xc3\xa9"};
    static const char text[] = "one_prompt", spoilt[] = "one_\\nromp";
    struct cache_header h = header(SIZE), back;
    redisReply *reply;
    char *at;

    flush();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(h.route, sizeof(h.route), "%s", bad[i]);
        CHECK_ERR(put("fff", &h, data, false), ERR_INPUT, "a route");
        CHECK(!stored);
    }
    CHECK_INT(n_keys(), 0);
    snprintf(h.route, sizeof(h.route), "%s", text);
    CHECK_OK(put("fff", &h, data, false));
    CHECK_OK(redis_commandf(admin, &reply, &err, "HGET r:fff h"));
    CHECK((at = strstr(reply->str, text)) != NULL);
    memcpy(at, spoilt, strlen(text)); /* its last letter goes, a newline's escape comes */
    set("fff", "h", reply->str, reply->len);
    freeReplyObject(reply);
    CHECK_OK(cache_get_begin(cache, "fff", &back, &first_piece, &found, &damaged, &err));
    CHECK(!found && damaged);
}

/* No tokens, no bytes, no pieces: a result all the same. */
static void an_empty_result(void)
{
    struct cache_header h = header(2000), back;
    const void *parts[] = {data};
    const size_t bytes[] = {0};

    flush();
    h.n_tensors = 1;
    h.tensors[0].shape[1] = 0;
    h.tensors[0].bytes = h.bytes = 0;
    CHECK_OK(cache_put(cache, "eee", &h, parts, bytes, 1, TTL_MS, false, &stored, &err));
    CHECK(stored);
    CHECK_OK(cache_get_begin(cache, "eee", &back, &first_piece, &found, &damaged, &err));
    CHECK(found && !damaged && back.bytes == 0 && first_piece.len == 0);
}

/* Results come and go while they are looked for: each look sees one or none, and takes none for
 * damaged, which would delete it. */
static void results_come_and_go(void)
{
    struct cache_header h = header(2000), back;
    int status, n_found = 0, n_absent = 0;
    pid_t writer;

    flush();
    fflush(stdout);
    if ((writer = fork()) == 0) {
        const void *parts[] = {data};
        const size_t bytes[] = {2000};
        struct cache *mine = NULL;
        struct error why = {0};
        bool was_stored = true;
        int rc = cache_open(&mine, servers[0].url, 5000, &why);

        for (int i = 0; i < 3000 && rc == OK && was_stored; i++)
            if ((rc = cache_put(mine, "ccc", &h, parts, bytes, 1, TTL_MS, false, &was_stored,
                                &why)) == OK)
                rc = cache_delete(mine, "ccc", &why);
        cache_close(mine);
        _exit(rc == OK && was_stored ? 0 : 1);
    }
    while (waitpid(writer, &status, WNOHANG) == 0) {
        err = (struct error){0};
        int rc = cache_get_begin(cache, "ccc", &back, &first_piece, &found, &damaged, &err);
        if (rc != OK || damaged) {
            kill(writer, SIGKILL);
            waitpid(writer, &status, 0);
            CHECK_FAIL("taken for damaged, or %s", err.text);
        }
        n_found += found;
        n_absent += !found;
        if (found)
            CHECK(first_piece.len == 2000 && memcmp(first_piece.data, data, 2000) == 0);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(n_found > 10 && n_absent > 10);
}

/* Of a small header: up to the output, and the tensor. */
#define LEVEL                                                                                      \
    "\"tokenizer\":\"t\",\"gemma_version\":\"\",\"modalities\":\"\",\"extractor\":\"\",\"ltx_"     \
    "version\":\"\",\"route\":\"\",\"output\":"
#define NAMES  "{\"version\":5,\"model\":\"m\",\"weights\":\"w\"," LEVEL
#define TENSOR "{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[1],\"bytes\":1}"

static void hostile_headers(void)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "null",
        "{\"version\":1}",
        /* each with one thing wrong */
        "{\"version\":4,\"model\":\"m\",\"weights\":\"w\"," LEVEL
        "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
        "\"tensors\":[" TENSOR "],\"bytes\":1,"
        "\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":-1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\\n\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[],\"bytes\":0,\"pieces\":[],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],"
              "\"bytes\":9223372036854775807,\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,16],"
              "\"bytes\":1}],\"bytes\":1,\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"bytes\":1}],"
              "\"bytes\":1,\"pieces\":[0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[0,0],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[1],\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[0],\"crc32c\":0,\"crc32c\":0}",
        NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
              "\"tensors\":[" TENSOR "],\"bytes\":1,"
              "\"pieces\":[0],\"crc32c\":0} x",
    };
    static const char good[] = NAMES "\"h\",\"layers\":\"\",\"n_tokens\":1,\"truncated\":false,"
                                     "\"tensors\":[" TENSOR "],\"bytes\":1,"
                                     "\"pieces\":[2839306131],\"crc32c\":2839306131}"; /* of "x" */
    struct cache_header h;
    redisReply *reply;

    flush();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        set("hhh", "h", bad[i], strlen(bad[i]));
        CHECK_OK(cache_get_begin(cache, "hhh", &h, &first_piece, &found, &damaged, &err));
        if (found || !damaged)
            CHECK_FAIL("taken for a header: %s", bad[i]);
        CHECK_INT(n_keys(), 0);
    }
    set("hhh", "h", good, strlen(good));
    set("hhh", "0", "x", 1);
    CHECK_OK(cache_get_begin(cache, "hhh", &h, &first_piece, &found, &damaged, &err));
    CHECK(found && !damaged);
    flush();
    set("hhh", "0", "x", 1); /* a result without a header */
    CHECK_OK(cache_get_begin(cache, "hhh", &h, &first_piece, &found, &damaged, &err));
    CHECK(!found && damaged);
    CHECK_OK(redis_commandf(admin, &reply, &err, "SET r:hhh text")); /* no hash at all */
    freeReplyObject(reply);
    CHECK_OK(cache_get_begin(cache, "hhh", &h, &first_piece, &found, &damaged, &err));
    CHECK(!found && damaged);
    CHECK_INT(n_keys(), 0);
}

static void bad_input_is_refused(void)
{
    struct cache_header h = header(SIZE);
    bool exists;

    flush();
    CHECK_ERR(put("a b", &h, data, false), ERR_INPUT, "id");
    CHECK_ERR(cache_exists(cache, "", &exists, &err), ERR_INPUT, "id");
    h.tensors[1].bytes--;
    CHECK_ERR(put("aaa", &h, data, false), ERR_INPUT, "parts");
    h = header(SIZE);
    h.n_tensors = CACHE_MAX_TENSORS + 1;
    CHECK_ERR(put("aaa", &h, data, false), ERR_INPUT, "parts");
    CHECK_INT(n_keys(), 0);
}

static void several_servers_share(void)
{
    char urls[3 * sizeof(servers[0].url)], ids[60][16];
    const char *list[60];
    int there = 0, counts[3] = {0};
    bool exist[60];
    struct cache *all, *less, *none;

    flush();
    snprintf(urls, sizeof(urls), "%s,%s,%s", servers[0].url, servers[1].url, servers[2].url);
    CHECK_OK(cache_open(&all, urls, 5000, &err));
    snprintf(urls, sizeof(urls), "%s,%s", servers[2].url, servers[0].url);
    CHECK_OK(cache_open(&less, urls, 5000, &err));
    for (int i = 0; i < 60; i++) {
        struct cache_header h = header(2000);
        const void *parts[] = {data + i};
        const size_t bytes[] = {2000};

        snprintf(ids[i], sizeof(ids[i]), "k%d", i);
        list[i] = ids[i];
        CHECK_OK(cache_put(all, ids[i], &h, parts, bytes, 1, TTL_MS, false, &stored, &err));
        CHECK(stored);
    }
    list[7] = "other";
    CHECK_OK(cache_exist_all(all, list, 60, exist, &err));
    for (int i = 0; i < 60; i++)
        CHECK_INT(exist[i], i != 7);
    for (int s = 0; s < 3; s++) {
        struct redis *r;
        redisReply *reply;

        CHECK_OK(redis_open(&r, servers[s].url, 5000, &err));
        CHECK_OK(redis_commandf(r, &reply, &err, "DBSIZE"));
        counts[s] = (int)reply->integer;
        freeReplyObject(reply);
        redis_close(r);
        CHECK(counts[s] >= 8); /* 20 each, give or take */
    }
    CHECK_INT(counts[0] + counts[1] + counts[2], 60);
    /* without the second server, in another order: only its own share is gone */
    CHECK_OK(cache_exist_all(less, list, 60, exist, &err));
    for (int i = 0; i < 60; i++)
        there += exist[i];
    CHECK(there == 60 - counts[1] || there == 60 - counts[1] - 1);
    CHECK_ERR(cache_open(&none, "unix:/a,,unix:/b", 5000, &err), ERR_INPUT, "redis address");
    cache_close(all);
    cache_close(less);
}

static void config(const char *name, const char *value)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(admin, &reply, &err, "CONFIG SET %s %s", name, value));
    freeReplyObject(reply);
}

static void a_full_server(void)
{
    struct cache_header h = header(SIZE);

    flush();
    config("maxmemory", "3mb"); /* and nothing may be evicted */
    struct error full = {0};
    int rc = put("fff", &h, data, false);
    full = err;
    config("maxmemory", "0");
    CHECK_INT(rc, ERR_MEM);
    CHECK(strstr(full.text, "OOM") != NULL);
    CHECK_INT(n_keys(), 0); /* the half that was written is gone */
    CHECK_OK(put("fff", &h, data, false));
    CHECK(stored);
}

/* A server that holds one result at most throws it away while it is written, or keeps it: nobody
 * ever sees a part. */
static void a_server_too_small(void)
{
    const size_t bytes = 6 * CACHE_PIECE;
    struct cache_header h = header(bytes), back;
    const void *parts[6];
    size_t part_bytes[6];
    int n_stored = 0, n_evicted = 0;
    char limit[16];

    for (int i = 0; i < 6; i++) {
        parts[i] = data;
        part_bytes[i] = CACHE_PIECE;
    }
    flush();
    config("maxmemory-policy", "allkeys-lfu");
    for (int mb = 4; mb < 24; mb += 2) {
        int rc;

        snprintf(limit, sizeof(limit), "%dmb", mb);
        config("maxmemory", limit);
        err = (struct error){0};
        rc = cache_put(cache, "sss", &h, parts, part_bytes, 6, TTL_MS, true, &stored, &err);
        n_evicted += rc == ERR_MEM && strstr(err.text, "evicted while it was written") != NULL;
        n_stored += rc == OK;
        config("maxmemory", "0");
        CHECK_OK(cache_get_begin(cache, "sss", &back, &first_piece, &found, &damaged, &err));
        for (size_t i = 0; found && i < 6; i++) {
            CHECK_OK(cache_get_piece(cache, "sss", &back, i, &piece, &found, &damaged, &err));
            CHECK(found && !damaged);
        }
        flush();
    }
    config("maxmemory-policy", "noeviction");
    CHECK(n_evicted > 0);
    CHECK(n_stored > 0);
}

/* A writer that dies half-way leaves something that expires. */
static void unfinished_results_expire(void)
{
    struct cache_header h = header(SIZE);
    const char *argv[] = {"KEYS", "r:ttt:*"};
    redisReply *reply;
    pid_t writer;

    flush();
    fflush(stdout);
    kill(servers[0].pid, SIGSTOP); /* it takes in what its buffers hold, and answers nothing */
    if ((writer = fork()) == 0) {
        struct cache *mine;

        if (cache_open(&mine, servers[0].url, 60000, NULL) == OK) {
            const void *parts[] = {data};
            const size_t bytes[] = {SIZE};

            cache_put(mine, "ttt", &h, parts, bytes, 1, TTL_MS, true, &stored, NULL);
        }
        _exit(0);
    }
    clock_pause_ms(300);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    kill(servers[0].pid, SIGCONT);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(redis_command(admin, &reply, 2, argv, NULL, &err));
        if (reply->elements > 0)
            break;
        freeReplyObject(reply);
        reply = NULL;
        clock_pause_ms(10);
    }
    CHECK(reply != NULL);
    CHECK_INT(reply->elements, 1);
    long long ttl = ask("PTTL", reply->element[0]->str);
    freeReplyObject(reply);
    CHECK(ttl > 0 && ttl <= 60000);
    CHECK_INT(ask("EXISTS", "r:ttt"), 0);
}

int main(void)
{
    redis_server_need();
    for (int i = 0; i < 3; i++) {
        char name[32];

        snprintf(name, sizeof(name), "test_cache_%d", i);
        if (!redis_server_start(&servers[i], name, "--appendonly no")) {
            printf("redis-server does not start; see %s/redis.log\n", servers[i].dir);
            return EXIT_FAILURE;
        }
    }
    data = malloc(SIZE + 100);
    if (data == NULL || redis_open(&admin, servers[0].url, 5000, &err) != OK ||
        cache_open(&cache, servers[0].url, 5000, &err) != OK) {
        printf("%s\n", err.text);
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < SIZE + 100; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    RUN(a_result_comes_back_as_it_was);
    RUN(lives_differ);
    RUN(the_first_writer_wins);
    RUN(writers_race);
    RUN(damage_is_found_and_removed);
    RUN(damage_in_the_first_piece);
    RUN(a_route_is_plain_text);
    RUN(an_empty_result);
    RUN(results_come_and_go);
    RUN(hostile_headers);
    RUN(bad_input_is_refused);
    RUN(several_servers_share);
    RUN(a_full_server);
    RUN(a_server_too_small);
    RUN(unfinished_results_expire);
    buf_free(&piece);
    buf_free(&first_piece);
    free(data);
    cache_close(cache);
    redis_close(admin);
    for (int i = 0; i < 3; i++)
        redis_server_stop(&servers[i]);
    return check_result();
}
