/* ticket.h - what one request waits for: results or states of one or several jobs.
 *
 * A ticket is made on the HTTP thread, parks its exchange, and goes through the pool: results are
 * looked for in the cache; what is missing is submitted as one group, the waiters being in their
 * table already; events bring the results in. When all is there, or something failed for good, or
 * the wait is over, the ticket is settled and wakes its exchange, once. A result that was lost or
 * damaged makes its job run again. That the wait is over settles nothing while a prompt is on its
 * way into the queue: "accepted" may be said only of what is there. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "jobs/job.h"
#include "jobs/queue.h"
#include "service/fetch.h"
#include "service/http.h"
#include "service/io.h"
#include "service/models.h"
#include "service/problem.h"
#include "service/request.h"
#include "service/service.h"
#include "service/waiters.h"

enum ticket_kind {
    TICKET_ENCODE, /* results, computed where they are missing */
    TICKET_LOOKUP, /* a result, if it is in the cache */
    TICKET_RESULT, /* results of jobs submitted before */
    TICKET_STATUS, /* states of jobs */
    TICKET_CANCEL  /* states, after one interest in each was dropped */
};

enum ticket_outcome {
    TICKET_WORKING,
    TICKET_READY,   /* all results, or all states, are there */
    TICKET_PENDING, /* the wait is over and the jobs go on */
    TICKET_FAILED   /* `problem` says why */
};

struct ticket;

struct ticket_prompt {
    /* filled by the maker: */
    char id[JOB_ID_SIZE];
    struct buf payload; /* TICKET_ENCODE */
    int n_tokens;       /* TICKET_ENCODE */
    /* filled by the ticket: */
    struct result *result;
    /* The first prompt of this id, as a rule itself. It alone asks and waits, so that the same
     * prompt twice is one interest in one job. What follows is filled in there. */
    struct ticket_prompt *first;
    const struct model *model; /* of the job; NULL: not found */
    struct job_status status;
    bool was_missing, joined;
    /* private: */
    struct ticket *ticket;
    struct waiter waiter;
    int n_lost_jobs, n_lost_results, n_repairs;
    uint32_t sent_crc32c; /* of a result that broke while it was being sent */
};

/* Milliseconds, of several prompts the longest; negative: not known. */
struct ticket_times {
    double tokenize; /* filled by the maker */
    double lookup;   /* until the cache had been asked for all prompts */
    double queue, encode;
    double fetch; /* opening a result; of a hit a part of lookup */
};

struct ticket {
    /* filled by the maker: */
    enum request_cache cache;
    bool respond_async;
    int wait_s; /* 0: as things are */
    /* to be read when it is settled: */
    enum ticket_kind kind;
    enum ticket_outcome outcome;
    struct problem problem;
    struct ticket_times times;
    size_t n;
    struct ticket_prompt *prompts;
    pthread_mutex_t lock; /* guards all that other threads may still write: outcome, problem, times,
                             load, results, states, joined; and closed, n_open, n_unsent, is_late */
    /* private: */
    const struct service *service;
    struct exchange *exchange;
    const struct model *model;
    atomic_int refs;
    bool closed;     /* nobody waits any more */
    size_t n_open;   /* prompts without an end, and one for the task that starts it */
    size_t n_unsent; /* submissions under way, and one for the task that starts it */
    bool is_late;    /* it has waited enough: PENDING as soon as all is in the queue */
    bool sending, send_failed;
    size_t repaired; /* the prompt under repair */
    bool has_load;
    struct queue_load load; /* that its jobs met */
    int64_t start_ns;
    struct io_task task;
};

/* `model`: of all prompts, held by the ticket; NULL when it is to be found by the jobs' ids. NULL
 * when there is no memory. Payloads are secret buffers: fill them, and the ids, before the start.
 */
struct ticket *ticket_new(const struct service *s, struct exchange *x, enum ticket_kind kind,
                          size_t n, const struct model *model);
/* Parks the exchange; it is woken when the ticket is settled. On the HTTP thread. */
void ticket_start(struct ticket *t);
/* Nobody waits for it any more; on the HTTP thread. NULL is fine. */
void ticket_close(struct ticket *t);

/* A settled ticket's result `prompt` broke while it was being sent. Parks the exchange; it is woken
 * when there is another with the same bytes, or when send_failed was set. */
void ticket_repair(struct ticket *t, size_t prompt);

/* Seconds after which asking again makes sense: when the queue will have come to its jobs, as far
 * as is known. 5 where no live engine has said how fast it is; 1 for a ticket that submitted
 * nothing. From 1 to 60, and a fifth more or less, so that not all come back at once. */
int ticket_retry_after(struct ticket *t);
