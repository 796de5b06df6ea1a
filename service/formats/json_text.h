/* json_text.h - text as a JSON string. */
#pragma once
#include "base/buf.h"
#include "base/error.h"

/* Appends `text`, UTF-8, in quotes, with what JSON needs escaped. */
int json_text_append(struct buf *out, const char *text, struct error *err);
