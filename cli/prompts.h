/* prompts.h - the prompts of a command: its arguments, or a JSON list in a file. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

struct prompts {
    size_t n;
    char **text;               /* [n]; may hold NULs */
    size_t *len;               /* [n] bytes */
    struct token_list *tokens; /* [n], after prompts_tokenize() */
};

/* Copies. `file` (or NULL; "-": standard input) is JSON: a list of strings. ERR_INPUT: both or
 * neither were given, or the file is no such list. Start from a zeroed struct; prompts_free() in
 * any case. */
int prompts_read(struct prompts *p, char *const *arguments, int n_arguments, const char *file,
                 struct error *err);
/* As tokenizer_encode(), every prompt; says on stderr which were cut. */
int prompts_tokenize(struct prompts *p, const struct tokenizer *t, size_t limit, struct error *err);
void prompts_free(struct prompts *p);
