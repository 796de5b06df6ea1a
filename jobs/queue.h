/* queue.h - the durable queue: jobs of one model, in Redis Q.
 *
 * A library of Redis Functions (queue.lua, carried in the binary) moves a job between one hash and
 * the sorted sets of waiting, delayed, leased and dead; each call is atomic and safe to repeat.
 * Accepted work is never lost: an engine that dies loses its lease, the job is delivered again, and
 * every write is fenced by the claim's token. DESIGN.md section 4 has the reasons.
 *
 * A struct queue is one connection and one model's base; it belongs to one thread. Functions that
 * talk to Redis give ERR_IO when it cannot be reached, ERR_MEM when it is full, ERR_BUSY when it
 * will not take writes just now. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/job.h"

struct queue;
struct redis;

enum {
    QUEUE_LEASE_MS = 30000,
    QUEUE_MAX_DELIVERIES = 6,
    QUEUE_CLAIM_MAX = 64, /* jobs a call: Redis waits while it runs */
    QUEUE_OWNER_MAX = 64, /* bytes of an engine's name, of a-z A-Z 0-9 . _ - */
    QUEUE_BASE_SIZE = 192
};

/* "pe:{<model>:<weights>:<compute>}" into out; all keys of a model's queue begin with it. */
void queue_base(char out[QUEUE_BASE_SIZE], const char *model, const char *weights,
                const char *compute);

/* `base` as from queue_base(). Loads the function library where this version of it is missing. */
int queue_open(struct queue **out, const char *url, const char *base, int timeout_ms,
               struct error *err);
void queue_close(struct queue *q); /* NULL is fine */

/* Whether the server at `url` may carry a queue: noeviction, append-only file on with fsync
 * always. `assumed` (--redis-durability=assumed) lets a server pass whose settings cannot be read
 * (CONFIG refused and INFO silent); what can be read must still hold. `shared_with_cache`: one
 * server for both is let through with volatile-lfu. ERR_FORMAT: the sentence names the setting,
 * what it is and what to set. *warning (or NULL) receives one sentence or "". */
int queue_check_policy(const char *url, bool assumed, bool shared_with_cache, char *warning,
                       size_t warning_cap, struct error *err);

/* ---- the service's side ---- */

struct queue_limits {
    int64_t max_open;   /* jobs waiting or delayed, all tenants together */
    int64_t max_tenant; /* open jobs of one tenant */
};

enum submit_outcome {
    SUBMIT_QUEUED,     /* all new ones are in the queue */
    SUBMIT_FULL,       /* nothing was added: max_open */
    SUBMIT_TENANT_FULL /* nothing was added: max_tenant */
};

/* What became of one job of the group. */
struct submitted {
    /* JOB_WAITING: queued or joined; JOB_DELAYED, JOB_LEASED: joined; JOB_DONE, JOB_DEAD: it was
     * already over, and `force` was not given */
    enum job_state state;
    bool joined;                /* was open before: computed once for all who ask */
    char error[JOB_ERROR_SIZE]; /* of a dead one */
};

/* What a group meets: how long it waits is about tokens_ahead / tokens_per_s. */
struct queue_load {
    int64_t tokens_ahead; /* about how many tokens wait before it */
    double tokens_per_s;  /* of all live engines together; 0: nobody knows */
};

/* Submits n jobs of one request as a group, all or none. `force` queues jobs anew that are over:
 * a done one whose result is gone from the cache, a dead one on a client's wish; an expired or
 * cancelled one is queued anew in any case. The same id twice is one job with one interest in it.
 * weight: the tenant's share, 1 is usual. lifetime_ms: a job that was not claimed by then, from now
 * on and by Q's clock, expires; 0: never; of a joined job the latest end holds. *load (or NULL):
 * for Retry-After. ERR_INPUT: n is not 1..JOB_GROUP_MAX, an id that is not plain, a tenant's name
 * that is not 1..63 bytes, fewer than 1 token. */
int queue_submit(struct queue *q, const char *tenant, double weight, int64_t lifetime_ms,
                 const struct job *jobs, size_t n, bool force, const struct queue_limits *limits,
                 enum submit_outcome *outcome, struct submitted *results, struct queue_load *load,
                 struct error *err);

struct job_status {
    enum job_state state;
    int attempt;
    int64_t place; /* jobs before it while it waits, else -1 */
    /* Unix time by Q's clock, 0: not yet; started: its latest claim */
    int64_t enqueued_ms, started_ms, finished_ms;
    char error[JOB_ERROR_SIZE];
    char tenant[64];
};
/* Of n jobs (at most QUEUE_CLAIM_MAX) in one call. Here and below, n of 0 does nothing. */
int queue_status(struct queue *q, const char *const *ids, size_t n, struct job_status *out,
                 struct error *err);

/* Drops one interest in a job; the last one cancels it. *state is what it is now (JOB_LEASED: an
 * engine was told; it learns of it at its next renewal). */
int queue_cancel(struct queue *q, const char *id, enum job_state *state, struct error *err);

/* ---- the engine's side ---- */

/* Takes what is there up to budget_tokens and max_jobs (at most QUEUE_CLAIM_MAX): the fair order, a
 * group never cut apart while it fits an empty budget, a job over the whole budget alone, a solo
 * job alone. Sweeps first. *n may be 0. `owner` names this engine; a claim's token is owner and the
 * claim's number, which never comes back. tokens_per_s: what this engine has been seen to compute,
 * 0 while it is not known; it counts as long as the engine claims or renews within its lease. */
int queue_claim(struct queue *q, const char *owner, int64_t budget_tokens, int max_jobs,
                int lease_ms, double tokens_per_s, struct claimed_job *out, size_t cap, size_t *n,
                struct error *err);
void claimed_jobs_free(struct claimed_job *jobs, size_t n);

/* Waits up to block_ms for the doorbell; true in *rang when there may be work. */
int queue_wait(struct queue *q, int block_ms, bool *rang, struct error *err);

enum lease_answer {
    LEASE_OK,
    LEASE_STALE,    /* no longer ours: drop the job, write nothing */
    LEASE_CANCELLED /* nobody wants it any more: finish it with queue_cancelled() */
};
int queue_renew(struct queue *q, const struct claimed_job *jobs, size_t n, int lease_ms,
                enum lease_answer *answers, struct error *err);
/* Each of these ends claims; an answer is LEASE_STALE when it was not ours to end. A repeated
 * complete is LEASE_OK again. */
/* n jobs (at most QUEUE_CLAIM_MAX) whose results are in the cache already, in one call, which Redis
 * makes durable with one fsync. After an error they may be completed, all or none: call again. */
int queue_complete(struct queue *q, const struct claimed_job *const *jobs, size_t n,
                   enum lease_answer *answers, struct error *err);
/* permanent: dead at once; else again after a growing delay, dead after QUEUE_MAX_DELIVERIES.
 * `error` is a code of less than JOB_ERROR_SIZE bytes. */
int queue_fail(struct queue *q, const struct claimed_job *job, bool permanent, const char *error,
               enum lease_answer *answer, struct error *err);
/* Back into the queue at once, the attempt not counted: for draining. */
int queue_release(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                  struct error *err);
/* What LEASE_CANCELLED asks for. When someone joined the job meanwhile it is released instead. */
int queue_cancelled(struct queue *q, const struct claimed_job *job, enum lease_answer *answer,
                    struct error *err);

/* An engine started with a fixed --name: takes the name's lock (ERR_BUSY: another live engine has
 * it) and puts the jobs its former self held back into the queue, counted as lost. Called again
 * through the same struct queue it only keeps the lock, for lock_ms more: that has to be done all
 * the while, and a short lock_ms lets a successor begin soon. */
int queue_take_name(struct queue *q, const char *owner, int lock_ms, int64_t *n_released,
                    struct error *err);
/* Lets the name go, at the end: the next engine of that name need not wait. */
int queue_drop_name(struct queue *q, const char *owner, struct error *err);

/* ---- both ---- */

/* Ends expired leases and brings delayed jobs back when their time has come; claim does it too. */
int queue_sweep(struct queue *q, int64_t *n_moved, struct error *err);

struct queue_depth {
    int64_t waiting, delayed, leased, dead;
    int64_t waiting_tokens;
    int64_t oldest_wait_ms; /* of the job that is next; 0: nothing waits */
    int64_t engines;        /* seen in the last lease */
    double tokens_per_s;    /* of these engines together; 0: nobody knows */
    int64_t leases_lost;    /* ever, of this queue */
};
int queue_depth(struct queue *q, struct queue_depth *out, struct error *err);
