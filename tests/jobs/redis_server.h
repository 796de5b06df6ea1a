/* redis_server.h - a redis-server of a test's own: a unix socket and files in a folder of its own.
 *
 *     static struct redis_server server;
 *     CHECK(redis_server_start(&server, "test_queue", "--appendonly yes"));
 *     ... server.url ...
 *     redis_server_stop(&server);
 *
 * It is ended by its process id, and ends by itself when the test dies. */
#pragma once
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "jobs/redis.h"

enum { SERVER_MAX_WORDS = 32 };

struct redis_server {
    pid_t pid;      /* 0: not running */
    char dir[4096]; /* its folder */
    char url[4200];
    char settings[512];
};

/* What a queue asks for. Tests of the queue's logic leave out fsync, which only costs time. */
#define QUEUE_SETTINGS "--appendonly yes --appendfsync always"

/* Leaves with SKIP_EXIT when this machine has no redis-server. */
static inline void redis_server_need(void)
{
    if (system("command -v redis-server >/dev/null 2>&1") != 0) {
        printf("skipped: there is no redis-server\n");
        exit(SKIP_EXIT);
    }
}

static inline void redis_server_exec(const struct redis_server *s)
{
    char words[512], log[4200], socket[4200], *argv[SERVER_MAX_WORDS];
    char *base[] = {"redis-server",
                    "--port",
                    "0",
                    "--unixsocket",
                    socket,
                    "--dir",
                    NULL /* dir */,
                    "--logfile",
                    log,
                    "--save",
                    "",
                    "--daemonize",
                    "no"};
    int n = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(socket, sizeof(socket), "%s/redis.sock", s->dir);
    snprintf(log, sizeof(log), "%s/redis.log", s->dir);
    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
        argv[n++] = base[i] != NULL ? base[i] : (char *)(uintptr_t)s->dir;
    snprintf(words, sizeof(words), "%s", s->settings);
    for (char *p = words; *p != '\0' && n < SERVER_MAX_WORDS - 1;) {
        char *end = p + strcspn(p, " ");

        argv[n++] = p;
        if (*end == '\0')
            break;
        *end = '\0';
        p = end + 1;
    }
    argv[n] = NULL;
    execvp(argv[0], argv);
    _exit(127);
}

/* Starts it again in the folder it has, with the data that is there. */
static inline bool redis_server_restart(struct redis_server *s)
{
    struct redis *r = NULL;
    bool up = false;

    fflush(stdout);
    if ((s->pid = fork()) == 0)
        redis_server_exec(s);
    for (int i = 0; i < 600 && !up; i++) {
        redisReply *reply = NULL;

        clock_pause_ms(i < 20 ? 5 : 50);
        if (r == NULL && redis_open(&r, s->url, 2000, NULL) != OK)
            return false;
        up = redis_commandf(r, &reply, NULL, "PING") == OK;
        if (reply != NULL)
            freeReplyObject(reply);
    }
    redis_close(r);
    return up;
}

static inline bool redis_server_start(struct redis_server *s, const char *name,
                                      const char *settings)
{
    char command[8300];

    snprintf(s->dir, sizeof(s->dir), "%s/%s", PE_SCRATCH_DIR, name);
    snprintf(s->url, sizeof(s->url), "unix:%s/redis.sock", s->dir);
    snprintf(s->settings, sizeof(s->settings), "%s", settings);
    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir -p '%s'", s->dir, s->dir);
    return system(command) == 0 && redis_server_restart(s);
}

static inline void redis_server_kill(struct redis_server *s)
{
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

static inline void redis_server_stop(struct redis_server *s)
{
    redis_server_kill(s); /* nothing in it is worth a clean end */
}
