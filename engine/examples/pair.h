/* pair.h - what both examples do: a prompt and its negative prompt, to tensors that every rank has.
 */
#pragma once
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

enum { PAIR = 2 };

struct pair {
    struct token_list ids[PAIR];
};

/* Of the command line: PROGRAM cpu|cuda N_RANKS MODEL [LTX]. False: it has too little, which was
 * said. */
bool pair_options(struct engine_options *options, int argc, char **argv);

/* The two prompts' token ids; to be freed in any case. */
int pair_tokenize(struct pair *pair, const char *model, struct error *err);
void pair_free(struct pair *pair);

/* Encodes them; results stay in the memory of the ranks' devices. */
int pair_encode(struct engine *engine, const struct pair *pair, struct error *err);

/* Prints a line for each prompt, as that rank has its tensors: sizes, and a digest of all bytes. */
int pair_print(struct engine *engine, int rank, struct error *err);
