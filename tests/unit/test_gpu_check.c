/* test_gpu_check.c - each reason for which a GPU cannot be used names itself. */
#include "kernels/gpu_check.h"
#include "tests/check.h"

static struct error err;

static const struct gpu_runtime good = {.driver = 13010, .runtime = 13000, .n_gpus = 2};

static void what_works_is_let_through(void)
{
    struct gpu_runtime r = good;

    CHECK_OK(gpu_check_runtime(&r, 0, &err));
    CHECK_OK(gpu_check_runtime(&r, 1, &err));
    r.driver = 13000;
    r.runtime = 13010; /* of one major version */
    CHECK_OK(gpu_check_runtime(&r, 0, &err));
    CHECK_OK(gpu_check_capability(0, "NVIDIA A100", 8, 0, &err));
    CHECK_OK(gpu_check_capability(0, "NVIDIA H200", 9, 0, &err));
    CHECK_OK(gpu_check_capability(0, "NVIDIA GeForce RTX 5090", 12, 0, &err));
}

static void no_driver_is_said(void)
{
    struct gpu_runtime r = good;

    r.driver = 0;
    r.n_gpus = 0;
    r.failure = "CUDA driver version is insufficient for CUDA runtime version";
    CHECK_ERR(gpu_check_runtime(&r, 0, &err), ERR_INPUT,
              "cuda: no NVIDIA driver (libcuda.so.1) is here; one for CUDA 13 is needed");
}

static void an_old_driver_is_said(void)
{
    struct gpu_runtime r = good;

    r.driver = 12040;
    r.failure = "CUDA driver version is insufficient for CUDA runtime version";
    CHECK_ERR(
        gpu_check_runtime(&r, 0, &err), ERR_INPUT,
        "the NVIDIA driver is too old: it serves CUDA 12.4, and this build needs 13.0 or newer");
}

static void a_gpu_that_is_not_there_is_said(void)
{
    struct gpu_runtime r = good;

    CHECK_ERR(gpu_check_runtime(&r, 2, &err), ERR_INPUT, "cuda: no GPU 2: there are 0 to 1");
    CHECK_ERR(gpu_check_runtime(&r, -1, &err), ERR_INPUT, "cuda: no GPU -1: there are 0 to 1");
    r.n_gpus = 0;
    CHECK_ERR(gpu_check_runtime(&r, 0, &err), ERR_INPUT, "cuda: no GPU is visible");
    CHECK(strstr(err.text, "CUDA_VISIBLE_DEVICES") == NULL);
    r.visible = "";
    CHECK_ERR(gpu_check_runtime(&r, 0, &err), ERR_INPUT,
              "cuda: no GPU is visible, CUDA_VISIBLE_DEVICES being ''");
    r.failure = "system has unsupported display driver / cuda driver combination";
    CHECK_ERR(gpu_check_runtime(&r, 0, &err), ERR_INPUT,
              "cuda: no GPU can be used: system has unsupported display driver");
}

static void a_gpu_that_is_too_old_is_said(void)
{
    CHECK_ERR(gpu_check_capability(1, "Tesla T4", 7, 5, &err), ERR_INPUT,
              "cuda: GPU 1 (Tesla T4) has compute capability 7.5, and 8.0 or newer is needed");
}

int main(void)
{
    RUN(what_works_is_let_through);
    RUN(no_driver_is_said);
    RUN(an_old_driver_is_said);
    RUN(a_gpu_that_is_not_there_is_said);
    RUN(a_gpu_that_is_too_old_is_said);
    return check_result();
}
