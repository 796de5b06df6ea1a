#include "engine/worker/registration.h"

#include <ctype.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "jobs/redis.h"
#include "tokenizer/tokenizer.h"

enum { MAX_TOKENIZER = 64 << 20, SHA256_BYTES = 32 };

int registration_prove(struct engine *engine, struct error *err)
{
    const int last[] = {engine_info(engine)->n_layers};
    static const int32_t bos[] = {2};
    struct engine_request request = {.layers = last, .n_layers = 1, .dtype = DTYPE_F32};
    struct engine_prompt prompt = {bos, 1, &request};
    struct engine_result result;
    int rc;

    if ((rc = engine_encode(engine, &prompt, 1, &result, err)) != OK)
        return rc;
    for (int i = 0; i < result.width && rc == OK; i++)
        if (!(((const float *)result.hidden_states)[i] == ((const float *)result.hidden_states)[i]))
            rc = error_set(err, ERR_GPU, "engine: a forward pass of <bos> gives no numbers");
    engine_result_free(&result);
    return rc;
}

/* A path's last part without its ending, other characters than [A-Za-z0-9._-] as '-'. */
static int plain_name(char out[CARD_ID_SIZE], const char *path, struct error *err)
{
    size_t len = strlen(path), start;

    while (len > 0 && path[len - 1] == '/')
        len--;
    for (start = len; start > 0 && path[start - 1] != '/';)
        start--;
    if (len - start > 5 && strncmp(path + len - 5, ".gguf", 5) == 0)
        len -= 5;
    if (len == start || len - start >= CARD_ID_SIZE)
        return error_set(err, ERR_INPUT, "%s: give the model a name with --model-id", path);
    for (size_t i = 0; i < len - start; i++) {
        unsigned char c = (unsigned char)path[start + i];
        out[i] = c < 0x80 && (isalnum(c) || strchr("._-", c) != NULL) ? (char)c : '-';
    }
    out[len - start] = '\0';
    return OK;
}

static int sha256_hex(char out[CARD_DIGEST_SIZE], const void *data, size_t size, struct error *err)
{
    unsigned char sum[SHA256_BYTES];

    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, size, sum) != 0)
        return error_set(err, ERR_IO, "GnuTLS cannot hash");
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
    return OK;
}

int registration_publish(struct engine *engine, const char *model_path, const char *id,
                         const char *queue_url, int timeout_ms, struct model_card *card,
                         struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    struct buf compact = {.max = MAX_TOKENIZER};
    struct tokenizer *tokenizer = NULL;
    struct redis *redis = NULL;
    int64_t start_ns = clock_now_ns();
    int rc;

    *card = (struct model_card){.n_states = info->n_layers + 1,
                                .width = info->width,
                                .max_tokens = info->max_tokens,
                                .vocabulary = info->vocabulary,
                                .has_hidden_states = true,
                                .registered_ms = (int64_t)time(NULL) * 1000};
    snprintf(card->architecture, sizeof(card->architecture), "%s", info->architecture);
    snprintf(card->engine_version, sizeof(card->engine_version), "%s", PE_VERSION);
    if (id == NULL) {
        if ((rc = plain_name(card->id, model_path, err)) != OK)
            return rc;
    } else {
        snprintf(card->id, sizeof(card->id), "%s", id);
        if (strcmp(card->id, id) != 0)
            return error_set(err, ERR_INPUT, "--model-id: '%s' is longer than %d characters", id,
                             CARD_ID_SIZE - 1);
    }
    if ((rc = engine_load_tokenizer(&tokenizer, model_path, err)) != OK ||
        (rc = tokenizer_save(tokenizer, &compact, err)) != OK ||
        (rc = sha256_hex(card->tokenizer, compact.data, compact.len, err)) != OK ||
        (rc = engine_weights_digest(engine, card->weights, err)) != OK ||
        (rc = redis_open(&redis, queue_url, timeout_ms, err)) != OK ||
        (rc = card_register(redis, card, compact.data, compact.len, err)) != OK)
        goto out;
    log_info("registered", "model=%s weights=%.12s tokenizer=%.12s ms=%.0f", card->id,
             card->weights, card->tokenizer, clock_ms_since(start_ns));
out:
    redis_close(redis);
    tokenizer_free(tokenizer);
    buf_free(&compact);
    return rc;
}
