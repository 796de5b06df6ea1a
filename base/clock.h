/* clock.h - time that never runs backwards. */
#pragma once
#include <stdint.h>

/* Nanoseconds since some fixed moment; for differences only. */
int64_t clock_now_ns(void);

/* Milliseconds since `start_ns`, an earlier clock_now_ns(). */
double clock_ms_since(int64_t start_ns);
