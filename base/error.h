/* error.h - the one way a function here says that it failed.
 *
 * A function that can fail returns an error code (OK is 0) and takes `struct error *err` last, in
 * which the first failure is kept together with one sentence: module, what failed, which thing,
 * expected and got. Only main() prints it. Plain data: each thread has its own. */
#pragma once

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PRINTF_LIKE(fmt, args)
#endif

enum err_code {
    OK,
    ERR_INPUT,  /* the caller's data is wrong: text, flag, request */
    ERR_SIZE,   /* more than a stated limit */
    ERR_FORMAT, /* a file is not what it should be */
    ERR_IO,     /* the system or the network said no */
    ERR_BUSY,   /* try again later */
    ERR_TIME,   /* a deadline passed */
    ERR_MEM,    /* no memory */
    ERR_GPU     /* the device failed: final for this process */
};

struct error {
    enum err_code code;
    char text[512]; /* long enough for a path and a tensor's name */
};

/* Keeps the first failure (the one nearest the cause). Returns `code`, so callers can return it.
 * `err` may be NULL when only the code matters. */
int error_set(struct error *err, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);
