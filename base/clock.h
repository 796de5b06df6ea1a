/* clock.h - time that never runs backwards. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds since some fixed moment; for differences only. */
int64_t clock_now_ns(void);

/* Milliseconds since `start_ns`, an earlier clock_now_ns(). */
double clock_ms_since(int64_t start_ns);

/* Sleeps so long; a signal that has a handler may end it sooner. */
void clock_pause_ms(int64_t ms);

/* A condition that clock_cond_wait() may wait for: by this clock, as the wall's may be set back,
 * and a wait of a moment would then be one of hours. */
void clock_cond_init(pthread_cond_t *cond);
/* As pthread_cond_wait(), until `until_ns` (a clock_now_ns()) at the latest: false then. */
bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns);
