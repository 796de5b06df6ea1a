/* test_memory.c - what is left of a machine's memory, and of its control groups'. */
#include "base/memory.h"

#include "base/file.h"
#include "tests/check.h"

static struct error err;
static const char root[] = PE_SCRATCH_DIR "/memory-root";

static void put(const char *name, const char *text)
{
    char path[1024], folder[1024];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    snprintf(folder, sizeof(folder), "%s", path);
    *strrchr(folder, '/') = '\0';
    CHECK_OK(file_make_folder(folder, &err));
    CHECK_OK(file_write_text(path, text, &err));
}

static uint64_t available(void)
{
    uint64_t bytes = 0;

    CHECK_OK(memory_available_under(root, &bytes, &err));
    return bytes;
}

static void begin(void)
{
    CHECK(system("rm -rf '" PE_SCRATCH_DIR "/memory-root'") == 0);
    put("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:    4000 kB\n");
}

static void this_machine_says(void)
{
    uint64_t bytes = 0;

    CHECK_OK(memory_available(&bytes, &err));
    CHECK(bytes > 1 << 20);
}

static void without_groups_it_is_what_the_system_says(void)
{
    begin();
    CHECK_INT(available(), 4000 * 1024);
    put("proc/self/cgroup", "7:memory:/old\n");
    CHECK_INT(available(), 4000 * 1024);
    put("proc/self/cgroup", "7:memory:/old\n0::/\n");
    CHECK_INT(available(), 4000 * 1024);
    put("sys/fs/cgroup/memory.max", "max\n");
    put("sys/fs/cgroup/memory.current", "1000\n");
    CHECK_INT(available(), 4000 * 1024);
}

static void groups_bound_it(void)
{
    begin();
    put("proc/self/cgroup", "0::/pods/a\n");
    put("sys/fs/cgroup/pods/a/memory.max", "1000000\n");
    put("sys/fs/cgroup/pods/a/memory.current", "900000\n");
    CHECK_INT(available(), 100000);
    put("sys/fs/cgroup/pods/a/memory.stat", "anon 500000\nfile 300000\nfile_mapped 7\n");
    CHECK_INT(available(), 400000); /* the page cache gives way */
    put("sys/fs/cgroup/pods/memory.max", "2000000\n");
    put("sys/fs/cgroup/pods/memory.current", "1999000\n");
    CHECK_INT(available(), 1000); /* one that it lies in has less */
    put("sys/fs/cgroup/memory.max", "5\n");
    put("sys/fs/cgroup/memory.current", "6\n");
    CHECK_INT(available(), 0);
}

static void what_says_nothing_is_an_error(void)
{
    uint64_t bytes;

    begin();
    put("proc/meminfo", "MemTotal: 9000 kB\n");
    CHECK_ERR(memory_available_under(root, &bytes, &err), ERR_IO, "proc/meminfo does not say");
}

int main(void)
{
    RUN(this_machine_says);
    RUN(without_groups_it_is_what_the_system_says);
    RUN(groups_bound_it);
    RUN(what_says_nothing_is_an_error);
    return check_result();
}
