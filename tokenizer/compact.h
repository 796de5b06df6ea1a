/* compact.h - how a compact tokenizer is told from a tokenizer.json. Only for tokenizer.c; the
 * format is described in compact.c, and reading and writing it are in tokenizer.h. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

bool compact_begins(const void *data, size_t size);
