/* test_queue_events.c - what queues say of jobs that are over, over one connection. */
#include "base/clock.h"
#include "jobs/card.h"
#include "jobs/queue_events.h"
#include "tests/jobs/queue_scene.h"

static void trim_events(int n)
{
    redisReply *reply;

    CHECK_OK(redis_commandf(admin, &reply, &err, "XTRIM %s:ev MAXLEN %d", base, n));
    freeReplyObject(reply);
}

enum { EVENTS = 64 };

static struct queue_events *reader;
static struct queue_event events[EVENTS];
static size_t n_events;
static bool missed;

static bool follow(const char *const *bases, size_t n)
{
    bool fresh;

    CHECK_OK(queue_events_follow(reader, bases, n, &fresh, &err));
    return fresh;
}

/* Opens a reader of the base of this test; it begins at what is newest. */
static void begin_events(const char *name)
{
    begin(name);
    queue_events_close(reader);
    CHECK_OK(queue_events_open(&reader, server.url, 5000, &err));
    CHECK(follow((const char *const[]){base}, 1));
}

static void read_events(int block_ms, size_t cap)
{
    CHECK_OK(queue_events_read(reader, block_ms, events, cap, &n_events, &missed, &err));
}

static void run_jobs(const char *ids)
{
    submit(ids, 5);
    claim(ids);
    complete_all();
}

static void events_tell_what_is_over(void)
{
    begin_events("events");
    submit("abc", 5);
    claim("abc");
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);
    complete_all();
    read_events(100, 2);
    CHECK(n_events == 2 && !missed);
    CHECK_TEXT(events[0].id, "a");
    CHECK_INT(events[1].state, JOB_DONE);
    read_events(100, 8);
    CHECK(n_events == 1 && !missed && events[0].id[0] == 'c');
    int64_t start = clock_now_ns();
    read_events(80, 8);
    CHECK(n_events == 0 && !missed && clock_ms_since(start) >= 70);
    CHECK(!follow((const char *const[]){base}, 1)); /* it keeps its place */

    /* cut past our place */
    run_jobs("def");
    trim_events(1);
    read_events(100, 8);
    CHECK(n_events == 1 && missed && events[0].id[0] == 'f');
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);

    /* the stream begins anew: a failover lost it */
    ask("DEL", ":ev", NULL);
    read_events(10, 8);
    CHECK(n_events == 0 && missed);
    read_events(10, 8);
    CHECK(n_events == 0 && !missed);
    run_jobs("g");
    read_events(10, 8);
    CHECK(n_events == 1 && !missed && events[0].id[0] == 'g');
}

static void events_tell_how_long(void)
{
    begin_events("events-times");
    submit("ab", 5);
    clock_pause_ms(30);
    claim_as("e1", BUDGET, 1, LEASE_MS);
    clock_pause_ms(20);
    complete_all();
    CHECK_OK(queue_cancel(q, "b", &(enum job_state){0}, &err));
    read_events(100, 8);
    CHECK_INT(n_events, 2);
    CHECK(events[0].waited_ms >= 30 && events[0].waited_ms < 10000);
    CHECK(events[0].took_ms >= 20 && events[0].took_ms < 10000);
    CHECK(events[1].state == JOB_CANCELLED && events[1].waited_ms == -1 && events[1].took_ms == -1);

    /* released and claimed again: the last claim counts */
    submit("c", 5);
    claim("c");
    clock_pause_ms(60);
    CHECK_OK(queue_release(q, &got[0], &answer, &err));
    claim("c");
    complete_all();
    read_events(100, 8);
    CHECK_INT(n_events, 1);
    CHECK(events[0].waited_ms >= 60);
}

static void events_of_several_queues(void)
{
    char one[QUEUE_BASE_SIZE], two[QUEUE_BASE_SIZE], three[QUEUE_BASE_SIZE];
    int64_t start;

    begin_events("events-1");
    memcpy(one, base, sizeof(one));
    begin("events-2");
    memcpy(two, base, sizeof(two));
    run_jobs("a"); /* before it is followed */
    CHECK(follow((const char *const[]){one, two}, 2));
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);
    run_jobs("b");
    begin("events-1");
    run_jobs("CDE");
    read_events(100, 8);
    CHECK(n_events == 4 && !missed);
    for (size_t i = 0, upper = 0, lower = 0; i < 4; i++) /* each queue's in their order */
        CHECK(events[i].id[0] == "CDE"[upper] ? upper++ < 3
                                              : events[i].id[0] == 'b' && lower++ == 0);
    CHECK_ERR(queue_events_read(reader, 0, events, 1, &n_events, &missed, &err), ERR_INPUT,
              "room for 1 of 2");

    /* no more than there is room for, of each; nothing is lost */
    run_jobs("FGH");
    begin("events-2");
    run_jobs("fgh");
    for (int round = 0, seen = 0; seen < 6; round++) {
        CHECK(round < 3);
        read_events(0, 4);
        CHECK(n_events == 4 || n_events == 2);
        seen += (int)n_events;
    }

    /* one that is new is fresh; the others keep their places */
    run_jobs("i");
    begin("events-3");
    memcpy(three, base, sizeof(three));
    run_jobs("x");
    CHECK(follow((const char *const[]){three, two}, 2));
    run_jobs("y");
    read_events(0, 8);
    CHECK(n_events == 2 && !missed);
    CHECK((events[0].id[0] == 'y') != (events[1].id[0] == 'y'));
    CHECK((events[0].id[0] == 'i') != (events[1].id[0] == 'i'));

    /* one is cut past its place */
    run_jobs("uvw");
    trim_events(1);
    begin("events-2");
    run_jobs("j");
    read_events(0, 8);
    CHECK(n_events == 2 && missed);
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);

    /* one is lost, and the other one is busy: noticed within a second */
    ask("DEL", ":ev", NULL);
    begin("events-3");
    start = clock_now_ns();
    for (missed = false; !missed; clock_pause_ms(20)) {
        CHECK(clock_ms_since(start) < 10000);
        submit_as("t", 1.0, "k", 5, true, 0, &no_limits);
        claim("k");
        complete_all();
        read_events(0, 8);
        CHECK(n_events > 0);
    }

    /* not followed any more */
    CHECK(!follow((const char *const[]){three}, 1));
    begin("events-2");
    run_jobs("l");
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);
    CHECK(!follow(NULL, 0));
    start = clock_now_ns();
    read_events(60, 8);
    CHECK(n_events == 0 && !missed && clock_ms_since(start) >= 50);
}

static void events_outlive_a_restart(void)
{
    struct queue_events *second;
    char many[CARD_MAX + 1][QUEUE_BASE_SIZE];
    const char *list[CARD_MAX + 1];
    bool fresh;

    begin_events("events-restart");
    run_jobs("a");
    read_events(0, 8);
    CHECK_INT(n_events, 1);
    run_jobs("b");
    redis_server_kill(&server);
    CHECK_ERR(queue_events_read(reader, 100, events, 8, &n_events, &missed, &err), ERR_IO,
              "redis at unix:");
    CHECK_ERR(queue_events_follow(reader, (const char *const[]){"pe:{other}"}, 1, &fresh, &err),
              ERR_IO, "redis at unix:"); /* it follows what it did */
    CHECK(redis_server_restart(&server));
    run_jobs("c");
    read_events(100, 8);
    CHECK(n_events == 2 && !missed);
    CHECK(events[0].id[0] == 'b' && events[1].id[0] == 'c');

    /* as many as there can be; and one more */
    for (int i = 0; i < CARD_MAX + 1; i++) {
        snprintf(many[i], sizeof(many[i]), "pe:{many:%d}", i);
        list[i] = many[i];
    }
    CHECK_OK(queue_events_open(&second, server.url, 5000, &err));
    CHECK_ERR(queue_events_follow(second, list, CARD_MAX + 1, &fresh, &err), ERR_INPUT, "at most");
    list[CARD_MAX - 1] = base;
    CHECK_OK(queue_events_follow(second, list, CARD_MAX, &fresh, &err));
    run_jobs("d");
    CHECK_OK(queue_events_read(second, 100, events, EVENTS, &n_events, &missed, &err));
    CHECK(n_events == 1 && !missed && events[0].id[0] == 'd');
    queue_events_close(second);
}

/* Keys that hold something else are named, and the connection stays in step. */
static void streams_that_are_none(void)
{
    redisReply *reply;

    begin_events("events-bad");
    run_jobs("a");
    read_events(0, 8);
    ask("DEL", ":ev", NULL);
    CHECK_OK(redis_commandf(admin, &reply, &err, "SET %s:ev text", base));
    freeReplyObject(reply);
    CHECK_ERR(queue_events_read(reader, 0, events, 8, &n_events, &missed, &err), ERR_INPUT,
              "WRONGTYPE");
    ask("DEL", ":ev", NULL);
    CHECK_OK(redis_commandf(admin, &reply, &err, "XADD %s:ev 99999999999999-0 not ours", base));
    freeReplyObject(reply);
    read_events(0, 8); /* a stranger's entry is passed over */
    CHECK_INT(n_events, 0);
    read_events(0, 8);
    CHECK(n_events == 0 && !missed);
}

int main(void)
{
    scene_open("test_queue_events");
    RUN(events_tell_what_is_over);
    RUN(events_tell_how_long);
    RUN(events_of_several_queues);
    RUN(events_outlive_a_restart);
    RUN(streams_that_are_none);
    queue_events_close(reader);
    return scene_close();
}
