/* test_warming.c - a pass of each size that has plans of its own, and none where there are none. */
#include "engine/engine_private.h"
#include "tests/check.h"

static struct error err;
static struct ops ops; /* an engine's, with plans */

static struct engine *open_tiny(const char *ltx, int max_batch_tokens, int (*plan_size)(int T))
{
    struct engine_options options = {.model = "random:gemma-3-tiny",
                                     .ltx = {ltx},
                                     .max_batch_tokens = max_batch_tokens,
                                     .n_threads = 1};
    struct engine *e;

    CHECK_OK(engine_open(&e, &options, &err));
    ops = *e->ranks[0]->ops;
    ops.plan_size = plan_size;
    e->ranks[0]->ops = &ops;
    return e;
}

static int in_sixteens(int T)
{
    return (T + 15) / 16 * 16;
}

static int in_thousands(int T)
{
    return (T + 999) / 1000 * 1000;
}

/* How many passes over Gemma's layers; connectors' blocks are counted with them. */
static uint64_t steps_of_warming(const char *ltx, int max_batch_tokens, int (*plan_size)(int T))
{
    struct engine *e = open_tiny(ltx, max_batch_tokens, plan_size);
    double seconds = -1.0;
    uint64_t steps;

    CHECK_OK(engine_warm(e, &seconds, &err));
    CHECK(plan_size == NULL ? seconds == 0.0 : seconds > 0.0);
    CHECK(!e->ranks[0]->is_warming);
    steps = engine_steps(e);
    engine_close(e);
    return steps;
}

static void each_size_has_a_pass(void)
{
    struct engine *e = open_tiny(NULL, 100, NULL);
    uint64_t L = (uint64_t)engine_info(e)->n_layers;

    engine_close(e);
    CHECK_INT(steps_of_warming(NULL, 100, in_sixteens), 7 * L); /* 16, 32, .. 96, 100 */
    CHECK_INT(steps_of_warming(NULL, 16, in_sixteens), L);
    CHECK_INT(steps_of_warming(NULL, 1, in_sixteens), L);
    CHECK_INT(steps_of_warming(NULL, 1040, in_thousands), 2 * L); /* the second of two prompts */
}

static void each_number_of_prompts_has_two(void)
{
    struct engine *e = open_tiny("random:ltx-tiny", 16, NULL);
    const struct ltx_config *c = &e->source.ltx_config;
    uint64_t blocks = (uint64_t)(c->connectors[LTX_VIDEO].L + c->connectors[LTX_AUDIO].L);
    uint64_t L = (uint64_t)engine_info(e)->n_layers;

    engine_close(e);
    /* one size; 1 to 4 prompts, of which one goes through the connectors at a time */
    CHECK_INT(steps_of_warming("random:ltx-tiny", 16, in_sixteens),
              L + blocks + 2 * (LTX_MAX_PROMPTS * L + (1 + 2 + 3 + 4) * blocks));
}

static void where_there_are_no_plans_nothing_is_run(void)
{
    CHECK_INT(steps_of_warming(NULL, 100, NULL), 0);
    CHECK_INT(steps_of_warming("random:ltx-tiny", 100, NULL), 0);
}

static void ignore_rehearsal(struct device *d, bool on)
{
    (void)d;
    (void)on;
}

/* Each alone, then all together; a shape that is new to them is rehearsed without the others. */
static int n_rehearsals;
static bool is_on;

static void note_rehearsal(struct device *d, bool on)
{
    (void)d;
    CHECK(on != is_on);
    is_on = on;
    n_rehearsals += on;
}

static void ranks_warm_together_too(void)
{
    struct engine_options options = {.model = "random:gemma-3-tiny",
                                     .ltx = {"random:ltx-tiny"},
                                     .max_batch_tokens = 2080,
                                     .n_ranks = 2,
                                     .strategy = ENGINE_REPLICATED, /* no times are measured */
                                     .n_threads = 1};
    struct ops first, second;
    struct engine *e;
    double seconds;

    CHECK_OK(engine_open(&e, &options, &err));
    first = second = *e->ranks[0]->ops;
    first.plan_size = second.plan_size = in_thousands;
    first.rehearse = note_rehearsal;
    second.rehearse = ignore_rehearsal;
    e->ranks[0]->ops = &first;
    e->ranks[1]->ops = &second;
    CHECK_OK(engine_warm(e, &seconds, &err));
    /* 1000 tokens of one prompt, 2000 of two, 2080 of three; then 2, 3 and 4 of 1000 or less */
    CHECK(n_rehearsals >= 3 && !is_on);
    engine_close(e);
}

int main(void)
{
    RUN(ranks_warm_together_too);
    RUN(each_size_has_a_pass);
    RUN(each_number_of_prompts_has_two);
    RUN(where_there_are_no_plans_nothing_is_run);
    return check_result();
}
