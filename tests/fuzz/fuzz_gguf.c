/* Any bytes as a GGUF file: refused, or every key, text and tensor lies inside them. The decoder's
 * numbers are read from it, too, whatever else it holds. */
#include "engine/files/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "engine/files/gemma_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sum; /* volatile: no read is optimised away */

static void read_everything(const struct gguf *g, const char *key)
{
    static const enum gguf_type kinds[] = {GGUF_STRING, GGUF_F32, GGUF_I32, GGUF_BOOL};
    struct gguf_array array;
    struct gguf_text text;
    enum gguf_type type;
    uint64_t whole;
    double number;
    bool flag;

    if (!gguf_type_of(g, key, &type))
        abort();
    if (gguf_get_text(g, key, &text, NULL) == OK)
        for (size_t i = 0; i < text.len; i++)
            sum += (unsigned char)text.data[i];
    if (gguf_get_size(g, key, &whole, NULL) == OK)
        sum += (unsigned)whole;
    if (gguf_get_number(g, key, &number, NULL) == OK)
        sum += number > 0;
    if (gguf_get_bool(g, key, &flag, NULL) == OK)
        sum += flag;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const uint8_t *at;

        if (gguf_get_array(g, key, kinds[k], &array, NULL) != OK)
            continue;
        at = array.data;
        for (size_t i = 0; i < array.n; i++) {
            if (array.type == GGUF_STRING) {
                text = gguf_array_next_text(&at);
                sum += text.len > 0 ? (unsigned char)text.data[text.len - 1] : 0;
            } else if (array.type == GGUF_F32) {
                sum += gguf_array_f32(&array, i) > 0;
            } else if (array.type == GGUF_I32) {
                sum += (unsigned)gguf_array_i32(&array, i);
            } else {
                sum += gguf_array_bool(&array, i);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct gemma_config config;
    struct gguf *g;
    char line[40];

    if (gguf_parse(&g, data, size, "fuzz", &err) != OK) {
        if (g != NULL || err.code == OK || err.text[0] == '\0')
            abort();
        return 0;
    }
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        read_everything(g, gguf_key_at(g, i));
        gguf_value_text(g, i, line, sizeof(line));
        sum += (unsigned)strlen(line);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor_at(g, i);
        const uint8_t *bytes = t->data;

        if (gguf_find(g, t->name) != t)
            abort();
        for (size_t b = 0; b < t->bytes; b++)
            sum += bytes[b];
    }
    if (gemma_config_from_gguf(&config, g, gguf_find(g, "token_embd.weight"), &err) == OK &&
        (config.H % config.global.K != 0 || config.H % config.sliding.K != 0 ||
         config.L > GEMMA_MAX_LAYERS || config.V < 1))
        abort();
    gguf_close(g);
    return 0;
}
