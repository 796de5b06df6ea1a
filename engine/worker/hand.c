#include "engine/worker/hand.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct hand {
    pthread_mutex_t lock; /* guards each place's `used`, `answer`, `renewed_ns`, and its job when
                             that is taken, copied or freed */
    struct held places[HAND_MAX];
};

int hand_create(struct hand **out, struct error *err)
{
    if ((*out = calloc(1, sizeof(**out))) == NULL)
        return error_set(err, ERR_MEM, "hand: no memory");
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

static void clear(struct held *held)
{
    if (held->parsed)
        payload_free(&held->payload);
    claimed_jobs_free(&held->job, 1);
    *held = (struct held){0};
}

void hand_free(struct hand *h)
{
    if (h == NULL)
        return;
    for (size_t i = 0; i < HAND_MAX; i++)
        clear(&h->places[i]);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void hand_take(struct hand *h, const struct claimed_job *jobs, size_t n, struct held **out)
{
    size_t place = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++) {
        while (place < HAND_MAX && h->places[place].used)
            place++;
        assert(place < HAND_MAX); /* the belt has room for HAND_BATCHES claims */
        out[i] = &h->places[place];
        *out[i] = (struct held){
            .job = jobs[i], .used = true, .answer = LEASE_OK, .renewed_ns = clock_now_ns()};
    }
    pthread_mutex_unlock(&h->lock);
}

enum lease_answer hand_answer(struct hand *h, const struct held *held)
{
    enum lease_answer answer;

    pthread_mutex_lock(&h->lock);
    answer = held->answer;
    pthread_mutex_unlock(&h->lock);
    return answer;
}

void hand_end(struct hand *h, struct held *held)
{
    pthread_mutex_lock(&h->lock);
    clear(held);
    pthread_mutex_unlock(&h->lock);
}

size_t hand_n(struct hand *h)
{
    size_t n = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < HAND_MAX; i++)
        n += h->places[i].used;
    pthread_mutex_unlock(&h->lock);
    return n;
}

size_t hand_copy(struct hand *h, struct claimed_job out[HAND_MAX])
{
    size_t n = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < HAND_MAX; i++)
        if (h->places[i].used) {
            out[n] = h->places[i].job;
            out[n].payload = NULL;
            out[n++].payload_len = 0;
        }
    pthread_mutex_unlock(&h->lock);
    return n;
}

double hand_oldest_ms(struct hand *h)
{
    int64_t now_ns = clock_now_ns(), oldest_ns = now_ns;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < HAND_MAX; i++)
        if (h->places[i].used && h->places[i].renewed_ns < oldest_ns)
            oldest_ns = h->places[i].renewed_ns;
    pthread_mutex_unlock(&h->lock);
    return (double)(now_ns - oldest_ns) / 1e6;
}

void hand_note_answers(struct hand *h, const struct claimed_job *jobs,
                       const enum lease_answer *answers, size_t n)
{
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < HAND_MAX; j++) {
            struct held *held = &h->places[j];
            if (!held->used || strcmp(held->job.token, jobs[i].token) != 0 ||
                strcmp(held->job.id, jobs[i].id) != 0)
                continue;
            held->answer = answers[i];
            held->renewed_ns = clock_now_ns();
        }
    pthread_mutex_unlock(&h->lock);
}
