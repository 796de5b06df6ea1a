/* test_models.c - what the service knows of models and of their queues, from Q alone. */
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "base/file.h"
#include "service/models.h"
#include "tests/check.h"
#include "tests/jobs/redis_server.h"

static struct error err;
static struct redis_server server;
static struct redis *q;
static struct buf compact = {.max = 64 << 20}; /* a tokenizer's compact form */

static struct model_card card(const char *id, char weights)
{
    struct model_card c = {
        .n_states = 3, .width = 8, .max_tokens = 16, .vocabulary = 8, .has_hidden_states = true};
    unsigned char digest[32];

    snprintf(c.id, sizeof(c.id), "%s", id);
    memset(c.weights, weights, sizeof(c.weights) - 1);
    gnutls_hash_fast(GNUTLS_DIG_SHA256, compact.data, compact.len, digest);
    for (size_t i = 0; i < sizeof(digest); i++)
        snprintf(c.tokenizer + 2 * i, 3, "%02x", digest[i]);
    snprintf(c.compute, sizeof(c.compute), "float32");
    snprintf(c.architecture, sizeof(c.architecture), "gemma3");
    snprintf(c.engine_version, sizeof(c.engine_version), "0.1.0");
    return c;
}

static void put(const char *id, char weights)
{
    struct model_card c = card(id, weights);

    CHECK_OK(card_register(q, &c, compact.data, compact.len, &err));
}

static struct models *start(void)
{
    const struct models_options options = {
        .queue_url = server.url, .timeout_ms = 2000, .refresh_ms = 20, .measure_ms = 40};
    struct models *m;

    CHECK_OK(models_start(&m, &options, &err));
    return m;
}

static void submit(const char *id, char weights, const char *job, int n_tokens)
{
    const struct queue_limits limits = {100, 100};
    struct job one = {.n_tokens = n_tokens, .payload = "{}", .payload_len = 2};
    enum submit_outcome outcome;
    struct model_card c = card(id, weights);
    char base[QUEUE_BASE_SIZE];
    struct submitted result;
    struct queue *queue;

    snprintf(one.id, sizeof(one.id), "%s", job);
    queue_base(base, c.id, c.weights, c.compute);
    CHECK_OK(queue_open(&queue, server.url, base, 2000, &err));
    CHECK_OK(
        queue_submit(queue, "t", 1, 0, &one, 1, false, &limits, &outcome, &result, NULL, &err));
    CHECK_INT(outcome, SUBMIT_QUEUED);
    queue_close(queue);
}

/* Waits for `n` models with that many tokens in their queues. */
static bool sees(struct models *m, size_t n, int64_t tokens)
{
    struct model_depth depths[CARD_MAX];

    for (int i = 0; i < 200; i++) {
        size_t n_seen = models_depths(m, depths);
        int64_t sum = 0;
        for (size_t k = 0; k < n_seen; k++)
            sum += depths[k].depth.waiting_tokens;
        if (n_seen == n && sum == tokens)
            return true;
        clock_pause_ms(20);
    }
    return false;
}

/* There is no engine at all here: scaling from zero rests on these figures. */
static void queues_are_measured_without_engines(void)
{
    struct model_depth depths[CARD_MAX];
    struct models *m;

    put("one", 'a');
    submit("one", 'a', "first", 7);
    m = start();
    CHECK_INT(models_depths(m, depths), 1); /* there when it has started */
    CHECK_TEXT(depths[0].id, "one");
    CHECK_INT(depths[0].weights[0], 'a');
    CHECK_INT(depths[0].depth.waiting, 1);
    CHECK_INT(depths[0].depth.waiting_tokens, 7);
    CHECK_INT(depths[0].depth.engines, 0);
    submit("one", 'a', "second", 5);
    CHECK(sees(m, 1, 12));
    put("one", 'b'); /* another queue */
    submit("one", 'b', "third", 100);
    CHECK(sees(m, 2, 112));
    models_stop(m);
}

static void figures_stay_while_q_is_away(void)
{
    struct models *m = start();

    CHECK(sees(m, 2, 112));
    redis_close(q);
    redis_server_kill(&server);
    clock_pause_ms(200);
    CHECK(sees(m, 2, 112));
    CHECK(redis_server_restart(&server));
    CHECK_OK(redis_open(&q, server.url, 2000, &err));
    submit("one", 'a', "fourth", 1);
    CHECK(sees(m, 2, 113));
    models_stop(m);
}

/* Lines of `path` that hold `words`. */
static int count_lines(const char *path, const char *words)
{
    struct buf text = {.max = 16 << 20};
    int n = 0;

    CHECK_OK(file_read(&text, path, &err));
    for (const char *p = text.len > 0 ? text.data : ""; (p = strstr(p, words)) != NULL; p++)
        n++;
    buf_free(&text);
    return n;
}

static void set_card(const char *field, const char *value)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(
        q, &reply, &err, value != NULL ? "HSET pe:cards %s %s" : "HDEL pe:cards %s", field, value));
    freeReplyObject(reply);
}

/* The cards are read every second, tokenizers have megabytes, and a log is read by somebody. */
static void a_trouble_is_said_once_until_it_changes(void)
{
    static const char log[] = PE_SCRATCH_DIR "/test_models.log", junk[] = "no tokenizer";
    struct model_card bad = card("bad", 'c');
    unsigned char digest[32];
    struct models *m;
    int stderr_fd;

    gnutls_hash_fast(GNUTLS_DIG_SHA256, junk, strlen(junk), digest);
    for (size_t i = 0; i < sizeof(digest); i++)
        snprintf(bad.tokenizer + 2 * i, 3, "%02x", digest[i]);
    CHECK_OK(card_register(q, &bad, junk, strlen(junk), &err));
    set_card("what:is:this", "{}");
    unlink(log);
    CHECK((stderr_fd = dup(STDERR_FILENO)) >= 0 && freopen(log, "a", stderr) != NULL);
    m = start();
    clock_pause_ms(300); /* many readings */
    CHECK_INT(count_lines(log, "model_unusable"), 1);
    CHECK_INT(count_lines(log, "cards_left_out"), 1);
    CHECK_INT(count_lines(log, "card what:is:this"), 1);
    CHECK_OK(card_register(q, &bad, NULL, 0, &err)); /* it may be better now */
    set_card("another", "{}");
    clock_pause_ms(300);
    CHECK_INT(count_lines(log, "model_unusable"), 2);
    CHECK_INT(count_lines(log, "cards_left_out"), 2);
    models_stop(m);
    CHECK(dup2(stderr_fd, STDERR_FILENO) >= 0 && close(stderr_fd) == 0);
    set_card("another", NULL);
    set_card("what:is:this", NULL);
}

int main(void)
{
    struct tokenizer *tokenizer;

    redis_server_need();
    CHECK(redis_server_start(&server, "test_models", QUEUE_SETTINGS));
    CHECK_OK(redis_open(&q, server.url, 2000, &err));
    CHECK_OK(tokenizer_load(&tokenizer, PE_TESTS_DIR "/golden/gemma3-tiny/tokenizer.json", &err));
    CHECK_OK(tokenizer_save(tokenizer, &compact, &err));
    tokenizer_free(tokenizer);
    RUN(queues_are_measured_without_engines);
    RUN(figures_stay_while_q_is_away);
    RUN(a_trouble_is_said_once_until_it_changes);
    redis_close(q);
    redis_server_stop(&server);
    buf_free(&compact);
    return check_result();
}
