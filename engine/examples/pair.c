#include "engine/examples/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

static const char *const prompts[PAIR] = {
    "A red fox runs through fresh snow at dawn, its breath visible, the camera low beside it.",
    "blurry, low quality, distorted, watermark",
};

bool pair_options(struct engine_options *options, int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s cpu|cuda N_RANKS MODEL [LTX]\n", argv[0]);
        return false;
    }
    *options = (struct engine_options){.place = ENGINE_PLACE_ALL};
    options->backend = strcmp(argv[1], "cuda") == 0 ? ENGINE_CUDA : ENGINE_CPU;
    options->compute = options->backend == ENGINE_CUDA ? DTYPE_BF16 : DTYPE_F32;
    options->n_ranks = (int)strtol(argv[2], NULL, 10);
    options->model = argv[3];
    options->ltx[0] = argc > 4 ? argv[4] : NULL;
    return true;
}

int pair_tokenize(struct pair *pair, const char *model, struct error *err)
{
    struct tokenizer *tokenizer;
    int rc;

    *pair = (struct pair){0};
    if ((rc = engine_load_tokenizer(&tokenizer, model, err)) != OK)
        return rc;
    for (int i = 0; i < PAIR && rc == OK; i++)
        rc = tokenizer_encode(tokenizer, prompts[i], strlen(prompts[i]), ENGINE_MAX_TOKENS,
                              &pair->ids[i], err);
    tokenizer_free(tokenizer);
    return rc;
}

void pair_free(struct pair *pair)
{
    for (int i = 0; i < PAIR; i++)
        token_list_free(&pair->ids[i]);
}

int pair_encode(struct engine *engine, const struct pair *pair, struct error *err)
{
    const struct engine_info *info = engine_info(engine);
    const int last = info->n_layers;
    struct engine_request request = {.level = ENGINE_EMBEDDINGS, .dtype = DTYPE_BF16};
    struct engine_prompt both[PAIR];

    if (info->extractor == 0) /* no LTX checkpoint: the last hidden state */
        request = (struct engine_request){.layers = &last, .n_layers = 1, .dtype = DTYPE_BF16};
    for (int i = 0; i < PAIR; i++)
        both[i] = (struct engine_prompt){pair->ids[i].ids, (int)pair->ids[i].n, &request};
    return engine_encode(engine, both, PAIR, NULL, err);
}

int pair_print(struct engine *engine, int rank, struct error *err)
{
    const struct engine_result *results = engine_placed(engine, rank);
    int rc = OK;

    for (int i = 0; i < PAIR; i++) {
        size_t bytes = 0;
        uint32_t digest = 0;
        for (int k = 0; k < results[i].n_tensors; k++) {
            const struct engine_tensor *t = &results[i].tensors[k];
            void *data = malloc(t->bytes);
            if (data == NULL)
                return error_set(err, ERR_MEM, "no memory for %zu bytes", t->bytes);
            if ((rc = engine_read_placed(engine, rank, i, k, data, err)) == OK)
                digest = crc32c(digest, data, t->bytes);
            free(data);
            if (rc != OK)
                return rc;
            bytes += t->bytes;
        }
        printf("rank %d prompt %d: %d tokens, %d tensors, %zu bytes, digest %08x\n", rank, i,
               results[i].n_tokens, results[i].n_tensors, bytes, digest);
    }
    return OK;
}
