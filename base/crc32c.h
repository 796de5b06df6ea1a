/* crc32c.h - CRC-32C (Castagnoli, reflected 0x82F63B78), the checksum of iSCSI and ext4.
 *
 * Uses the processor's instruction where there is one. Any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Continues `crc`, the checksum of what came before (0: nothing did), over `size` more bytes. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

/* The checksum of a run of bytes whose first part has `crc`, and whose last `size` bytes have
 * `crc_of_rest`, without looking at them again. */
uint32_t crc32c_combine(uint32_t crc, uint32_t crc_of_rest, size_t size);
