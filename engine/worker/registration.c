#include "engine/worker/registration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "jobs/redis.h"
#include "tokenizer/tokenizer.h"

enum { MAX_TOKENIZER = 64 << 20 };

_Static_assert((int)ENGINE_MODEL_ID_SIZE == (int)CARD_ID_SIZE, "a model's id is a card's");
_Static_assert((int)ENGINE_DIGEST_SIZE == (int)CARD_DIGEST_SIZE, "and so are digests");

struct registration {
    struct model_card card;
    struct buf tokenizer; /* in its compact form, a few MB: Q may lose it */
    struct redis *redis;
};

static int fill_card(struct registration *r, const struct engine *engine,
                     const struct engine_settings *settings, const char *tokenizer_path,
                     struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    struct model_card *card = &r->card;
    struct tokenizer *tokenizer = NULL;
    int rc;

    if (tokenizer_path == NULL && info->is_random)
        return error_set(
            err, ERR_INPUT,
            "%s has no tokenizer: give the engine --tokenizer PATH or set PE_TOKENIZER",
            settings->model);
    if (tokenizer_path == NULL)
        tokenizer_path = settings->model;
    *card = (struct model_card){.n_states = info->n_layers + 1,
                                .width = info->width,
                                .max_tokens = info->max_tokens,
                                .vocabulary = info->vocabulary,
                                .has_hidden_states = true,
                                .extractor = info->extractor,
                                .rows = info->extractor > 0 ? ENGINE_ROWS : 0,
                                .video_width = info->video_width,
                                .audio_width = info->audio_width};
    snprintf(card->gemma_version, sizeof(card->gemma_version), "%s", info->gemma_version);
    snprintf(card->ltx_version, sizeof(card->ltx_version), "%s", info->ltx_version);
    snprintf(card->architecture, sizeof(card->architecture), "%s", info->architecture);
    snprintf(card->engine_version, sizeof(card->engine_version), "%s", PE_VERSION);
    snprintf(card->compute, sizeof(card->compute), "%s", engine_settings_compute(settings));
    if ((rc = engine_settings_model_id(card->id, settings, err)) != OK ||
        (rc = engine_load_tokenizer(&tokenizer, tokenizer_path, err)) != OK ||
        (rc = engine_save_tokenizer(tokenizer, &r->tokenizer, card->tokenizer, err)) != OK)
        goto out;
    rc = engine_weights_digest(engine, card->weights, err);
out:
    tokenizer_free(tokenizer);
    return rc;
}

int registration_open(struct registration **out, const struct engine *engine,
                      const struct engine_settings *settings, const char *tokenizer,
                      const char *queue_url, int timeout_ms, struct error *err)
{
    int64_t start_ns = clock_now_ns();
    struct registration *r;
    int rc;

    *out = NULL;
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return error_set(err, ERR_MEM, "registration: no memory");
    r->tokenizer.max = MAX_TOKENIZER;
    if ((rc = fill_card(r, engine, settings, tokenizer, err)) != OK ||
        (rc = redis_open(&r->redis, queue_url, timeout_ms, err)) != OK)
        goto out;
    log_info("model", "id=%s weights=%.12s compute=%s tokenizer=%.12s ms=%.0f", r->card.id,
             r->card.weights, r->card.compute, r->card.tokenizer, clock_ms_since(start_ns));
    *out = r;
    r = NULL;
out:
    registration_close(r);
    return rc;
}

void registration_close(struct registration *r)
{
    if (r == NULL)
        return;
    redis_close(r->redis);
    buf_free(&r->tokenizer);
    free(r);
}

const struct model_card *registration_card(const struct registration *r)
{
    return &r->card;
}

int registration_publish(struct registration *r, bool is_asleep, struct error *err)
{
    struct error why = {0};
    int rc;

    r->card.is_asleep = is_asleep;
    rc = card_register(r->redis, &r->card, NULL, 0, &why);

    if (rc == OK)
        return OK;
    if (rc != ERR_FORMAT)
        return error_set(err, why.code, "%s", why.text);
    /* Q has not got the tokenizer, or no longer */
    if ((rc = card_register(r->redis, &r->card, r->tokenizer.data, r->tokenizer.len, err)) == OK)
        log_info("registered", "model=%s weights=%.12s compute=%s", r->card.id, r->card.weights,
                 r->card.compute);
    return rc;
}
