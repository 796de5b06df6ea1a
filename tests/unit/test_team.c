/* test_team.c - the ranks' threads, and who is blamed when one of them fails or hangs. */
#include "engine/group/team.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "tests/check.h"

enum { N = 3, HANGS_MS = 300 };

static struct error err;

/* What each rank does, and what is seen of it. */
struct scene {
    int rc[N];
    int ms[N];                /* after so long */
    bool waits[N];            /* and it seems to wait for others meanwhile */
    _Atomic uint64_t step[N]; /* it takes one every 20 ms until step_ms are over */
    int step_ms[N];
    _Atomic int gave_up; /* the rank that was given up; -1: none */
    _Atomic bool free;   /* what waits may end */
};

static int play(void *arg, int rank, struct error *why)
{
    struct scene *s = arg;
    int64_t start_ns = clock_now_ns();

    while (clock_ms_since(start_ns) < s->ms[rank] && !atomic_load(&s->free)) {
        clock_pause_ms(20);
        if (clock_ms_since(start_ns) < s->step_ms[rank])
            atomic_fetch_add(&s->step[rank], 1);
    }
    return s->rc[rank] == OK ? OK : error_set(why, (enum err_code)s->rc[rank], "says %d", rank);
}

static uint64_t steps(void *arg, int rank)
{
    struct scene *s = arg;

    return atomic_load(&s->step[rank]);
}

static bool waits(void *arg, int rank)
{
    const struct scene *s = arg;

    return s->waits[rank];
}

static void give_up(void *arg, int rank, const char *why)
{
    struct scene *s = arg;

    (void)why;
    atomic_store(&s->gave_up, rank);
    atomic_store(&s->free, true);
}

static int run(struct team *t, struct scene *s, int deadline_ms)
{
    struct team_watch watch = {steps, waits, give_up, s, deadline_ms};

    atomic_store(&s->gave_up, -1);
    atomic_store(&s->free, false);
    err = (struct error){0};
    return team_run(t, TEAM_ALL, play, s, &watch, &err);
}

static void failures(void)
{
    struct scene s = {.rc = {OK, ERR_MEM, OK}};
    struct error why = {0};
    struct team *t;

    CHECK_OK(team_start(&t, N, &err));
    CHECK_INT(run(t, &s, 0), ERR_MEM);
    CHECK_INT(team_failed_rank(t), 1);
    CHECK(!team_failure(t, 0, &why) && team_failure(t, 1, &why));
    CHECK_TEXT(why.text, "says 1");
    CHECK_INT(atomic_load(&s.gave_up), -1); /* the others work by themselves */

    /* the device's own counts before what memory lacked, and ends it all */
    s = (struct scene){.rc = {OK, ERR_MEM, ERR_GPU}, .ms = {60000, 0, 100}};
    CHECK_INT(run(t, &s, 0), ERR_GPU);
    CHECK_INT(team_failed_rank(t), 2);
    CHECK_INT(atomic_load(&s.gave_up), 2);
    CHECK_TEXT(err.text, "says 2");
    CHECK(!team_is_broken(t));

    s = (struct scene){0};
    CHECK_OK(run(t, &s, 0));
    CHECK(!team_failure(t, 2, &why)); /* that was another time */
    team_stop(t);
}

/* The slowest of those that work is blamed, not one that waits for it. */
static void who_hangs(void)
{
    struct scene s = {.ms = {60000, 60000, 60000}, .step_ms = {0, 60000, 200}, .waits = {true}};
    int64_t start_ns = clock_now_ns();
    struct team *t;

    CHECK_OK(team_start(&t, N, &err));
    CHECK_INT(run(t, &s, HANGS_MS), ERR_GPU);
    CHECK_INT(team_failed_rank(t), 2);
    CHECK(strstr(err.text, "hangs: no step for 300 ms") != NULL);
    CHECK(clock_ms_since(start_ns) < 2000);
    CHECK(!team_is_broken(t)); /* all came back when they were told */
    team_stop(t);
}

/* What memory lacks in one rank does not hide that another hangs. */
static void one_lacks_memory_and_one_hangs(void)
{
    struct scene s = {.rc = {ERR_MEM}, .ms = {0, 60000, 0}};
    struct team *t;

    CHECK_OK(team_start(&t, N, &err));
    CHECK_INT(run(t, &s, HANGS_MS), ERR_GPU);
    CHECK_INT(team_failed_rank(t), 1);
    team_stop(t);
}

int main(void)
{
    RUN(failures);
    RUN(who_hangs);
    RUN(one_lacks_memory_and_one_hangs);
    return check_result();
}
