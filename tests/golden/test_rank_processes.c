/* test_rank_processes.c - ranks that are processes: one is killed, or frozen, and the others know.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "tests/check.h"

enum { N_RANKS = 3, VICTIM = 1, DEADLINE_MS = 1000, SOON_MS = 3000 };

static struct error err;

/* What a process has to say of its end. */
struct report {
    int rc, rank; /* `rank`: whose fault */
    char text[512], told[512];
    bool is_ours; /* the failure names a device */
};

static void note(void *arg, const struct engine_failure *failure)
{
    struct report *r = arg;

    r->rank = failure->rank;
    r->is_ours = failure->device != NULL;
    snprintf(r->told, sizeof(r->told), "%s", failure->text);
}

/* Encodes two prompts again and again; says so once it has begun to. */
static void run_rank(struct engine_options options, int rank, int begun, int said)
{
    static const int32_t ids[] = {2, 100, 200, 300, 400, 500};
    const struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_F32};
    const struct engine_prompt prompts[] = {{ids, 6, &request}, {ids, 3, &request}};
    struct report report = {.rank = -1};
    struct error why = {0};
    struct engine *e;

    options.rank = rank;
    options.failed = note;
    options.failed_arg = &report;
    report.rc = engine_open(&e, &options, &why);
    for (int i = 0; report.rc == OK; i++) {
        report.rc = engine_encode(e, prompts, 2, NULL, &why);
        if (i == 3 && write(begun, "b", 1) != 1)
            _exit(EXIT_FAILURE);
    }
    engine_close(e);
    snprintf(report.text, sizeof(report.text), "%s", why.text);
    _exit(write(said, &report, sizeof(report)) == sizeof(report) ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* All ranks encode; then the victim gets the signal. */
static void check_signal(enum engine_strategy strategy, int number, int within_ms,
                         const char *words)
{
    char group[ENGINE_GROUP_ID_SIZE];
    struct engine_options options = {
        .model = PE_TESTS_DIR "/golden/gemma3-tiny",
        .ltx = {PE_TESTS_DIR "/golden/ltx-tiny-v2.safetensors"},
        .n_ranks = N_RANKS,
        .group = group,
        .strategy = strategy,
        .place = ENGINE_PLACE_ALL,
        .deadline_ms = DEADLINE_MS,
        .n_threads = 1,
    };
    int begun[2], said[N_RANKS][2];
    pid_t pids[N_RANKS];
    int64_t start_ns;
    char letter;

    CHECK_OK(engine_make_group_id(group, &err));
    CHECK_INT(pipe(begun), 0);
    fflush(stdout);
    for (int r = 0; r < N_RANKS; r++) {
        CHECK_INT(pipe(said[r]), 0);
        CHECK((pids[r] = fork()) >= 0);
        if (pids[r] == 0)
            run_rank(options, r, begun[1], said[r][1]);
        close(said[r][1]);
    }
    for (int r = 0; r < N_RANKS; r++)
        CHECK_INT(read(begun[0], &letter, 1), 1);
    start_ns = clock_now_ns();
    CHECK_INT(kill(pids[VICTIM], number), 0);
    for (int r = 0; r < N_RANKS; r++) {
        struct report report;
        if (r == VICTIM)
            continue;
        CHECK_INT(read(said[r][0], &report, sizeof(report)), sizeof(report));
        CHECK_INT(report.rc, ERR_GPU);
        CHECK_INT(report.rank, VICTIM);
        CHECK(!report.is_ours);
        CHECK(strstr(report.text, "rank 1") != NULL && strstr(report.text, words) != NULL);
        CHECK(strstr(report.told, words) != NULL);
        CHECK(clock_ms_since(start_ns) < within_ms);
    }
    kill(pids[VICTIM], SIGKILL);
    for (int r = 0; r < N_RANKS; r++) {
        int status;
        CHECK_INT(waitpid(pids[r], &status, 0), pids[r]);
        CHECK(r == VICTIM ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(said[r][0]);
    }
    close(begun[0]);
    close(begun[1]);
}

static void one_is_killed(void)
{
    for (int time = 0; time < 5; time++) { /* wherever it is just then */
        check_signal(ENGINE_SHARDED, SIGKILL, SOON_MS, "is gone");
        check_signal(ENGINE_REPLICATED, SIGKILL, SOON_MS, "is gone");
    }
}

static void one_is_frozen(void)
{
    check_signal(ENGINE_SHARDED, SIGSTOP, DEADLINE_MS + SOON_MS, "did not come");
    check_signal(ENGINE_REPLICATED, SIGSTOP, DEADLINE_MS + SOON_MS, "did not come");
}

int main(void)
{
    if (ONLY_THREADS) {
        printf("SKIPPED: the thread sanitizer does not follow ranks that are processes\n");
        return SKIP_EXIT;
    }
    RUN(one_is_killed);
    RUN(one_is_frozen);
    return check_result();
}
