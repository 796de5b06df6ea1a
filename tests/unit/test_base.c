/* test_base.c - errors, buffers, files. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/size.h"
#include "tests/check.h"

static struct error err;

static void the_first_error_stays(void)
{
    err = (struct error){0};
    CHECK_INT(error_set(&err, ERR_IO, "first %d", 1), ERR_IO);
    CHECK_INT(error_set(&err, ERR_MEM, "second"), ERR_MEM);
    CHECK_INT(err.code, ERR_IO);
    CHECK_TEXT(err.text, "first 1");
    CHECK_INT(error_set(NULL, ERR_BUSY, "nobody listens"), ERR_BUSY);
}

static void a_long_error_is_cut(void)
{
    char text[2000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err = (struct error){0};
    error_set(&err, ERR_IO, "%s", text);
    CHECK_INT(strlen(err.text), sizeof(err.text) - 1);
}

static void buffers_grow_to_their_ceiling(void)
{
    struct buf b = {.max = 1000};

    CHECK_OK(buf_append(&b, "ab", 2, &err));
    CHECK_OK(buf_printf(&b, &err, "%d", 12345));
    CHECK_TEXT(b.data, "ab12345");
    for (int i = 0; i < 993; i++)
        CHECK_OK(buf_append(&b, "x", 1, &err));
    CHECK_INT(b.len, 1000);
    CHECK_ERR(buf_append(&b, "y", 1, &err), ERR_SIZE, "at most 1000");
    CHECK(b.data == NULL && b.len == 0); /* half an answer cannot be used */
    CHECK_OK(buf_append(&b, "again", 5, &err));
    CHECK_TEXT(b.data, "again");
    CHECK_ERR(buf_append(&b, "", (size_t)-1, &err), ERR_SIZE, "at most");
    buf_free(&b);
}

static void text_for_a_terminal(void)
{
    struct buf b = {.max = 1000};

    CHECK_OK(buf_append_printable(&b, "a\x1b[31m\nb\x7f", 9, 100, &err));
    CHECK_TEXT(b.data, "a [31m b ");
    buf_free(&b);
    CHECK_OK(buf_append_printable(&b,
                                  "x\xc2\x9b"
                                  "1m\xc3\xa9",
                                  7, 100, &err));
    CHECK_TEXT(b.data, "x 1m\xc3\xa9");
    buf_free(&b);
    CHECK_OK(buf_append_printable(&b,
                                  "ab\xc3\xa9"
                                  "cd",
                                  6, 3, &err)); /* not inside a character */
    CHECK_TEXT(b.data, "ab...");
    buf_free(&b);
}

static void sizes_do_not_overflow(void)
{
    size_t out = 7;

    CHECK(size_mul(&out, 6, 7) && out == 42);
    CHECK(!size_mul(&out, SIZE_MAX / 2, 3) && out == 42);
    CHECK(size_mul(&out, SIZE_MAX, 0) && out == 0);
    CHECK(!size_add(&out, SIZE_MAX, 1) && out == 0);
    CHECK(size_add(&out, SIZE_MAX, 0) && out == SIZE_MAX);
}

static void time_goes_on(void)
{
    int64_t start = clock_now_ns();

    CHECK(clock_ms_since(start) >= 0.0);
    CHECK(clock_now_ns() >= start);
}

/* A folder of this test alone, empty. */
static void scratch(char *path, size_t cap)
{
    char command[4200];

    snprintf(path, cap, "%s/test_base", PE_SCRATCH_DIR);
    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir -p '%s'", path, path);
    CHECK(system(command) == 0);
}

static void waits_end_by_this_clock(void)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int64_t start_ns = clock_now_ns();
    pthread_cond_t cond;

    clock_cond_init(&cond);
    pthread_mutex_lock(&lock);
    while (clock_cond_wait(&cond, &lock, start_ns + 20000000))
        ;
    pthread_mutex_unlock(&lock);
    /* one that went by the wall clock would find that long past, or far ahead */
    CHECK(clock_ms_since(start_ns) >= 20);
    CHECK(clock_ms_since(start_ns) < 20000);
    pthread_cond_destroy(&cond);
}

static void files_are_written_whole_or_not_at_all(void)
{
    struct file_writer *w;
    struct file_map map;
    char dir[4096], path[4200], command[4300];

    scratch(dir, sizeof(dir));
    CHECK_OK(file_join(path, sizeof(path), dir, "out", &err));
    CHECK_OK(file_writer_open(&w, path, &err));
    CHECK_OK(file_writer_append(w, "hello", 5, &err));
    CHECK(!file_exists(path));
    file_writer_close(w); /* dropped */
    CHECK(!file_exists(path));

    for (int round = 0; round < 2; round++) { /* the second time over the first */
        CHECK_OK(file_writer_open(&w, path, &err));
        CHECK_OK(file_writer_append(w, round == 0 ? "one" : "other", round == 0 ? 3 : 5, &err));
        CHECK_OK(file_writer_commit(w, &err));
        file_writer_close(w);
    }
    CHECK_OK(file_map_open(&map, path, &err));
    CHECK_INT(map.size, 5);
    CHECK(memcmp(map.data, "other", 5) == 0);
    file_map_close(&map);
    snprintf(command, sizeof(command), "test \"$(ls -A '%s')\" = out", dir);
    CHECK(system(command) == 0); /* nothing else is left */
}

/* A result may go to a device or a pipe: the thing itself stays what it is. */
static void what_is_no_file_is_written_through(void)
{
    struct file_writer *w;
    struct stat st;
    struct buf got = {.max = 100};
    char dir[4096], fifo[4200], link[4200], target[4200];
    int fd;

    scratch(dir, sizeof(dir));
    CHECK_OK(file_join(fifo, sizeof(fifo), dir, "fifo", &err));
    CHECK(mkfifo(fifo, 0600) == 0);
    fd = open(fifo, O_RDWR); /* a reader, so that the writer's open returns */
    CHECK(fd >= 0);
    CHECK_OK(file_writer_open(&w, fifo, &err));
    CHECK_OK(file_writer_append(w, "hello", 5, &err));
    CHECK_OK(file_writer_commit(w, &err));
    file_writer_close(w);
    CHECK(stat(fifo, &st) == 0 && S_ISFIFO(st.st_mode));
    close(fd);
    CHECK_OK(file_writer_open(&w, "/dev/null", &err));
    CHECK_OK(file_writer_append(w, "hello", 5, &err));
    CHECK_OK(file_writer_commit(w, &err));
    file_writer_close(w);
    CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));

    CHECK_OK(file_join(link, sizeof(link), dir, "link", &err));
    CHECK_OK(file_join(target, sizeof(target), dir, "target", &err));
    fd = open(target, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK(symlink("target", link) == 0);
    CHECK_OK(file_writer_open(&w, link, &err));
    CHECK_OK(file_writer_append(w, "new", 3, &err));
    CHECK_OK(file_writer_commit(w, &err));
    file_writer_close(w);
    CHECK(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    CHECK_OK(file_read(&got, target, &err));
    CHECK_TEXT(got.data, "new");
    buf_free(&got);
}

/* What a process of this number left behind (in a container it is always the same). */
static void old_temporary_files_do_not_matter(void)
{
    struct file_writer *w;
    char dir[4096], path[4200], stale[4300];
    int fd;

    scratch(dir, sizeof(dir));
    CHECK_OK(file_join(path, sizeof(path), dir, "out", &err));
    snprintf(stale, sizeof(stale), "%s.%ld.0.tmp", path, (long)getpid());
    fd = open(stale, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK_OK(file_writer_open(&w, path, &err));
    CHECK_OK(file_writer_append(w, "x", 1, &err));
    CHECK_OK(file_writer_commit(w, &err));
    file_writer_close(w);
    CHECK(file_exists(path));
}

static void files_are_read_up_to_a_limit(void)
{
    struct buf small = {.max = 3}, big = {.max = 1 << 20};

    CHECK_OK(file_read(&big, "/proc/self/status", &err)); /* has no size to map */
    CHECK(big.len > 100);
    buf_free(&big);
    CHECK_ERR(file_read(&small, "/proc/self/status", &err), ERR_SIZE, "more than 3 bytes");
    CHECK_ERR(file_read(&small, "/none", &err), ERR_IO, "/none: No such file");
    CHECK_ERR(file_read(&small, "/", &err), ERR_IO, "Is a directory");
}

static void what_cannot_be_opened_is_named(void)
{
    struct file_writer *w;
    struct file_map map;
    char dir[4096], path[4200];
    int fd;

    scratch(dir, sizeof(dir));
    CHECK_ERR(file_map_open(&map, dir, &err), ERR_IO, "is a directory");
    CHECK_OK(file_join(path, sizeof(path), dir, "none", &err));
    CHECK_ERR(file_map_open(&map, path, &err), ERR_IO, "none: No such file");
    CHECK_ERR(file_writer_open(&w, dir, &err), ERR_IO, "is a directory");
    CHECK(w == NULL);
    CHECK_OK(file_join(path, sizeof(path), dir, "none/out", &err));
    CHECK_ERR(file_writer_open(&w, path, &err), ERR_IO, "No such file");
    CHECK_OK(file_join(path, sizeof(path), dir, "empty", &err));
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0);
    close(fd);
    CHECK_OK(file_map_open(&map, path, &err)); /* a file of no bytes */
    CHECK(map.data == NULL && map.size == 0);
    file_map_close(&map);
    CHECK_ERR(file_join(path, 10, dir, "x", &err), ERR_SIZE, "longer than 10");
}

int main(void)
{
    RUN(the_first_error_stays);
    RUN(a_long_error_is_cut);
    RUN(buffers_grow_to_their_ceiling);
    RUN(text_for_a_terminal);
    RUN(sizes_do_not_overflow);
    RUN(time_goes_on);
    RUN(waits_end_by_this_clock);
    RUN(files_are_written_whole_or_not_at_all);
    RUN(what_is_no_file_is_written_through);
    RUN(old_temporary_files_do_not_matter);
    RUN(files_are_read_up_to_a_limit);
    RUN(what_cannot_be_opened_is_named);
    return check_result();
}
