#include "engine/worker/hand.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct hand {
    pthread_mutex_t lock; /* guards what follows, and each job's `over` and `answer` */
    struct held jobs[HAND_MAX];
    size_t n;
    int64_t renewed_ns;
};

int hand_create(struct hand **out, struct error *err)
{
    if ((*out = calloc(1, sizeof(**out))) == NULL)
        return error_set(err, ERR_MEM, "hand: no memory");
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

void hand_free(struct hand *h)
{
    if (h == NULL)
        return;
    hand_let_go(h);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void hand_take(struct hand *h, const struct claimed_job *jobs, size_t n)
{
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++)
        h->jobs[i] = (struct held){.job = jobs[i], .answer = LEASE_OK};
    h->n = n;
    h->renewed_ns = clock_now_ns();
    pthread_mutex_unlock(&h->lock);
}

void hand_let_go(struct hand *h)
{
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->n; i++) {
        if (h->jobs[i].parsed)
            payload_free(&h->jobs[i].payload);
        claimed_jobs_free(&h->jobs[i].job, 1);
    }
    h->n = 0;
    pthread_mutex_unlock(&h->lock);
}

/* `n` changes on the loop's thread alone, so that thread reads it without the lock. */
size_t hand_n(const struct hand *h)
{
    return h->n;
}

struct held *hand_at(struct hand *h, size_t i)
{
    return &h->jobs[i];
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
    held->over = true;
    pthread_mutex_unlock(&h->lock);
}

size_t hand_copy_open(struct hand *h, struct claimed_job out[HAND_MAX])
{
    size_t n = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->n; i++)
        if (!h->jobs[i].over) {
            out[n] = h->jobs[i].job;
            out[n].payload = NULL;
            out[n++].payload_len = 0;
        }
    pthread_mutex_unlock(&h->lock);
    return n;
}

int64_t hand_renewed_ns(struct hand *h)
{
    int64_t ns;

    pthread_mutex_lock(&h->lock);
    ns = h->renewed_ns;
    pthread_mutex_unlock(&h->lock);
    return ns;
}

void hand_note_answers(struct hand *h, const struct claimed_job *jobs,
                       const enum lease_answer *answers, size_t n)
{
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < h->n; j++)
            if (strcmp(h->jobs[j].job.token, jobs[i].token) == 0 &&
                strcmp(h->jobs[j].job.id, jobs[i].id) == 0)
                h->jobs[j].answer = answers[i];
    h->renewed_ns = clock_now_ns();
    pthread_mutex_unlock(&h->lock);
}
