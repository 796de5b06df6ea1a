/* ranks_as_processes.c - a process for each rank, as pipelines with a process a GPU have them.
 *
 *     ranks_as_processes cpu|cuda N_RANKS MODEL [LTX]
 *
 * Starts the processes, which all make the same calls; all print the same digests. A launcher of
 * another kind would hand the group's name around by its own means. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/examples/pair.h"

/* What each process does. */
static int run(struct engine_options options, int rank, struct error *err)
{
    struct engine *engine = NULL;
    struct pair pair = {0};
    int rc;

    options.rank = rank;
    if ((rc = pair_tokenize(&pair, options.model, err)) == OK &&
        (rc = engine_open(&engine, &options, err)) == OK &&
        (rc = pair_encode(engine, &pair, err)) == OK)
        rc = pair_print(engine, rank, err);
    engine_close(engine);
    pair_free(&pair);
    return rc;
}

int main(int argc, char **argv)
{
    struct engine_options options;
    char group[ENGINE_GROUP_ID_SIZE];
    struct error err = {0};
    int failed = 0, status;

    if (!pair_options(&options, argc, argv))
        return EXIT_FAILURE;
    options.group = group;
    if (options.n_ranks < 1 || engine_make_group_id(group, &err) != OK) {
        fprintf(stderr, "%s: %s\n", argv[0], options.n_ranks < 1 ? "no ranks" : err.text);
        return EXIT_FAILURE;
    }
    for (int rank = 0; rank < options.n_ranks; rank++) {
        pid_t child = fork();
        if (child < 0) {
            fprintf(stderr, "%s: cannot start a process\n", argv[0]);
            return EXIT_FAILURE; /* the others end when this rank does not come */
        }
        if (child > 0)
            continue;
        if (run(options, rank, &err) == OK)
            exit(EXIT_SUCCESS);
        fprintf(stderr, "%s: rank %d: %s\n", argv[0], rank, err.text);
        exit(EXIT_FAILURE);
    }
    while (wait(&status) > 0)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS;
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
