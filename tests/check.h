/* check.h - the whole test framework.
 *
 *     static void one_thing(void) { CHECK(1 + 1 == 2); }
 *     int main(void) { RUN(one_thing); return check_result(); }
 *
 * A failed check prints where and what, ends that test and fails the program. */
#pragma once
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define SKIP_EXIT 77 /* ctest shows such a test as skipped */

static jmp_buf check_out;
static int check_failures, check_runs;

/* The thread sanitizer is slow, and what one thread does says nothing to it. */
#ifdef __SANITIZE_THREAD__
enum { ONLY_THREADS = true };
#else
enum { ONLY_THREADS = false };
#endif

#define CHECK_FAIL(...)                                                                            \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        longjmp(check_out, 1);                                                                     \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            CHECK_FAIL("failed: %s", #condition);                                                  \
    } while (0)

/* For calls that take `&err`: shows the error's sentence. */
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        err = (struct error){0};                                                                   \
        if ((call) != OK)                                                                          \
            CHECK_FAIL("%s: %s", #call, err.text);                                                 \
    } while (0)

/* The call fails with `want`, and its sentence contains `words`. */
#define CHECK_ERR(call, want, words)                                                               \
    do {                                                                                           \
        err = (struct error){0};                                                                   \
        int check_rc = (call);                                                                     \
        if (check_rc != (want) || (int)err.code != (want))                                         \
            CHECK_FAIL("%s: code %d, want %d: %s", #call, check_rc, (int)(want), err.text);        \
        if (strstr(err.text, words) == NULL)                                                       \
            CHECK_FAIL("%s: \"%s\" does not say \"%s\"", #call, err.text, words);                  \
    } while (0)

#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long check_got = (long long)(got), check_want = (long long)(want);                    \
        if (check_got != check_want)                                                               \
            CHECK_FAIL("%s: got %lld, want %lld", #got, check_got, check_want);                    \
    } while (0)

#define CHECK_TEXT(got, want)                                                                      \
    do {                                                                                           \
        if (strcmp(got, want) != 0)                                                                \
            CHECK_FAIL("%s: got \"%s\", want \"%s\"", #got, got, want);                            \
    } while (0)

#define RUN(test)                                                                                  \
    do {                                                                                           \
        check_runs++;                                                                              \
        if (setjmp(check_out) == 0) {                                                              \
            test();                                                                                \
            printf("ok   %s\n", #test);                                                            \
        } else {                                                                                   \
            check_failures++;                                                                      \
            printf("FAIL %s\n", #test);                                                            \
        }                                                                                          \
        fflush(stdout);                                                                            \
    } while (0)

static inline int check_result(void)
{
    printf("%d passed, %d failed\n", check_runs - check_failures, check_failures);
    return check_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
