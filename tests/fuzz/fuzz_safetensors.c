/* Any bytes as a safetensors file: refused, or every tensor lies inside them. */
#include "engine/files/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sum; /* volatile: no read is optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct safetensors *s;

    if (safetensors_parse(&s, data, size, "fuzz", &err) != OK) {
        if (s != NULL || err.code == OK || err.text[0] == '\0')
            abort();
        return 0;
    }
    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct tensor *t = safetensors_tensor_at(s, i);
        const uint8_t *bytes = t->data;

        if (safetensors_find(s, t->name) != t)
            abort();
        for (size_t b = 0; b < t->bytes; b++)
            sum += bytes[b];
        sum += (unsigned char)tensor_shape_text(t->n_dims, t->shape).text[0];
    }
    for (size_t i = 0; i < safetensors_n_metadata(s); i++) {
        const char *key, *value;

        safetensors_metadata_at(s, i, &key, &value);
        if (safetensors_metadata(s, key) != value)
            abort();
        sum += (unsigned)strlen(value);
    }
    safetensors_close(s);
    return 0;
}
