/* main.c - prompt-encoder-service: HTTP in front, Redis behind, no model files and no CUDA. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/admin.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "service/counters.h"
#include "service/events.h"
#include "service/fetch.h"
#include "service/http.h"
#include "service/io.h"
#include "service/models.h"
#include "service/routes.h"
#include "service/service.h"
#include "service/settings.h"
#include "service/waiters.h"

enum {
    CARDS_EVERY_MS = 1000,
    QUEUES_EVERY_MS = 5000, /* are measured */
    QUEUE_SEEN_MS = 5000,   /* older: not ready */
    MAX_BODIES = 256 << 20, /* bytes of bodies under way */
    IDLE_S = 15,            /* of a connection between requests */
    ANSWER_S = 20,          /* before an answer's reader must have been fast enough */
    MIN_RATE = 64 << 10,    /* bytes a second: fast enough */
    DRAIN_SPARE_MS = 5000   /* for answers on their way when the waits are over */
};

/* What the admin listener asks about; it outlives the rest. */
struct health {
    struct http *http;
    struct models *models;
    atomic_bool draining;
};

static bool is_live(void *arg, char *why, size_t cap)
{
    struct health *h = arg;
    bool alive = http_is_alive(h->http);

    snprintf(why, cap, alive ? "serving" : "the connections' thread has not gone round lately");
    return alive;
}

static bool is_ready(void *arg, char *why, size_t cap)
{
    struct health *h = arg;
    int64_t seen_ns = models_last_seen_ns(h->models);

    if (atomic_load(&h->draining)) {
        snprintf(why, cap, "stopping");
        return false;
    }
    if (seen_ns == 0 || clock_ms_since(seen_ns) > QUEUE_SEEN_MS) {
        snprintf(why, cap, "the queue's Redis has not answered for %d s", QUEUE_SEEN_MS / 1000);
        return false;
    }
    snprintf(why, cap, "ready");
    return true;
}

static int render_metrics(void *arg, struct buf *out, struct error *err)
{
    struct health *h = arg;

    return counters_render(h->models, out, err);
}

/* ---- start ---- */

static void signals_block(sigset_t *set)
{
    const struct rlimit no_core = {0, 0};

    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_CORE, &no_core); /* memory holds prompts */
}

static struct service describe(const struct settings *s)
{
    return (struct service){
        .tenant = s->tenant,
        .key_tenant = settings_scope_is_global(s) ? "global" : s->tenant,
        .max_open_jobs = s->max_open_jobs,
        .max_tenant_jobs = s->max_tenant_jobs,
        .job_deadline_s = s->job_deadline_s,
        .wait_s = (int)(s->wait_s < s->max_wait_s ? s->wait_s : s->max_wait_s),
        .max_wait_s = (int)s->max_wait_s,
        .max_body_bytes = (size_t)s->max_body,
        .max_prompt_bytes = (size_t)s->max_prompt_bytes,
        .max_request_bytes = (size_t)s->max_request_bytes,
    };
}

static struct http_options http_options(const struct settings *s, struct service *service)
{
    return (struct http_options){
        .listen = s->listen,
        .must_be_local = !s->insecure_no_keys,
        .n_threads = (int)s->http_threads,
        .max_connections = (int)s->max_connections,
        .max_body_bytes = MAX_BODIES,
        .header_s = (int)s->header_timeout_s,
        .body_s = (int)s->body_timeout_s,
        .idle_s = IDLE_S,
        .answer_s = ANSWER_S,
        .min_rate = MIN_RATE,
        .cors_origin = s->cors_origin,
        .handler = routes_handler(service),
    };
}

/* For whoever started us: that we serve, and where. */
static int write_ready(const char *path, const char *address, const char *admin, struct error *err)
{
    char text[512];

    if (path == NULL)
        return OK;
    snprintf(text, sizeof(text), "%s\n%s\n", address, admin);
    return file_write_text(path, text, err);
}

/* ---- end ---- */

/* Readiness goes first; then no new connections, and who waits is answered 202 at the latest when
 * the time is over: the jobs are durable. */
static void drain(const struct settings *s, struct http *http, struct waiters *waiters,
                  struct health *health)
{
    atomic_store(&health->draining, true);
    metric_set(&counters[C_DRAINING], 1);
    log_info("draining", "seconds=%d", (int)s->drain_s);
    http_begin_drain(http);
    clock_pause_ms(s->drain_lag_s * 1000);
    waiters_limit(waiters, clock_now_ns() + s->drain_s * INT64_C(1000000000));
    http_drain(http, (int)s->drain_s * 1000 + DRAIN_SPARE_MS);
}

int main(int argc, char **argv)
{
    struct settings settings = {0};
    struct service service;
    struct events *events = NULL;
    struct http *http = NULL;
    struct admin *admin = NULL;
    struct health health = {0};
    struct error err = {0};
    sigset_t signals;
    bool help = false;
    int rc, signal_number;

    service = describe(&settings);
    if ((rc = settings_load(&settings, argc, argv, &help, &err)) != OK || help)
        goto out;
    log_set_level(settings_log_level(&settings));
    signals_block(&signals); /* before the first thread: all inherit the mask */
    service = describe(&settings);
    if ((rc = key_secret_load(&service.secret, settings.key_secret_file, &err)) != OK ||
        (rc = redis_settings_check(&settings.redis, &err)) != OK)
        goto out;

    const struct io_options io_options = {settings.redis.queue, settings.redis.cache,
                                          (int)settings.io_threads, (int)settings.redis.timeout_ms};
    if ((rc = io_pool_start(&service.pool, &io_options, &err)) != OK ||
        (rc = fetch_start(&service.fetch, service.pool, settings.max_held_bytes, &err)) != OK ||
        (rc = waiters_start(&service.waiters, service.pool, service.fetch, &err)) != OK ||
        (rc = events_start(&events, settings.redis.queue, (int)settings.redis.timeout_ms,
                           service.waiters, &err)) != OK)
        goto out;
    const struct models_options models_options = {
        settings.redis.queue, (int)settings.redis.timeout_ms,
        CARDS_EVERY_MS,       QUEUES_EVERY_MS,
        events_follow,        events};
    if ((rc = models_start(&service.models, &models_options, &err)) != OK)
        goto out;
    const struct http_options serve = http_options(&settings, &service);
    if ((rc = http_start(&http, &serve, &err)) != OK)
        goto out;
    health.http = http;
    health.models = service.models;
    const struct admin_callbacks callbacks = {&health, is_live, is_ready, render_metrics};
    if ((rc = admin_start(&admin, settings.admin_listen, &callbacks, &err)) != OK ||
        (rc = write_ready(settings.ready_file, http_address(http), admin_address(admin), &err)) !=
            OK)
        goto out;
    log_info("ready", "listen=%s admin=%s", http_address(http), admin_address(admin));

    sigwait(&signals, &signal_number);
    drain(&settings, http, service.waiters, &health);
out:
    if (rc != OK)
        fprintf(stderr, "prompt-encoder-service: %s\n", err.text);
    admin_stop(admin);
    http_stop(http);
    events_stop(events);
    waiters_stop(service.waiters);
    io_pool_stop(service.pool); /* its last tasks use all of these */
    models_stop(service.models);
    events_free(events);
    waiters_free(service.waiters);
    fetch_stop(service.fetch);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
