#include "service/counters.h"

#define STATUSES "requests answered, by status"
#define RESULTS  "prompts asked for, by what the cache and the queue had"
#define LOST     "jobs queued anew because something of theirs was gone"
#define GIVEN_UP                                                                                   \
    "prompts given up: the queue lost their job, or the cache their result, three times"

static const int statuses[] = {200, 202, 304, 400, 404, 405, 406, 410, 411,
                               413, 415, 422, 429, 500, 502, 503, 504};

#define STATUS(place, code)                                                                        \
    [C_STATUS_FIRST + (place)] = {                                                                 \
        METRIC_COUNTER, "pe_http_requests_total", "code=\"" code "\"", STATUSES, 0, {0}, 0}
#define COUNT(name, labels, help)                                                                  \
    {                                                                                              \
        METRIC_COUNTER, name, labels, help, 0, {0}, 0                                              \
    }
#define LEVEL(name, help)                                                                          \
    {                                                                                              \
        METRIC_GAUGE, name, NULL, help, 0, {0}, 0                                                  \
    }
#define TIMES(name, help)                                                                          \
    {                                                                                              \
        METRIC_HISTOGRAM, name, NULL, help, 0, {0}, 0                                              \
    }

struct metric counters[COUNTERS] = {
    STATUS(0, "200"),
    STATUS(1, "202"),
    STATUS(2, "304"),
    STATUS(3, "400"),
    STATUS(4, "404"),
    STATUS(5, "405"),
    STATUS(6, "406"),
    STATUS(7, "410"),
    STATUS(8, "411"),
    STATUS(9, "413"),
    STATUS(10, "415"),
    STATUS(11, "422"),
    STATUS(12, "429"),
    STATUS(13, "500"),
    STATUS(14, "502"),
    STATUS(15, "503"),
    STATUS(16, "504"),
    STATUS(17, "other"),
    [C_HITS] = COUNT("pe_prompts_total", "cache=\"hit\"", RESULTS),
    [C_MISSES] = COUNT("pe_prompts_total", "cache=\"miss\"", RESULTS),
    [C_JOINED] = COUNT("pe_prompts_total", "cache=\"joined\"", RESULTS),
    [C_SUBMITTED] = COUNT("pe_submits_total", "outcome=\"queued\"", "groups sent to the queue"),
    [C_REFUSED_FULL] = COUNT("pe_submits_total", "outcome=\"full\"", "groups sent to the queue"),
    [C_REFUSED_TENANT] =
        COUNT("pe_submits_total", "outcome=\"tenant_full\"", "groups sent to the queue"),
    [C_LOST_JOBS] = COUNT("pe_resubmits_total", "lost=\"job\"", LOST),
    [C_LOST_RESULTS] = COUNT("pe_resubmits_total", "lost=\"result\"", LOST),
    [C_GIVEN_UP_JOBS] = COUNT("pe_given_up_total", "lost=\"job\"", GIVEN_UP),
    [C_GIVEN_UP_RESULTS] = COUNT("pe_given_up_total", "lost=\"result\"", GIVEN_UP),
    [C_DAMAGED] = COUNT("pe_damaged_results_total", NULL, "results whose bytes failed their check"),
    [C_FETCHES] = COUNT("pe_fetches_total", NULL, "results fetched from the cache"),
    [C_PIECES] = COUNT("pe_fetched_pieces_total", NULL, "pieces of results fetched"),
    [C_PIECE_BYTES] = COUNT("pe_fetched_bytes_total", NULL, "bytes of results fetched"),
    [C_EVENTS] = COUNT("pe_events_total", NULL, "events read from the queue"),
    [C_EVENTS_MISSED] = COUNT("pe_events_missed_total", NULL, "times that events were cut off"),
    [C_RECHECKS] = COUNT("pe_rechecks_total", NULL, "jobs whose state was asked for while waiting"),
    [C_CLIENTS_GONE] = COUNT("pe_clients_gone_total", NULL, "clients that left while waiting"),
    [C_TOO_SLOW] = COUNT("pe_connections_too_slow_total", NULL, "connections past a deadline"),
    [C_WAITERS] = LEVEL("pe_waiters", "prompts being waited for"),
    [C_CONNECTIONS] = LEVEL("pe_connections", "open connections"),
    [C_PARKED] = LEVEL("pe_connections_parked", "connections that wait for something"),
    [C_BYTES_HELD] = LEVEL("pe_result_held_bytes", "bytes of results in memory"),
    [C_MODELS] = LEVEL("pe_models", "model cards known"),
    [C_DRAINING] = LEVEL("pe_draining", "1 while the service is stopping"),
    [C_ENCODE_SECONDS] = TIMES("pe_encode_seconds", "from request to answer of POST /v1/encode"),
    [C_FETCH_SECONDS] = TIMES("pe_fetch_seconds", "of one piece or header from the cache"),
    [C_TOKENIZE_SECONDS] = TIMES("pe_tokenize_seconds", "of one request's prompts"),
};

void count_status(int status)
{
    int n = (int)(sizeof(statuses) / sizeof(statuses[0])), i = 0;

    while (i < n && statuses[i] != status)
        i++;
    count((enum counter)(C_STATUS_FIRST + i), 1);
}
