/* test_belt.c - what passes between a worker's steps: nothing is lost, nothing twice, in order; two
 * batches' results at most; when there is room for the next. */
#include <pthread.h>

#include "base/clock.h"
#include "engine/worker/belt.h"
#include "tests/check.h"

enum { MANY = 2000 };

static struct error err;

/* Batches are told apart by n_tokens. */
static void stage(struct belt *b, size_t number, bool solo)
{
    static struct batch batch; /* large */

    batch.n_tokens = number;
    batch.solo = solo;
    belt_stage(b, &batch);
}

static void *encode_all(void *arg)
{
    static struct batch batch;

    while (belt_take_staged(arg, &batch))
        belt_hand_over(arg, &batch);
    belt_end_encoding(arg);
    return NULL;
}

static void *store_all(void *arg)
{
    size_t n = 0;
    const struct batch *batch;

    while ((batch = belt_take_encoded(arg)) != NULL && batch->n_tokens == n) {
        n++;
        belt_stored(arg);
    }
    return (void *)(uintptr_t)n;
}

static void all_pass_in_order(void)
{
    pthread_t encoder, storer;
    struct belt *b;
    void *n;

    CHECK_OK(belt_create(&b, &err));
    CHECK(pthread_create(&encoder, NULL, encode_all, b) == 0);
    CHECK(pthread_create(&storer, NULL, store_all, b) == 0);
    for (size_t i = 0; i < MANY; i++) {
        CHECK(belt_wait_for_room(b, i % 7 == 0, 0) == BELT_FREE);
        stage(b, i, i % 11 == 0);
    }
    belt_drain(b);
    CHECK(belt_wait_for_room(b, false, 0) == BELT_OVER);
    belt_end_staging(b); /* what is staged is finished all the same */
    pthread_join(encoder, NULL);
    pthread_join(storer, &n);
    CHECK((uintptr_t)n == MANY);
    belt_free(b);
}

/* The steps by hand: an engine that waits, or one that is at a batch. */
struct turn {
    struct belt *belt;
    struct batch batch;
};

static void *take(void *arg)
{
    struct turn *t = arg;

    belt_take_staged(t->belt, &t->batch);
    return NULL;
}

/* The engine has taken a batch of that number. */
static void begin(struct turn *t, size_t number, bool solo)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, take, t) == 0);
    CHECK(belt_wait_for_room(t->belt, false, 0) == BELT_FREE);
    stage(t->belt, number, solo);
    pthread_join(thread, NULL);
    CHECK(t->batch.n_tokens == number);
}

static void *wait_for_room(void *arg)
{
    return (void *)(uintptr_t)belt_wait_for_room(arg, false, 0);
}

/* What is answered while the engine computes what is expected to take 60 ms and takes 120. */
static enum belt_room room_before_the_end(void)
{
    static struct turn t;
    pthread_t asker, engine;
    void *room;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, false);
    CHECK(!belt_is_empty(t.belt));
    belt_expect_end(t.belt, clock_now_ns() + 60 * INT64_C(1000000));
    CHECK(pthread_create(&asker, NULL, wait_for_room, t.belt) == 0);
    clock_pause_ms(120);
    CHECK(pthread_create(&engine, NULL, take, &t) == 0);
    pthread_join(asker, &room);
    belt_end_staging(t.belt);
    pthread_join(engine, NULL);
    belt_free(t.belt);
    return (enum belt_room)(uintptr_t)room;
}

/* A machine that is busy with else may sleep through those few milliseconds, and the engine is
 * waited for: not always. */
static void there_is_room_shortly_before_the_end(void)
{
    int n_soon = 0;

    for (int i = 0; i < 50 && n_soon == 0; i++)
        n_soon += room_before_the_end() == BELT_SOON;
    CHECK(n_soon == 1);
}

static void there_is_no_room_long_before_the_end(void)
{
    static struct turn t;
    pthread_t asker;
    int64_t start_ns;
    void *room;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, false);
    start_ns = clock_now_ns();
    belt_expect_end(t.belt, start_ns + 60 * INT64_C(1000000));
    CHECK(pthread_create(&asker, NULL, wait_for_room, t.belt) == 0);
    clock_pause_ms(30);
    belt_drain(t.belt); /* nothing else ends its wait */
    pthread_join(asker, &room);
    CHECK((uintptr_t)room == BELT_OVER || clock_ms_since(start_ns) >= 60 - BELT_AHEAD_MS);
    belt_free(t.belt);
}

static void who_looked_does_not_look_again_at_once(void)
{
    static struct turn t;
    pthread_t engine;
    int64_t now_ns;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, false);
    now_ns = clock_now_ns();
    belt_expect_end(t.belt, now_ns + BELT_AHEAD_MS * INT64_C(1000000)); /* from now on, then */
    CHECK(pthread_create(&engine, NULL, take, &t) == 0);
    CHECK(belt_wait_for_room(t.belt, false, now_ns + INT64_C(60000000000)) == BELT_FREE);
    belt_end_staging(t.belt);
    pthread_join(engine, NULL);
    belt_free(t.belt);
}

/* Where the end is not known or has passed, and while storing lags, the engine itself is waited
 * for. */
static void without_a_forecast_the_engine_is_waited_for(void)
{
    static struct turn t;
    pthread_t thread, engine;
    void *room;

    for (int i = 0; i < 2; i++) {
        int64_t start_ns;
        CHECK_OK(belt_create(&t.belt, &err));
        begin(&t, 1, false);
        if (i == 1)
            belt_expect_end(t.belt, clock_now_ns());
        CHECK(pthread_create(&thread, NULL, wait_for_room, t.belt) == 0);
        start_ns = clock_now_ns();
        clock_pause_ms(30);
        CHECK(pthread_create(&engine, NULL, take, &t) == 0);
        pthread_join(thread, &room);
        CHECK((uintptr_t)room == BELT_FREE);
        CHECK(clock_ms_since(start_ns) >= 30);
        belt_end_staging(t.belt);
        pthread_join(engine, NULL);
        belt_free(t.belt);
    }
}

static void *store_one(void *arg)
{
    clock_pause_ms(30);
    belt_stored(arg);
    return NULL;
}

static void results_of_two_batches_at_most(void)
{
    static struct turn t;
    pthread_t thread;
    int64_t start_ns;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, false);
    belt_hand_over(t.belt, &t.batch);
    CHECK(belt_take_encoded(t.belt)->n_tokens == 1);
    begin(&t, 2, false); /* while the first is stored */
    start_ns = clock_now_ns();
    CHECK(pthread_create(&thread, NULL, store_one, t.belt) == 0);
    belt_hand_over(t.belt, &t.batch); /* waits for it */
    CHECK(clock_ms_since(start_ns) >= 30);
    CHECK(belt_take_encoded(t.belt)->n_tokens == 2);
    pthread_join(thread, NULL);
    belt_free(t.belt);
}

static void a_solo_batch_is_alone(void)
{
    static struct turn t;
    pthread_t engine, thread;
    int64_t start_ns;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, true);
    belt_hand_over(t.belt, &t.batch);
    CHECK(pthread_create(&engine, NULL, take, &t) == 0);
    start_ns = clock_now_ns();
    CHECK(pthread_create(&thread, NULL, store_one, t.belt) == 0);
    CHECK(belt_wait_for_room(t.belt, false, 0) == BELT_FREE); /* not before it is stored */
    CHECK(clock_ms_since(start_ns) >= 30);
    CHECK(belt_is_empty(t.belt));
    pthread_join(thread, NULL);
    stage(t.belt, 2, false);
    pthread_join(engine, NULL);
    belt_free(t.belt);
}

static void what_a_failed_engine_leaves_is_given_back(void)
{
    static struct batch left;
    static struct turn t;

    CHECK_OK(belt_create(&t.belt, &err));
    begin(&t, 1, false);
    stage(t.belt, 2, false); /* ahead */
    belt_end_encoding(t.belt);
    CHECK(belt_wait_for_room(t.belt, false, 0) == BELT_OVER);
    belt_end_staging(t.belt);
    CHECK(belt_take_encoded(t.belt) == NULL);
    CHECK(belt_take_left(t.belt, &left));
    CHECK(left.n_tokens == 2);
    CHECK(!belt_take_left(t.belt, &left));
    belt_free(t.belt);
}

int main(void)
{
    RUN(all_pass_in_order);
    RUN(there_is_room_shortly_before_the_end);
    RUN(there_is_no_room_long_before_the_end);
    RUN(who_looked_does_not_look_again_at_once);
    RUN(without_a_forecast_the_engine_is_waited_for);
    RUN(results_of_two_batches_at_most);
    RUN(a_solo_batch_is_alone);
    RUN(what_a_failed_engine_leaves_is_given_back);
    return check_result();
}
