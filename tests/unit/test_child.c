#include "cli/child.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"

#define LOG PE_SCRATCH_DIR "/child.log"

static struct error err;
static char words[400];

/* In place: the words of its command line lie in it. */
static void make_child(struct child *c, const char *script)
{
    *c = (struct child){.name = "child", .log = LOG};
    CHECK_OK(child_arg(c, &err, "sh"));
    CHECK_OK(child_arg(c, &err, "-c"));
    CHECK_OK(child_arg(c, &err, "%s", script));
}

static void check_file(const char *path, const char *want)
{
    struct buf text = {.max = 1 << 20};

    CHECK_OK(file_read(&text, path, &err));
    CHECK_TEXT(text.len > 0 ? text.data : "", want);
    buf_free(&text);
}

/* Until the log holds `want`; a child takes its time. */
static void wait_for_log(const char *want)
{
    const struct timespec tick = {0, 10000000};
    struct buf text = {.max = 1 << 20};

    for (int i = 0; i < 1000; i++) {
        buf_free(&text);
        CHECK_OK(file_read(&text, LOG, &err));
        if (text.len > 0 && strcmp(text.data, want) == 0)
            break;
        nanosleep(&tick, NULL);
    }
    CHECK_TEXT(text.len > 0 ? text.data : "", want);
    buf_free(&text);
}

static void its_last_words_are_its_last_line(void)
{
    const struct child c = {.name = "child", .log = LOG};

    unlink(LOG);
    child_last_words(&c, words, sizeof(words));
    CHECK_TEXT(words, "");
    CHECK_OK(file_write_text(LOG, "", &err));
    child_last_words(&c, words, sizeof(words));
    CHECK_TEXT(words, "");
    CHECK_OK(file_write_text(LOG, "one\ntwo\n\n", &err));
    child_last_words(&c, words, sizeof(words));
    CHECK_TEXT(words, "two");
    CHECK_OK(file_write_text(LOG, "one\nno end", &err));
    child_last_words(&c, words, sizeof(words));
    CHECK_TEXT(words, "no end");
}

static void check_end(const char *script, const char *want)
{
    const struct timespec tick = {0, 10000000};
    struct child c;

    unlink(LOG);
    make_child(&c, script);
    CHECK_OK(child_start(&c, &err));
    for (int i = 0; i < 1000 && !child_has_ended(&c, words, sizeof(words)); i++)
        nanosleep(&tick, NULL);
    CHECK_TEXT(words, want);
    CHECK_INT(c.pid, 0);
    CHECK(!child_has_ended(&c, words, sizeof(words))); /* it is said once */
}

static void it_says_how_it_ended(void)
{
    check_end("echo first; echo why >&2; exit 3", "why");
    check_end("exit 4", "status 4, and it said nothing");
    check_end("echo working; kill -9 $$", "signal 9 (Killed)");
}

/* 1 TiB of zeros, which take no room on the disk: nobody could read them all in the test's time. */
static void only_the_end_of_a_log_is_read(void)
{
    const struct child c = {.name = "child", .log = LOG};
    int fd;

    CHECK_OK(file_write_text(LOG, "", &err));
    CHECK((fd = open(LOG, O_WRONLY | O_APPEND)) >= 0);
    if (ftruncate(fd, (off_t)1 << 40) == 0) {
        CHECK(write(fd, "\nthe end\n", 9) == 9);
        child_last_words(&c, words, sizeof(words));
    }
    CHECK(close(fd) == 0 && unlink(LOG) == 0);
    CHECK_TEXT(words, "the end");
}

static void a_long_log_begins_anew_under_a_running_child(void)
{
    struct child c;

    unlink(LOG);
    unlink(LOG ".1");
    make_child(&c, "echo before; read line < " PE_SCRATCH_DIR "/child.fifo; echo after; sleep 60");
    unlink(PE_SCRATCH_DIR "/child.fifo");
    CHECK(mkfifo(PE_SCRATCH_DIR "/child.fifo", 0600) == 0);
    CHECK_OK(child_start(&c, &err));
    wait_for_log("before\n");
    CHECK_OK(child_rotate_log(&c, 7, &err)); /* as long as it may be */
    wait_for_log("before\n");
    CHECK(!file_exists(LOG ".1"));
    CHECK_OK(child_rotate_log(&c, 6, &err));
    check_file(LOG ".1", "before\n");
    check_file(LOG, "");
    CHECK_OK(file_write_text(PE_SCRATCH_DIR "/child.fifo", "go\n", &err));
    wait_for_log("after\n");
    CHECK_OK(child_rotate_log(&c, 0, &err)); /* one older log is kept */
    check_file(LOG ".1", "after\n");
    child_stop(&c, 5000);
}

int main(void)
{
    RUN(its_last_words_are_its_last_line);
    RUN(it_says_how_it_ended);
    RUN(only_the_end_of_a_log_is_read);
    RUN(a_long_log_begins_anew_under_a_running_child);
    return check_result();
}
