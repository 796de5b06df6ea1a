#include "service/counters.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "jobs/redis.h"
#include "service/models.h"

#define RESULTS "prompts asked for, by what the cache and the queue had"
#define LOST    "jobs queued anew because something of theirs was gone"
#define GIVEN_UP                                                                                   \
    "prompts given up: the queue lost their job, or the cache their result, three times"

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
    [C_QUEUE_WAIT_SECONDS] =
        TIMES("pe_queue_wait_seconds", "from a job's way into the queue to an engine's claim"),
    [C_TOKENIZE_SECONDS] = TIMES("pe_tokenize_seconds", "of one request's prompts"),
};

/* ---- requests ---- */

enum { MAX_SERIES = 512 }; /* more than routes times statuses */

struct request_series {
    const char *route;
    int status;
    int64_t n;
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct request_series series[MAX_SERIES];
    size_t n;
} requests = {.lock = PTHREAD_MUTEX_INITIALIZER};

void count_request(const char *route, int status)
{
    struct request_series *s = requests.series;
    size_t i = 0;

    if (route == NULL)
        route = "other";
    pthread_mutex_lock(&requests.lock);
    while (i < requests.n && (s[i].status != status || strcmp(s[i].route, route) != 0))
        i++;
    assert(i < MAX_SERIES);
    if (i == requests.n)
        s[requests.n++] = (struct request_series){route, status, 0};
    s[i].n++;
    pthread_mutex_unlock(&requests.lock);
}

static int render_requests(struct buf *out, struct error *err)
{
    static const char name[] = "pe_http_requests_total";
    struct request_series series[MAX_SERIES];
    char code[16];
    size_t n;
    int rc;

    pthread_mutex_lock(&requests.lock);
    n = requests.n;
    memcpy(series, requests.series, n * sizeof(series[0]));
    pthread_mutex_unlock(&requests.lock);
    if ((rc = metrics_family(out, METRIC_COUNTER, name,
                             "requests by route and status; none: the client left first", err)) !=
        OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        const struct metric_label labels[] = {{"route", series[i].route}, {"code", code}};
        snprintf(code, sizeof(code), "%d", series[i].status);
        if (series[i].status == 0)
            snprintf(code, sizeof(code), "none");
        if ((rc = metrics_row(out, name, labels, 2, (double)series[i].n, err)) != OK)
            return rc;
    }
    return OK;
}

/* ---- Redis ---- */

static int render_redis(struct buf *out, struct error *err)
{
    static const char *const roles[REDIS_ROLES] = {
        [REDIS_QUEUE] = "queue", [REDIS_CACHE] = "cache"};
    static const char errors[] = "pe_redis_errors_total", again[] = "pe_redis_reconnects_total";
    int rc;

    if ((rc = metrics_family(out, METRIC_COUNTER, errors, "calls to Redis that failed", err)) != OK)
        return rc;
    for (int i = 0; i < REDIS_ROLES; i++)
        if ((rc = metrics_row(out, errors, &(struct metric_label){"role", roles[i]}, 1,
                              (double)redis_totals((enum redis_role)i).errors, err)) != OK)
            return rc;
    if ((rc = metrics_family(out, METRIC_COUNTER, again, "connections to Redis made again", err)) !=
        OK)
        return rc;
    for (int i = 0; i < REDIS_ROLES; i++)
        if ((rc = metrics_row(out, again, &(struct metric_label){"role", roles[i]}, 1,
                              (double)redis_totals((enum redis_role)i).reconnects, err)) != OK)
            return rc;
    return OK;
}

/* ---- queues ---- */

enum { WEIGHTS_SHOWN = 12 }; /* characters: enough to tell them apart, as in the log */

/* One family with a row for each model. */
struct depth_family {
    enum metric_kind kind;
    const char *name, *help, *state; /* `state`: another label, or NULL */
    double (*value)(const struct queue_depth *d);
};

static double waiting(const struct queue_depth *d)
{
    return (double)d->waiting;
}

static double delayed(const struct queue_depth *d)
{
    return (double)d->delayed;
}

static double leased(const struct queue_depth *d)
{
    return (double)d->leased;
}

static double dead(const struct queue_depth *d)
{
    return (double)d->dead;
}

static double tokens(const struct queue_depth *d)
{
    return (double)d->waiting_tokens;
}

static double oldest_wait_s(const struct queue_depth *d)
{
    return (double)d->oldest_wait_ms / 1e3;
}

static double leases_lost(const struct queue_depth *d)
{
    return (double)d->leases_lost;
}

static double engines(const struct queue_depth *d)
{
    return (double)d->engines;
}

static const struct depth_family depth_families[] = {
    {METRIC_GAUGE, "pe_queue_jobs", "jobs of a model", "waiting", waiting},
    {METRIC_GAUGE, "pe_queue_jobs", NULL, "delayed", delayed},
    {METRIC_GAUGE, "pe_queue_jobs", NULL, "leased", leased},
    {METRIC_GAUGE, "pe_queue_jobs", NULL, "dead", dead},
    {METRIC_GAUGE, "pe_queue_tokens", "tokens of a model's jobs that wait", NULL, tokens},
    {METRIC_GAUGE, "pe_queue_oldest_wait_seconds", "of the job that is next", NULL, oldest_wait_s},
    {METRIC_GAUGE, "pe_engines", "engines of a model that are alive", NULL, engines},
    {METRIC_COUNTER, "pe_queue_leases_lost_total", "leases that ran out: engines died or hung",
     NULL, leases_lost},
};

static int render_depth(struct buf *out, const struct depth_family *f, const struct model_depth *d,
                        struct error *err)
{
    char weights[WEIGHTS_SHOWN + 1];
    const struct metric_label labels[] = {
        {"model", d->id}, {"weights", weights}, {"compute", d->compute}, {"state", f->state}};

    snprintf(weights, sizeof(weights), "%.*s", WEIGHTS_SHOWN, d->weights);
    return metrics_row(out, f->name, labels, f->state != NULL ? 4 : 3, f->value(&d->depth), err);
}

static int render_depths(struct buf *out, const struct model_depth *depths, size_t n,
                         struct error *err)
{
    int rc;

    for (size_t i = 0; i < sizeof(depth_families) / sizeof(depth_families[0]); i++) {
        const struct depth_family *f = &depth_families[i];
        if (f->help != NULL && (rc = metrics_family(out, f->kind, f->name, f->help, err)) != OK)
            return rc;
        for (size_t k = 0; k < n; k++)
            if ((rc = render_depth(out, f, &depths[k], err)) != OK)
                return rc;
    }
    return OK;
}

int counters_render(struct models *models, struct buf *out, struct error *err)
{
    struct model_depth depths[CARD_MAX];
    size_t n = models_depths(models, depths);
    int rc;

    if ((rc = render_requests(out, err)) != OK ||
        (rc = metrics_render(counters, COUNTERS, out, err)) != OK ||
        (rc = render_redis(out, err)) != OK)
        return rc;
    return render_depths(out, depths, n, err);
}
