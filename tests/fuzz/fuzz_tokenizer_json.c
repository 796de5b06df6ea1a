/* fuzz_tokenizer_json.c - any bytes as a tokenizer.json: refused with a sentence, or a tokenizer
 * that encodes and whose compact form loads to the same ids. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "<bos> abc  <start_of_turn>\n\n\xe2\x96\x81\xe2\x96\x81 \xc3\xa9\xf0\x9f"
        "\xa6\x8a aaaaaaaa the the";
    struct token_list first = {0}, second = {0};
    struct tokenizer *t = NULL, *copy = NULL;
    struct buf bytes = {.max = (size_t)1 << 28};
    struct error err = {0};

    if (tokenizer_from_json(&t, data, size, "fuzz", &err) != OK) {
        require(t == NULL && err.code != OK && strlen(err.text) > 6);
        return 0;
    }
    require(tokenizer_encode(t, text, sizeof(text) - 1, 0, &first, &err) == OK);
    require(first.n >= 1 && first.n <= sizeof(text) && first.ids[0] == tokenizer_bos(t));
    require(tokenizer_save(t, &bytes, &err) == OK);
    require(tokenizer_from_compact(&copy, bytes.data, bytes.len, "compact", &err) == OK);
    require(tokenizer_encode(copy, text, sizeof(text) - 1, 0, &second, &err) == OK);
    require(first.n == second.n && memcmp(first.ids, second.ids, first.n * 4) == 0);
    token_list_free(&second);
    token_list_free(&first);
    tokenizer_free(copy);
    tokenizer_free(t);
    buf_free(&bytes);
    return 0;
}
