/* counters.h - what the service counts; /metrics shows it in this order. Any thread counts. */
#pragma once
#include <stddef.h>

#include "base/metrics.h"

enum counter {
    C_STATUS_FIRST,
    C_STATUS_LAST = C_STATUS_FIRST + 17, /* one a status, the last for all others */
    C_HITS,
    C_MISSES,
    C_JOINED,
    C_SUBMITTED,
    C_REFUSED_FULL,
    C_REFUSED_TENANT,
    C_LOST_JOBS,
    C_LOST_RESULTS,
    C_GIVEN_UP_JOBS,
    C_GIVEN_UP_RESULTS,
    C_DAMAGED,
    C_FETCHES,
    C_PIECES,
    C_PIECE_BYTES,
    C_EVENTS,
    C_EVENTS_MISSED,
    C_RECHECKS,
    C_CLIENTS_GONE,
    C_TOO_SLOW,
    C_WAITERS,
    C_CONNECTIONS,
    C_PARKED,
    C_BYTES_HELD,
    C_MODELS,
    C_DRAINING,
    C_ENCODE_SECONDS,
    C_FETCH_SECONDS,
    C_TOKENIZE_SECONDS,
    COUNTERS
};

extern struct metric counters[COUNTERS];

static inline void count(enum counter c, int n)
{
    metric_add(&counters[c], n);
}
void count_status(int status);
