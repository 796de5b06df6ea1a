/* ranks_as_threads.c - an engine whose ranks are threads of this process.
 *
 *     ranks_as_threads cpu|cuda N_RANKS MODEL [LTX]
 *
 * Encodes a pair and prints what each rank then has: all ranks print the same digests. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/examples/pair.h"

int main(int argc, char **argv)
{
    struct engine_options options;
    struct engine *engine = NULL;
    struct pair pair = {0};
    struct error err = {0};
    int rc;

    if (!pair_options(&options, argc, argv))
        return EXIT_FAILURE;
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
