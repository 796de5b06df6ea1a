/* test_router.c - the rule, the table that may know better, and files that are not believed. */
#include "engine/group/router.h"

#include <math.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "tests/check.h"

static struct error err;
static const char path[] = PE_SCRATCH_DIR "/routing_table";

static struct router_options options_of(enum routing routing, int n_ranks)
{
    return (struct router_options){.routing = routing,
                                   .n_ranks = n_ranks,
                                   .max_tokens = 1024,
                                   .max_batch_tokens = 4096,
                                   .weights = "0123abcd",
                                   .backend = "cuda bfloat16",
                                   .devices = "NVIDIA H200, NVIDIA H200",
                                   .version = "1.2.3"};
}

static struct router *create(enum routing routing, int n_ranks)
{
    struct router_options options = options_of(routing, n_ranks);
    struct router *r;

    CHECK_OK(router_create(&r, &options, &err));
    return r;
}

/* ---- devices that take known times ---- */

struct card {
    int n_ranks;
    double sharded_ms;        /* what sharing a batch costs */
    double base_ms, token_ms; /* of a pass */
    int n_runs, fail_at;      /* the run that fails, from 1; 0: none */
    int longest, most_tokens; /* of the runs so far */
    int runs[N_STRATEGIES][64];
};

static double time_on(const struct card *c, enum strategy strategy, int n_prompts, double n_tokens)
{
    int rounds = (n_prompts + c->n_ranks - 1) / c->n_ranks;

    if (strategy == STRATEGY_SHARDED)
        return c->sharded_ms + (c->base_ms + c->token_ms * n_prompts * n_tokens) / c->n_ranks;
    return c->base_ms + c->token_ms * rounds * n_tokens;
}

static int run(void *arg, enum strategy strategy, int n_prompts, int n_tokens, double *ms,
               struct error *e)
{
    struct card *c = arg;

    if (++c->n_runs == c->fail_at)
        return error_set(e, ERR_GPU, "card: fell off");
    *ms = time_on(c, strategy, n_prompts, n_tokens);
    if (c->runs[strategy][n_prompts]++ % 4 == 0)
        *ms += 100; /* plans are made */
    c->longest = n_tokens > c->longest ? n_tokens : c->longest;
    c->most_tokens = n_prompts * n_tokens > c->most_tokens ? n_prompts * n_tokens : c->most_tokens;
    return OK;
}

static struct card card_of(int n_ranks)
{
    return (struct card){.n_ranks = n_ranks, .sharded_ms = 4, .base_ms = 12, .token_ms = 0.0625};
}

static struct router *create_measured(enum routing routing, struct card *card)
{
    struct router *r = create(routing, card->n_ranks);

    CHECK_OK(router_measure(r, run, card, 1e9, &err));
    return r;
}

static struct route choose(const struct router *r, int n_prompts, int n_tokens)
{
    int tokens[64];

    for (int i = 0; i < n_prompts; i++)
        tokens[i] = n_tokens;
    return router_choose(r, tokens, n_prompts);
}

static void check_route(const struct router *r, int n_prompts, int n_tokens, enum strategy strategy,
                        const char *reason)
{
    struct route route = choose(r, n_prompts, n_tokens);

    CHECK_TEXT(strategy_name(route.strategy), strategy_name(strategy));
    CHECK_TEXT(route.reason, reason);
}

static void check_near(double got, double want)
{
    if (!(fabs(got - want) <= 0.001)) /* a table holds microseconds */
        CHECK_FAIL("got %f ms, want %f", got, want);
}

/* ---- the rule ---- */

static void the_rule_needs_no_table(void)
{
    for (int n_ranks = 2; n_ranks <= GROUP_MAX_RANKS; n_ranks++) {
        struct router *r = create(ROUTING_AUTO, n_ranks);

        check_route(r, 1, 61, STRATEGY_SHARDED, "one_prompt");
        check_route(r, 2, 61, STRATEGY_REPLICATED, "two_prompts");
        for (int n = 3; n <= 64; n++)
            check_route(r, n, 61, STRATEGY_REPLICATED,
                        n < n_ranks ? "not_measured" : "a_prompt_a_rank");
        CHECK(choose(r, 1, 61).predicted_ms == 0.0);
        router_free(r);
    }
}

static void one_rank_has_no_choice(void)
{
    struct card card = card_of(1);
    struct router *r = create_measured(ROUTING_AUTO, &card);

    check_route(r, 1, 61, STRATEGY_REPLICATED, "one_rank");
    check_route(r, 5, 61, STRATEGY_REPLICATED, "one_rank");
    router_free(r);
    r = create_measured(ROUTING_MEASURED, &card);
    check_route(r, 1, 61, STRATEGY_REPLICATED, "one_rank");
    CHECK_INT(card.n_runs, 0);
    CHECK(router_load(r, PE_SCRATCH_DIR "/no such table"));
    router_free(r);
}

static void what_is_forced_is_done(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_SHARDED, &card);

    for (int n = 1; n <= 32; n++)
        check_route(r, n, 61, STRATEGY_SHARDED, "forced");
    router_free(r);
    r = create_measured(ROUTING_REPLICATED, &card);
    for (int n = 1; n <= 32; n++)
        check_route(r, n, 61, STRATEGY_REPLICATED, "forced");
    router_free(r);
    r = create(ROUTING_SHARDED, 1);
    check_route(r, 1, 61, STRATEGY_SHARDED, "forced");
    router_free(r);
    CHECK_INT(card.n_runs, 0);
}

/* ---- the table ---- */

static void the_table_decides_between_two_prompts_and_a_prompt_a_rank(void)
{
    struct card card = card_of(8), slow = card_of(8);
    struct router *r;

    slow.sharded_ms = 400; /* sharing never pays */
    r = create_measured(ROUTING_AUTO, &slow);
    check_route(r, 1, 61, STRATEGY_SHARDED, "one_prompt"); /* whatever the table says */
    for (int n = 3; n < 8; n++)
        check_route(r, n, 61, STRATEGY_REPLICATED, "measured");
    router_free(r);

    /* 16 tokens each, 3 prompts: 4 + (12 + 3) / 8 = 5.9 against 13 */
    r = create_measured(ROUTING_AUTO, &card);
    check_route(r, 2, 16, STRATEGY_REPLICATED, "two_prompts");
    for (int n = 3; n < 8; n++)
        check_route(r, n, 16, STRATEGY_SHARDED, "measured");
    check_route(r, 8, 16, STRATEGY_REPLICATED, "a_prompt_a_rank");
    router_free(r);
}

static void measured_lets_the_table_decide_all(void)
{
    struct card card = card_of(4), slow = card_of(4);
    struct router *r = create_measured(ROUTING_MEASURED, &card);

    check_route(r, 2, 16, STRATEGY_SHARDED, "measured");
    check_route(r, 4, 16, STRATEGY_SHARDED, "measured");
    router_free(r);
    slow.sharded_ms = 400;
    r = create_measured(ROUTING_MEASURED, &slow);
    check_route(r, 1, 61, STRATEGY_REPLICATED, "measured");
    check_route(r, 40, 61, STRATEGY_REPLICATED, "measured");
    router_free(r);
    r = create(ROUTING_MEASURED, 4); /* without a table: by the rule */
    check_route(r, 1, 61, STRATEGY_SHARDED, "not_measured");
    check_route(r, 2, 61, STRATEGY_REPLICATED, "not_measured");
    router_free(r);
}

static void equal_times_are_replicated(void)
{
    struct card card = {.n_ranks = 4, .sharded_ms = 9, .base_ms = 12, .token_ms = 0};
    struct router *r = create_measured(ROUTING_MEASURED, &card);

    check_route(r, 1, 61, STRATEGY_REPLICATED, "measured");
    router_free(r);
}

static void times_between_are_on_the_line(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_MEASURED, &card);

    card.sharded_ms = 400;
    struct router *replicating = create_measured(ROUTING_MEASURED, &card);

    card.sharded_ms = 4;
    for (int n = 1; n <= 4; n++)
        for (int tokens = 16; tokens <= 1024; tokens += 16) {
            struct route route = choose(replicating, n, tokens);

            CHECK_INT(route.strategy, STRATEGY_REPLICATED);
            check_near(route.predicted_ms, time_on(&card, STRATEGY_REPLICATED, n, tokens));
            if (choose(r, n, tokens).strategy == STRATEGY_SHARDED)
                check_near(choose(r, n, tokens).predicted_ms,
                           time_on(&card, STRATEGY_SHARDED, n, tokens));
        }
    /* fewer tokens than were measured: as the fewest */
    check_near(choose(r, 1, 1).predicted_ms, time_on(&card, STRATEGY_SHARDED, 1, 16));
    /* 16 prompts were measured up to 256 tokens, as a batch has no more than 4096 */
    CHECK_INT(card.most_tokens, 4096);
    CHECK_INT(card.longest, 1024);
    check_near(choose(replicating, 16, 300).predicted_ms,
               time_on(&card, STRATEGY_REPLICATED, 16, 300));
    /* numbers of prompts between, and above the most */
    check_near(choose(replicating, 6, 64).predicted_ms, 12 + 1.5 * 0.0625 * 64);
    check_near(choose(replicating, 32, 64).predicted_ms, 2 * (12 + 4 * 0.0625 * 64));
    router_free(replicating);
    router_free(r);
}

static void the_longest_prompt_counts_where_each_has_a_rank(void)
{
    struct card card = card_of(4);
    struct router *r;
    int tokens[] = {16, 256, 16, 16};

    card.sharded_ms = 400;
    r = create_measured(ROUTING_MEASURED, &card);
    check_near(router_choose(r, tokens, 4).predicted_ms, 12 + 0.0625 * 256);
    check_near(router_choose(r, tokens, 3).predicted_ms, 12 + 0.0625 * 256);
    router_free(r);
}

static void only_what_is_needed_is_measured(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_AUTO, &card);

    for (int n = 1; n <= 16; n++) {
        bool is_cell = n <= 4 || n == 8 || n == 16;

        CHECK((card.runs[STRATEGY_SHARDED][n] > 0) == (n == 1 || n == 3));
        CHECK((card.runs[STRATEGY_REPLICATED][n] > 0) == (is_cell && n > 1));
    }
    router_free(r);
}

static void measuring_ends_with_the_budget(void)
{
    struct card card = card_of(4);
    struct router *r = create(ROUTING_MEASURED, 4);

    CHECK_OK(router_measure(r, run, &card, 1, &err));
    CHECK_INT(card.runs[STRATEGY_SHARDED][1], 4); /* one batch, either way */
    CHECK_INT(card.runs[STRATEGY_REPLICATED][1], 4);
    CHECK_INT(card.n_runs, 8);
    check_route(r, 1, 16, STRATEGY_SHARDED, "measured");
    check_route(r, 2, 16, STRATEGY_REPLICATED, "not_measured");
    check_route(r, 9, 16, STRATEGY_REPLICATED, "not_measured");
    router_free(r);
}

static void a_failed_run_leaves_no_table(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_AUTO, &card);

    card.fail_at = card.n_runs + 30;
    CHECK_ERR(router_measure(r, run, &card, 1e9, &err), ERR_GPU, "fell off");
    check_route(r, 3, 16, STRATEGY_REPLICATED, "not_measured");
    CHECK(choose(r, 1, 16).predicted_ms == 0.0);
    router_free(r);
}

static void notes_change_the_ratio_alone(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_AUTO, &card);
    struct route route = choose(r, 3, 16), again, unknown = {STRATEGY_SHARDED, "forced", 0.0};

    CHECK_INT(route.strategy, STRATEGY_SHARDED);
    CHECK(router_ratio(r, STRATEGY_SHARDED) == 0.0);
    router_note(r, &unknown, 5);
    CHECK(router_ratio(r, STRATEGY_SHARDED) == 0.0);
    router_note(r, &route, route.predicted_ms * 2);
    check_near(router_ratio(r, STRATEGY_SHARDED), 2);
    router_note(r, &route, route.predicted_ms * 4);
    check_near(router_ratio(r, STRATEGY_SHARDED), 3);
    for (int i = 0; i < 60; i++) /* the newest weigh most */
        router_note(r, &route, route.predicted_ms * 50);
    CHECK(router_ratio(r, STRATEGY_SHARDED) > 49);
    CHECK(router_ratio(r, STRATEGY_REPLICATED) == 0.0);
    again = choose(r, 3, 16);
    CHECK(again.strategy == route.strategy && again.predicted_ms == route.predicted_ms);
    router_free(r);
}

/* ---- the file ---- */

static void write_table(enum routing routing)
{
    struct card card = card_of(4);
    struct router *r = create_measured(routing, &card);

    CHECK_OK(router_save(r, path, &err));
    router_free(r);
}

/* Loads with stderr in a file, and says how many lines were logged; the last is in `line`. */
static bool load(struct router *r, const char *from, int *n_lines, char *line, size_t cap)
{
    FILE *captured = tmpfile();
    int saved = dup(STDERR_FILENO);
    bool loaded;

    CHECK(captured != NULL && saved >= 0 && dup2(fileno(captured), STDERR_FILENO) >= 0);
    loaded = router_load(r, from);
    CHECK(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    rewind(captured);
    for (*n_lines = 0; fgets(line, (int)cap, captured) != NULL;)
        ++*n_lines;
    fclose(captured);
    return loaded;
}

static void check_dropped(struct router *r, const char *why)
{
    char line[1024];
    int n_lines;

    CHECK(!load(r, path, &n_lines, line, sizeof(line)));
    CHECK_INT(n_lines, 1);
    CHECK(strstr(line, "routing_table_dropped") != NULL && strstr(line, path) != NULL);
    if (strstr(line, why) == NULL)
        CHECK_FAIL("\"%s\" does not say %s", line, why);
    check_route(r, 3, 16, STRATEGY_REPLICATED, "not_measured");
}

static void a_table_is_the_same_after_loading(void)
{
    struct card card = card_of(4);
    struct router *r = create_measured(ROUTING_MEASURED, &card), *again;
    char line[1024];
    int n_lines;

    CHECK_OK(router_save(r, path, &err));
    again = create(ROUTING_MEASURED, 4);
    CHECK(load(again, path, &n_lines, line, sizeof(line)));
    CHECK_INT(n_lines, 0);
    for (int n = 1; n <= 40; n++)
        for (int tokens = 1; tokens <= 1024; tokens += 50) {
            struct route a = choose(r, n, tokens), b = choose(again, n, tokens);

            CHECK(a.strategy == b.strategy && a.reason == b.reason);
            CHECK(a.predicted_ms == b.predicted_ms && a.predicted_ms > 0.0);
        }
    router_free(again);
    router_free(r);
}

static void a_missing_table_is_nothing_to_log(void)
{
    struct router *r = create(ROUTING_AUTO, 4);
    char line[1024];
    int n_lines;

    CHECK(!load(r, PE_SCRATCH_DIR "/no such table", &n_lines, line, sizeof(line)));
    CHECK_INT(n_lines, 0);
    router_free(r);
}

static void a_table_of_something_else_is_dropped(void)
{
    const struct router_options good = options_of(ROUTING_AUTO, 4);

    write_table(ROUTING_AUTO);
    for (int i = 0; i < 8; i++) {
        struct router_options other = good;
        struct router *r;

        if (i == 0)
            other.weights = "0123abce";
        else if (i == 1)
            other.backend = "cuda float8";
        else if (i == 2)
            other.devices = "NVIDIA H200, NVIDIA H100";
        else if (i == 3)
            other.version = "1.2.4";
        else if (i == 4)
            other.n_ranks = 5;
        else if (i == 5)
            other.routing = ROUTING_MEASURED;
        else if (i == 6)
            other.max_tokens = 512;
        else
            other.max_batch_tokens = 2048;
        CHECK_OK(router_create(&r, &other, &err));
        check_dropped(r, "made_for_another");
        router_free(r);
    }
}

static void overwrite(const char *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL && fwrite(data, 1, size, file) == size);
    CHECK_INT(fclose(file), 0);
}

static void a_damaged_table_is_dropped(void)
{
    struct buf good = {.max = 1 << 16};
    struct router *r = create(ROUTING_AUTO, 4);

    write_table(ROUTING_AUTO);
    CHECK_OK(file_read(&good, path, &err));
    for (size_t size = 0; size < good.len; size++) { /* cut short anywhere */
        overwrite(good.data, size);
        check_dropped(r, "");
    }
    for (size_t at = 0; at < good.len; at++) { /* a bit anywhere */
        good.data[at] ^= 1;
        overwrite(good.data, good.len);
        good.data[at] ^= 1;
        check_dropped(r, "");
    }
    CHECK_OK(buf_append(&good, "\n", 1, &err));
    overwrite(good.data, good.len);
    check_dropped(r, "damaged");
    overwrite(good.data, good.len - 1);
    CHECK(router_load(r, path));
    router_free(r);
    buf_free(&good);
}

/* A sum that is right does not make lines right that are not. */
static void lines_that_are_wrong_are_dropped(void)
{
    static const char *const lines[] = {
        "us sharded 3 16 0\n",
        "us sharded 3 16 -7\n",
        "us sharded 3 16 +7\n",
        "us sharded 3 16 9999999999\n",
        "us sharded 3 17 7\n",
        "us sharded 2 16 7\n",
        "us shared 3 16 7\n",
        "us sharded 3 16 7 \n",
        "us sharded 3 16\n",
        "us sharded 3 64 7\nus sharded 3 16 7\n",
        "us sharded 3 16 nan\n",
        "us sharded 3 16 7\nus sharded 3 16 7\n",
        "hello\n",
    };
    struct buf good = {.max = 1 << 16}, bad = {.max = 1 << 16};
    struct router *r = create(ROUTING_AUTO, 4);
    size_t head;

    write_table(ROUTING_AUTO);
    CHECK_OK(file_read(&good, path, &err));
    head = (size_t)(strstr(good.data, "us sharded") - good.data);
    for (size_t i = 0; i <= sizeof(lines) / sizeof(lines[0]); i++) {
        bool is_right = i == sizeof(lines) / sizeof(lines[0]);

        buf_free(&bad);
        CHECK_OK(buf_append(&bad, good.data, head, &err));
        CHECK_OK(buf_printf(&bad, &err, "%s", is_right ? "us sharded 3 16 7\n" : lines[i]));
        CHECK_OK(buf_printf(&bad, &err, "crc32c %08x\n", (unsigned)crc32c(0, bad.data, bad.len)));
        overwrite(bad.data, bad.len);
        if (is_right)
            CHECK(router_load(r, path));
        else
            check_dropped(r, "damaged");
    }
    router_free(r);
    buf_free(&bad);
    buf_free(&good);
}

static void what_is_no_file_is_dropped(void)
{
    struct router *r = create(ROUTING_AUTO, 4);
    char line[1024], *big = calloc(1, 1 << 17);
    int n_lines;

    CHECK(big != NULL);
    overwrite(big, 1 << 17); /* larger than any table */
    free(big);
    check_dropped(r, "");
    CHECK(!load(r, PE_SCRATCH_DIR, &n_lines, line, sizeof(line)));
    CHECK_INT(n_lines, 1);
    CHECK_ERR(router_save(r, PE_SCRATCH_DIR "/no such folder/table", &err), ERR_IO, "folder");
    router_free(r);
}

static void names_are_lines_of_text(void)
{
    struct router_options options = options_of(ROUTING_AUTO, 4);
    struct router *r;

    options.devices = "one\ntwo";
    CHECK_ERR(router_create(&r, &options, &err), ERR_INPUT, "line of text");
    CHECK(r == NULL);
    options.devices = NULL;
    CHECK_ERR(router_create(&r, &options, &err), ERR_INPUT, "line of text");
    options.devices = "";
    CHECK_ERR(router_create(&r, &options, &err), ERR_INPUT, "line of text");
    router_free(NULL);
}

int main(void)
{
    RUN(the_rule_needs_no_table);
    RUN(one_rank_has_no_choice);
    RUN(what_is_forced_is_done);
    RUN(the_table_decides_between_two_prompts_and_a_prompt_a_rank);
    RUN(measured_lets_the_table_decide_all);
    RUN(equal_times_are_replicated);
    RUN(times_between_are_on_the_line);
    RUN(the_longest_prompt_counts_where_each_has_a_rank);
    RUN(only_what_is_needed_is_measured);
    RUN(measuring_ends_with_the_budget);
    RUN(a_failed_run_leaves_no_table);
    RUN(notes_change_the_ratio_alone);
    RUN(a_table_is_the_same_after_loading);
    RUN(a_missing_table_is_nothing_to_log);
    RUN(a_table_of_something_else_is_dropped);
    RUN(a_damaged_table_is_dropped);
    RUN(lines_that_are_wrong_are_dropped);
    RUN(what_is_no_file_is_dropped);
    RUN(names_are_lines_of_text);
    return check_result();
}
