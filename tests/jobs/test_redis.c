/* test_redis.c - addresses, refusals, time limits, reconnection, policies and settings. */
#include "base/clock.h"
#include "tests/check.h"

#include "jobs/cache.h"
#include "jobs/queue.h"
#include "jobs/redis_settings.h"
#include "tests/jobs/redis_server.h"

static struct error err;
static struct redis_server server;

static void address_is(const char *url, const char *want)
{
    struct redis *r;

    CHECK_OK(redis_open(&r, url, 1000, &err));
    CHECK_TEXT(redis_address(r), want);
    redis_close(r);
}

static void addresses(void)
{
    address_is("redis://localhost", "localhost:6379");
    address_is("redis://localhost/", "localhost:6379");
    address_is("redis://10.0.0.1:7000/3", "10.0.0.1:7000/3");
    address_is("redis://:secret@h", "h:6379");
    address_is("redis://me:s%40cr%2Fet@h:1/0", "h:1");
    address_is("redis://me@h", "h:6379");
    address_is("redis://me:a:b@c@h", "h:6379");
    address_is("redis://[::1]:6380/2", "[::1]:6380/2");
    address_is("redis://[::1]", "[::1]:6379");
    address_is("unix:/run/redis.sock", "unix:/run/redis.sock");
    address_is("unix:/run/a?db=4&user=u&password=secret", "unix:/run/a?db=4");
}

static void bad_addresses_do_not_show_passwords(void)
{
    static const char *const bad[] = {
        "",
        "secret",
        "http://secret@h",
        "redis:/secret",
        "redis://",
        "redis://:secret@",
        "redis://me:secret@:6379",
        "redis://me:secret@h:0",
        "redis://me:secret@h:65536",
        "redis://me:secret@h:12x",
        "redis://me:secret@h:",
        "redis://me:secret@h/x",
        "redis://me:secret@h/1/2",
        "redis://me:secret@h/-1",
        "redis://me:secret@h/999999",
        "redis://me:secret%@h",
        "redis://me:secret%4@h",
        "redis://me:secret%zz@h",
        "redis://me:secret%00@h",
        "redis://:secret",
        "redis://me:secret@[::1",
        "redis://me:secret@[::1]x",
        "redis://me:secret@h?x=secret",
        "redis://me:sec ret@h",
        "redis://me:secret@h\n",
        "rediss://me:secret@h",
        "unix:",
        "unix:secret",
        "unix:/a?secret",
        "unix:/a?db=x&password=secret",
        "unix:/a?password=secret%",
        "unix:/a?password=secret&",
    };
    struct redis *r;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_ERR(redis_open(&r, bad[i], 1000, &err), ERR_INPUT, "redis address");
        CHECK(r == NULL);
        if (strstr(err.text, "secret") != NULL)
            CHECK_FAIL("%s: shows the secret: %s", bad[i], err.text);
    }
    CHECK_ERR(redis_open(&r, "rediss://h", 1000, &err), ERR_INPUT, "TLS");
}

static void words_are_binary_safe(void)
{
    const char big_size = 'x';
    const char *argv[] = {"SET", "k\r\n$", NULL}, *get[] = {"GET", "k\r\n$"};
    size_t len[] = {3, 4, 0};
    static char data[3000000];
    struct redis *r;
    redisReply *reply;
    static const size_t sizes[] = {0, 1, 16384, 16385, 3000000};

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7 + (size_t)big_size);
    argv[2] = data;
    CHECK_OK(redis_open(&r, server.url, 5000, &err));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        len[2] = sizes[i];
        CHECK_OK(redis_command(r, &reply, 3, argv, len, &err));
        freeReplyObject(reply);
        CHECK_OK(redis_command(r, &reply, 2, get, NULL, &err));
        CHECK(reply->type == REDIS_REPLY_STRING && reply->len == sizes[i] &&
              memcmp(reply->str, data, sizes[i]) == 0);
        freeReplyObject(reply);
    }
    CHECK_OK(redis_commandf(r, &reply, &err, "SET %s %b", "f", data, (size_t)100));
    freeReplyObject(reply);
    CHECK_OK(redis_commandf(r, &reply, &err, "STRLEN f"));
    CHECK_INT(reply->integer, 100);
    freeReplyObject(reply);
    redis_close(r);
}

static void many_commands_in_one_trip(void)
{
    const char *set[] = {"INCR", "n"}, *bad[] = {"LPUSH", "n", "secret"};
    struct redis *r;
    redisReply *reply;

    CHECK_OK(redis_open(&r, server.url, 5000, &err));
    for (int i = 0; i < 20000; i++)
        CHECK_OK(redis_append(r, 2, set, NULL, &err));
    for (int i = 0; i < 20000; i++) {
        CHECK_OK(redis_read(r, &reply, &err));
        CHECK_INT(reply->integer, i + 1);
        freeReplyObject(reply);
    }
    CHECK_ERR(redis_read(r, &reply, &err), ERR_IO, "no reply is due");

    /* after an error the rest is gone, and the connection stays in step */
    CHECK_OK(redis_append(r, 2, set, NULL, &err));
    CHECK_OK(redis_append(r, 3, bad, NULL, &err));
    CHECK_OK(redis_append(r, 2, set, NULL, &err));
    CHECK_OK(redis_read(r, &reply, &err));
    CHECK_INT(reply->integer, 20001);
    freeReplyObject(reply);
    CHECK_ERR(redis_read(r, &reply, &err), ERR_INPUT, "WRONGTYPE");
    CHECK_OK(redis_commandf(r, &reply, &err, "GET n"));
    CHECK_TEXT(reply->str, "20002");
    freeReplyObject(reply);
    redis_close(r);
}

/* The server's reply is made up by a function that returns it. */
static int refusal(struct redis *r, const char *text)
{
    redisReply *reply;
    int rc;

    err = (struct error){0};
    rc = redis_commandf(r, &reply, &err, "EVAL %s 0 %s", "return redis.error_reply(ARGV[1])", text);
    if (reply != NULL)
        freeReplyObject(reply);
    return rc;
}

static void refusals_have_their_codes(void)
{
    struct redis *r;
    redisReply *reply;

    CHECK_OK(redis_open(&r, server.url, 5000, &err));
    CHECK_INT(refusal(r, "LOADING Redis is loading the dataset in memory"), ERR_IO);
    CHECK_INT(refusal(r, "READONLY You can't write against a read only replica."), ERR_IO);
    CHECK_INT(refusal(r, "MASTERDOWN Link with MASTER is down"), ERR_IO);
    CHECK_INT(refusal(r, "OOM command not allowed when used memory > 'maxmemory'."), ERR_MEM);
    CHECK(strstr(err.text, "redis at unix:") != NULL && strstr(err.text, "EVAL: OOM") != NULL);
    CHECK_INT(refusal(r, "NOREPLICAS Not enough good replicas to write."), ERR_BUSY);
    CHECK_INT(refusal(r, "BUSY Redis is busy running a script."), ERR_BUSY);
    CHECK_INT(refusal(r, "MISCONF Redis is configured to save RDB snapshots"), ERR_BUSY);
    CHECK_INT(refusal(r, "NOPERM this user has no permissions"), ERR_INPUT);
    CHECK_INT(refusal(r, "BUSYKEY is another word"), ERR_INPUT);
    CHECK_INT(refusal(r, "ERR what 'secret' is"), ERR_INPUT);
    CHECK(strstr(err.text, "ERR what") != NULL && strstr(err.text, "secret") == NULL);
    CHECK_ERR(redis_commandf(r, &reply, &err, "NONSENSE secret1 secret2"), ERR_INPUT,
              "NONSENSE: ERR unknown command");
    CHECK(strstr(err.text, "secret") == NULL);
    CHECK_TEXT(redis_refusal(r), "ERR unknown command");
    CHECK_OK(redis_commandf(r, &reply, &err, "PING"));
    freeReplyObject(reply);
    redis_close(r);
}

static void passwords_and_databases(void)
{
    char url[4400];
    struct redis *r;
    redisReply *reply;

    CHECK_OK(redis_open(&r, server.url, 5000, &err));
    CHECK_OK(redis_commandf(r, &reply, &err, "ACL SETUSER me on >s&c:ret ~* +@all"));
    freeReplyObject(reply);
    redis_close(r);

    snprintf(url, sizeof(url), "%s?db=3&user=me&password=s%%26c:ret", server.url);
    CHECK_OK(redis_open(&r, url, 5000, &err));
    CHECK_OK(redis_commandf(r, &reply, &err, "ACL WHOAMI"));
    CHECK_TEXT(reply->str, "me");
    freeReplyObject(reply);
    CHECK_OK(redis_commandf(r, &reply, &err, "CLIENT INFO"));
    CHECK(strstr(reply->str, " db=3 ") != NULL);
    freeReplyObject(reply);
    redis_close(r);

    snprintf(url, sizeof(url), "%s?user=me&password=wrong", server.url);
    CHECK_OK(redis_open(&r, url, 5000, &err));
    CHECK_ERR(redis_commandf(r, &reply, &err, "PING"), ERR_INPUT, "WRONGPASS");
    CHECK(strstr(err.text, "pass=") == NULL && strstr(err.text, "wrong") == NULL);
    redis_close(r);
}

static void nobody_there(void)
{
    struct redis *r;
    redisReply *reply;

    CHECK_OK(redis_open(&r, "unix:/nowhere/redis.sock", 500, &err));
    CHECK_ERR(redis_commandf(r, &reply, &err, "PING"), ERR_IO,
              "redis at unix:/nowhere/redis.sock: connecting: No such file");
    redis_close(r);
    CHECK_OK(redis_open(&r, "redis://me:secret@127.0.0.1:1", 500, &err));
    CHECK_ERR(redis_commandf(r, &reply, &err, "PING"), ERR_IO, "127.0.0.1:1: connecting");
    CHECK(strstr(err.text, "secret") == NULL);
    redis_close(r);
}

static void a_stopped_server_is_given_up(void)
{
    struct redis *r, *fresh;
    redisReply *reply;
    int64_t start;

    CHECK_OK(redis_open(&r, server.url, 300, &err));
    CHECK_OK(redis_open(&fresh, server.url, 300, &err));
    CHECK_OK(redis_commandf(r, &reply, &err, "PING"));
    freeReplyObject(reply);
    kill(server.pid, SIGSTOP);
    start = clock_now_ns();
    err = (struct error){0};
    int rc = redis_commandf(r, &reply, &err, "GET secret");
    double ms = clock_ms_since(start);
    int fresh_rc = redis_commandf(fresh, &reply, NULL, "PING"); /* it connects, nobody answers */
    kill(server.pid, SIGCONT);
    CHECK_INT(rc, ERR_IO);
    CHECK(strstr(err.text, "no answer in 300 ms") != NULL && strstr(err.text, "secret") == NULL);
    CHECK(ms > 250 && ms < 5000);
    CHECK_INT(fresh_rc, ERR_IO);
    /* a longer limit holds for the next command alone */
    CHECK_OK(redis_commandf(r, &reply, &err, "DEL none"));
    freeReplyObject(reply);
    redis_next_timeout(r, 3000);
    CHECK_OK(redis_commandf(r, &reply, &err, "BLPOP none 0.6"));
    CHECK_INT(reply->type, REDIS_REPLY_NIL);
    freeReplyObject(reply);
    CHECK_ERR(redis_commandf(r, &reply, &err, "BLPOP none 2"), ERR_IO, "no answer in 300 ms");
    redis_close(r);
    redis_close(fresh);
}

static void it_connects_again_by_itself(void)
{
    struct redis_totals before = redis_totals(REDIS_CACHE), other;
    struct redis *r;
    redisReply *reply;

    CHECK_OK(redis_open(&r, server.url, 2000, &err));
    redis_set_role(r, REDIS_CACHE); /* who waits for the server counts as the queue's */
    CHECK_OK(redis_commandf(r, &reply, &err, "SET kept 1"));
    freeReplyObject(reply);
    redis_server_kill(&server);
    CHECK_ERR(redis_commandf(r, &reply, &err, "PING"), ERR_IO, "redis at unix:");
    CHECK_ERR(redis_commandf(r, &reply, &err, "PING"), ERR_IO, "connecting");
    CHECK(redis_server_restart(&server));
    CHECK_OK(redis_commandf(r, &reply, &err, "GET kept")); /* written to the file before */
    CHECK_TEXT(reply->str, "1");
    freeReplyObject(reply);
    /* a restart that an idle connection slept through costs no error at all */
    redis_server_kill(&server);
    CHECK(redis_server_restart(&server));
    CHECK_OK(redis_commandf(r, &reply, &err, "GET kept"));
    freeReplyObject(reply);
    /* a refusal that is the caller's own is none of the server's errors */
    CHECK_ERR(redis_commandf(r, &reply, &err, "NONSENSE"), ERR_INPUT, "NONSENSE");
    CHECK_INT(redis_totals(REDIS_CACHE).errors, before.errors + 2);
    CHECK_INT(redis_totals(REDIS_CACHE).reconnects, before.reconnects + 2);
    redis_set_role(r, REDIS_QUEUE);
    other = redis_totals(REDIS_QUEUE);
    CHECK_OK(redis_commandf(r, &reply, &err, "CONFIG SET maxmemory 1"));
    freeReplyObject(reply);
    CHECK_ERR(redis_commandf(r, &reply, &err, "SET more 1"), ERR_MEM, "OOM");
    CHECK_OK(redis_commandf(r, &reply, &err, "CONFIG SET maxmemory 0"));
    freeReplyObject(reply);
    CHECK_INT(redis_totals(REDIS_QUEUE).errors, other.errors + 1);
    CHECK_INT(redis_totals(REDIS_QUEUE).reconnects, other.reconnects);
    CHECK_INT(redis_totals(REDIS_CACHE).errors, before.errors + 2);
    redis_close(r);
}

static void policy(const char *settings, bool shared, enum err_code queue_code,
                   const char *queue_words, enum err_code cache_code, const char *cache_words)
{
    static struct redis_server s;
    char warning[512];

    CHECK(redis_server_start(&s, "test_redis_policy", settings));
    err = (struct error){0};
    int rc = queue_check_policy(s.url, false, shared, warning, sizeof(warning), &err);
    if (rc != (int)queue_code || strstr(rc == OK ? warning : err.text, queue_words) == NULL) {
        redis_server_stop(&s);
        CHECK_FAIL("queue with %s: %d, %s%s", settings, rc, err.text, rc == OK ? warning : "");
    }
    err = (struct error){0};
    rc = cache_check_policy(s.url, false, shared, warning, sizeof(warning), &err);
    redis_server_stop(&s);
    if (rc != (int)cache_code || strstr(rc == OK ? warning : err.text, cache_words) == NULL)
        CHECK_FAIL("cache with %s: %d, %s%s", settings, rc, err.text, rc == OK ? warning : "");
}

static void policies(void)
{
    policy(QUEUE_SETTINGS, false, OK, "", ERR_FORMAT,
           "maxmemory-policy is noeviction, a cache needs one that evicts: CONFIG SET "
           "maxmemory-policy allkeys-lfu");
    policy("--appendonly yes --appendfsync always --maxmemory-policy allkeys-lru", false,
           ERR_FORMAT,
           "redis.sock: maxmemory-policy is allkeys-lru, a queue needs noeviction: CONFIG SET "
           "maxmemory-policy noeviction",
           ERR_FORMAT, "maxmemory is 0, a cache needs a limit: CONFIG SET maxmemory 4gb");
    policy("--maxmemory-policy noeviction", false, ERR_FORMAT,
           "appendonly is no, a queue needs yes: CONFIG SET appendonly yes", ERR_FORMAT,
           "noeviction");
    policy("--appendonly yes --appendfsync everysec", false, ERR_FORMAT,
           "appendfsync is everysec, a queue needs always: CONFIG SET appendfsync always",
           ERR_FORMAT, "noeviction");
    policy("--maxmemory 100mb --maxmemory-policy allkeys-lfu", false, ERR_FORMAT, "noeviction", OK,
           "");
    policy("--maxmemory 100mb --maxmemory-policy volatile-lfu --appendonly yes --appendfsync "
           "always",
           true, OK, "one server for queue and cache", OK, "");
    policy(QUEUE_SETTINGS " --maxmemory 100mb", true, ERR_FORMAT,
           "maxmemory-policy is noeviction, a queue needs volatile-lfu", ERR_FORMAT,
           "a cache beside a queue needs volatile-lfu");
}

/* As managed servers have it. */
static void policies_without_config(void)
{
    static struct redis_server s;
    char warning[512], cache_warning[512];

    CHECK(redis_server_start(&s, "test_redis_policy",
                             QUEUE_SETTINGS " --rename-command CONFIG NOCONFIG"));
    struct error strict = {0}, assumed = {0};
    int strict_rc = queue_check_policy(s.url, false, false, warning, sizeof(warning), &strict);
    int assumed_rc = queue_check_policy(s.url, true, false, warning, sizeof(warning), &assumed);
    err = (struct error){0};
    int cache_rc =
        cache_check_policy(s.url, true, false, cache_warning, sizeof(cache_warning), &err);
    redis_server_stop(&s);
    CHECK_INT(strict_rc, ERR_FORMAT);
    CHECK(strstr(strict.text, "appendfsync cannot be read") != NULL &&
          strstr(strict.text, "--redis-durability=assumed") != NULL);
    CHECK_INT(assumed_rc, OK);
    CHECK(strstr(warning, "appendfsync cannot be read, always is assumed") != NULL);
    CHECK_INT(cache_rc, ERR_FORMAT); /* INFO says noeviction: what can be read must hold */

    CHECK(redis_server_start(&s, "test_redis_policy",
                             "--rename-command CONFIG NOCONFIG --rename-command INFO NOINFO"));
    strict = assumed = (struct error){0};
    strict_rc = queue_check_policy(s.url, false, false, warning, sizeof(warning), &strict);
    assumed_rc = queue_check_policy(s.url, true, false, warning, sizeof(warning), &assumed);
    cache_rc = cache_check_policy(s.url, true, false, cache_warning, sizeof(cache_warning), &err);
    redis_server_stop(&s);
    CHECK_INT(strict_rc, ERR_FORMAT);
    CHECK_INT(assumed_rc, OK);
    CHECK_INT(cache_rc, OK);
    CHECK(strstr(cache_warning, "cannot be read") != NULL);

    CHECK(redis_server_start(&s, "test_redis_policy", "--rename-command CONFIG NOCONFIG"));
    assumed = (struct error){0};
    assumed_rc = queue_check_policy(s.url, true, false, warning, sizeof(warning), &assumed);
    redis_server_stop(&s);
    CHECK_INT(assumed_rc, ERR_FORMAT); /* INFO tells of no append-only file */
    CHECK(strstr(assumed.text, "appendonly is no") != NULL);
}

static void policy_of_nobody(void)
{
    char warning[64];

    CHECK_ERR(queue_check_policy("unix:/nowhere/s", true, false, warning, sizeof(warning), &err),
              ERR_IO, "connecting");
    CHECK_ERR(cache_check_policy("unix:/nowhere/s", true, false, NULL, 0, &err), ERR_IO,
              "connecting");
    CHECK_ERR(cache_check_policy("unix:/a,nonsense", true, false, NULL, 0, &err), ERR_IO, "");
}

/* ---- the settings that programs share ---- */

struct some_program {
    bool first;
    struct redis_settings redis;
};

static const struct option options[] = {
    {"first", 0, NULL, OPT_BOOL, offsetof(struct some_program, first), "0", 0, 0, "", "a row"},
    REDIS_OPTIONS(offsetof(struct some_program, redis)),
    {0},
};

static int parse(struct some_program *out, int argc, const char **argv)
{
    static const struct program program = {"some-program", "", "", options};
    char *words[8];
    bool help;
    int n_rest;

    for (int i = 0; i < argc; i++)
        words[i] = (char *)(uintptr_t)argv[i];
    words[argc] = NULL;
    *out = (struct some_program){0};
    err = (struct error){0};
    return options_parse(&program, out, argc, words, &n_rest, &help, &err);
}

static void settings_are_rows_of_a_table(void)
{
    const char *none[] = {"p"};
    const char *all[] = {"p", "--redis-queue=unix:/q", "--redis-cache=unix:/c,unix:/d",
                         "--redis-durability=assumed", "--redis-timeout-ms=77"};
    const char *bad[] = {"p", "--redis-timeout-ms=9"}, *unknown[] = {"p", "--redis-durability=x"};
    struct some_program s;

    CHECK_OK(parse(&s, 1, none));
    CHECK_TEXT(s.redis.queue, "redis://127.0.0.1:6379");
    CHECK_TEXT(s.redis.cache, "redis://127.0.0.1:6380");
    CHECK(!redis_settings_durability_is_assumed(&s.redis) && s.redis.timeout_ms == 2000);
    CHECK_OK(parse(&s, 5, all));
    CHECK_TEXT(s.redis.queue, "unix:/q");
    CHECK_TEXT(s.redis.cache, "unix:/c,unix:/d");
    CHECK(redis_settings_durability_is_assumed(&s.redis) && s.redis.timeout_ms == 77);
    CHECK(!s.first);
    CHECK_ERR(parse(&s, 2, bad), ERR_INPUT, "redis-timeout-ms");
    CHECK_ERR(parse(&s, 2, unknown), ERR_INPUT, "redis-durability");
    CHECK(setenv("PE_REDIS_QUEUE", "unix:/env", 1) == 0);
    CHECK_OK(parse(&s, 1, none));
    CHECK_TEXT(s.redis.queue, "unix:/env");
    unsetenv("PE_REDIS_QUEUE");
}

static int check_both(const char *queue, const char *cache, bool assumed)
{
    struct redis_settings s = {
        .queue = queue, .cache = cache, .durability = assumed, .timeout_ms = 2000};

    err = (struct error){0};
    return redis_settings_check(&s, &err);
}

static void both_servers_are_checked(void)
{
    static struct redis_server c;

    CHECK(redis_server_start(&c, "test_redis_cache",
                             "--maxmemory 100mb --maxmemory-policy allkeys-lfu"));
    int good = check_both(server.url, c.url, false);
    int swapped = check_both(c.url, server.url, false);
    struct error queue_err = err;
    int no_cache = check_both(server.url, server.url, false);
    struct error shared_err = err;
    redis_server_stop(&c);
    int gone = check_both(server.url, c.url, false);
    struct error gone_err = err;
    CHECK_INT(good, OK);
    CHECK_INT(swapped, ERR_FORMAT);
    CHECK(strstr(queue_err.text, "a queue needs noeviction") != NULL);
    CHECK_INT(no_cache, ERR_FORMAT); /* one for both */
    CHECK(strstr(shared_err.text, "volatile-lfu") != NULL);
    CHECK_INT(gone, ERR_IO);
    CHECK(strstr(gone_err.text, "test_redis_cache") != NULL);

    CHECK(redis_server_start(&c, "test_redis_cache",
                             "--rename-command CONFIG NOCONFIG --rename-command INFO NOINFO"));
    int strict = check_both(c.url, c.url, false);
    int assumed = check_both(c.url, c.url, true);
    redis_server_stop(&c);
    CHECK_INT(strict, ERR_FORMAT);
    CHECK_INT(assumed, OK); /* with two warnings in the log */
}

int main(void)
{
    redis_server_need();
    if (!redis_server_start(&server, "test_redis", QUEUE_SETTINGS)) {
        printf("redis-server does not start; see %s/redis.log\n", server.dir);
        return EXIT_FAILURE;
    }
    RUN(addresses);
    RUN(bad_addresses_do_not_show_passwords);
    RUN(words_are_binary_safe);
    RUN(many_commands_in_one_trip);
    RUN(refusals_have_their_codes);
    RUN(passwords_and_databases);
    RUN(nobody_there);
    RUN(a_stopped_server_is_given_up);
    RUN(it_connects_again_by_itself);
    RUN(policies);
    RUN(policies_without_config);
    RUN(policy_of_nobody);
    RUN(settings_are_rows_of_a_table);
    RUN(both_servers_are_checked);
    redis_server_stop(&server);
    return check_result();
}
