/* ranks_as_threads.c - an engine whose ranks are threads of this process.
 *
 *     ranks_as_threads cpu|cuda N_RANKS MODEL [LTX]
 *
 * Encodes a pair and prints what each rank then has: all ranks print the same digests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/examples/pair.h"

int main(int argc, char **argv)
{
    struct engine_options options = {.place = ENGINE_PLACE_ALL};
    struct engine *engine = NULL;
    struct pair pair = {0};
    struct error err = {0};
    int rc;

    if (argc < 4) {
        fprintf(stderr, "usage: %s cpu|cuda N_RANKS MODEL [LTX]\n", argv[0]);
        return EXIT_FAILURE;
    }
    options.backend = strcmp(argv[1], "cuda") == 0 ? ENGINE_CUDA : ENGINE_CPU;
    options.compute = options.backend == ENGINE_CUDA ? DTYPE_BF16 : DTYPE_F32;
    options.n_ranks = (int)strtol(argv[2], NULL, 10);
    options.model = argv[3];
    options.ltx[0] = argc > 4 ? argv[4] : NULL;
    if ((rc = pair_tokenize(&pair, options.model, &err)) != OK ||
        (rc = engine_open(&engine, &options, &err)) != OK ||
        (rc = pair_encode(engine, &pair, &err)) != OK)
        goto out;
    for (int rank = 0; rank < engine_info(engine)->n_ranks; rank++)
        if ((rc = pair_print(engine, rank, &err)) != OK)
            goto out;
out:
    if (rc != OK)
        fprintf(stderr, "%s: %s\n", argv[0], err.text);
    engine_close(engine);
    pair_free(&pair);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
