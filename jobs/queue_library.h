/* queue_library.h - the text of queue.lua, as it was when this program was built. */
#pragma once
#include <stddef.h>

/* `name` is what the library is called in Redis; its functions are <name>_submit and so on. */
void queue_library(const char **name, const char **source, size_t *size);
