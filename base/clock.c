#include "base/clock.h"

#include <errno.h>
#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double clock_ms_since(int64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) / 1e6;
}

void clock_pause_ms(int64_t ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};

    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}
