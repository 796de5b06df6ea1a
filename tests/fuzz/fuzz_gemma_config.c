/* Any bytes as the JSON files of a model directory: config.json and the index of its shards. */
#include "engine/files/gemma_config.h"

#include <stdlib.h>
#include <string.h>

#include "engine/files/safetensors_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool attention_is_sound(const struct gemma_config *c, const struct gemma_attention *a)
{
    return a->K >= 1 && c->H % a->K == 0 && a->E >= 2 && a->E % 2 == 0 && a->rope.theta > 0 &&
           a->rope.factor > 0 && a->rope.n_turning >= 0 && a->rope.n_turning <= a->E / 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors_index *index;
    struct gemma_config c;
    struct error err = {0};

    if (gemma_config_from_json(&c, data, size, "fuzz", &err) == OK) {
        if (c.L < 1 || c.L > GEMMA_MAX_LAYERS || c.D < 1 || c.F < 1 || c.V < 1 ||
            c.sliding_window < 1 || c.n_eos > GEMMA_MAX_EOS || !(c.rms_norm_eps > 0) ||
            !(c.query_pre_attn_scalar > 0) || !attention_is_sound(&c, &c.global) ||
            !attention_is_sound(&c, &c.sliding) || strlen(c.version) > GEMMA_MAX_VERSION)
            abort();
    } else if (err.code == OK || err.text[0] == '\0') {
        abort();
    }
    err = (struct error){0};
    if (safetensors_index_parse(&index, data, size, "fuzz", &err) == OK) {
        for (size_t i = 0; i < safetensors_index_n_shards(index); i++)
            if (strchr(safetensors_index_shard_at(index, i), '/') != NULL)
                abort();
    } else if (index != NULL || err.code == OK || err.text[0] == '\0') {
        abort();
    }
    safetensors_index_close(index);
    return 0;
}
