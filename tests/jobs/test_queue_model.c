/* test_queue_model.c - random operations on a real queue and on a small model of it.
 *
 * After every step all keys of the base are read back and must be what the model says.
 *
 * Time is the test's: this program brings its own queue_library(), which is queue.lua with the body
 * of now() exchanged, under another name. The linker takes it instead of the one in libjobs.
 *
 * Nothing depends on real time but how long a command may take: PATIENCE_MS, and only a machine
 * that stands still for so long can make a run fail that passes when it is repeated.
 *
 * PE_MODEL_SEED=N PE_MODEL_STEPS=N choose other runs; a failure prints what repeats it, the steps
 * that led there, and how long the slowest one took. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/options.h"
#include "tests/check.h"

#include "jobs/queue.h"
#include "jobs/queue_events.h"
#include "jobs/queue_library.h"
#include "tests/jobs/queue_model.h"
#include "tests/jobs/redis_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 12000 };
#else
enum { STEPS = 24000 };
#endif

enum {
    STEPS_A_SEED = 3000, /* then with an empty base again */
    INSTANCES = 2,       /* connections, each with an instance of its own */
    GROUP = 5,
    CLAIMS = 40, /* the latest, live or stale, that are tried again */
    TRAIL = 12,  /* the latest steps, told when one fails */
    PATIENCE_MS = 120000
};

static const double weights[TENANTS] = {1.0, 2.0, 0.3};

static struct error err;
static struct redis_server server;
static struct redis *admin;
static char base[QUEUE_BASE_SIZE];

/* ---- queue.lua with a clock of ours ---- */

static struct buf library;

static void splice(char *at, size_t cut, const char *text)
{
    struct buf out = {.max = 1 << 20};

    CHECK_OK(buf_append(&out, library.data, (size_t)(at - library.data), &err));
    CHECK_OK(buf_append(&out, text, strlen(text), &err));
    CHECK_OK(buf_append(&out, at + cut, strlen(at + cut), &err));
    buf_free(&library);
    library = out;
}

static void make_library(void)
{
    static const char now[] = "    local t = redis.call('TIME')\n"
                              "    return t[1] * 1000 + math.floor(t[2] / 1000)\n";
    static const char hour[] = "local HOUR = 3600000\n";
    char text[64];
    FILE *file = fopen(PE_TESTS_DIR "/../jobs/queue.lua", "r");
    char block[4096], *at;
    size_t n;

    CHECK(file != NULL);
    library.max = 1 << 20;
    while ((n = fread(block, 1, sizeof(block), file)) > 0)
        CHECK_OK(buf_append(&library, block, n, &err));
    fclose(file);
    while ((at = strstr(library.data, "@LIBRARY@")) != NULL)
        splice(at, strlen("@LIBRARY@"), "pe_model");
    CHECK((at = strstr(library.data, now)) != NULL);
    splice(at, strlen(now), "    return tonumber(redis.call('GET', 'test:now'))\n");
    CHECK(strstr(library.data, "'TIME'") == NULL);
    CHECK((at = strstr(library.data, hour)) != NULL);
    snprintf(text, sizeof(text), "local HOUR = %" PRId64 "\n", HOUR_MS);
    splice(at, strlen(hour), text);
}

void queue_library(const char **name, const char **source, size_t *size)
{
    *name = "pe_model";
    *source = library.data;
    *size = library.len;
}

/* ---- chance ---- */

static uint64_t chance;

static uint64_t random_bits(void)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance;
}

static int random_below(int n)
{
    return (int)(random_bits() >> 33) % n;
}

/* ---- all keys, read back as the text that the model says ---- */

/* Expiries are Redis' own time, not the test's: to the nearest hour of HOUR_MS. */
static const char read_back[] =
    "local b, out = KEYS[1], {}\n"
    "local function add(s) out[#out + 1] = s end\n"
    "local fields = {'state', 'tenant', 'group', 'tag', 'tokens', 'payload', 'deadline',"
    "    'enqueued', 'attempt', 'lost', 'interest', 'solo', 'cancel', 'token', 'error', "
    "'started', 'finished'}\n"
    "local function hours(key) local t = redis.call('PTTL', key)\n"
    "    return t < 0 and t or math.floor(t / tonumber(ARGV[3]) + 0.5) end\n"
    "for i = 0, tonumber(ARGV[1]) - 1 do\n"
    "    local id = string.format('j%02d', i)\n"
    "    local key = b .. ':j:' .. id\n"
    "    local f, n, line = redis.call('HMGET', key, unpack(fields)), 0, {id}\n"
    "    for k = 1, #fields do\n"
    "        if f[k] then n = n + 1 line[#line + 1] = fields[k] .. '=' .. f[k] end\n"
    "    end\n"
    "    if n > 0 then\n"
    "        if n ~= redis.call('HLEN', key) then line[#line + 1] = 'other fields' end\n"
    "        line[#line + 1] = 'ttl=' .. hours(key)\n"
    "        add(table.concat(line, ' '))\n"
    "    end\n"
    "    if redis.call('EXISTS', b .. ':p:' .. id) == 1 then\n"
    "        add('kept ' .. id .. ' ttl=' .. hours(b .. ':p:' .. id)) end\n"
    "end\n"
    "for _, set in ipairs({'w', 'd', 'l', 'x', 'f', 'wk'}) do\n"
    "    add(set .. ' ' .. table.concat(redis.call('ZRANGE', b .. ':' .. set, 0, -1, 'WITHSCORES'),"
    "        ' '))\n"
    "end\n"
    "local rates = 'wr'\n"
    "for i = 4, #ARGV do\n"
    "    rates = rates .. ' ' .. (redis.call('HGET', b .. ':wr', ARGV[i]) or '0') end\n"
    "add(rates)\n"
    "for i = 0, tonumber(ARGV[2]) - 1 do\n"
    "    add('open t' .. i .. ' ' .. (redis.call('HGET', b .. ':tc', 't' .. i) or '-')) end\n"
    "local m = redis.call('HMGET', b .. ':m', 'v', 'tokens', 'groups', 'claims', 'lost')\n"
    "for k = 1, 5 do add('m ' .. (m[k] or '0')) end\n"
    "local locks = ''\n"
    "for i = 4, #ARGV do\n"
    "    locks = locks .. redis.call('EXISTS', b .. ':n:' .. ARGV[i]) end\n"
    "add('locks ' .. locks)\n"
    "add('bell ' .. redis.call('LLEN', b .. ':bell'))\n"
    "if redis.call('EXISTS', b .. ':ev') == 1 then\n"
    "    local e = redis.call('XREVRANGE', b .. ':ev', '+', '-', 'COUNT', 1)[1][2]\n"
    "    add('events ' .. redis.call('XINFO', 'STREAM', b .. ':ev')[12] .. ' ' .. table.concat(e, "
    "        ' '))\n"
    "end\n"
    "local keys = redis.call('KEYS', string.gsub(b, '[%[%]*?]', '?') .. ':*')\n"
    "add('keys ' .. #keys)\n"
    "return table.concat(out, '\\n') .. '\\n'\n";

static void compare_all(void)
{
    static struct buf want = {.max = 1 << 20};
    char ids[8], tenants[8], hour[24];
    const char *argv[] = {"EVAL",  read_back, "1",       base,      ids,
                          tenants, hour,      owners[0], owners[1], owners[2]};
    const char *p, *r;
    redisReply *reply;

    snprintf(ids, sizeof(ids), "%d", IDS);
    snprintf(tenants, sizeof(tenants), "%d", TENANTS);
    snprintf(hour, sizeof(hour), "%" PRId64, HOUR_MS);
    buf_free(&want);
    say_all(&want);
    CHECK_OK(redis_command(admin, &reply, sizeof(argv) / sizeof(argv[0]), argv, NULL, &err));
    if (reply->type == REDIS_REPLY_STRING && strcmp(reply->str, want.data) == 0) {
        freeReplyObject(reply);
        buf_free(&want);
        return;
    }
    for (p = want.data, r = reply->str; *p != '\0' || *r != '\0';) { /* the lines that differ */
        size_t pn = strcspn(p, "\n"), rn = strcspn(r, "\n");

        if (pn != rn || memcmp(p, r, pn) != 0)
            printf("model %.*s\nredis %.*s\n", (int)pn, p, (int)rn, r);
        p += pn + (p[pn] != '\0');
        r += rn + (r[rn] != '\0');
    }
    freeReplyObject(reply);
    buf_free(&want);
    CHECK_FAIL("the keys are not what the model says");
}

/* ---- what a failure tells ---- */

static char trail[TRAIL][256];
static int64_t n_trail;
static double slowest_ms;
static int64_t slowest_step;

PRINTF_LIKE(1, 2) static void note(const char *fmt, ...)
{
    char *line = trail[n_trail++ % TRAIL];
    va_list args;
    int len = snprintf(line, sizeof(trail[0]), "at %" PRId64 ": ", m.now);

    va_start(args, fmt);
    vsnprintf(line + len, sizeof(trail[0]) - (size_t)len, fmt, args);
    va_end(args);
}

/* ---- steps: each does a thing to both ---- */

static struct queue *queues[INSTANCES];
static struct queue_events *reader;
static struct claimed_job claims[CLAIMS]; /* a ring of what was claimed */
static int n_claims;

static struct queue *any_queue(void)
{
    return queues[random_below(INSTANCES)];
}

static int index_of(const char *id)
{
    CHECK(id[0] == 'j' && id[1] != '\0' && id[2] != '\0' && id[3] == '\0');
    return (id[1] - '0') * 10 + (id[2] - '0');
}

/* Mostly a claim that holds, else any old one. NULL: there was none yet. */
static struct claimed_job *any_claim(void)
{
    struct claimed_job *c = NULL;
    int n = n_claims < CLAIMS ? n_claims : CLAIMS;

    if (n == 0)
        return NULL;
    for (int i = 0; i < 12; i++) {
        c = &claims[random_below(n)];
        if (holds(index_of(c->id), c->token) || random_below(8) == 0)
            break;
    }
    return c;
}

/* One whose job nobody wants any more, where there is one: by chance alone that is met rarely. */
static struct claimed_job *any_unwanted_claim(void)
{
    for (int i = 0; i < n_claims && i < CLAIMS; i++)
        if (m.jobs[index_of(claims[i].id)].cancel && holds(index_of(claims[i].id), claims[i].token))
            return &claims[i];
    return any_claim();
}

static void step_submit(void)
{
    static const struct queue_limits limits[] = {{1000, 1000}, {14, 1000}, {1000, 7}, {16, 9}};
    const struct queue_limits *limit = &limits[random_below(4)];
    int tenant = random_below(TENANTS), n = 1 + random_below(GROUP), n_new = 0, cost = 0;
    bool force = random_below(3) == 0, is_new[GROUP];
    int64_t lifetime = random_below(4) == 0 ? 1 + random_below(4000) : 0;
    int64_t deadline = lifetime > 0 ? m.now + lifetime : 0;
    int64_t want_ahead = 0;
    struct queue_load load;
    enum submit_outcome outcome, want = SUBMIT_QUEUED;
    struct submitted results[GROUP];
    struct job jobs[GROUP];
    int index[GROUP], waiting = count_state(JOB_WAITING);
    char name[8], payload[24];
    double tag;

    snprintf(name, sizeof(name), "t%d", tenant);
    snprintf(payload, sizeof(payload), "p%d", random_below(1000000));
    note("submit of %d jobs by %s, force %d, deadline %" PRId64 ", limits %" PRId64 " %" PRId64, n,
         name, force, deadline, limit->max_open, limit->max_tenant);
    for (int k = 0; k < n; k++) {
        enum job_state s;

        index[k] = random_below(IDS);
        s = m.jobs[index[k]].state;
        jobs[k] = (struct job){
            .n_tokens = 1 + random_below(9), .payload = payload, .payload_len = strlen(payload)};
        snprintf(jobs[k].id, sizeof(jobs[k].id), "%s", id_of(index[k]));
        is_new[k] = !job_is_open(s) && (force || (s != JOB_DONE && s != JOB_DEAD));
        for (int i = 0; i < k; i++)
            is_new[k] = is_new[k] && index[i] != index[k];
        n_new += is_new[k];
        cost += is_new[k] ? jobs[k].n_tokens : 0;
        note("  job %s of %d tokens, new %d", jobs[k].id, jobs[k].n_tokens, is_new[k]);
    }
    CHECK_OK(queue_submit(any_queue(), name, weights[tenant], lifetime, jobs, (size_t)n, force,
                          limit, &outcome, results, &load, &err));

    tag = m.has_finish[tenant] && m.finish[tenant] > m.v ? m.finish[tenant] : m.v;
    if (waiting > 0) {
        int before = 0;

        for (int i = 0; i < IDS; i++)
            before += m.jobs[i].state == JOB_WAITING && m.jobs[i].tag <= tag;
        want_ahead = waiting_tokens() * before / waiting;
    }
    CHECK_INT(load.tokens_ahead, want_ahead);
    CHECK(load.tokens_per_s == rate_of_all());
    if (n_new > 0 && open_of(tenant) + n_new > limit->max_tenant)
        want = SUBMIT_TENANT_FULL;
    else if (n_new > 0 && waiting + count_state(JOB_DELAYED) + n_new > limit->max_open)
        want = SUBMIT_FULL;
    CHECK_INT(outcome, want);
    met[MET_FULL] += want == SUBMIT_FULL;
    met[MET_TENANT_FULL] += want == SUBMIT_TENANT_FULL;
    if (want != SUBMIT_QUEUED)
        return;
    if (n_new > 0) {
        m.groups++;
        m_ring();
    }
    for (int k = 0; k < n; k++) {
        struct model_job *j = &m.jobs[index[k]];
        bool again = false;

        for (int i = 0; i < k; i++)
            again = again || index[i] == index[k];
        if (is_new[k]) {
            char latest[JOB_TOKEN_SIZE];

            memcpy(latest, j->latest_token, sizeof(latest));
            met[MET_FORCED] += j->state == JOB_DONE || j->state == JOB_DEAD;
            *j = (struct model_job){.state = JOB_WAITING,
                                    .tenant = tenant,
                                    .n_tokens = jobs[k].n_tokens,
                                    .interest = 1,
                                    .group = m.groups,
                                    .deadline = deadline,
                                    .enqueued = m.now,
                                    .started = -1,
                                    .finished = -1,
                                    .tag = tag};
            memcpy(j->payload, payload, sizeof(payload));
            memcpy(j->latest_token, latest, sizeof(latest));
        } else if (job_is_open(j->state) && !again) {
            if (j->deadline != 0 && (deadline == 0 || deadline > j->deadline))
                j->deadline = deadline;
            met[MET_JOINED]++;
            met[MET_WANTED_AGAIN] += j->cancel;
            j->cancel = false;
            j->interest++;
        }
        CHECK_INT(results[k].state, j->state);
        CHECK_INT(results[k].joined, !is_new[k] && job_is_open(j->state));
        CHECK_TEXT(results[k].error,
                   !job_is_open(j->state) ? j->error : ""); /* a dead one says why */
    }
    if (n_new > 0) {
        m.finish[tenant] = tag + cost / weights[tenant];
        m.has_finish[tenant] = true;
    }
}

static void step_claim(void)
{
    int owner = random_below(OWNERS), max_jobs = 1 + random_below(9), taken[IDS];
    int lease_ms = 1 + random_below(2000);
    int64_t budget = 1 + random_below(30);
    double rate = random_below(3) * 0.25; /* sums of these are exact */
    struct claimed_job got[16];
    size_t n;
    int want;

    note("claim by %s of %d jobs, %" PRId64 " tokens, for %d ms, rate %g", owners[owner], max_jobs,
         budget, lease_ms, rate);
    CHECK_OK(queue_claim(any_queue(), owners[owner], budget, max_jobs, lease_ms, rate, got, 16, &n,
                         &err));
    want = m_claim(taken, owner, budget, max_jobs, lease_ms, rate);
    for (size_t k = 0; k < n; k++) {
        struct claimed_job *slot = &claims[n_claims++ % CLAIMS];

        claimed_jobs_free(slot, 1);
        *slot = got[k]; /* handed over */
    }
    CHECK_INT(n, want);
    for (size_t k = 0; k < n; k++) {
        struct model_job *j = &m.jobs[taken[k]];

        CHECK_TEXT(got[k].id, id_of(taken[k]));
        CHECK_TEXT(got[k].token, j->token);
        CHECK_TEXT(got[k].payload, j->payload);
        CHECK_INT(got[k].waited_ms, m.now - j->enqueued);
        CHECK(got[k].attempt == j->attempt && got[k].solo == j->solo &&
              got[k].n_tokens == j->n_tokens && got[k].deadline_ms == j->deadline);
        CHECK(!got[k].solo || n == 1);
        memcpy(j->latest_token, got[k].token, sizeof(j->latest_token));
    }
}

static void step_renew(void)
{
    struct claimed_job jobs[4];
    enum lease_answer answers[4];
    int lease_ms = 1 + random_below(3000), n = 0, owner = 0;

    for (int k = 0; k < 1 + random_below(4); k++) {
        struct claimed_job *c = any_claim();

        if (c != NULL)
            jobs[n++] = *c; /* lent */
    }
    if (n == 0)
        return;
    note("renewal of %d from %s %s on, for %d ms", n, jobs[0].id, jobs[0].token, lease_ms);
    CHECK_OK(queue_renew(any_queue(), jobs, (size_t)n, lease_ms, answers, &err));
    for (int o = 0; o < OWNERS; o++)
        if (strncmp(jobs[0].token, owners[o], strlen(owners[o])) == 0 &&
            jobs[0].token[strlen(owners[o])] == ':')
            owner = o;
    m.seen[owner] = m.now + lease_ms;
    for (int k = 0; k < n; k++) {
        int i = index_of(jobs[k].id);

        if (!holds(i, jobs[k].token)) {
            CHECK_INT(answers[k], LEASE_STALE);
            continue;
        }
        m.jobs[i].due = m.now + lease_ms;
        CHECK_INT(answers[k], m.jobs[i].cancel ? LEASE_CANCELLED : LEASE_OK);
        met[MET_TOLD_CANCELLED] += m.jobs[i].cancel;
    }
}

/* Several at once, live, stale and repeated ones mixed. */
static void step_complete(void)
{
    const struct claimed_job *jobs[6];
    enum lease_answer answers[6];
    int n = 1 + random_below(6), n_ok = 0;

    for (int k = 0; k < n; k++)
        if ((jobs[k] = any_claim()) == NULL)
            return;
    note("completion of %d from %s %s on", n, jobs[0]->id, jobs[0]->token);
    CHECK_OK(queue_complete(any_queue(), jobs, (size_t)n, answers, &err));
    for (int k = 0; k < n; k++) {
        enum lease_answer want = LEASE_STALE;
        int i = index_of(jobs[k]->id);

        if (holds(i, jobs[k]->token)) {
            want = LEASE_OK;
            m_finish(i, JOB_DONE, "");
            met[MET_COMPLETED]++;
        } else if (m.jobs[i].state == JOB_DONE && strcmp(m.jobs[i].token, jobs[k]->token) == 0) {
            want = LEASE_OK;
            met[MET_COMPLETED_AGAIN]++;
        }
        met[MET_STALE_COMPLETE] += want == LEASE_STALE && m.jobs[i].state == JOB_LEASED;
        CHECK_INT(answers[k], want);
        if (answers[k] == LEASE_OK)
            CHECK_TEXT(jobs[k]->token, m.jobs[i].latest_token);
        n_ok += want == LEASE_OK;
    }
    met[MET_COMPLETED_SOME] += n_ok > 0 && n_ok < n;
}

static void step_fail(void)
{
    struct claimed_job *c = any_claim();
    bool permanent = random_below(5) == 0;
    enum lease_answer answer;
    int i;

    if (c == NULL)
        return;
    i = index_of(c->id);
    note("failure of %s %s, permanent %d", c->id, c->token, permanent);
    CHECK_OK(queue_fail(any_queue(), c, permanent, "oops", &answer, &err));
    met[MET_STALE_FAIL] += !holds(i, c->token) && m.jobs[i].state == JOB_LEASED;
    CHECK_INT(answer, holds(i, c->token) ? LEASE_OK : LEASE_STALE);
    if (answer != LEASE_OK)
        return;
    if (permanent)
        m_finish(i, JOB_DEAD, "oops");
    else
        m_retry(i, "oops", -1);
}

static void step_release(bool cancelled)
{
    struct claimed_job *c = cancelled ? any_unwanted_claim() : any_claim();
    enum lease_answer answer;
    int i;

    if (c == NULL)
        return;
    i = index_of(c->id);
    note("release of %s %s, cancelled %d", c->id, c->token, cancelled);
    if (cancelled)
        CHECK_OK(queue_cancelled(any_queue(), c, &answer, &err));
    else
        CHECK_OK(queue_release(any_queue(), c, &answer, &err));
    met[MET_STALE_RELEASE] += !holds(i, c->token) && m.jobs[i].state == JOB_LEASED;
    CHECK_INT(answer, holds(i, c->token) ? LEASE_OK : LEASE_STALE);
    if (answer != LEASE_OK)
        return;
    met[MET_CANCELLED] += m.jobs[i].cancel;
    m.jobs[i].attempt--;
    m_unlease(i, 0);
}

static void cancel(int i)
{
    struct model_job *j = &m.jobs[i];
    enum job_state state;

    note("cancel of %s", id_of(i));
    CHECK_OK(queue_cancel(any_queue(), id_of(i), &state, &err));
    if (job_is_open(j->state)) {
        j->interest -= j->interest > 0;
        if (j->interest == 0 && j->state == JOB_LEASED)
            j->cancel = true;
        else if (j->interest == 0)
            m_finish(i, JOB_CANCELLED, "");
    }
    CHECK_INT(state, j->state);
}

/* Now and then by all who want it. */
static void step_cancel(void)
{
    int i = random_below(IDS), times = random_below(3) == 0 ? 8 : 1;

    while (times-- > 0)
        cancel(i);
}

static void step_time(void)
{
    redisReply *reply;

    switch (random_below(40)) {
    case 0:
        m.now += 8 * 24 * HOUR_MS; /* the dead are forgotten */
        break;
    case 1:
    case 2:
    case 3:
        m.now += random_below(40000);
        break;
    default:
        m.now += random_below(600);
    }
    note("the time");
    CHECK_OK(redis_commandf(admin, &reply, &err, "SET test:now %lld", (long long)m.now));
    freeReplyObject(reply);
}

static void step_sweep(void)
{
    int64_t moved;

    note("sweep");
    CHECK_OK(queue_sweep(any_queue(), &moved, &err));
    CHECK_INT(moved, m_sweep());
}

static void step_name(void)
{
    int o = random_below(OWNERS), instance = random_below(INSTANCES), order[IDS], n, want = 0;
    size_t len = strlen(owners[o]);
    redisReply *reply;
    int64_t released;
    int what = random_below(4);

    note("name %s, instance %d, way %d", owners[o], instance, what);
    switch (what) {
    case 0: /* the lock runs out */
        CHECK_OK(redis_commandf(admin, &reply, &err, "DEL %s:n:%s", base, owners[o]));
        freeReplyObject(reply);
        m.holder[o] = -1;
        return;
    case 1:
        CHECK_OK(queue_drop_name(queues[instance], owners[o], &err));
        if (m.holder[o] == instance)
            m.holder[o] = -1;
        return;
    default:
        break;
    }
    if (m.holder[o] >= 0 && m.holder[o] != instance) {
        CHECK_ERR(queue_take_name(queues[instance], owners[o], INT_MAX, &released, &err), ERR_BUSY,
                  owners[o]);
        met[MET_NAME_BUSY]++;
        return;
    }
    CHECK_OK(queue_take_name(queues[instance], owners[o], INT_MAX, &released, &err));
    if (m.holder[o] < 0) {
        n = in_order(order, JOB_LEASED);
        for (int k = 0; k < n; k++) {
            const char *token = m.jobs[order[k]].token;

            if (strncmp(token, owners[o], len) != 0 || token[len] != ':')
                continue;
            m_lose(order[k], 0);
            want++;
        }
        m.holder[o] = instance;
    }
    met[MET_NAME_RELEASED] += want > 0;
    CHECK_INT(released, want);
}

/* The record of a job that is over expires. */
static void step_forget(void)
{
    int i = random_below(IDS);
    redisReply *reply;

    if (m.jobs[i].state == JOB_NONE || open_at(i))
        return;
    note("%s is forgotten", id_of(i));
    CHECK_OK(redis_commandf(admin, &reply, &err, "DEL %s:j:%s", base, id_of(i)));
    freeReplyObject(reply);
    m.jobs[i].state = JOB_NONE;
}

static void look_at_jobs(void)
{
    int n = 1 + random_below(5), index[5], order[IDS], n_waiting = in_order(order, JOB_WAITING);
    struct job_status s[5];
    const char *ids[5];

    for (int k = 0; k < n; k++)
        ids[k] = id_of(index[k] = random_below(IDS));
    CHECK_OK(queue_status(any_queue(), ids, (size_t)n, s, &err));
    for (int k = 0; k < n; k++) {
        const struct model_job *j = &m.jobs[index[k]];
        int place = -1;

        for (int i = 0; i < n_waiting; i++)
            if (order[i] == index[k])
                place = i;
        CHECK_INT(s[k].state, j->state);
        CHECK_INT(s[k].place, place);
        if (j->state == JOB_NONE)
            continue;
        CHECK_INT(s[k].attempt, j->attempt);
        CHECK_INT(s[k].enqueued_ms, j->enqueued);
        CHECK_INT(s[k].started_ms, j->started < 0 ? 0 : j->started);
        CHECK_INT(s[k].finished_ms, j->finished < 0 ? 0 : j->finished);
        CHECK_TEXT(s[k].error, j->error);
    }
}

static void look_at_depth(void)
{
    int order[IDS], n = in_order(order, JOB_WAITING), engines = 0;
    struct queue_depth depth;

    CHECK_OK(queue_depth(any_queue(), &depth, &err));
    for (int o = 0; o < OWNERS; o++)
        engines += m.seen[o] > m.now;
    CHECK_INT(depth.waiting, n);
    CHECK_INT(depth.delayed, count_state(JOB_DELAYED));
    CHECK_INT(depth.leased, count_state(JOB_LEASED));
    CHECK_INT(depth.waiting_tokens, waiting_tokens());
    CHECK_INT(depth.engines, engines);
    CHECK_INT(depth.leases_lost, m.leases_lost);
    CHECK(depth.tokens_per_s == rate_of_all());
    met[MET_RATES] += engines > 1 && depth.tokens_per_s > 0.5;
    if (n == 0)
        CHECK_INT(depth.oldest_wait_ms, 0);
    else
        CHECK_INT(depth.oldest_wait_ms,
                  m.now > m.jobs[order[0]].enqueued ? m.now - m.jobs[order[0]].enqueued : 1);
}

/* Events come as they were made, and none is missed while the stream is not cut. */
static void look_at_events(void)
{
    struct queue_event events[20];
    bool missed;
    size_t n;

    CHECK_OK(queue_events_read(reader, 0, events, 1 + (size_t)random_below(20), &n, &missed, &err));
    CHECK(!missed);
    for (size_t k = 0; k < n; k++) {
        const struct model_event *want = &m.events[m.n_events_read++ % EVENTS];

        CHECK_TEXT(events[k].id, id_of(want->job));
        CHECK_INT(events[k].state, want->state);
        CHECK_INT(events[k].waited_ms, want->waited > INT_MAX ? INT_MAX : want->waited);
        CHECK_INT(events[k].took_ms, want->took > INT_MAX ? INT_MAX : want->took);
        met[MET_EVENT_CLAIMED] += want->took >= 0;
        met[MET_EVENT_UNCLAIMED] += want->took < 0;
    }
    if (n == 0)
        CHECK_INT(m.n_events_read, m.n_events);
}

static void step_look(void)
{
    bool rang;

    note("a look at jobs, depth and events");
    CHECK_OK(queue_wait(any_queue(), 0, &rang, &err));
    CHECK_INT(rang, m.bell > 0);
    m.bell -= m.bell > 0;
    look_at_jobs();
    look_at_depth();
    look_at_events();
}

/* Now and then nothing is added for a while, so that the queue runs empty. */
static void one_step(bool draining)
{
    int dice = random_below(100);

    if (dice < 22 && draining) {
        step_cancel();
        step_complete();
        step_cancel();
    } else if (dice < 22)
        step_submit();
    else if (dice < 42)
        step_claim();
    else if (dice < 49)
        step_renew();
    else if (dice < 61)
        step_complete();
    else if (dice < 67)
        step_fail();
    else if (dice < 71)
        step_release(false);
    else if (dice < 74)
        step_release(true);
    else if (dice < 80)
        step_cancel();
    else if (dice < 90)
        step_time();
    else if (dice < 93)
        step_sweep();
    else if (dice < 96)
        step_name();
    else if (dice < 98)
        step_forget();
    else
        step_look();
}

/* ---- runs ---- */

static int64_t seed, step;

static void close_queues(void)
{
    for (int i = 0; i < INSTANCES; i++) {
        queue_close(queues[i]);
        queues[i] = NULL;
    }
    queue_events_close(reader);
    reader = NULL;
    claimed_jobs_free(claims, CLAIMS);
    memset(claims, 0, sizeof(claims));
    n_claims = 0;
}

static void open_queues(void)
{
    const char *followed = base;
    redisReply *reply;
    char name[32];
    bool fresh;

    close_queues();
    memset(&m, 0, sizeof(m));
    for (int o = 0; o < OWNERS; o++)
        m.holder[o] = -1;
    m.now = 1700000000000;
    CHECK_OK(redis_commandf(admin, &reply, &err, "SET test:now %lld", (long long)m.now));
    freeReplyObject(reply);
    snprintf(name, sizeof(name), "seed%" PRId64, seed);
    queue_base(base, "model", name, "float32");
    for (int i = 0; i < INSTANCES; i++)
        CHECK_OK(queue_open(&queues[i], server.url, base, PATIENCE_MS, &err));
    CHECK_OK(queue_events_open(&reader, server.url, PATIENCE_MS, &err));
    CHECK_OK(queue_events_follow(reader, &followed, 1, &fresh, &err));
    CHECK(fresh);
}

static void redis_does_as_the_model(void)
{
    chance = (uint64_t)seed * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < 10; i++)
        random_bits();
    open_queues();
    for (step = 0; step < STEPS_A_SEED; step++) {
        bool was_busy = is_busy();
        int64_t start = clock_now_ns();
        double v = m.v, ms;

        one_step(step % 500 > 350);
        compare_all();
        if ((ms = clock_ms_since(start)) > slowest_ms) {
            slowest_ms = ms;
            slowest_step = step;
        }
        met[MET_IDLE] += was_busy && !is_busy();
        if (was_busy && is_busy() && m.v < v)
            CHECK_FAIL("the virtual time fell from %g to %g", v, m.v);
    }
}

static void everything_was_met(void)
{
    for (int i = 0; i < MET_COUNT; i++)
        if (met[i] < 3)
            CHECK_FAIL("case %d of the MET_ list was met %" PRId64 " times", i, met[i]);
}

static void tell_failure(void)
{
    siginfo_t ended = {0};

    for (int64_t k = n_trail < TRAIL ? 0 : n_trail - TRAIL; k < n_trail; k++)
        printf("%s\n", trail[k % TRAIL]);
    clock_pause_ms(100); /* a server that is being killed closes its sockets first */
    waitid(P_PID, (id_t)server.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    printf("the slowest step that passed took %.0f ms, step %" PRId64 "; the server %s, its log is "
           "%s/redis.log\n",
           slowest_ms, slowest_step, ended.si_pid == 0 ? "runs" : "has ended", server.dir);
    printf("seed %" PRId64 ", step %" PRId64 ": PE_MODEL_SEED=%" PRId64
           " PE_MODEL_STEPS=1 repeats it\n",
           seed - 1, step, seed - 1);
}

static int64_t setting(const char *name, int64_t fallback)
{
    int64_t n = fallback;
    const char *text = getenv(name);

    if (text != NULL && options_parse_int(&n, text, 1, INT64_MAX / 2, name, &err) != OK) {
        printf("%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    return n;
}

int main(void)
{
    int64_t first = setting("PE_MODEL_SEED", 1), steps = setting("PE_MODEL_STEPS", STEPS);
    int64_t start = clock_now_ns();

    redis_server_need();
    if (!redis_server_start(&server, "test_queue_model", "") ||
        redis_open(&admin, server.url, PATIENCE_MS, &err) != OK) {
        printf("redis-server does not start; see %s/redis.log\n", server.dir);
        return EXIT_FAILURE;
    }
    RUN(make_library);
    for (seed = first; (seed - first) * STEPS_A_SEED < steps && check_failures == 0; seed++)
        RUN(redis_does_as_the_model);
    if (check_failures == 0 && steps >= STEPS)
        RUN(everything_was_met);
    else if (check_failures > 0)
        tell_failure();
    if (check_failures == 0)
        printf("%" PRId64 " steps in %.1f s\n", (seed - first) * STEPS_A_SEED,
               clock_ms_since(start) / 1000);
    close_queues();
    buf_free(&library);
    redis_close(admin);
    redis_server_stop(&server);
    return check_result();
}
