#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *err, enum err_code code, const char *fmt, ...)
{
    va_list args;

    if (err == NULL || err->code != OK)
        return (int)code;
    err->code = code;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof(err->text), fmt, args);
    va_end(args);
    return (int)code;
}
