/* crc32.h - the CRC-32 of zlib and PNG (reflected 0x04C11DB7). Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint32_t crc32_of(const void *data, size_t size);
