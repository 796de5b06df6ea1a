/* settings.h - prompt-encoder-service's settings. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "jobs/redis_settings.h"

struct settings {
    const char *tenant;
    const char *cors_origin;
    const char *listen, *admin_listen, *key_secret_file, *ready_file;
    struct redis_settings redis;
    int cache_scope, log_level_choice;
    bool insecure_no_keys;
    int64_t wait_s, max_wait_s, max_body, max_prompt_bytes, max_request_bytes;
    int64_t max_open_jobs, max_tenant_jobs, job_deadline_s;
    int64_t http_threads, io_threads, max_connections, max_held_bytes;
    int64_t header_timeout_s, body_timeout_s, drain_s, drain_lag_s;
};

/* *help: --help was given and its text printed; there is nothing else to do. */
int settings_load(struct settings *out, int argc, char **argv, bool *help, struct error *err);
bool settings_scope_is_global(const struct settings *s);
enum log_level settings_log_level(const struct settings *s);
