/* Any bytes as a model in one file, packed safetensors, GGUF or an LTX checkpoint: engine_inspect()
 * opens it, reads its settings and its tokenizer, looks for every tensor and lists them all. It
 * writes its text or fails with a sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/engine.h"

enum { TEXT_MAX = 1 << 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[40]; /* of a nameless file, the same for all runs */
    static int file = -1;
    struct buf text = {.max = TEXT_MAX};
    struct error err = {0};

    if (file < 0) {
        char name[] = "/tmp/fuzz-inspect-XXXXXX";
        if ((file = mkstemp(name)) < 0 || unlink(name) != 0)
            abort();
        snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    }
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
        abort();
    if (engine_inspect(&text, path, true, &err) == OK) {
        if (text.len == 0)
            abort();
    } else if (err.code == OK || err.text[0] == '\0') {
        abort();
    }
    buf_free(&text);
    return 0;
}
