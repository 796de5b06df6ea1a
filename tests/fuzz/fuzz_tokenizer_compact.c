/* fuzz_tokenizer_compact.c - any bytes as a compact tokenizer, with the checksum made right, which
 * a forger would do too: what loads must encode without harm and save to bytes that load. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void encode_some(const struct tokenizer *t)
{
    static const char text[] =
        " <bos>abc  aaaaaa\n\xe2\x96\x81\xe2\x96\x81\xc3\xa9\xf0\x9f\xa6\x8a "
        "the <turn> theab";
    struct token_list list = {0};

    require(tokenizer_encode(t, text, sizeof(text) - 1, 0, &list, NULL) == OK);
    require(list.n >= 1 && list.n <= sizeof(text));
    for (size_t i = 0; i < list.n; i++) {
        size_t len;

        require(tokenizer_piece(t, list.ids[i], &len) != NULL && len > 0);
    }
    token_list_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf bytes = {.max = (size_t)1 << 28};
    struct tokenizer *t = NULL, *copy = NULL;
    struct error err = {0};
    uint8_t *sealed = malloc(size + 1);

    if (sealed == NULL)
        return 0;
    if (size > 0)
        memcpy(sealed, data, size);
    if (size >= 4) {
        uint32_t crc = crc32c(0, sealed, size - 4);

        for (int i = 0; i < 4; i++)
            sealed[size - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
    }
    if (tokenizer_from_compact(&t, sealed, size, "fuzz", &err) == OK) {
        encode_some(t);
        require(tokenizer_save(t, &bytes, &err) == OK);
        require(bytes.len == size && memcmp(bytes.data, sealed, size) == 0);
        require(tokenizer_from_compact(&copy, bytes.data, bytes.len, "again", &err) == OK);
    } else {
        require(t == NULL && err.code != OK);
    }
    tokenizer_free(copy);
    tokenizer_free(t);
    buf_free(&bytes);
    free(sealed);
    return 0;
}
