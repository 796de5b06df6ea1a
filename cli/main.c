/* main.c - prompt-encoder, the tool: picks a command and prints its error. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv, struct error *err);
    const char *help;
} commands[] = {
    {"encode", command_encode, "prompts to tensors, in this process"},
    {"tokenize", command_tokenize, "prompts to token ids, as JSON"},
    {"inspect", command_inspect, "what a model directory or file is"},
    {"verify", command_verify, "this machine's numbers against expected ones"},
    {"random-ltx", command_random_ltx, "an LTX checkpoint of random weights, to try things with"},
    {"bench", command_bench, "how long prompts take on this machine"},
    {"models", command_models, "the models of a queue, and how to remove one"},
    {"up", command_up, "the whole service on this machine: Redis, engine, HTTP"},
};

static void print_help(FILE *out)
{
    fprintf(out, "usage: prompt-encoder COMMAND [options]\n\n"
                 "Turns prompts into the embeddings that LTX video models read.\n\n"
                 "commands:\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n'prompt-encoder COMMAND --help' lists a command's options.\n");
}

/* A closed standard stream would lend its number to the next file opened: a result, say, into which
 * messages are then written. */
static int open_standard_streams(struct error *err)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return error_set(err, ERR_IO, "stream %d is closed and /dev/null cannot take its place",
                             fd);
    return OK;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    int rc;

    if ((rc = open_standard_streams(&err)) != OK)
        goto out;

    if (argc < 2) {
        print_help(stderr);
        return EXIT_FAILURE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("prompt-encoder %s\n", PE_VERSION);
        return EXIT_SUCCESS;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            rc = commands[i].run(argc - 1, argv + 1, &err);
            goto out;
        }
    rc = error_set(&err, ERR_INPUT, "no command '%s'; 'prompt-encoder --help' lists them", argv[1]);
out:
    /* what a full disk or a closed pipe swallowed is an error too */
    if (rc == OK && (fflush(stdout) != 0 || ferror(stdout)))
        rc = error_set(&err, ERR_IO, "cannot write to standard output");
    if (rc != OK)
        fprintf(stderr, "prompt-encoder: %s\n", err.text);
    return rc == OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
