#include "service/settings.h"

#include <stddef.h>
#include <stdio.h>

#include "base/options.h"
#include "service/headers.h"

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"listen", 0, "PE_LISTEN", OPT_TEXT, FIELD(listen), "127.0.0.1:8080", 0, 0,
     "ADDR:PORT|unix:PATH", "where to serve; port 0: a free one"},
    {"admin-listen", 0, "PE_ADMIN_LISTEN", OPT_TEXT, FIELD(admin_listen), "127.0.0.1:9090", 0, 0,
     "ADDR:PORT", "where /livez, /readyz and /metrics are"},
    {"insecure-no-keys", 0, "PE_INSECURE_NO_KEYS", OPT_BOOL, FIELD(insecure_no_keys), "0", 0, 0, "",
     "listen where other machines reach it, without API keys"},
    {"cors-origin", 0, "PE_CORS_ORIGIN", OPT_TEXT, FIELD(cors_origin), NULL, 0, 0, "ORIGIN",
     "whose pages may ask from a browser: SCHEME://HOST[:PORT], or * for all; else none"},
    REDIS_OPTIONS(FIELD(redis)),
    {"key-secret-file", 0, "PE_KEY_SECRET_FILE", OPT_TEXT, FIELD(key_secret_file), NULL, 0, 0,
     "PATH", "16 to 1024 random bytes, the same in all services; a new one empties the cache"},
    {"tenant", 0, "PE_TENANT", OPT_TEXT, FIELD(tenant), "local", 0, 0, "NAME",
     "whose all requests are, for fairness, quotas and the cache"},
    {"cache-scope", 0, "PE_CACHE_SCOPE", OPT_CHOICE, FIELD(cache_scope), "tenant", 0, 0,
     "tenant|global", "who shares cached results"},
    {"wait", 0, "PE_WAIT", OPT_INT, FIELD(wait_s), "30", 0, 3600, "S",
     "seconds a request waits for its result, unless it says Prefer: wait=N"},
    {"max-wait", 0, "PE_MAX_WAIT", OPT_INT, FIELD(max_wait_s), "120", 1, 3600, "S",
     "seconds that a request may ask for"},
    {"max-body", 0, "PE_MAX_BODY", OPT_INT, FIELD(max_body), "262144", 1024, 1 << 20, "BYTES",
     "of a request"},
    {"max-prompt-bytes", 0, "PE_MAX_PROMPT_BYTES", OPT_INT, FIELD(max_prompt_bytes), "67108864",
     1024, 1 << 30, "BYTES", "of one prompt's result"},
    {"max-request-bytes", 0, "PE_MAX_REQUEST_BYTES", OPT_INT, FIELD(max_request_bytes), "536870912",
     1024, INT64_C(1) << 36, "BYTES", "of an answer"},
    {"max-open-jobs", 0, "PE_MAX_OPEN_JOBS", OPT_INT, FIELD(max_open_jobs), "10000", 1, 10000000,
     "N", "in a model's queue; more are refused with 503"},
    {"max-tenant-jobs", 0, "PE_MAX_TENANT_JOBS", OPT_INT, FIELD(max_tenant_jobs), "10000", 1,
     10000000, "N", "of one tenant; more are refused with 429"},
    {"job-deadline", 0, "PE_JOB_DEADLINE", OPT_INT, FIELD(job_deadline_s), "3600", 1, 604800, "S",
     "seconds after which a job that did not run is dropped"},
    {"http-threads", 0, "PE_HTTP_THREADS", OPT_INT, FIELD(http_threads), "2", 1, 64, "N",
     "threads that serve connections"},
    {"io-threads", 0, "PE_IO_THREADS", OPT_INT, FIELD(io_threads), "4", 1, 64, "N",
     "threads that talk to Redis"},
    {"max-connections", 0, "PE_MAX_CONNECTIONS", OPT_INT, FIELD(max_connections), "12000", 16,
     200000, "N", "open at once"},
    {"max-held-bytes", 0, "PE_MAX_HELD_BYTES", OPT_INT, FIELD(max_held_bytes), "536870912", 1 << 20,
     INT64_C(1) << 40, "BYTES", "of results in memory, on their way to clients"},
    {"header-timeout", 0, "PE_HEADER_TIMEOUT", OPT_INT, FIELD(header_timeout_s), "10", 1, 3600, "S",
     "seconds for a request's headers"},
    {"body-timeout", 0, "PE_BODY_TIMEOUT", OPT_INT, FIELD(body_timeout_s), "30", 1, 3600, "S",
     "seconds for a request's body"},
    {"drain", 0, "PE_DRAIN", OPT_INT, FIELD(drain_s), "30", 0, 3600, "S",
     "seconds that SIGTERM leaves to waiting requests, then 202"},
    {"drain-lag", 0, "PE_DRAIN_LAG", OPT_INT, FIELD(drain_lag_s), "0", 0, 600, "S",
     "seconds between /readyz saying no and the end of accepting"},
    {"ready-file", 0, NULL, OPT_TEXT, FIELD(ready_file), NULL, 0, 0, "PATH",
     "written when ready: the address served, then the admin address"},
    {"log-level", 0, "PE_LOG_LEVEL", OPT_CHOICE, FIELD(log_level_choice), "info", 0, 0,
     "error|warn|info|debug", "what is logged"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder-service",
    .usage = "--key-secret-file PATH [options]",
    .about =
        "The HTTP front end: stateless, without model files. It knows the models that engines\n"
        "registered in the queue's Redis, sends them jobs, and answers from the cache.",
    .options = options,
};

int settings_load(struct settings *out, int argc, char **argv, bool *help, struct error *err)
{
    int n_rest, rc;

    if ((rc = options_parse(&program, out, argc, argv, &n_rest, help, err)) != OK)
        return rc;
    if (*help) {
        options_help(&program, stdout);
        return OK;
    }
    if (n_rest > 0)
        return error_set(err, ERR_INPUT, "unknown argument '%s'", argv[1]);
    if (out->key_secret_file == NULL)
        return error_set(err, ERR_INPUT,
                         "no key secret: give --key-secret-file PATH, a file of random bytes "
                         "(head -c 32 /dev/urandom > PATH)");
    if (out->cors_origin != NULL && !headers_origin_is_good(out->cors_origin))
        return error_set(
            err, ERR_INPUT,
            "--cors-origin: '%s' is no origin as browsers send it: SCHEME://HOST[:PORT] "
            "in small letters, without a path; or * for all",
            out->cors_origin);
    return OK;
}

bool settings_scope_is_global(const struct settings *s)
{
    return s->cache_scope == 1;
}

enum log_level settings_log_level(const struct settings *s)
{
    static const enum log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};

    return levels[s->log_level_choice];
}
