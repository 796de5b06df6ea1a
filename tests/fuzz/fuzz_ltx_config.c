/* Any bytes as the metadata `config` of an LTX checkpoint: read within the bounds that the rest of
 * the engine relies on, or refused with a sentence. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/files/ltx_checkpoint.h"
#include "kernels/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct ltx_config c;

    if (ltx_config_from_json(&c, data, size, "fuzz", &err) != OK) {
        if (err.code == OK || err.text[0] == '\0')
            abort();
        return 0;
    }
    if (c.extractor != LTX_EXTRACTOR_V1 && c.extractor != LTX_EXTRACTOR_V2)
        abort();
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        const struct ltx_connector_config *k = &c.connectors[m];
        if (k->H < 1 || k->E < 2 || k->E > OPS_MAX_HEAD || k->E % 2 != 0 || k->W != k->H * k->E ||
            k->W < 4 || k->W > 1 << 16 || k->L < 0)
            abort();
    }
    if (!(c.max_pos > 0) || ltx_config_text(&c).text[0] == '\0')
        abort();
    return 0;
}
