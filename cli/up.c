/* up.c - prompt-encoder up: the whole service on one machine, for as long as it runs.
 *
 * Starts two private redis-servers (Q, durable; C, a cache) on unix sockets in the state folder, an
 * engine and a service, as children; starts again what dies; stops all in order on Ctrl-C. Nothing
 * of the system's is touched and nothing is left running. The queue's file and the key secret stay
 * in the state folder, so that accepted jobs outlive us. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/listen.h"
#include "base/options.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "engine/engine_settings.h"
#include "jobs/redis.h"

struct settings {
    struct engine_settings engine;
    const char *state, *listen, *admin_listen, *engine_admin_listen;
    int64_t cache_mb, queue_mb;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    ENGINE_OPTIONS(FIELD(engine)),
    {"listen", 0, "PE_LISTEN", OPT_TEXT, FIELD(listen), "127.0.0.1:8080", 0, 0,
     "ADDR:PORT|unix:PATH", "where to serve; port 0: a free one"},
    {"admin-listen", 0, "PE_ADMIN_LISTEN", OPT_TEXT, FIELD(admin_listen), "127.0.0.1:0", 0, 0,
     "ADDR:PORT", "the service's /livez, /readyz and /metrics; port 0: a free one"},
    {"engine-admin-listen", 0, "PE_ENGINE_ADMIN_LISTEN", OPT_TEXT, FIELD(engine_admin_listen),
     "127.0.0.1:0", 0, 0, "ADDR:PORT", "the engine's; port 0: a free one"},
    {"state", 0, "PE_STATE", OPT_TEXT, FIELD(state), NULL, 0, 0, "DIR",
     "queue, key secret and logs; default: ~/.local/state/prompt-encoder"},
    {"cache-mb", 0, "PE_CACHE_MB", OPT_INT, FIELD(cache_mb), "1024", 16, 1 << 20, "N",
     "memory for results"},
    {"queue-mb", 0, "PE_QUEUE_MB", OPT_INT, FIELD(queue_mb), "256", 16, 1 << 20, "N",
     "memory for the queue"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder up",
    .usage = "--model PATH [options]",
    .about = "Serves a model on this machine until Ctrl-C: starts Redis, an engine and the HTTP\n"
             "service as its children, and prints 'ready http://HOST:PORT'.",
    .options = options,
};

enum { QUEUE, CACHE, ENGINE, SERVICE, N_CHILDREN };
static const int grace_ms[N_CHILDREN] = {5000, 5000, 110000, 45000};
enum { SERVICE_LISTEN_ARG = 1 }; /* place in the service's command line */
enum { LOG_MAX = 8 << 20, LOG_TICKS = 50 /* between two looks at the logs */ };
enum { START_MS = 600000, REDIS_START_MS = 30000, TICK_MS = 100, SECRET_BYTES = 32 };
enum { LOCK_MS = 2000 /* for what an `up` that was killed leaves behind to end */ };

struct up {
    struct settings settings;
    char state[400];      /* shorter than a path: the names in it must fit */
    char state_url[1200]; /* the same as part of a Redis address */
    char programs[PATH_MAX];
    int lock;
    struct child children[N_CHILDREN];
    /* words of the command lines, with the ports that were got */
    char listen[300], admin_listen[N_CHILDREN][300];
    int admin_arg[N_CHILDREN]; /* place of --admin-listen in a command line */
    sigset_t signals;
};

/* ---- the state folder ---- */

/* A path as addresses have it: what means something there as %XX. */
static void escape_path(char *out, const char *path)
{
    for (const char *c = path; *c != '\0'; c++)
        if (strchr(" %?#&,", *c) != NULL)
            out += snprintf(out, 4, "%%%02X", (unsigned char)*c);
        else
            *out++ = *c;
    *out = '\0';
}

static int choose_state(struct up *u, struct error *err)
{
    const char *base = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char chosen[PATH_MAX], absolute[PATH_MAX];
    int rc;

    if (u->settings.state != NULL)
        snprintf(chosen, sizeof(chosen), "%s", u->settings.state);
    else if (base != NULL && base[0] == '/')
        snprintf(chosen, sizeof(chosen), "%s/prompt-encoder", base);
    else if (home != NULL && home[0] == '/')
        snprintf(chosen, sizeof(chosen), "%s/.local/state/prompt-encoder", home);
    else
        return error_set(err, ERR_INPUT, "no home directory: give --state DIR");
    if ((rc = file_make_folder(chosen, err)) != OK)
        return rc;
    if (realpath(chosen, absolute) == NULL)
        return error_set(err, ERR_IO, "%s: %s", chosen, strerror(errno));
    /* a socket's path has at most 107 bytes (unix(7)) */
    if (strlen(absolute) + strlen("/queue.sock") > 107)
        return error_set(err, ERR_INPUT, "%s: too long for a folder with sockets: give --state DIR",
                         absolute);
    memcpy(u->state, absolute, strlen(absolute) + 1);
    escape_path(u->state_url, u->state);
    return OK;
}

/* One `up` a state folder: the lock goes with the process, and with the Redis servers that it
 * started: when it is killed, they take a moment to end, and two must not write one file. */
static int lock_state(struct up *u, struct error *err)
{
    int64_t start = clock_now_ns();
    char path[512];

    snprintf(path, sizeof(path), "%s/lock", u->state);
    if ((u->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0)
        return error_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    while (flock(u->lock, LOCK_EX | LOCK_NB) != 0) {
        if (clock_ms_since(start) > LOCK_MS)
            return error_set(err, ERR_BUSY,
                             "%s: another 'prompt-encoder up' uses it; give --state DIR", u->state);
        clock_pause_ms(TICK_MS);
    }
    return OK;
}

/* The secret that result keys are made with; a new one empties the cache, so it is kept. */
static int make_secret(struct up *u, struct error *err)
{
    unsigned char secret[SECRET_BYTES];
    char path[512], hex[2 * SECRET_BYTES + 2];
    mode_t old;
    int rc;

    snprintf(path, sizeof(path), "%s/key-secret", u->state);
    if (file_exists(path))
        return OK;
    if (gnutls_rnd(GNUTLS_RND_KEY, secret, sizeof(secret)) != 0)
        return error_set(err, ERR_IO, "%s: no random numbers to be had", path);
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(hex + 2 * i, 4, "%02x\n", secret[i]);
    old = umask(077);
    rc = file_write_text(path, hex, err);
    umask(old);
    return rc;
}

/* ---- the children ---- */

static void name_child(struct up *u, int which, const char *name)
{
    struct child *c = &u->children[which];

    c->name = name;
    snprintf(c->log, sizeof(c->log), "%s/%s.log", u->state, name);
}

/* Where our sibling programs are: beside this one. */
static int find_programs(struct up *u, struct error *err)
{
    ssize_t n = readlink("/proc/self/exe", u->programs, sizeof(u->programs) - 1);
    char *slash;

    if (n <= 0)
        return error_set(err, ERR_IO, "/proc/self/exe: %s", strerror(errno));
    u->programs[n] = '\0';
    if ((slash = strrchr(u->programs, '/')) != NULL)
        *slash = '\0';
    return OK;
}

static int describe_redis(struct up *u, int which, const char *name, int64_t mb, struct error *err)
{
    struct child *c = &u->children[which];
    bool durable = which == QUEUE;
    char folder[512];
    int rc;

    name_child(u, which, name);
    c->keeps = u->lock;
    snprintf(folder, sizeof(folder), "%s/%s", u->state, name);
    if ((rc = file_make_folder(folder, err)) != OK)
        return rc;
    const char *const words[][2] = {
        {"--port", "0"},
        {"--unixsocketperm", "700"},
        {"--daemonize", "no"},
        {"--save", ""},
        {"--appendonly", durable ? "yes" : "no"},
        {"--appendfsync", "always"},
        {"--maxmemory-policy", durable ? "noeviction" : "allkeys-lfu"},
        {"--lazyfree-lazy-eviction", "yes"},
    };
    if ((rc = child_arg(c, err, "redis-server")) != OK)
        return rc;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((rc = child_arg(c, err, "%s", words[i][0])) != OK ||
            (rc = child_arg(c, err, "%s", words[i][1])) != OK)
            return rc;
    if ((rc = child_arg(c, err, "--unixsocket")) != OK ||
        (rc = child_arg(c, err, "%s/%s.sock", u->state, name)) != OK ||
        (rc = child_arg(c, err, "--dir")) != OK || (rc = child_arg(c, err, "%s", folder)) != OK ||
        (rc = child_arg(c, err, "--maxmemory")) != OK)
        return rc;
    return child_arg(c, err, "%lldmb", (long long)mb);
}

/* What engine and service are told alike. */
static int describe_common(struct up *u, int which, const char *admin, struct error *err)
{
    struct child *c = &u->children[which];
    int rc;

    if ((rc = child_arg(c, err, "--redis-queue=unix:%s/queue.sock", u->state_url)) != OK ||
        (rc = child_arg(c, err, "--redis-cache=unix:%s/cache.sock", u->state_url)) != OK)
        return rc;
    u->admin_arg[which] = c->argc;
    if ((rc = child_arg(c, err, "--admin-listen=%s", admin)) != OK)
        return rc;
    return child_arg(c, err, "--ready-file=%s/%s.ready", u->state, c->name);
}

static int describe_engine(struct up *u, struct error *err)
{
    struct child *c = &u->children[ENGINE];
    const struct engine_settings *s = &u->settings.engine;
    int rc;

    name_child(u, ENGINE, "engine");
    if ((rc = child_arg(c, err, "%s/prompt-encoder-engine", u->programs)) != OK ||
        (rc = child_arg(c, err, "--model=%s", s->model)) != OK ||
        (s->model_id != NULL && (rc = child_arg(c, err, "--model-id=%s", s->model_id)) != OK))
        return rc;
    for (int i = 0; i < s->ltx.n; i++)
        if ((rc = child_arg(c, err, "--ltx=%s", option_list_at(&s->ltx, i))) != OK)
            return rc;
    if ((rc = child_arg(c, err, "--backend=%s", engine_settings_backend(s))) != OK ||
        (rc = child_arg(c, err, "--compute=%s", engine_settings_compute(s))) != OK ||
        (rc = child_arg(c, err, "--threads=%lld", (long long)s->threads)) != OK ||
        (rc = child_arg(c, err, "--ranks=%lld", (long long)s->ranks)) != OK ||
        (rc = child_arg(c, err, "--strategy=%s", engine_settings_strategy(s))) != OK ||
        (rc = child_arg(c, err, "--rank-deadline=%lld", (long long)s->deadline_s)) != OK ||
        (rc = child_arg(c, err, "--state=%s", u->state)) != OK ||
        /* one engine a state folder: it takes its old leases back at once */
        (rc = child_arg(c, err, "--name=up")) != OK ||
        /* and it is watched: a short lease makes its successor start sooner */
        (rc = child_arg(c, err, "--lease-ms=6000")) != OK)
        return rc;
    return describe_common(u, ENGINE, u->settings.engine_admin_listen, err);
}

static int describe_service(struct up *u, struct error *err)
{
    struct child *c = &u->children[SERVICE];
    int rc;

    name_child(u, SERVICE, "service");
    if ((rc = child_arg(c, err, "%s/prompt-encoder-service", u->programs)) != OK ||
        (rc = child_arg(c, err, "--listen=%s", u->settings.listen)) != OK ||
        (rc = child_arg(c, err, "--key-secret-file=%s/key-secret", u->state)) != OK)
        return rc;
    return describe_common(u, SERVICE, u->settings.admin_listen, err);
}

/* ---- starting ---- */

/* That an address cannot be had is better known before a model is loaded. */
static int check_address(const char *address, bool must_be_local, struct error *err)
{
    struct listener l;
    int rc;

    if ((rc = listen_open(&l, address, 1, err)) != OK)
        return rc;
    if (must_be_local && !l.is_local)
        rc = error_set(err, ERR_INPUT,
                       "%s can be reached from other machines, and there are no API keys: listen "
                       "on 127.0.0.1 or unix:PATH",
                       l.text);
    listen_close(&l);
    return rc;
}

static int check_addresses(const struct settings *s, struct error *err)
{
    int rc;

    if ((rc = check_address(s->listen, true, err)) != OK ||
        (rc = check_address(s->admin_listen, false, err)) != OK)
        return rc;
    return check_address(s->engine_admin_listen, false, err);
}

/* Sleeps a tick; true when Ctrl-C or SIGTERM came. */
static bool interrupted(const struct up *u)
{
    const struct timespec tick = {0, TICK_MS * 1000000L};
    int signal = sigtimedwait(&u->signals, NULL, &tick);

    return signal == SIGINT || signal == SIGTERM;
}

/* A child that ended before it was ready will not get better by itself. */
static int check_alive(struct child *c, struct error *err)
{
    char how[400];

    if (!child_has_ended(c, how, sizeof(how)))
        return OK;
    return error_set(err, ERR_IO, "the %s ended before all was ready: %s (%s)", c->name, how,
                     c->log);
}

static int wait_for_redis(struct up *u, int which, bool *stop, struct error *err)
{
    struct child *c = &u->children[which];
    int64_t start = clock_now_ns();
    struct redis *redis = NULL;
    char url[1300];
    int rc;

    snprintf(url, sizeof(url), "unix:%s/%s.sock", u->state_url, c->name);
    if ((rc = redis_open(&redis, url, 1000, err)) != OK)
        return rc;
    for (;;) {
        struct error why = {0};
        redisReply *reply = NULL;
        if (redis_commandf(redis, &reply, &why, "PING") == OK) {
            freeReplyObject(reply);
            break;
        }
        if ((rc = check_alive(c, err)) != OK)
            break;
        if (clock_ms_since(start) > REDIS_START_MS) {
            rc = error_set(err, ERR_TIME, "the %s's Redis does not answer: %s", c->name, why.text);
            break;
        }
        if ((*stop = interrupted(u)))
            break;
    }
    redis_close(redis);
    return rc;
}

/* Until a child's ready file appears; its lines go to `address` and `admin`. */
static int wait_for_ready(struct up *u, int which, char *address, size_t cap, char *admin,
                          size_t admin_cap, bool *stop, struct error *err)
{
    struct child *c = &u->children[which];
    int64_t start = clock_now_ns();
    char path[512];
    int rc;

    snprintf(path, sizeof(path), "%s/%s.ready", u->state, c->name);
    while (!*stop) {
        struct buf text = {.max = 4096};
        if (file_exists(path) && file_read(&text, path, NULL) == OK && text.len > 0) {
            const char *second = strchr(text.data, '\n');
            snprintf(address, cap, "%.*s", (int)strcspn(text.data, "\n"), text.data);
            second = second == NULL ? "" : second + 1;
            snprintf(admin, admin_cap, "%.*s", (int)strcspn(second, "\n"), second);
            buf_free(&text);
            return OK;
        }
        buf_free(&text);
        for (int i = QUEUE; i <= which; i++) /* in the order in which one ends for the other */
            if ((rc = check_alive(&u->children[i], err)) != OK)
                return rc;
        if (clock_ms_since(start) > START_MS)
            return error_set(err, ERR_TIME, "the %s is not ready after %d s (%s)", c->name,
                             START_MS / 1000, c->log);
        *stop = interrupted(u);
    }
    return OK;
}

static void forget_ready(const struct up *u, int which)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s.ready", u->state, u->children[which].name);
    unlink(path);
}

/* A child that is started again must be found where it was. */
static void pin_admin(struct up *u, int which, const char *address)
{
    char *word = u->admin_listen[which];

    snprintf(word, sizeof(u->admin_listen[which]), "--admin-listen=%s", address);
    u->children[which].argv[u->admin_arg[which]] = word;
}

/* The first start: of what it said when `up` ran before, one older log is kept. */
static int start_child(struct up *u, int which, struct error *err)
{
    int rc;

    if ((rc = child_rotate_log(&u->children[which], 0, err)) != OK)
        return rc;
    return child_start(&u->children[which], err);
}

static int start_all(struct up *u, bool *stop, struct error *err)
{
    char engine[256] = "", service[256] = "", admin[256] = "";
    int64_t start = clock_now_ns();
    int rc;

    forget_ready(u, ENGINE);
    forget_ready(u, SERVICE);
    fprintf(stderr, "state    %s\n", u->state);
    for (int i = QUEUE; i <= CACHE; i++)
        if ((rc = start_child(u, i, err)) != OK)
            return rc;
    for (int i = QUEUE; i <= CACHE && !*stop; i++)
        if ((rc = wait_for_redis(u, i, stop, err)) != OK)
            return rc;
    if (*stop)
        return OK;
    fprintf(stderr, "queue    unix:%s/queue.sock\ncache    unix:%s/cache.sock, %lld MB\n", u->state,
            u->state, (long long)u->settings.cache_mb);
    if ((rc = start_child(u, ENGINE, err)) != OK ||
        (rc = wait_for_ready(u, ENGINE, engine, sizeof(engine), admin, sizeof(admin), stop, err)) !=
            OK ||
        *stop)
        return rc;
    pin_admin(u, ENGINE, engine);
    fprintf(stderr, "engine   %s, ready in %.1f s; metrics http://%s/metrics\n",
            u->settings.engine.model, clock_ms_since(start) / 1e3, engine);
    /* after the engine: the service then knows the model from its first request on */
    if ((rc = start_child(u, SERVICE, err)) != OK ||
        (rc = wait_for_ready(u, SERVICE, service, sizeof(service), admin, sizeof(admin), stop,
                             err)) != OK ||
        *stop)
        return rc;
    pin_admin(u, SERVICE, admin);
    snprintf(u->listen, sizeof(u->listen), "--listen=%s", service);
    u->children[SERVICE].argv[SERVICE_LISTEN_ARG] = u->listen;
    fprintf(stderr, "service  metrics http://%s/metrics\n", admin);
    fprintf(stderr, "logs     %s/*.log\n", u->state);
    printf("ready %s%s\n", strncmp(service, "unix:", 5) == 0 ? "" : "http://", service);
    fflush(stdout);
    return OK;
}

/* ---- watching ---- */

static void reap(struct up *u)
{
    for (int i = 0; i < N_CHILDREN; i++) {
        struct child *c = &u->children[i];
        char how[400];
        if (!child_has_ended(c, how, sizeof(how)))
            continue;
        child_ended(c);
        fprintf(stderr, "the %s ended and is started again: %s\n", c->name, how);
    }
}

static void rotate_logs(struct up *u)
{
    for (int i = 0; i < N_CHILDREN; i++) {
        struct error err = {0};
        if (child_rotate_log(&u->children[i], LOG_MAX, &err) != OK)
            fprintf(stderr, "the %s's log grows: %s\n", u->children[i].name, err.text);
    }
}

static void watch(struct up *u)
{
    for (int tick = 0; !interrupted(u); tick = (tick + 1) % LOG_TICKS) {
        reap(u);
        if (tick == 0)
            rotate_logs(u);
        for (int i = 0; i < N_CHILDREN; i++) {
            struct child *c = &u->children[i];
            struct error err = {0};
            if (c->pid != 0 || clock_now_ns() < c->restart_at_ns)
                continue;
            if (child_start(c, &err) != OK) {
                fprintf(stderr, "%s\n", err.text);
                c->started_ns = clock_now_ns();
                child_ended(c);
            }
        }
    }
}

int command_up(int argc, char **argv, struct error *err)
{
    struct up *u = calloc(1, sizeof(*u));
    bool help, stop = false;
    int n_rest, rc;

    if (u == NULL)
        return error_set(err, ERR_MEM, "up: no memory");
    u->lock = -1;
    if ((rc = options_parse(&program, &u->settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (n_rest > 0) {
        rc = error_set(err, ERR_INPUT, "unknown argument '%s'", argv[1]);
        goto out;
    }
    if ((rc = engine_settings_check(&u->settings.engine, err)) != OK)
        goto out;
    sigemptyset(&u->signals);
    sigaddset(&u->signals, SIGINT);
    sigaddset(&u->signals, SIGTERM);
    sigaddset(&u->signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &u->signals, NULL);
    if ((rc = choose_state(u, err)) != OK || (rc = lock_state(u, err)) != OK ||
        (rc = check_addresses(&u->settings, err)) != OK || (rc = make_secret(u, err)) != OK ||
        (rc = find_programs(u, err)) != OK ||
        (rc = describe_redis(u, QUEUE, "queue", u->settings.queue_mb, err)) != OK ||
        (rc = describe_redis(u, CACHE, "cache", u->settings.cache_mb, err)) != OK ||
        (rc = describe_engine(u, err)) != OK || (rc = describe_service(u, err)) != OK)
        goto out;
    if ((rc = start_all(u, &stop, err)) == OK && !stop)
        watch(u);
    fprintf(stderr, "stopping\n");
out:
    for (int i = N_CHILDREN - 1; i >= 0; i--) /* the service first, the queue last */
        child_stop(&u->children[i], grace_ms[i]);
    if (u->lock >= 0)
        close(u->lock);
    free(u);
    return rc;
}
