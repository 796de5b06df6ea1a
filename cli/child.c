#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    STEADY_MS = 60000,
    BACKOFF_MIN_MS = 500,
    BACKOFF_MAX_MS = 30000,
    TICK_MS = 20,
    WORDS_MAX = 2048 /* bytes from a log's end in which its last line is looked for */
};

int child_arg(struct child *c, struct error *err, const char *fmt, ...)
{
    size_t room = sizeof(c->words) - c->words_len;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(c->words + c->words_len, room, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= room || c->argc == CHILD_MAX_ARGS)
        return error_set(err, ERR_SIZE, "%s: the command line is too long", c->name);
    c->argv[c->argc++] = c->words + c->words_len;
    c->words_len += (size_t)n + 1;
    return OK;
}

/* In the new process, up to exec: what fails is told through `report`. */
static void become(const struct child *c, int log, int report, pid_t parent)
{
    const struct rlimit no_core = {0, 0};
    sigset_t none;
    int why;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setrlimit(RLIMIT_CORE, &no_core); /* what they hold of prompts stays in memory */
    if (getppid() != parent)          /* it died before we asked */
        _exit(EXIT_FAILURE);
    if (c->keeps > 0 && fcntl(c->keeps, F_SETFD, 0) != 0)
        _exit(EXIT_FAILURE);
    if (dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execvp(c->argv[0], c->argv);
    why = errno;
    if (write(report, &why, sizeof(why)) < 0)
        _exit(EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}

/* All of `from`, from its beginning, to `to`. */
static int copy_log(int from, int to)
{
    char piece[65536];
    ssize_t n, written;

    while ((n = read(from, piece, sizeof(piece))) > 0)
        for (ssize_t at = 0; at < n; at += written)
            if ((written = write(to, piece + at, (size_t)(n - at))) < 0)
                return errno;
    return n < 0 ? errno : 0;
}

int child_rotate_log(const struct child *c, int64_t max_bytes, struct error *err)
{
    int from = -1, to = -1, why = 0;
    char older[sizeof(c->log) + 2];
    struct stat st;

    if (stat(c->log, &st) != 0 || st.st_size <= max_bytes)
        return OK; /* there is nothing to part with */
    snprintf(older, sizeof(older), "%s.1", c->log);
    if ((from = open(c->log, O_RDWR | O_CLOEXEC)) < 0 ||
        (to = open(older, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0 ||
        (why = copy_log(from, to)) != 0 || ftruncate(from, 0) != 0)
        why = why != 0 ? why : errno;
    if (from >= 0)
        close(from);
    if (to >= 0 && close(to) != 0 && why == 0)
        why = errno;
    return why == 0 ? OK : error_set(err, ERR_IO, "%s: %s", older, strerror(why));
}

int child_start(struct child *c, struct error *err)
{
    int log = -1, report[2] = {-1, -1}, why = 0, rc = OK;
    pid_t parent = getpid(), pid;
    ssize_t n;

    if ((log = open(c->log, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600)) < 0) {
        rc = error_set(err, ERR_IO, "%s: %s", c->log, strerror(errno));
        goto out;
    }
    if (pipe(report) != 0 || fcntl(report[1], F_SETFD, FD_CLOEXEC) != 0 || (pid = fork()) < 0) {
        rc = error_set(err, ERR_IO, "%s: cannot start a process: %s", c->name, strerror(errno));
        goto out;
    }
    if (pid == 0) {
        close(report[0]);
        become(c, log, report[1], parent);
    }
    close(report[1]);
    report[1] = -1;
    while ((n = read(report[0], &why, sizeof(why))) < 0 && errno == EINTR)
        ;
    if (n == (ssize_t)sizeof(why)) { /* exec closed the pipe otherwise */
        waitpid(pid, NULL, 0);
        rc = error_set(err, ERR_IO, "%s: cannot run %s: %s", c->name, c->argv[0], strerror(why));
        goto out;
    }
    c->pid = pid;
    c->started_ns = clock_now_ns();
out:
    if (log >= 0)
        close(log);
    if (report[0] >= 0)
        close(report[0]);
    if (report[1] >= 0)
        close(report[1]);
    return rc;
}

bool child_has_ended(struct child *c, char *how, size_t cap)
{
    int status = 0;

    if (c->pid == 0 || waitpid(c->pid, &status, WNOHANG) != c->pid)
        return false;
    c->pid = 0;
    child_last_words(c, how, cap);
    if (WIFSIGNALED(status)) /* what it said last has nothing to do with it */
        snprintf(how, cap, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (how[0] == '\0')
        snprintf(how, cap, "status %d, and it said nothing", WEXITSTATUS(status));
    return true;
}

void child_ended(struct child *c)
{
    int64_t wait_ms = BACKOFF_MIN_MS;

    c->n_deaths = clock_ms_since(c->started_ns) > STEADY_MS ? 0 : c->n_deaths + 1;
    for (int i = 1; i < c->n_deaths && wait_ms < BACKOFF_MAX_MS; i++)
        wait_ms *= 2;
    if (wait_ms > BACKOFF_MAX_MS)
        wait_ms = BACKOFF_MAX_MS;
    c->restart_at_ns = clock_now_ns() + (c->n_deaths == 0 ? 0 : wait_ms * 1000000);
}

void child_stop(struct child *c, int grace_ms)
{
    int64_t start = clock_now_ns();

    if (c->pid == 0)
        return;
    kill(c->pid, SIGTERM);
    while (waitpid(c->pid, NULL, WNOHANG) == 0) {
        if (clock_ms_since(start) > grace_ms) {
            kill(c->pid, SIGKILL);
            waitpid(c->pid, NULL, 0);
            break;
        }
        clock_pause_ms(TICK_MS);
    }
    c->pid = 0;
}

void child_last_words(const struct child *c, char *out, size_t cap)
{
    FILE *f = fopen(c->log, "r");
    char text[WORDS_MAX + 1], *line;
    size_t n = 0;

    out[0] = '\0';
    if (f == NULL)
        return;
    if (fseeko(f, -WORDS_MAX, SEEK_END) != 0) /* it is shorter */
        rewind(f);
    n = fread(text, 1, WORDS_MAX, f);
    fclose(f);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    for (line = text + n; line > text && line[-1] != '\n';)
        line--;
    snprintf(out, cap, "%s", line);
}
