/* group.c - see group.h.
 *
 * The segment is a shared memory object named by the id, zero as the system makes it, so that any
 * rank may be the first. All ranks remove its name once all are there, or once one gave up: only
 * what is killed while it waits alone leaves one behind. Ranks of one process use one mapping of
 * it, that of the lowest, so that what orders memory between them has one address, as the thread
 * sanitizer needs it.
 *
 * A process may be killed at any moment, so there is no lock in the segment: what is more than one
 * word is written by one rank, before the atomic word that says so. Everything that somebody may
 * wait for changes `event`, on which waiting threads sleep, and they wake a few times a second to
 * look for what cannot say so any more.
 *
 * Not taken: robust mutexes and record locks, by which the system itself tells who is gone: the
 * first belong to a thread, and not every sandbox that engines run in has the second. */
#define _DEFAULT_SOURCE /* syscall, getentropy */
#include "kernels/group.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"

enum {
    SPINS = 2000, /* some ten microseconds */
    ROUND_MS = 50 /* between two looks at the other ranks' processes */
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "atomics are shared with other processes");

/* The word that ranks join by: a bit for each rank that is taken, then one for each that is ready
 * (its entry is written), n_ranks, and whether somebody gave up before all were ready. */
enum { READY = 8, N_RANKS = 16, CLOSED = 1 << 20, RANKS = (1 << GROUP_MAX_RANKS) - 1 };

/* Written by its rank before it is ready, but for `left`. */
struct entry {
    pid_t pid;
    uint64_t pid_space;   /* numbers of processes mean something only inside one */
    void *base;           /* where its process has the segment */
    _Atomic uint32_t out; /* ranks of the process that use `base` and have left */
    _Atomic uint32_t left;
    /* of the first to abort the group: why, and whose fault that is */
    char why[256];
    int32_t culprit;
};

struct segment {
    _Atomic uint32_t join, event;
    _Atomic uint32_t arrived,
        generation;          /* of a barrier: a bit for each rank; how many there were */
    _Atomic uint32_t failed; /* 1 + the rank whose `why` says it; 0: nothing failed */
    struct entry entries[GROUP_MAX_RANKS];
    _Alignas(4096) char slots[GROUP_MAX_RANKS][GROUP_SLOT_BYTES];
};

struct group {
    struct segment *s;
    int rank, n_ranks, deadline_ms;
    int home, n_here;           /* the lowest rank of this process, and how many there are */
    pthread_mutex_t abort_lock; /* guards this rank's `why` and `culprit` */
    _Atomic int64_t looked_ns;  /* when the other ranks' processes were looked at */
    _Atomic bool is_waiting;
};

static const char GONE[] = "is gone: its process ended";

/* ---- sleeping ---- */

/* Until `event` is no longer `seen`, or some milliseconds. Not a private futex: other processes
 * know the word by other addresses. */
static void sleep_on(struct segment *s, uint32_t seen, int64_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    syscall(SYS_futex, &s->event, FUTEX_WAIT, seen, &time, NULL, 0);
}

static void announce(struct segment *s)
{
    atomic_fetch_add(&s->event, 1);
    syscall(SYS_futex, &s->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* What is left of `ms` since start, a round at most; 0: nothing. */
static int64_t next_round(int64_t start_ns, int ms)
{
    int64_t left = ms - (clock_now_ns() - start_ns) / 1000000;

    return left <= 0 ? 0 : left < ROUND_MS ? left : ROUND_MS;
}

/* ---- processes ---- */

static uint64_t own_pid_space(void)
{
    struct stat about;

    return stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
}

/* One that was killed stays as a zombie until its parent asks for it, which may be a rank. */
static bool is_zombie(pid_t pid)
{
    char path[64], text[512];
    const char *end; /* of its name, which may hold anything */
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    end = strrchr(text, ')');
    return end != NULL && (strncmp(end, ") Z", 3) == 0 || strncmp(end, ") X", 3) == 0);
}

static bool is_gone(const struct entry *e, const struct entry *own)
{
    if (e->pid == own->pid || e->pid_space != own->pid_space)
        return false;
    return (kill(e->pid, 0) != 0 && errno == ESRCH) || is_zombie(e->pid);
}

/* A rank among those in `ready` whose process is gone, and that had not left; -1: none. Looked at
 * in this order: who leaves says so before its process ends. */
static int find_gone(const struct segment *s, int rank, uint32_t ready)
{
    for (int r = 0; r < GROUP_MAX_RANKS; r++)
        if (ready >> r & 1 && is_gone(&s->entries[r], &s->entries[rank]) &&
            atomic_load(&s->entries[r].left) == 0)
            return r;
    return -1;
}

/* ---- failing ---- */

static int report(const struct group *g, struct error *err)
{
    uint32_t failed = atomic_load(&g->s->failed);

    return error_set(err, ERR_GPU, "group: %s", g->s->entries[failed - 1].why);
}

/* The first reason stays, whoever has it. */
static void fail(struct group *g, int rank, const char *why)
{
    uint32_t none = 0;
    struct entry *own = &g->s->entries[g->rank];

    pthread_mutex_lock(&g->abort_lock);
    if (atomic_load(&g->s->failed) == 0) {
        snprintf(own->why, sizeof(own->why), "rank %d %s", rank, why);
        own->culprit = rank;
        atomic_compare_exchange_strong(&g->s->failed, &none, (uint32_t)g->rank + 1);
    }
    pthread_mutex_unlock(&g->abort_lock);
    announce(g->s);
}

/* ---- joining ---- */

static uint32_t all_of(int n_ranks)
{
    return (1u << n_ranks) - 1;
}

static int first_of(uint32_t ranks)
{
    int r = 0;

    while ((ranks >> r & 1) == 0)
        r++;
    return r;
}

/* The segment of that name, with memory for its head and this rank's slot. */
static int segment_open(struct segment **out, const char *name, int rank, struct error *err)
{
    int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600), rc = OK, why;
    off_t slot = (off_t)offsetof(struct segment, slots) + (off_t)rank * GROUP_SLOT_BYTES;
    void *memory = MAP_FAILED;

    *out = NULL;
    if (fd < 0)
        return error_set(err, ERR_IO, "group: rank %d: shm_open %s: %s", rank, name,
                         strerror(errno));
    /* all ranks agree on the size, so the first may be any; what is not there now would be a
     * signal when it is written */
    if (ftruncate(fd, (off_t)sizeof(**out)) != 0) {
        rc =
            error_set(err, ERR_IO, "group: rank %d: ftruncate %s: %s", rank, name, strerror(errno));
        goto out;
    }
    if ((why = posix_fallocate(fd, 0, (off_t)offsetof(struct segment, slots))) != 0 ||
        (why = posix_fallocate(fd, slot, GROUP_SLOT_BYTES)) != 0) {
        rc = error_set(err, ERR_IO, "group: rank %d: no shared memory (/dev/shm): %s", rank,
                       strerror(why));
        goto out;
    }
    memory = mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        rc = error_set(err, ERR_IO, "group: rank %d: mmap %s: %s", rank, name, strerror(errno));
        goto out;
    }
    *out = memory;
out:
    close(fd);
    return rc;
}

/* Memory of its own, for a group of one. */
static int segment_alone(struct segment **out, struct error *err)
{
    void *memory = mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *out = memory == MAP_FAILED ? NULL : memory;
    return *out != NULL ? OK : error_set(err, ERR_IO, "group: mmap: %s", strerror(errno));
}

/* Takes the rank, and says that it is ready. */
static int take_rank(struct segment *s, int rank, int n_ranks, struct error *err)
{
    uint32_t join = atomic_load(&s->join), bit = 1u << rank, mine = (uint32_t)n_ranks << N_RANKS;
    struct entry *own = &s->entries[rank];

    do {
        int theirs = (int)(join >> N_RANKS & 15);
        if (join & CLOSED)
            return error_set(err, ERR_TIME, "group: rank %d came when others had given up", rank);
        if (join != 0 && theirs != n_ranks)
            return error_set(err, ERR_INPUT, "group: rank %d is of %d ranks, others of %d", rank,
                             n_ranks, theirs);
        if (join & bit)
            return error_set(err, ERR_INPUT, "group: rank %d is taken", rank);
    } while (!atomic_compare_exchange_weak(&s->join, &join, join | bit | mine));
    own->pid = getpid();
    own->pid_space = own_pid_space();
    own->base = s;
    atomic_fetch_or(&s->join, bit << READY);
    announce(s);
    return OK;
}

/* Nobody else comes: they cannot become a group any more. False when they just became one. */
static bool close_join(struct segment *s, uint32_t all)
{
    uint32_t join = atomic_load(&s->join);

    do {
        if ((join >> READY & RANKS) == all)
            return false;
    } while (!atomic_compare_exchange_weak(&s->join, &join, join | CLOSED));
    announce(s);
    return true;
}

static int wait_for_all(struct segment *s, int rank, int n_ranks, int join_ms, struct error *err)
{
    int64_t start_ns = clock_now_ns(), round;
    uint32_t all = all_of(n_ranks);

    for (;;) {
        uint32_t event = atomic_load(&s->event), join = atomic_load(&s->join);
        uint32_t ready = join >> READY & RANKS;
        int gone;
        if (ready == all)
            return OK;
        round = next_round(start_ns, join_ms);
        gone = find_gone(s, rank, ready);
        if ((join & CLOSED || round == 0 || gone >= 0) && close_join(s, all)) {
            if (gone >= 0)
                return error_set(err, ERR_TIME, "group: rank %d %s", gone, GONE);
            return error_set(err, ERR_TIME, "group: rank %d of %d did not come within %d ms",
                             first_of(all & ~ready), n_ranks, join_ms);
        }
        sleep_on(s, event, round);
    }
}

/* All are ready: of the mappings of this process, that of the lowest rank stays. */
static void share_mapping(struct group *g)
{
    struct segment *own = g->s;
    const struct entry *entries = own->entries;

    g->home = g->rank;
    for (int r = g->n_ranks - 1; r >= 0; r--)
        if (entries[r].pid == entries[g->rank].pid &&
            entries[r].pid_space == entries[g->rank].pid_space) {
            g->home = r;
            g->n_here++;
        }
    if (g->home != g->rank) {
        g->s = entries[g->home].base;
        munmap(own, sizeof(*own));
        atomic_load(&g->s->join); /* what its owner wrote before is there by this address, too */
    }
}

int group_make_id(char id[GROUP_ID_SIZE], struct error *err)
{
    unsigned char bytes[(GROUP_ID_SIZE - 1) / 2];

    id[0] = '\0';
    if (getentropy(bytes, sizeof(bytes)) != 0)
        return error_set(err, ERR_IO, "group: no random numbers for an id: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    return OK;
}

int group_join(struct group **out, const char *id, int rank, int n_ranks, int join_ms,
               int deadline_ms, struct error *err)
{
    size_t id_len = strnlen(id, GROUP_ID_SIZE);
    struct group *g = NULL;
    char name[64];
    int rc;

    *out = NULL;
    if (n_ranks < 1 || n_ranks > GROUP_MAX_RANKS || rank < 0 || rank >= n_ranks)
        return error_set(err, ERR_INPUT, "group: rank %d of %d ranks; they are 0 to %d", rank,
                         n_ranks, GROUP_MAX_RANKS - 1);
    if (id_len == 0 || id_len == GROUP_ID_SIZE || strchr(id, '/') != NULL)
        return error_set(err, ERR_INPUT, "group: an id has 1 to %d characters, no '/' among them",
                         GROUP_ID_SIZE - 1);
    if ((g = calloc(1, sizeof(*g))) == NULL)
        return error_set(err, ERR_MEM, "group: no memory");
    pthread_mutex_init(&g->abort_lock, NULL);
    g->rank = rank;
    g->n_ranks = n_ranks;
    g->deadline_ms = deadline_ms;
    snprintf(name, sizeof(name), "/prompt-encoder-%s", id);
    if ((rc = n_ranks == 1 ? segment_alone(&g->s, err) : segment_open(&g->s, name, rank, err)) ==
            OK &&
        (rc = take_rank(g->s, rank, n_ranks, err)) == OK)
        rc = wait_for_all(g->s, rank, n_ranks, join_ms, err);
    /* all who joined, or who end it, remove the name: whoever is the first; others wait under it */
    if (n_ranks > 1 && rc != ERR_INPUT)
        shm_unlink(name);
    if (rc != OK) {
        if (g->s != NULL)
            munmap(g->s, sizeof(*g->s));
        pthread_mutex_destroy(&g->abort_lock);
        free(g);
        return rc;
    }
    share_mapping(g);
    *out = g;
    return OK;
}

void group_leave(struct group *g)
{
    struct segment *s = g != NULL ? g->s : NULL;

    if (g == NULL)
        return;
    atomic_store(&s->entries[g->rank].left, 1);
    announce(s);
    if (atomic_fetch_add(&s->entries[g->home].out, 1) + 1 == (uint32_t)g->n_here)
        munmap(s, sizeof(*s));
    pthread_mutex_destroy(&g->abort_lock);
    free(g);
}

int group_rank(const struct group *g)
{
    return g->rank;
}

int group_n_ranks(const struct group *g)
{
    return g->n_ranks;
}

int group_deadline_ms(const struct group *g)
{
    return g->deadline_ms;
}

/* ---- meeting ---- */

/* A rank whose process is gone; -1: none, or looked at a moment ago. */
static int look_for_gone(struct group *g)
{
    int64_t now_ns = clock_now_ns();

    if (now_ns - atomic_load(&g->looked_ns) < ROUND_MS * 1000000LL)
        return -1;
    atomic_store(&g->looked_ns, now_ns);
    return find_gone(g->s, g->rank, all_of(g->n_ranks));
}

/* Sleeps until the barrier that was the `generation`th is complete. */
static int wait_for_barrier(struct group *g, uint32_t generation, struct error *err)
{
    uint32_t others = all_of(g->n_ranks) & ~(1u << g->rank);
    int64_t start_ns = clock_now_ns();
    struct segment *s = g->s;
    char late[64];

    snprintf(late, sizeof(late), "did not come within %d ms", g->deadline_ms);
    for (;;) {
        uint32_t event = atomic_load(&s->event), missing = others & ~atomic_load(&s->arrived);
        int64_t round = next_round(start_ns, g->deadline_ms);
        int gone = look_for_gone(g), left = -1;
        for (int r = 0; r < g->n_ranks; r++)
            if (missing >> r & 1 && atomic_load(&s->entries[r].left) != 0)
                left = r;
        /* after the looks: a rank that has gone may have completed the barrier before */
        if (atomic_load(&s->generation) != generation)
            return OK;
        if (gone >= 0)
            fail(g, gone, GONE);
        else if (left >= 0)
            fail(g, left, "left the group");
        else if (round == 0) /* none is missing where the last one stopped half-way */
            fail(g, first_of(missing != 0 ? missing : others), late);
        if (atomic_load(&s->failed) != 0)
            return report(g, err);
        sleep_on(s, event, round);
    }
}

int group_barrier(struct group *g, struct error *err)
{
    struct segment *s = g->s;
    uint32_t generation = atomic_load(&s->generation), bit = 1u << g->rank;
    int rc;

    if (atomic_load(&s->failed) != 0)
        return report(g, err);
    if ((atomic_fetch_or(&s->arrived, bit) | bit) == all_of(g->n_ranks)) {
        atomic_store(&s->arrived, 0);
        atomic_store(&s->generation, generation + 1);
        announce(s);
        return OK;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&s->generation) != generation)
            return OK;
        cores_pause();
    }
    atomic_store(&g->is_waiting, true);
    rc = wait_for_barrier(g, generation, err);
    atomic_store(&g->is_waiting, false);
    return rc;
}

int group_share(struct group *g, void *data, size_t bytes, int root, struct error *err)
{
    int rc;

    assert(bytes <= GROUP_SLOT_BYTES && root >= 0 && root < g->n_ranks);
    if (g->rank == root && bytes > 0)
        memcpy(group_slot(g, root), data, bytes);
    if ((rc = group_barrier(g, err)) != OK)
        return rc;
    if (g->rank != root && bytes > 0)
        memcpy(data, group_slot(g, root), bytes);
    return group_barrier(g, err); /* the slot is free again */
}

void *group_slot(struct group *g, int rank)
{
    return g->s->slots[rank];
}

void group_abort(struct group *g, const char *why)
{
    char text[192];

    snprintf(text, sizeof(text), "failed: %s", why);
    fail(g, g->rank, text);
}

int group_check(struct group *g, struct error *err)
{
    int gone = look_for_gone(g);

    if (gone >= 0)
        fail(g, gone, GONE);
    return atomic_load(&g->s->failed) != 0 ? report(g, err) : OK;
}

int group_failed_rank(const struct group *g)
{
    uint32_t failed = atomic_load(&g->s->failed);

    return failed == 0 ? -1 : g->s->entries[failed - 1].culprit;
}

bool group_is_waiting(const struct group *g)
{
    return atomic_load(&g->is_waiting);
}
