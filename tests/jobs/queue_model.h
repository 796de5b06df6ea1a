/* queue_model.h - what a queue does, said once more in C, for test_queue_model.c alone.
 *
 * It keeps no sets and no counters of what can be derived: a job is in `waiting` because its state
 * says so. So each comparison with Redis also proves that an open job is in exactly one set, that
 * quotas count open jobs, and that what is over holds no lease. */
#pragma once
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "jobs/queue.h"

enum { IDS = 24, TENANTS = 3, OWNERS = 3, BELL_MAX = 16, EVENTS = 1024 };

/* What the test makes of queue.lua's hour: expiries are Redis' own time, and a machine that sleeps
 * for an hour, or has its clock set, must not look like a fault of the queue. */
#define HOUR_MS INT64_C(3600000000)

static const char *const owners[OWNERS] = {"e", "e1", "gpu.2"};
static const char *const state_names[] = {"none", "waiting", "delayed", "leased",
                                          "done", "dead",    "expired", "cancelled"};

/* What a run must have met, or it proved less than it seems to. */
enum {
    MET_JOINED,
    MET_FORCED,
    MET_FULL,
    MET_TENANT_FULL,
    MET_GROUP_WHOLE,
    MET_GROUP_CUT,
    MET_OVER_BUDGET,
    MET_SOLO,
    MET_EXPIRED,
    MET_LOST,
    MET_DEAD,
    MET_STALE_COMPLETE,
    MET_STALE_FAIL,
    MET_STALE_RELEASE,
    MET_COMPLETED,
    MET_COMPLETED_AGAIN,
    MET_COMPLETED_SOME,
    MET_TOLD_CANCELLED,
    MET_CANCELLED,
    MET_WANTED_AGAIN,
    MET_NAME_BUSY,
    MET_NAME_RELEASED,
    MET_RATES,
    MET_EVENT_CLAIMED,
    MET_EVENT_UNCLAIMED,
    MET_IDLE,
    MET_COUNT
};
static int64_t met[MET_COUNT];

struct model_job {
    enum job_state state; /* JOB_NONE: there is no hash */
    int tenant, n_tokens, attempt, lost, interest;
    int64_t group, deadline, enqueued;
    int64_t started, finished; /* -1: no field */
    double tag;
    bool solo, cancel, has_error;
    char payload[24], error[JOB_ERROR_SIZE];
    char token[JOB_TOKEN_SIZE]; /* "": no field */
    int64_t due;                /* back from delayed, or the lease's end */
    int64_t dead_at;            /* 0: not among the dead; outlives the hash */
    bool has_payload_kept;
    char latest_token[JOB_TOKEN_SIZE]; /* as claims answered, not as the model reckons */
};

static struct {
    struct model_job jobs[IDS];
    int64_t now, groups, claims;
    double v, finish[TENANTS];
    bool has_finish[TENANTS];
    int64_t seen[OWNERS]; /* 0: not there */
    double rate[OWNERS];  /* tokens a second; 0: not known */
    int64_t leases_lost;
    int holder[OWNERS]; /* instance of the name's lock, or -1 */
    int bell;
    int64_t n_events, n_events_read;
    struct model_event {
        int job;
        enum job_state state;
        int64_t waited, took;
    } events[EVENTS]; /* a ring */
} m;

static const char *id_of(int i)
{
    static char names[IDS][8];

    snprintf(names[i], sizeof(names[i]), "j%02d", i);
    return names[i];
}

static bool open_at(int i)
{
    return job_is_open(m.jobs[i].state);
}

static bool is_busy(void)
{
    for (int i = 0; i < IDS; i++)
        if (open_at(i))
            return true;
    return false;
}

static int count_state(enum job_state s)
{
    int n = 0;

    for (int i = 0; i < IDS; i++)
        n += m.jobs[i].state == s;
    return n;
}

static int64_t waiting_tokens(void)
{
    int64_t n = 0;

    for (int i = 0; i < IDS; i++)
        if (m.jobs[i].state == JOB_WAITING)
            n += m.jobs[i].n_tokens;
    return n;
}

static int open_of(int tenant)
{
    int n = 0;

    for (int i = 0; i < IDS; i++)
        n += open_at(i) && m.jobs[i].tenant == tenant;
    return n;
}

static double rate_of_all(void)
{
    double sum = 0;

    for (int o = 0; o < OWNERS; o++)
        if (m.seen[o] > m.now)
            sum += m.rate[o];
    return sum;
}

static void m_ring(void)
{
    if (m.bell < BELL_MAX)
        m.bell++;
}

static void m_idle(void)
{
    if (is_busy())
        return;
    m.v = 0;
    memset(m.has_finish, 0, sizeof(m.has_finish));
}

static void m_finish(int i, enum job_state s, const char *error)
{
    struct model_job *j = &m.jobs[i];

    met[MET_DEAD] += s == JOB_DEAD;
    if (s == JOB_DEAD) {
        j->dead_at = m.now;
        j->has_payload_kept = true;
    }
    if (s != JOB_DONE)
        j->token[0] = '\0';
    j->state = s;
    j->finished = m.now;
    j->cancel = false;
    j->payload[0] = '\0';
    j->has_error = true;
    snprintf(j->error, sizeof(j->error), "%s", error);
    m.events[m.n_events++ % EVENTS] =
        (struct model_event){i, s, j->started < 0 ? -1 : j->started - j->enqueued,
                             j->started < 0 ? -1 : m.now - j->started};
    m_idle();
}

static void m_unlease(int i, int64_t delay)
{
    struct model_job *j = &m.jobs[i];

    j->token[0] = '\0';
    if (j->cancel) {
        m_finish(i, JOB_CANCELLED, "");
    } else if (delay > 0) {
        j->state = JOB_DELAYED;
        j->due = m.now + delay;
    } else {
        j->state = JOB_WAITING;
        m_ring();
    }
}

static void m_retry(int i, const char *error, int64_t delay)
{
    struct model_job *j = &m.jobs[i];

    if (j->attempt >= QUEUE_MAX_DELIVERIES && !j->cancel) {
        m_finish(i, JOB_DEAD, error);
        return;
    }
    j->has_error = true;
    snprintf(j->error, sizeof(j->error), "%s", error);
    if (delay < 0)
        delay = (int64_t)500 << (j->attempt - 1) < 30000 ? (int64_t)500 << (j->attempt - 1) : 30000;
    m_unlease(i, delay);
}

static void m_lose(int i, int64_t delay)
{
    met[MET_LOST]++;
    m.leases_lost++;
    if (++m.jobs[i].lost == 2) {
        m.jobs[i].solo = true;
        m.jobs[i].group = ++m.groups;
    }
    m_retry(i, "lease_lost", delay);
}

static enum job_state sort_state;

static int compare_jobs(const void *a, const void *b)
{
    int p = *(const int *)a, r = *(const int *)b;
    const struct model_job *x = &m.jobs[p], *y = &m.jobs[r];

    if (sort_state == JOB_WAITING) {
        if (x->tag != y->tag)
            return x->tag < y->tag ? -1 : 1;
        if (x->group != y->group)
            return x->group < y->group ? -1 : 1;
    } else if (sort_state == JOB_DEAD) {
        if (x->dead_at != y->dead_at)
            return x->dead_at < y->dead_at ? -1 : 1;
    } else if (x->due != y->due) {
        return x->due < y->due ? -1 : 1;
    }
    return p < r ? -1 : p > r;
}

/* The jobs of a state (JOB_DEAD: of the list of the dead) in the order of their set. */
static int in_order(int out[IDS], enum job_state s)
{
    int n = 0;

    for (int i = 0; i < IDS; i++)
        if (s == JOB_DEAD ? m.jobs[i].dead_at != 0 : m.jobs[i].state == s)
            out[n++] = i;
    sort_state = s;
    if (n > 0)
        qsort(out, (size_t)n, sizeof(out[0]), compare_jobs);
    return n;
}

static int m_sweep(void)
{
    int order[IDS], n = in_order(order, JOB_LEASED), moved = 0;

    for (int k = 0; k < n && m.jobs[order[k]].due <= m.now; k++, moved++)
        m_lose(order[k], -1);
    n = in_order(order, JOB_DELAYED);
    for (int k = 0; k < n && m.jobs[order[k]].due <= m.now; k++, moved++)
        m.jobs[order[k]].state = JOB_WAITING;
    if (moved > 0)
        m_ring();
    for (int i = 0; i < IDS; i++)
        if (m.jobs[i].dead_at != 0 && m.jobs[i].dead_at <= m.now - 7 * 24 * HOUR_MS)
            m.jobs[i].dead_at = 0;
    return moved;
}

static bool holds(int i, const char *token)
{
    return m.jobs[i].state == JOB_LEASED && strcmp(m.jobs[i].token, token) == 0;
}

static void m_take(int i, int owner, int lease_ms, double *v)
{
    struct model_job *j = &m.jobs[i];

    j->state = JOB_LEASED;
    j->attempt++;
    j->due = m.now + lease_ms;
    j->started = m.now;
    snprintf(j->token, sizeof(j->token), "%s:%" PRId64, owners[owner], ++m.claims);
    if (j->tag > *v)
        *v = j->tag;
}

/* The jobs that a claim takes, in order. */
static int m_claim(int taken[IDS], int owner, int64_t budget, int max_jobs, int lease_ms,
                   double rate)
{
    int order[IDS], n, n_taken = 0, i = 0;
    int64_t tokens = 0;
    double v;

    m.seen[owner] = m.now + lease_ms;
    m.rate[owner] = rate;
    for (int o = 0; o < OWNERS; o++)
        if (m.seen[o] <= m.now) {
            m.seen[o] = 0;
            m.rate[o] = 0;
        }
    m_sweep();
    v = m.v;
    n = in_order(order, JOB_WAITING);
    while (i < n && i < max_jobs && n_taken < max_jobs) {
        int group[IDS], size = 0;
        int64_t first = m.jobs[order[i]].group, cost = 0;

        for (; i < n && m.jobs[order[i]].group == first; i++) {
            struct model_job *j = &m.jobs[order[i]];

            if (j->deadline != 0 && j->deadline < m.now) {
                m_finish(order[i], JOB_EXPIRED, "deadline");
                met[MET_EXPIRED]++;
            } else {
                group[size++] = order[i];
                cost += j->n_tokens;
            }
        }
        if (size == 0)
            continue;
        if (!m.jobs[group[0]].solo && tokens + cost <= budget && n_taken + size <= max_jobs) {
            for (int k = 0; k < size; k++) {
                taken[n_taken++] = group[k];
                m_take(group[k], owner, lease_ms, &v);
            }
            tokens += cost;
            continue;
        }
        met[MET_GROUP_WHOLE] += n_taken > 0 && size > 1; /* its first job might have fitted */
        met[MET_OVER_BUDGET] += n_taken == 0 && m.jobs[group[0]].n_tokens > budget;
        met[MET_SOLO] += n_taken == 0 && m.jobs[group[0]].solo;
        for (int k = 0; n_taken == k && k < size && k < max_jobs; k++) {
            if (k > 0 && tokens + m.jobs[group[k]].n_tokens > budget)
                break;
            tokens += m.jobs[group[k]].n_tokens;
            taken[n_taken++] = group[k];
            m_take(group[k], owner, lease_ms, &v);
            met[MET_GROUP_CUT] += k > 0;
        }
        break;
    }
    if (n_taken > 0) {
        m.v = v;
        for (int t = 0; t < TENANTS; t++)
            if (m.has_finish[t] && m.finish[t] <= v)
                m.has_finish[t] = false;
    }
    if (count_state(JOB_WAITING) > 0)
        m_ring();
    return n_taken;
}

/* ---- all keys as one text ---- */

#define SAY(...) buf_printf(out, NULL, __VA_ARGS__)

static void say_job(struct buf *out, int i)
{
    const struct model_job *j = &m.jobs[i];
    bool open = job_is_open(j->state);

    if (j->state != JOB_NONE) {
        SAY("%s state=%s tenant=t%d group=%012" PRIx64 " tag=%.17g tokens=%d", id_of(i),
            state_names[j->state], j->tenant, (uint64_t)j->group, j->tag, j->n_tokens);
        if (open)
            SAY(" payload=%s", j->payload);
        SAY(" deadline=%" PRId64 " enqueued=%" PRId64 " attempt=%d lost=%d interest=%d",
            j->deadline, j->enqueued, j->attempt, j->lost, j->interest);
        if (j->solo)
            SAY(" solo=1");
        if (j->cancel)
            SAY(" cancel=1");
        if (j->token[0] != '\0')
            SAY(" token=%s", j->token);
        if (j->has_error)
            SAY(" error=%s", j->error);
        if (j->started >= 0)
            SAY(" started=%" PRId64, j->started);
        if (j->finished >= 0)
            SAY(" finished=%" PRId64, j->finished);
        SAY(" ttl=%d\n", open ? -1 : j->state == JOB_DEAD ? 168 : 1);
    }
    if (j->has_payload_kept)
        SAY("kept %s ttl=6\n", id_of(i));
}

static int compare_finish(const void *a, const void *b)
{
    int p = *(const int *)a, r = *(const int *)b;

    if (m.finish[p] != m.finish[r])
        return m.finish[p] < m.finish[r] ? -1 : 1;
    return p < r ? -1 : p > r;
}

static int compare_seen(const void *a, const void *b)
{
    int p = *(const int *)a, r = *(const int *)b;

    if (m.seen[p] != m.seen[r])
        return m.seen[p] < m.seen[r] ? -1 : 1;
    return strcmp(owners[p], owners[r]);
}

static void say_all(struct buf *out)
{
    int order[IDS], n, keys = 0;

    for (int i = 0; i < IDS; i++) {
        say_job(out, i);
        keys += (m.jobs[i].state != JOB_NONE) + m.jobs[i].has_payload_kept;
    }
    n = in_order(order, JOB_WAITING);
    keys += n > 0;
    SAY("w ");
    for (int k = 0; k < n; k++)
        SAY("%s%012" PRIx64 "%s %.17g", k > 0 ? " " : "", (uint64_t)m.jobs[order[k]].group,
            id_of(order[k]), m.jobs[order[k]].tag);
    n = in_order(order, JOB_DELAYED);
    keys += n > 0;
    SAY("\nd ");
    for (int k = 0; k < n; k++)
        SAY("%s%s %" PRId64, k > 0 ? " " : "", id_of(order[k]), m.jobs[order[k]].due);
    n = in_order(order, JOB_LEASED);
    keys += n > 0;
    SAY("\nl ");
    for (int k = 0; k < n; k++)
        SAY("%s%s %" PRId64, k > 0 ? " " : "", id_of(order[k]), m.jobs[order[k]].due);
    n = in_order(order, JOB_DEAD);
    keys += n > 0;
    SAY("\nx ");
    for (int k = 0; k < n; k++)
        SAY("%s%s %" PRId64, k > 0 ? " " : "", id_of(order[k]), m.jobs[order[k]].dead_at);

    n = 0;
    for (int t = 0; t < TENANTS; t++)
        if (m.has_finish[t])
            order[n++] = t;
    qsort(order, (size_t)n, sizeof(order[0]), compare_finish);
    keys += n > 0;
    SAY("\nf ");
    for (int k = 0; k < n; k++)
        SAY("%st%d %.17g", k > 0 ? " " : "", order[k], m.finish[order[k]]);
    n = 0;
    for (int o = 0; o < OWNERS; o++)
        if (m.seen[o] != 0)
            order[n++] = o;
    qsort(order, (size_t)n, sizeof(order[0]), compare_seen);
    keys += n > 0;
    SAY("\nwk ");
    for (int k = 0; k < n; k++)
        SAY("%s%s %" PRId64, k > 0 ? " " : "", owners[order[k]], m.seen[order[k]]);
    SAY("\nwr");
    n = 0;
    for (int o = 0; o < OWNERS; o++) {
        SAY(" %.17g", m.rate[o]);
        n += m.rate[o] > 0;
    }
    keys += n > 0;
    SAY("\n");

    for (int t = 0; t < TENANTS; t++)
        if (open_of(t) > 0)
            SAY("open t%d %d\n", t, open_of(t));
        else
            SAY("open t%d -\n", t);
    keys += is_busy(); /* tc */
    SAY("m %.17g\nm %" PRId64 "\nm %" PRId64 "\nm %" PRId64 "\nm %" PRId64 "\n", m.v,
        waiting_tokens(), m.groups, m.claims, m.leases_lost);
    keys += m.groups > 0;
    SAY("locks ");
    for (int o = 0; o < OWNERS; o++) {
        SAY("%d", m.holder[o] >= 0);
        keys += m.holder[o] >= 0;
    }
    SAY("\nbell %d\n", m.bell);
    keys += m.bell > 0;
    if (m.n_events > 0) {
        const struct model_event *last = &m.events[(m.n_events - 1) % EVENTS];

        SAY("events %" PRId64 " j %s s %s w %" PRId64 " t %" PRId64 "\n", m.n_events,
            id_of(last->job), state_names[last->state], last->waited, last->took);
    }
    keys += m.n_events > 0;
    SAY("keys %d\n", keys);
}
