/* openapi.h - openapi/openapi.yaml as the binary carries it; the build makes the .c file. */
#pragma once
#include <stddef.h>

extern const unsigned char openapi_text[];
extern const size_t openapi_size;
