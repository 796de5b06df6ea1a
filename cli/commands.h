/* commands.h - the commands of `prompt-encoder`, one file each. argv[0] is the command's name.
 * Each reads its own options, prints what it was asked for on stdout, and returns an error for
 * main() to print. */
#pragma once
#include "base/error.h"

int command_encode(int argc, char **argv, struct error *err);
int command_tokenize(int argc, char **argv, struct error *err);
int command_inspect(int argc, char **argv, struct error *err);
int command_verify(int argc, char **argv, struct error *err);
int command_random_ltx(int argc, char **argv, struct error *err);
int command_bench(int argc, char **argv, struct error *err);
int command_models(int argc, char **argv, struct error *err);
int command_up(int argc, char **argv, struct error *err);
