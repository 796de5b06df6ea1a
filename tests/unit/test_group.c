/* test_group.c - ranks as threads and as processes: they meet, and whatever happens to one of them,
 * the others learn of it and nobody hangs. Processes are not run under the thread sanitizer. */
#define _DEFAULT_SOURCE /* usleep */
#include "kernels/group.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/check.h"

enum { LONG_MS = 60000, SOON_MS = 5000 }; /* a deadline that no test waits for; much less */

static struct error err;
static char id[GROUP_ID_SIZE];

/* ---- ranks ---- */

/* What a rank does once it has joined; true: all was right. Runs where CHECK cannot. */
typedef bool body_fn(struct group *g, int rank, int n_ranks);

struct rank {
    body_fn *body;
    int rank, n_ranks, join_ms, deadline_ms;
    int rc;
    struct error err;
    bool was_right;
    pthread_t thread;
    pid_t pid;
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct group *g;

    r->rc = group_join(&g, id, r->rank, r->n_ranks, r->join_ms, r->deadline_ms, &r->err);
    if (r->rc != OK)
        return NULL;
    r->was_right = r->body == NULL || r->body(g, r->rank, r->n_ranks);
    group_leave(g);
    return NULL;
}

static struct rank rank_of(int rank, int n_ranks, body_fn *body)
{
    return (struct rank){
        .body = body, .rank = rank, .n_ranks = n_ranks, .join_ms = LONG_MS, .deadline_ms = LONG_MS};
}

static void start_thread(struct rank *r)
{
    CHECK(pthread_create(&r->thread, NULL, rank_main, r) == 0);
}

static void end_thread(struct rank *r)
{
    pthread_join(r->thread, NULL);
}

static void start_process(struct rank *r)
{
    fflush(stdout);
    CHECK((r->pid = fork()) >= 0);
    if (r->pid != 0)
        return;
    rank_main(r);
    if (!r->was_right)
        printf("rank %d: %s\n", r->rank, r->err.text);
    fflush(stdout);
    _exit(r->was_right ? 0 : 1);
}

static bool end_process(struct rank *r)
{
    int status;

    return waitpid(r->pid, &status, 0) == r->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void new_id(void)
{
    CHECK_OK(group_make_id(id, &err));
    CHECK_INT(strlen(id), GROUP_ID_SIZE - 1);
}

/* Nothing with the id's name is left in shared memory. */
static void check_nothing_left(void)
{
    DIR *dir = opendir("/dev/shm");

    CHECK(dir != NULL);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strstr(e->d_name, id) != NULL) {
            closedir(dir);
            CHECK_FAIL("left behind: %s", id);
        }
    closedir(dir);
}

static void in_threads(int n_ranks, body_fn *body)
{
    struct rank ranks[GROUP_MAX_RANKS];

    new_id();
    for (int r = 0; r < n_ranks; r++) {
        ranks[r] = rank_of(r, n_ranks, body);
        start_thread(&ranks[r]);
    }
    for (int r = 0; r < n_ranks; r++)
        end_thread(&ranks[r]);
    for (int r = 0; r < n_ranks; r++) {
        if (ranks[r].rc != OK)
            CHECK_FAIL("rank %d: %s", r, ranks[r].err.text);
        CHECK(ranks[r].was_right);
    }
    check_nothing_left();
}

static void in_processes(int n_ranks, body_fn *body)
{
    struct rank ranks[GROUP_MAX_RANKS];
    bool were_right = true;

    new_id();
    for (int r = 0; r < n_ranks; r++) {
        ranks[r] = rank_of(r, n_ranks, body);
        start_process(&ranks[r]);
    }
    for (int r = 0; r < n_ranks; r++)
        were_right &= end_process(&ranks[r]);
    CHECK(were_right);
    check_nothing_left();
}

/* As threads, as processes, and both at once: two threads in each of two processes. */
static body_fn *of_each_thread;

static bool as_half(int first)
{
    struct rank ranks[2];

    for (int i = 0; i < 2; i++) {
        ranks[i] = rank_of(first + i, 4, of_each_thread);
        if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
            return false;
    }
    for (int i = 0; i < 2; i++)
        end_thread(&ranks[i]);
    return ranks[0].was_right && ranks[1].was_right;
}

static void in_both(body_fn *body)
{
    int status;
    pid_t child;

    new_id();
    of_each_thread = body;
    fflush(stdout);
    CHECK((child = fork()) >= 0);
    if (child == 0)
        _exit(as_half(0) ? 0 : 1);
    CHECK(as_half(2));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_nothing_left();
}

static void everywhere(body_fn *body)
{
    static const int sizes[] = {1, 2, 3, 8};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        in_threads(sizes[i], body);
        if (!ONLY_THREADS)
            in_processes(sizes[i], body);
    }
    if (!ONLY_THREADS)
        in_both(body);
}

/* ---- meeting ---- */

static bool knows_itself(struct group *g, int rank, int n_ranks)
{
    return group_rank(g) == rank && group_n_ranks(g) == n_ranks &&
           group_deadline_ms(g) == LONG_MS && (uintptr_t)group_slot(g, rank) % 64 == 0 &&
           group_check(g, NULL) == OK;
}

static void ranks_meet(void)
{
    everywhere(knows_itself);
}

/* Each writes its own slot, first and last number, and reads all others. */
static bool barriers_order(struct group *g, int rank, int n_ranks)
{
    enum { LAST = GROUP_SLOT_BYTES / sizeof(int) - 1 };
    bool right = true;

    for (int i = 0; i < 300; i++) {
        int *own = group_slot(g, rank);
        own[0] = own[LAST] = i * 100 + rank;
        right &= group_barrier(g, NULL) == OK;
        for (int r = 0; r < n_ranks; r++) {
            const int *slot = group_slot(g, r);
            right &= slot[0] == i * 100 + r && slot[LAST] == i * 100 + r;
        }
        right &= group_barrier(g, NULL) == OK;
    }
    return right;
}

static void barriers_order_memory(void)
{
    everywhere(barriers_order);
}

/* The same for what threads share otherwise. */
static int shared_number[GROUP_MAX_RANKS];

static bool barriers_order_plain(struct group *g, int rank, int n_ranks)
{
    bool right = true;

    for (int i = 0; i < 300; i++) {
        shared_number[rank] = i;
        right &= group_barrier(g, NULL) == OK;
        for (int r = 0; r < n_ranks; r++)
            right &= shared_number[r] == i;
        right &= group_barrier(g, NULL) == OK;
    }
    return right;
}

static void barriers_order_what_threads_share(void)
{
    in_threads(3, barriers_order_plain);
    in_threads(8, barriers_order_plain);
}

static bool shares(struct group *g, int rank, int n_ranks)
{
    static const size_t sizes[] = {0, 1, 40, 4097, GROUP_SLOT_BYTES};
    unsigned char *data = malloc(GROUP_SLOT_BYTES);
    bool right = data != NULL;

    for (int i = 0; right && i < 60; i++) {
        size_t bytes = sizes[i % 5];
        int root = i % n_ranks;
        memset(data, rank == root ? i + 1 : 0, GROUP_SLOT_BYTES);
        right &= group_share(g, data, bytes, root, NULL) == OK;
        for (size_t k = 0; k < bytes; k++)
            right &= data[k] == i + 1;
        if (rank != root && bytes < GROUP_SLOT_BYTES)
            right &= data[bytes] == 0; /* and no more */
    }
    free(data);
    return right;
}

static void what_is_shared_arrives(void)
{
    everywhere(shares);
}

/* ---- joining ---- */

static void a_missing_rank_is_waited_for_and_named(void)
{
    struct rank ranks[2];
    int64_t start_ns = clock_now_ns();

    new_id();
    for (int i = 0; i < 2; i++) {
        ranks[i] = rank_of(i == 0 ? 0 : 2, 3, NULL);
        ranks[i].join_ms = 200;
        start_thread(&ranks[i]);
    }
    for (int i = 0; i < 2; i++)
        end_thread(&ranks[i]);
    for (int i = 0; i < 2; i++)
        CHECK_ERR(error_set(&err, ranks[i].rc, "%s", ranks[i].err.text), ERR_TIME,
                  "group: rank 1 of 3 did not come within 200 ms");
    CHECK(clock_ms_since(start_ns) >= 200.0 && clock_ms_since(start_ns) < SOON_MS);
    check_nothing_left();
}

/* Who is wrong is told so; the others become a group without it. */
static void intruders_are_refused(void)
{
    struct rank ranks[3];
    struct group *g;

    new_id();
    for (int r = 0; r < 2; r++) {
        ranks[r] = rank_of(r, 3, knows_itself);
        start_thread(&ranks[r]);
    }
    clock_pause_ms(100);
    CHECK_ERR(group_join(&g, id, 1, 3, LONG_MS, LONG_MS, &err), ERR_INPUT,
              "group: rank 1 is taken");
    CHECK(g == NULL);
    CHECK_ERR(group_join(&g, id, 2, 4, LONG_MS, LONG_MS, &err), ERR_INPUT,
              "group: rank 2 is of 4 ranks, others of 3");
    CHECK(g == NULL);
    ranks[2] = rank_of(2, 3, knows_itself);
    start_thread(&ranks[2]);
    for (int r = 0; r < 3; r++)
        end_thread(&ranks[r]);
    for (int r = 0; r < 3; r++)
        CHECK(ranks[r].rc == OK && ranks[r].was_right);
    check_nothing_left();
}

static void what_is_no_rank_is_refused(void)
{
    static const int wrong[][2] = {{0, 0}, {-1, 2}, {2, 2}, {0, GROUP_MAX_RANKS + 1}};
    struct group *g;

    new_id();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_ERR(group_join(&g, id, wrong[i][0], wrong[i][1], 0, 0, &err), ERR_INPUT,
                  "group: rank");
    CHECK_ERR(group_join(&g, "", 0, 2, 0, 0, &err), ERR_INPUT, "group: an id has 1 to 32");
    CHECK_ERR(group_join(&g, "../x", 0, 2, 0, 0, &err), ERR_INPUT, "no '/'");
    CHECK_ERR(group_join(&g, "123456789012345678901234567890123", 0, 2, 0, 0, &err), ERR_INPUT,
              "group: an id has 1 to 32");
    group_leave(NULL);
}

/* A sentence and no signal, and no name left behind. */
static void no_shared_memory_is_an_error(void)
{
    struct rlimit limit = {.rlim_cur = 1 << 16, .rlim_max = RLIM_INFINITY}, before;
    struct group *g;
    int rc;

    new_id();
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &limit);
    err = (struct error){0};
    rc = group_join(&g, id, 1, 2, LONG_MS, LONG_MS, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_INT(rc, ERR_IO);
    CHECK(strstr(err.text, "group: rank 1: ") != NULL && g == NULL);
    check_nothing_left();
}

static void a_process_that_dies_before_all_came_is_named(void)
{
    struct rank other = rank_of(1, 3, NULL);
    int64_t start_ns = clock_now_ns();
    struct group *g;

    new_id();
    start_process(&other);
    clock_pause_ms(150);
    kill(other.pid, SIGKILL);
    CHECK_ERR(group_join(&g, id, 0, 3, LONG_MS, LONG_MS, &err), ERR_TIME,
              "group: rank 1 is gone: its process ended");
    CHECK(clock_ms_since(start_ns) < SOON_MS);
    end_process(&other);
    check_nothing_left();
}

/* ---- failing ---- */

/* The group's error at a barrier, and at all that is asked later. */
static bool fails_with(struct group *g, const char *words)
{
    struct error at[3] = {{0}};
    bool right = group_barrier(g, &at[0]) == ERR_GPU && group_check(g, &at[1]) == ERR_GPU &&
                 group_barrier(g, &at[2]) == ERR_GPU;

    for (int i = 0; i < 3; i++) {
        if (strstr(at[i].text, words) == NULL)
            printf("\"%s\" does not say \"%s\"\n", at[i].text, words);
        right &= strstr(at[i].text, words) != NULL;
    }
    return right;
}

/* Rank 0 comes last, and sees that the others wait; they do not, once it is there. */
static struct group *_Atomic waiting[GROUP_MAX_RANKS];

static bool the_first_comes_last(struct group *g, int rank, int n_ranks)
{
    int64_t start_ns = clock_now_ns();
    bool right = group_failed_rank(g) == -1 && !group_is_waiting(g);

    atomic_store(&waiting[rank], g);
    for (int r = 1; r < n_ranks && rank == 0; r++)
        while (atomic_load(&waiting[r]) == NULL || !group_is_waiting(waiting[r])) {
            clock_pause_ms(1);
            if (clock_ms_since(start_ns) > SOON_MS)
                return false;
        }
    return right && group_barrier(g, NULL) == OK && !group_is_waiting(g) &&
           group_failed_rank(g) == -1;
}

static void who_waits(void)
{
    struct rank ranks[3];

    new_id();
    for (int r = 0; r < 3; r++) {
        ranks[r] = rank_of(r, 3, the_first_comes_last);
        start_thread(&ranks[r]);
    }
    for (int r = 0; r < 3; r++)
        end_thread(&ranks[r]);
    for (int r = 0; r < 3; r++)
        CHECK(ranks[r].rc == OK && ranks[r].was_right);
}

static bool one_aborts(struct group *g, int rank, int n_ranks)
{
    int64_t start_ns = clock_now_ns();

    if (rank == n_ranks - 1) {
        clock_pause_ms(150); /* the others sleep by now */
        group_abort(g, "no memory");
        group_abort(g, "another reason");
    }
    char words[64];
    snprintf(words, sizeof(words), "group: rank %d failed: no memory", n_ranks - 1);
    return fails_with(g, words) && group_failed_rank(g) == n_ranks - 1 &&
           clock_ms_since(start_ns) < SOON_MS;
}

static void an_abort_ends_all_waits(void)
{
    everywhere(one_aborts);
}

static bool all_abort(struct group *g, int rank, int n_ranks)
{
    char why[32];

    (void)n_ranks;
    snprintf(why, sizeof(why), "reason %d", rank);
    group_abort(g, why);
    return fails_with(g, "failed: reason");
}

static void all_may_abort_at_once(void)
{
    everywhere(all_abort);
}

static struct group *of_another_thread;

static void *abort_later(void *arg)
{
    (void)arg;
    clock_pause_ms(100);
    group_abort(of_another_thread, "asked to");
    return NULL;
}

static void another_thread_may_abort(void)
{
    struct rank other = rank_of(1, 2, NULL);
    pthread_t thread;
    bool right;

    new_id();
    start_thread(&other);
    CHECK_OK(group_join(&of_another_thread, id, 0, 2, LONG_MS, LONG_MS, &err));
    end_thread(&other);
    CHECK(pthread_create(&thread, NULL, abort_later, NULL) == 0);
    while (group_check(of_another_thread, NULL) == OK)
        clock_pause_ms(1);
    right = fails_with(of_another_thread, "group: rank 0 failed: asked to");
    pthread_join(thread, NULL);
    group_leave(of_another_thread);
    CHECK(right);
}

static bool one_is_late(struct group *g, int rank, int n_ranks)
{
    int64_t start_ns = clock_now_ns();
    bool right;

    (void)n_ranks;
    if (rank == 1)
        clock_pause_ms(4500);
    right = fails_with(g, "group: rank 1 did not come within 1500 ms");
    return right && group_failed_rank(g) == 1 && (rank == 1 || clock_ms_since(start_ns) >= 1500.0);
}

static void a_deadline_passes(void)
{
    struct rank ranks[3];

    new_id();
    for (int r = 0; r < 3; r++) {
        ranks[r] = rank_of(r, 3, one_is_late);
        ranks[r].deadline_ms = 1500;
        start_thread(&ranks[r]);
    }
    for (int r = 0; r < 3; r++)
        end_thread(&ranks[r]);
    for (int r = 0; r < 3; r++)
        CHECK(ranks[r].rc == OK && ranks[r].was_right);
}

static bool one_leaves(struct group *g, int rank, int n_ranks)
{
    int64_t start_ns = clock_now_ns();

    if (rank == 1)
        clock_pause_ms(100);
    if (rank == 1 || n_ranks == 1)
        return true;
    return fails_with(g, "group: rank 1 left the group") && clock_ms_since(start_ns) < SOON_MS;
}

static void who_left_is_not_waited_for(void)
{
    everywhere(one_leaves);
}

/* One that left, and whose process ended, is no failure to those who need it no more. */
static bool leaves_last(struct group *g, int rank, int n_ranks)
{
    (void)n_ranks;
    if (rank == 0)
        return true;
    clock_pause_ms(200);
    return group_check(g, NULL) == OK;
}

static void leaving_is_no_failure(void)
{
    everywhere(leaves_last);
}

static bool waits_for_ever(struct group *g, int rank, int n_ranks)
{
    (void)rank;
    (void)n_ranks;
    while (group_barrier(g, NULL) == OK)
        continue;
    return true;
}

static bool stops(struct group *g, int rank, int n_ranks)
{
    (void)g;
    (void)rank;
    (void)n_ranks;
    pause();
    return true;
}

/* Nobody asks for what is left of it: it stays a zombie while the others wait. */
static void a_killed_process_is_noticed(void)
{
    for (int asks = 0; asks < 2; asks++) { /* in a barrier; between two */
        struct rank other = rank_of(1, 3, stops), third = rank_of(2, 3, waits_for_ever);
        int64_t start_ns;
        struct group *g;
        bool right;
        new_id();
        start_process(&other);
        start_process(&third);
        CHECK_OK(group_join(&g, id, 0, 3, LONG_MS, LONG_MS, &err));
        kill(other.pid, SIGKILL);
        start_ns = clock_now_ns();
        while (asks && group_check(g, NULL) == OK)
            clock_pause_ms(1);
        right = fails_with(g, "group: rank 1 is gone: its process ended");
        CHECK(clock_ms_since(start_ns) < SOON_MS);
        end_process(&other);
        CHECK(end_process(&third));
        group_leave(g);
        CHECK(right);
        check_nothing_left();
    }
}

/* In the middle of anything. */
static void processes_are_killed_at_any_moment(void)
{
    for (int i = 0; i < 60; i++) {
        struct rank others[2] = {rank_of(1, 3, waits_for_ever), rank_of(2, 3, waits_for_ever)};
        int64_t start_ns;
        struct group *g;
        pid_t killer;
        new_id();
        start_process(&others[0]);
        start_process(&others[1]);
        CHECK_OK(group_join(&g, id, 0, 3, LONG_MS, LONG_MS, &err));
        fflush(stdout);
        CHECK((killer = fork()) >= 0);
        if (killer == 0) {
            usleep((useconds_t)(i * 37 % 1500));
            kill(others[0].pid, SIGKILL);
            _exit(0);
        }
        start_ns = clock_now_ns();
        while (group_barrier(g, &err) == OK)
            continue;
        CHECK(clock_ms_since(start_ns) < SOON_MS);
        CHECK(strstr(err.text, "group: rank 1 is gone: its process ended") != NULL);
        err = (struct error){0};
        waitpid(killer, NULL, 0);
        end_process(&others[0]);
        CHECK(end_process(&others[1]));
        group_leave(g);
        check_nothing_left();
    }
}

/* A process that stands still is one that is late. */
static void a_frozen_process_meets_the_deadline(void)
{
    struct rank other = rank_of(1, 2, waits_for_ever);
    int64_t start_ns;
    struct group *g;

    new_id();
    start_process(&other);
    CHECK_OK(group_join(&g, id, 0, 2, LONG_MS, 300, &err));
    CHECK_OK(group_barrier(g, &err));
    kill(other.pid, SIGSTOP);
    start_ns = clock_now_ns();
    while (group_barrier(g, &err) == OK)
        continue;
    CHECK(strstr(err.text, "group: rank 1 did not come within 300 ms") != NULL);
    CHECK(clock_ms_since(start_ns) < SOON_MS);
    kill(other.pid, SIGCONT);
    CHECK(end_process(&other));
    group_leave(g);
}

int main(void)
{
    RUN(ranks_meet);
    RUN(barriers_order_memory);
    RUN(barriers_order_what_threads_share);
    RUN(what_is_shared_arrives);
    RUN(a_missing_rank_is_waited_for_and_named);
    RUN(intruders_are_refused);
    RUN(what_is_no_rank_is_refused);
    RUN(no_shared_memory_is_an_error);
    RUN(who_waits);
    RUN(an_abort_ends_all_waits);
    RUN(all_may_abort_at_once);
    RUN(another_thread_may_abort);
    RUN(a_deadline_passes);
    RUN(who_left_is_not_waited_for);
    RUN(leaving_is_no_failure);
    if (!ONLY_THREADS) {
        RUN(a_process_that_dies_before_all_came_is_named);
        RUN(a_killed_process_is_noticed);
        RUN(processes_are_killed_at_any_moment);
        RUN(a_frozen_process_meets_the_deadline);
    }
    return check_result();
}
