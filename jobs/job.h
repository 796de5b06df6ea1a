/* job.h - a job as it travels: plain data that service, queue and worker agree on.
 *
 * A job is one prompt. Its id is its result key: whoever asks for the same thing asks for the same
 * job, so single flight needs no lock. A request's prompts are submitted as one group. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JOB_ID_SIZE = 56,    /* base32 of 32 bytes (52 characters a-z2-7) and a NUL */
    JOB_TOKEN_SIZE = 96, /* owner, ':', the claim's number */
    JOB_GROUP_MAX = 32,  /* prompts of one request */
    JOB_ERROR_SIZE = 64  /* a code, never a prompt's text */
};

enum job_state {
    JOB_NONE,    /* no such job: never submitted, or forgotten */
    JOB_WAITING, /* in the queue */
    JOB_DELAYED, /* failed, waits for its next try */
    JOB_LEASED,  /* an engine has it */
    JOB_DONE,    /* its result is in the cache, or was */
    JOB_DEAD,    /* failed for good */
    JOB_EXPIRED, /* its deadline passed before it ran */
    JOB_CANCELLED
};

static inline bool job_is_open(enum job_state s)
{
    return s == JOB_WAITING || s == JOB_DELAYED || s == JOB_LEASED;
}

/* Ids go into keys as they are. Ours are base32; any short plain word is one. */
static inline bool job_id_is_plain(const char *id)
{
    size_t n = 0;

    while (n < JOB_ID_SIZE && ((id[n] >= 'a' && id[n] <= 'z') || (id[n] >= 'A' && id[n] <= 'Z') ||
                               (id[n] >= '0' && id[n] <= '9') || id[n] == '_' || id[n] == '-'))
        n++;
    return n > 0 && n < JOB_ID_SIZE && id[n] == '\0';
}

/* What is submitted; all of it is borrowed for the call. */
struct job {
    char id[JOB_ID_SIZE];
    int n_tokens; /* what it costs; at least 1 */
    const char *payload;
    size_t payload_len; /* bytes */
};

/* What an engine holds while it works. */
struct claimed_job {
    char id[JOB_ID_SIZE];
    char token[JOB_TOKEN_SIZE]; /* fences every later write: only the latest claim's is accepted */
    int attempt;                /* 1 for the first delivery */
    bool solo;                  /* must run alone: it was lost twice */
    int n_tokens;
    int64_t deadline_ms; /* Unix time; 0: none */
    int64_t waited_ms;   /* since it was enqueued, by Q's clock */
    char *payload;       /* owned: claimed_jobs_free() */
    size_t payload_len;
};
