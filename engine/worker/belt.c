#include "engine/worker/belt.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"

struct belt {
    pthread_mutex_t lock;                      /* guards what follows */
    pthread_cond_t staging, encoding, storing; /* something changed that the step may wait for */
    struct batch staged, encoded;
    bool has_staged, has_encoded;
    bool engine_waits; /* the encoding step waits for a batch */
    int64_t end_ns;    /* when that which it computes is expected to end; 0: not known */
    bool has_solo;     /* a solo batch went onto the belt, and the belt was not empty since */
    bool draining, staging_ended, encoding_ended;
};

int belt_create(struct belt **out, struct error *err)
{
    struct belt *b;

    if ((*out = b = calloc(1, sizeof(*b))) == NULL)
        return error_set(err, ERR_MEM, "belt: no memory");
    pthread_mutex_init(&b->lock, NULL);
    clock_cond_init(&b->staging);
    clock_cond_init(&b->encoding);
    clock_cond_init(&b->storing);
    return OK;
}

void belt_free(struct belt *b)
{
    if (b == NULL)
        return;
    pthread_cond_destroy(&b->staging);
    pthread_cond_destroy(&b->encoding);
    pthread_cond_destroy(&b->storing);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void belt_drain(struct belt *b)
{
    pthread_mutex_lock(&b->lock);
    b->draining = true;
    pthread_cond_signal(&b->staging);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the staging step's side ---- */

/* The next two: with the lock. */
static bool engine_is_free(const struct belt *b)
{
    return b->engine_waits && !b->has_staged;
}

static bool is_empty(const struct belt *b)
{
    return engine_is_free(b) && !b->has_encoded;
}

enum belt_room belt_wait_for_room(struct belt *b, bool alone, int64_t look_ns)
{
    enum belt_room room = BELT_OVER;

    pthread_mutex_lock(&b->lock);
    while (!b->draining && !b->encoding_ended) {
        int64_t now_ns = clock_now_ns();
        int64_t from_ns = b->end_ns - BELT_AHEAD_MS * INT64_C(1000000);

        if (is_empty(b))
            b->has_solo = false;
        if (from_ns < look_ns)
            from_ns = look_ns;
        if (alone || b->has_solo ? is_empty(b) : engine_is_free(b)) {
            room = BELT_FREE;
            break;
        }
        if (alone || b->has_solo || b->has_staged || now_ns >= b->end_ns ||
            from_ns >= b->end_ns) { /* the end is not near, or not known */
            pthread_cond_wait(&b->staging, &b->lock);
        } else if (now_ns >= from_ns) {
            room = BELT_SOON;
            break;
        } else {
            clock_cond_wait(&b->staging, &b->lock, from_ns);
        }
    }
    pthread_mutex_unlock(&b->lock);
    return room;
}

bool belt_is_empty(struct belt *b)
{
    bool empty;

    pthread_mutex_lock(&b->lock);
    empty = is_empty(b);
    pthread_mutex_unlock(&b->lock);
    return empty;
}

void belt_stage(struct belt *b, const struct batch *batch)
{
    pthread_mutex_lock(&b->lock);
    b->staged = *batch;
    b->has_staged = true;
    b->has_solo |= batch->solo;
    pthread_cond_signal(&b->encoding);
    pthread_mutex_unlock(&b->lock);
}

void belt_end_staging(struct belt *b)
{
    pthread_mutex_lock(&b->lock);
    b->staging_ended = true;
    pthread_cond_signal(&b->encoding);
    pthread_cond_signal(&b->storing);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the encoding step's side ---- */

bool belt_take_staged(struct belt *b, struct batch *out)
{
    bool taken;

    pthread_mutex_lock(&b->lock);
    b->engine_waits = true;
    pthread_cond_signal(&b->staging);
    while (!b->has_staged && !b->staging_ended)
        pthread_cond_wait(&b->encoding, &b->lock);
    taken = b->has_staged;
    if (taken) {
        *out = b->staged;
        b->has_staged = false;
        b->engine_waits = false;
        b->end_ns = 0;
    }
    pthread_mutex_unlock(&b->lock);
    return taken;
}

void belt_expect_end(struct belt *b, int64_t end_ns)
{
    pthread_mutex_lock(&b->lock);
    b->end_ns = end_ns;
    pthread_cond_signal(&b->staging);
    pthread_mutex_unlock(&b->lock);
}

void belt_hand_over(struct belt *b, const struct batch *batch)
{
    pthread_mutex_lock(&b->lock);
    b->end_ns = 0; /* how long the batch before is still stored, nobody knows */
    while (b->has_encoded)
        pthread_cond_wait(&b->encoding, &b->lock);
    b->encoded = *batch;
    b->has_encoded = true;
    pthread_cond_signal(&b->storing);
    pthread_mutex_unlock(&b->lock);
}

void belt_end_encoding(struct belt *b)
{
    pthread_mutex_lock(&b->lock);
    b->encoding_ended = true;
    pthread_cond_signal(&b->staging);
    pthread_cond_signal(&b->storing);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the storing step's side ---- */

struct batch *belt_take_encoded(struct belt *b)
{
    bool taken;

    pthread_mutex_lock(&b->lock);
    while (!b->has_encoded && !b->encoding_ended)
        pthread_cond_wait(&b->storing, &b->lock);
    taken = b->has_encoded;
    pthread_mutex_unlock(&b->lock);
    return taken ? &b->encoded : NULL;
}

void belt_stored(struct belt *b)
{
    pthread_mutex_lock(&b->lock);
    b->has_encoded = false;
    pthread_cond_signal(&b->encoding);
    pthread_cond_signal(&b->staging);
    pthread_mutex_unlock(&b->lock);
}

bool belt_take_left(struct belt *b, struct batch *out)
{
    bool left;

    pthread_mutex_lock(&b->lock);
    while (!b->staging_ended)
        pthread_cond_wait(&b->storing, &b->lock);
    left = b->has_staged;
    if (left)
        *out = b->staged;
    b->has_staged = false;
    pthread_mutex_unlock(&b->lock);
    return left;
}
