/* bench_tokenizer.c - how long a tokenizer takes to load and to encode; numbers, not verdicts.
 *
 *     bench_tokenizer tokenizer.json
 *
 * Each figure is the best of several runs. The megabytes are those texts that hurt tokenizers: one
 * letter, line breaks, spaces, starts of added tokens that never end, and characters at random. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

#define RUNS      5
#define TEXT_SIZE ((size_t)1 << 20)

/* Repeats `unit` to TEXT_SIZE bytes, or as many whole units as fit. */
static size_t fill(char *text, const char *unit)
{
    size_t len = strlen(unit), n = 0;

    for (; n + len <= TEXT_SIZE; n += len)
        memcpy(text + n, unit, len);
    return n;
}

/* Characters at random from all of Unicode below `limit`, the same ones each time. */
static size_t fill_random(char *text, uint32_t limit)
{
    uint32_t state = 1;
    size_t n = 0;

    while (n + UTF8_MAX <= TEXT_SIZE) {
        uint32_t c;

        state = state * 1664525u + 1013904223u;
        c = (uint32_t)((uint64_t)state * limit >> 32);
        if (c < 0xd800 || c > 0xdfff)
            n += utf8_encode(text + n, c);
    }
    return n;
}

static void encode(const struct tokenizer *t, const char *what, const char *text, size_t len)
{
    struct token_list list = {0};
    struct error err = {0};
    double best = 1e9;

    for (int i = 0; i < RUNS; i++) {
        int64_t start = clock_now_ns();

        if (tokenizer_encode_raw(t, text, len, &list, &err) != OK) {
            printf("%-24s %s\n", what, err.text);
            return;
        }
        best = clock_ms_since(start) < best ? clock_ms_since(start) : best;
        if (i + 1 < RUNS)
            token_list_free(&list);
    }
    printf("%-24s %8.1f ms  %8zu bytes  %8zu ids\n", what, best, len, list.n);
    token_list_free(&list);
}

int main(int argc, char **argv)
{
    struct buf compact = {.max = (size_t)1 << 28};
    double json_ms = 1e9, compact_ms = 1e9;
    char *text = malloc(TEXT_SIZE);
    struct tokenizer *t = NULL;
    struct error err = {0};
    int rc = OK;

    if (argc != 2 || text == NULL) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER.JSON\n");
        free(text);
        return EXIT_FAILURE;
    }
    for (int i = 0; i < RUNS && rc == OK; i++) {
        int64_t start = clock_now_ns();

        tokenizer_free(t);
        if ((rc = tokenizer_load(&t, argv[1], &err)) != OK)
            goto out;
        json_ms = clock_ms_since(start) < json_ms ? clock_ms_since(start) : json_ms;
    }
    if ((rc = tokenizer_save(t, &compact, &err)) != OK)
        goto out;
    for (int i = 0; i < RUNS; i++) {
        int64_t start = clock_now_ns();

        tokenizer_free(t);
        if ((rc = tokenizer_from_compact(&t, compact.data, compact.len, "compact", &err)) != OK)
            goto out;
        compact_ms = clock_ms_since(start) < compact_ms ? clock_ms_since(start) : compact_ms;
    }
    printf("%-24s %8.1f ms\n", "load the file", json_ms);
    printf("%-24s %8.1f ms  %8zu bytes\n", "load the compact form", compact_ms, compact.len);
    encode(t, "a prompt", "A red fox walks through fresh snow at dawn, cinematic light.", 60);
    encode(t, "1 MiB of \"a\"", text, fill(text, "a"));
    encode(t, "1 MiB of line breaks", text, fill(text, "\n"));
    encode(t, "1 MiB of spaces", text, fill(text, " "));
    encode(t, "1 MiB of \"<\"", text, fill(text, "<"));
    encode(t, "1 MiB of <unused", text, fill(text, "<unused"));
    encode(t, "1 MiB of \"the \"", text, fill(text, "the "));
    encode(t, "1 MiB of random ASCII", text, fill_random(text, 0x80));
    encode(t, "1 MiB of random Unicode", text, fill_random(text, 0x110000));
out:
    if (rc != OK)
        fprintf(stderr, "bench_tokenizer: %s\n", err.text);
    tokenizer_free(t);
    buf_free(&compact);
    free(text);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
