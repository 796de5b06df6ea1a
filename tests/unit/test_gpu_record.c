/* test_gpu_record.c - which GPUs are left out, and the file that says so. */
#include "engine/worker/gpu_record.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "tests/check.h"

enum { NOON_S = 1796040000 }; /* 2026-11-30T12:00:00Z */

static struct error err;
static const char path[] = PE_SCRATCH_DIR "/failed-gpus";

static void twice_within_an_hour(void)
{
    const char *gpus[GPU_RECORD_MAX];
    struct gpu_record r = {0};

    CHECK_INT(gpu_record_left_out(&r, gpus), 0);
    gpu_record_add(&r, NOON_S, "GPU-a", "first");
    gpu_record_add(&r, NOON_S + 10, "GPU-b", "another");
    gpu_record_add(&r, NOON_S + 3601, "GPU-a", "an hour and a second later");
    CHECK_INT(gpu_record_left_out(&r, gpus), 0);
    gpu_record_add(&r, NOON_S + 3610, "GPU-b", "an hour later");
    CHECK_INT(gpu_record_left_out(&r, gpus), 1);
    CHECK_TEXT(gpus[0], "GPU-b");
    gpu_record_add(&r, NOON_S + 3611, "GPU-a", "ten seconds later");
    gpu_record_add(&r, NOON_S + 3612, "GPU-a", "and again");
    CHECK_INT(gpu_record_left_out(&r, gpus), 2);
    CHECK_TEXT(gpus[0], "GPU-a");
    CHECK_TEXT(gpus[1], "GPU-b");
}

static void the_file_keeps_it(void)
{
    struct gpu_record r = {0}, back;
    struct buf text = {.max = 65536};

    unlink(path);
    CHECK_OK(gpu_record_read(&back, path, &err));
    CHECK_INT(back.n, 0);
    gpu_record_add(&r, NOON_S, "GPU-a", "cuda: gpu 0: it is\nbroken");
    gpu_record_add(&r, NOON_S + 61, "cuda 1", "");
    CHECK_OK(gpu_record_write(&r, path, &err));
    CHECK_OK(gpu_record_read(&back, path, &err));
    CHECK_INT(back.n, 2);
    CHECK_INT(back.failures[0].time_s, NOON_S);
    CHECK_TEXT(back.failures[0].gpu, "GPU-a");
    CHECK_TEXT(back.failures[0].text, "cuda: gpu 0: it is broken");
    CHECK_INT(back.failures[1].time_s, NOON_S + 61);
    CHECK_TEXT(back.failures[1].gpu, "cuda-1");
    CHECK_OK(file_read(&text, path, &err));
    CHECK(strstr(text.data, "\n2026-11-30T12:00:00Z GPU-a cuda: gpu 0: it is broken\n") != NULL);
    CHECK(strncmp(text.data, "# ", 2) == 0 && strstr(text.data, "delete") != NULL);
    buf_free(&text);
}

static void people_may_edit_it(void)
{
    struct gpu_record r;

    CHECK_OK(file_write_text(path, "", &err));
    CHECK_OK(gpu_record_read(&r, path, &err));
    CHECK_INT(r.n, 0);
    CHECK_OK(file_write_text(path, "\n# a word\n2026-11-30T12:00:00Z GPU-a", &err));
    CHECK_OK(gpu_record_read(&r, path, &err));
    CHECK_INT(r.n, 1);
    CHECK_TEXT(r.failures[0].text, "");
    CHECK_OK(file_write_text(path, "# a word\nGPU-a failed\n", &err));
    CHECK_ERR(gpu_record_read(&r, path, &err), ERR_FORMAT, "failed-gpus: line 2");
    CHECK_OK(file_write_text(path, "2026-11-30T12:00:00 GPU-a\n", &err));
    CHECK_ERR(gpu_record_read(&r, path, &err), ERR_FORMAT, "line 1");
}

static void the_newest_are_kept(void)
{
    struct gpu_record r = {0}, back;
    char long_text[GPU_RECORD_TEXT];

    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    for (int i = 0; i < GPU_RECORD_MAX + 10; i++)
        gpu_record_add(&r, NOON_S + i, "GPU-a", long_text);
    CHECK_INT(r.n, GPU_RECORD_MAX);
    CHECK_INT(r.failures[0].time_s, NOON_S + 10);
    CHECK_OK(gpu_record_write(&r, path, &err));
    CHECK_OK(gpu_record_read(&back, path, &err));
    CHECK_INT(back.n, GPU_RECORD_MAX);
    CHECK_INT(back.failures[GPU_RECORD_MAX - 1].time_s, NOON_S + GPU_RECORD_MAX + 9);
    CHECK_TEXT(back.failures[0].text, long_text);
}

int main(void)
{
    RUN(twice_within_an_hour);
    RUN(the_file_keeps_it);
    RUN(people_may_edit_it);
    RUN(the_newest_are_kept);
    return check_result();
}
