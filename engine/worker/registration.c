#include "engine/worker/registration.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "jobs/redis.h"
#include "tokenizer/tokenizer.h"

enum { MAX_TOKENIZER = 64 << 20, SHA256_BYTES = 32 };

_Static_assert((int)ENGINE_MODEL_ID_SIZE == (int)CARD_ID_SIZE, "a model's id is a card's");

int registration_prove(struct engine *engine, struct error *err)
{
    const int last[] = {engine_info(engine)->n_layers};
    static const int32_t bos[] = {2};
    struct engine_request request = {last, 1, DTYPE_F32};
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

static int sha256_hex(char out[CARD_DIGEST_SIZE], const void *data, size_t size, struct error *err)
{
    unsigned char sum[SHA256_BYTES];

    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, size, sum) != 0)
        return error_set(err, ERR_IO, "GnuTLS cannot hash");
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
    return OK;
}

int registration_publish(struct engine *engine, const struct engine_settings *settings,
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
                                .has_hidden_states = true};
    snprintf(card->compute, sizeof(card->compute), "%s", engine_settings_compute(settings));
    snprintf(card->architecture, sizeof(card->architecture), "%s", info->architecture);
    snprintf(card->engine_version, sizeof(card->engine_version), "%s", PE_VERSION);
    if ((rc = engine_settings_model_id(card->id, settings, err)) != OK ||
        (rc = engine_load_tokenizer(&tokenizer, settings->model, err)) != OK ||
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
