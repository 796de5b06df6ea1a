/* service.h - the parts of a running service, as its requests use them. */
#pragma once
#include <stdint.h>

#include "service/key.h"

struct fetch;
struct io_pool;
struct models;
struct waiters;

/* Constant while it serves. */
struct service {
    struct key_secret secret;
    struct models *models;
    struct io_pool *pool;
    struct fetch *fetch;
    struct waiters *waiters;
    const char *tenant;       /* whose jobs these are: fairness and quotas */
    const char *key_tenant;   /* part of every key: the tenant, or "global" */
    int64_t max_open_jobs;    /* in a queue, all tenants together */
    int64_t max_tenant_jobs;  /* of one tenant */
    int64_t job_deadline_s;   /* how long a job may wait in the queue */
    int wait_s, max_wait_s;   /* for an answer: usual, and most */
    size_t max_body_bytes;    /* of a request */
    size_t max_prompt_bytes;  /* of a prompt's result */
    size_t max_request_bytes; /* of an answer */
};
