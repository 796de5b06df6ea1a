/* main.c - prompt-encoder-engine: one model, claimed from the queue and encoded. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/admin.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/options.h"
#include "engine/engine.h"
#include "engine/engine_settings.h"
#include "engine/worker/left_out.h"
#include "engine/worker/proof.h"
#include "engine/worker/registration.h"
#include "engine/worker/worker.h"
#include "jobs/redis_settings.h"

enum {
    REPORT_MS = 5000, /* between two lines about a load */
    FAILED_MS = 2000  /* for the results that are there, when the engine has failed */
};

struct settings {
    struct engine_settings engine;
    struct redis_settings redis;
    const char *tokenizer, *admin_listen, *name, *ready_file, *state;
    int log_level;
    int64_t budget_tokens, max_jobs, register_s, probe_s, sleep_s, result_ttl_s, grace_s, hang_s,
        lease_ms;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    ENGINE_OPTIONS(FIELD(engine)),
    REDIS_OPTIONS(FIELD(redis)),
    {"tokenizer", 0, "PE_TOKENIZER", OPT_TEXT, FIELD(tokenizer), NULL, 0, 0, "PATH",
     "a model or tokenizer.json that takes the place of the model's own; a random model has none"},
    {"admin-listen", 0, "PE_ADMIN_LISTEN", OPT_TEXT, FIELD(admin_listen), "127.0.0.1:9091", 0, 0,
     "ADDR:PORT", "where /livez, /readyz and /metrics are"},
    {"name", 0, "PE_NAME", OPT_TEXT, FIELD(name), NULL, 0, 0, "NAME",
     "a fixed name: takes back its old jobs at once; default: host and random"},
    {"batch-tokens", 0, "PE_BATCH_TOKENS", OPT_INT, FIELD(budget_tokens), "2048", 1, 1 << 20, "N",
     "tokens of a batch, for each rank"},
    {"batch-jobs", 0, "PE_BATCH_JOBS", OPT_INT, FIELD(max_jobs), "32", 1, 64, "N",
     "prompts of a batch, for each rank; 64 of all at most"},
    {"result-ttl", 0, "PE_RESULT_TTL", OPT_INT, FIELD(result_ttl_s), "604800", 1, 31536000, "S",
     "seconds that results are kept"},
    {"lease-ms", 0, "PE_LEASE_MS", OPT_INT, FIELD(lease_ms), "30000", 1000, 600000, "N",
     "after so long without a sign of life an engine's jobs go to others"},
    {"grace", 0, "PE_GRACE", OPT_INT, FIELD(grace_s), "100", 0, 3600, "S",
     "seconds that SIGTERM leaves the batches in hand"},
    {"hang", 0, "PE_HANG", OPT_INT, FIELD(hang_s), "60", 1, 3600, "S",
     "seconds without progress after which the engine gives up"},
    {"register-every", 0, "PE_REGISTER_EVERY", OPT_INT, FIELD(register_s), "60", 1, 60, "S",
     "seconds between two registrations of the model, which keep its card live"},
    {"probe-every", 0, "PE_PROBE_EVERY", OPT_INT, FIELD(probe_s), "30", 1, 3600, "S",
     "seconds without work after which a forward pass proves the device"},
    {"sleep-after", 0, "PE_SLEEP_AFTER", OPT_INT, FIELD(sleep_s), "0", 0, 604800, "S",
     "seconds without work after which weights leave the GPUs until there is some; 0: never"},
    {"state", 0, "PE_STATE", OPT_TEXT, FIELD(state), NULL, 0, 0, "DIR",
     "an account of GPUs that fail: one that failed twice in an hour is left out"},
    {"ready-file", 0, NULL, OPT_TEXT, FIELD(ready_file), NULL, 0, 0, "PATH",
     "written when ready: the admin address"},
    {"log-level", 0, "PE_LOG_LEVEL", OPT_CHOICE, FIELD(log_level), "info", 0, 0,
     "error|warn|info|debug", "what is logged"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder-engine",
    .usage = "--model PATH [options]",
    .about = "Serves one model: claims its jobs from Redis, encodes them, stores the results.",
    .options = options,
};

static void signals_block(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* While the model loads nothing is in hand: a signal then ends the process at once, not after the
 * minutes that a large model takes. */
struct loading {
    const sigset_t *signals;
    pthread_t thread;
    bool started;
    atomic_bool over;
};

static void *end_while_loading(void *arg)
{
    static const struct timespec tick = {0, 50000000};
    struct loading *l = arg;

    while (!atomic_load(&l->over)) {
        int number = sigtimedwait(l->signals, NULL, &tick);
        if (number <= 0)
            continue;
        log_info("stopping", "signal=%d while loading", number);
        _exit(EXIT_SUCCESS);
    }
    return NULL;
}

static int loading_begin(struct loading *l, const sigset_t *signals, struct error *err)
{
    l->signals = signals;
    l->started = pthread_create(&l->thread, NULL, end_while_loading, l) == 0;
    return l->started ? OK : error_set(err, ERR_MEM, "cannot start a thread");
}

static void loading_end(struct loading *l)
{
    if (!l->started)
        return;
    l->started = false;
    atomic_store(&l->over, true);
    pthread_join(l->thread, NULL);
}

/* Until a signal asks for the end, or the worker fails. */
static void wait_for_end(const sigset_t *set, struct worker *worker)
{
    const struct timespec tick = {0, 200000000};

    while (!worker_has_failed(worker))
        if (sigtimedwait(set, NULL, &tick) > 0)
            return;
}

static bool is_live(void *arg, char *why, size_t cap)
{
    return worker_is_live(arg, why, cap);
}

static bool is_ready(void *arg, char *why, size_t cap)
{
    return worker_is_ready(arg, why, cap);
}

static int metrics(void *arg, struct buf *out, struct error *err)
{
    return worker_metrics(arg, out, err);
}

/* Host and process, and some bits of the clock: no two live engines share a name. */
static void random_name(char *out, size_t cap)
{
    char host[64] = "host";

    gethostname(host, sizeof(host) - 1);
    for (char *c = host; *c != '\0'; c++)
        if (*c == ':' || *c == ' ')
            *c = '-';
    snprintf(out, cap, "%.40s-%ld-%llx", host, (long)getpid(),
             (unsigned long long)clock_now_ns() & 0xffffffffffu);
}

static double gb_per_s(uint64_t bytes, double seconds)
{
    return seconds > 0.0 ? (double)bytes / 1e9 / seconds : 0.0;
}

/* While a model loads, so that whoever waits sees that it does. */
struct load_report {
    int64_t start_ns, told_ns;
};

static void report_load(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    struct load_report *r = arg;
    double seconds = clock_ms_since(r->start_ns) / 1e3;

    if (clock_ms_since(r->told_ns) < REPORT_MS)
        return;
    r->told_ns = clock_now_ns();
    log_info("loading", "mb=%llu of=%llu seconds=%.1f gb_per_s=%.2f",
             (unsigned long long)(bytes_done / 1000000),
             (unsigned long long)(bytes_total / 1000000), seconds, gb_per_s(bytes_done, seconds));
}

/* With all that the first jobs would else wait for. */
static int open_engine(struct engine **out, const struct settings *s, struct left_out *left_out,
                       struct error *err)
{
    struct engine_options engine_options = engine_settings_options(&s->engine);
    struct load_report report = {clock_now_ns(), clock_now_ns()};
    const struct engine_info *info;
    struct error why = {0};
    bool shares;
    double warm_s;
    int rc;

    engine_options.sleeps = s->sleep_s > 0;
    engine_options.progress = report_load;
    engine_options.progress_arg = &report;
    engine_options.max_batch_tokens =
        s->budget_tokens > ENGINE_MAX_TOKENS ? (int)s->budget_tokens : ENGINE_MAX_TOKENS;
    if ((rc = left_out_read(left_out, s->state, &engine_options, err)) != OK)
        return rc;
    if (engine_open(out, &engine_options, &why) != OK)
        return left_out_explain(left_out, &why, err);
    info = engine_info(*out);
    shares = info->residency == ENGINE_RESIDENCY_SHARDED;
    log_info("model_loaded",
             "mb=%llu seconds=%.2f gb_per_s=%.2f resident_mb=%llu ranks=%d residency=%s "
             "shard_by=%s",
             (unsigned long long)(info->loaded_bytes / 1000000), info->load_s,
             gb_per_s(info->loaded_bytes, info->load_s),
             (unsigned long long)(info->weights_bytes / 1000000), info->n_ranks,
             engine_residency_name(info->residency),
             shares ? engine_shard_by_name(info->shard_by) : "-");
    if ((rc = engine_warm(*out, &warm_s, err)) == OK && warm_s > 0.0)
        log_info("warmed", "seconds=%.2f", warm_s);
    return rc;
}

/* For whoever started us: that we serve, and where. */
static int write_ready(const char *path, const char *address, struct error *err)
{
    char text[256];

    snprintf(text, sizeof(text), "%s\n", address);
    return file_write_text(path, text, err);
}

int main(int argc, char **argv)
{
    static const struct rlimit no_core = {0, 0};
    static const enum log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};
    static struct left_out left_out; /* the engine tells it, to its end */
    struct settings settings = {0};
    struct worker_options worker_options = {0};
    struct admin_callbacks callbacks = {NULL, is_live, is_ready, metrics};
    struct engine *engine = NULL;
    struct worker *worker = NULL;
    struct admin *admin = NULL;
    struct registration *registration = NULL;
    const struct model_card *card;
    struct loading loading = {0};
    struct error err = {0};
    sigset_t signals;
    int64_t start_ns = clock_now_ns();
    char name[80];
    bool help, failed, hung = false;
    int n_rest, n_ranks, rc, worker_rc = OK;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, &err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (n_rest > 0) {
        rc = error_set(&err, ERR_INPUT, "unknown argument '%s'", argv[1]);
        goto out;
    }
    if ((rc = engine_settings_check(&settings.engine, &err)) != OK)
        goto out;
    if (2 * settings.redis.timeout_ms > settings.hang_s * 1000) {
        rc = error_set(&err, ERR_INPUT, "--redis-timeout-ms must be at most half of --hang");
        goto out;
    }
    log_set_level(levels[settings.log_level]);
    setrlimit(RLIMIT_CORE, &no_core); /* prompts do not reach core files */
    signals_block(&signals);          /* before the first thread: all inherit the mask */
    if ((rc = loading_begin(&loading, &signals, &err)) != OK ||
        (rc = redis_settings_check(&settings.redis, &err)) != OK ||
        (rc = open_engine(&engine, &settings, &left_out, &err)) != OK ||
        (rc = proof_run(engine, true, &err)) != OK ||
        (rc = registration_open(&registration, engine, &settings.engine, settings.tokenizer,
                                settings.redis.queue, (int)settings.redis.timeout_ms, &err)) !=
            OK ||
        (rc = registration_publish(registration, false, &err)) != OK)
        goto out;
    card = registration_card(registration);
    if (engine_info(engine)->is_random)
        log_warn("model_random", "model=%s text=\"weights are random: results mean nothing\"",
                 card->id);
    loading_end(&loading);
    n_ranks = engine_info(engine)->n_ranks;

    if (settings.name == NULL)
        random_name(name, sizeof(name));
    else
        snprintf(name, sizeof(name), "%s", settings.name);
    worker_options = (struct worker_options){
        .queue_url = settings.redis.queue,
        .cache_urls = settings.redis.cache,
        .owner = name,
        .owner_is_fixed = settings.name != NULL,
        .redis_timeout_ms = (int)settings.redis.timeout_ms,
        .lease_ms = (int)settings.lease_ms,
        .budget_tokens = settings.budget_tokens * n_ranks,
        .max_jobs = (int)settings.max_jobs * n_ranks,
        .result_ttl_ms = settings.result_ttl_s * 1000,
        .register_every_ms = (int)settings.register_s * 1000,
        .probe_every_ms = (int)settings.probe_s * 1000,
        .sleep_after_ms = settings.sleep_s * 1000,
        .hang_ms = (int)settings.hang_s * 1000,
    };
    if ((rc = worker_start(&worker, engine, registration, &worker_options, &err)) != OK)
        goto out;
    callbacks.arg = worker;
    if ((rc = admin_start(&admin, settings.admin_listen, &callbacks, &err)) != OK)
        goto out;
    log_info("ready",
             "model=%s weights=%.12s compute=%s ranks=%d strategy=%s name=%s admin=%s seconds=%.2f",
             card->id, card->weights, card->compute, n_ranks,
             engine_settings_strategy(&settings.engine), name, admin_address(admin),
             clock_ms_since(start_ns) / 1e3);
    if (settings.ready_file != NULL &&
        (rc = write_ready(settings.ready_file, admin_address(admin), &err)) != OK)
        goto out;
    wait_for_end(&signals, worker);

    failed = worker_has_failed(worker);
    worker_drain(worker);
    if (!worker_wait(worker, failed ? FAILED_MS : (int)settings.grace_s * 1000, &worker_rc, &err)) {
        hung = true;
        rc = error_set(&err, ERR_TIME, "the batches in hand did not end in time");
        if (!failed) /* slow batches, no hang: its jobs can start anew at once */
            worker_release(worker, NULL);
    } else {
        rc = worker_rc;
    }
    log_info("stopping", "rc=%d", rc);
out:
    if (rc != OK)
        fprintf(stderr, "prompt-encoder-engine: %s\n", err.text);
    if (hung)
        _exit(EXIT_FAILURE); /* a thread that hangs cannot be joined */
    loading_end(&loading);
    admin_stop(admin);
    worker_stop(worker);
    if (rc == ERR_GPU) /* nor does a device that failed come to an orderly end */
        _exit(EXIT_FAILURE);
    registration_close(registration);
    engine_close(engine);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
