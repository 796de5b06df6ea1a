/* engine_tokenizer.c - a model's tokenizer, which needs no engine. */
#include "base/buf.h"
#include "engine/engine.h"
#include "engine/files/digest.h"
#include "engine/files/model_file.h"
#include "tokenizer/tokenizer.h"

int engine_load_tokenizer(struct tokenizer **out, const char *path, struct error *err)
{
    return model_file_load_tokenizer(out, path, err);
}

int engine_save_tokenizer(const struct tokenizer *t, struct buf *out,
                          char digest[ENGINE_DIGEST_SIZE], struct error *err)
{
    int rc = tokenizer_save(t, out, err);

    return rc == OK ? digest_bytes(digest, out->data, out->len, err) : rc;
}
