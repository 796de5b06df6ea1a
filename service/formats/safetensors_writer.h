/* safetensors_writer.h - the header of a safetensors answer, before any of its data exists.
 *
 * The format: 8 bytes little-endian length, a JSON header, then the tensors' bytes one after the
 * other. As all sizes are known beforehand, header and data can be streamed. Bytes are decided by
 * the tensors and the metadata alone: the same encode gives the same file, over HTTP or from the
 * command line. */
#pragma once
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

enum { SAFETENSORS_MAX_DIMS = 4 };

struct safetensors_entry {
    const char *name;
    const char *dtype; /* as the format spells it: "F32", "BF16", "I32" */
    int n_dims;
    size_t shape[SAFETENSORS_MAX_DIMS]; /* slowest first */
    size_t bytes;                       /* must be what dtype and shape say */
};

struct safetensors_metadata {
    const char *key, *value; /* UTF-8 */
};

/* Appends length and header to `out`. Tensors keep the order given; write their data in it, without
 * gaps. The header is padded with spaces so that the data begins on a multiple of 8. */
int safetensors_write_header(struct buf *out, const struct safetensors_entry *tensors,
                             size_t n_tensors, const struct safetensors_metadata *metadata,
                             size_t n_metadata, struct error *err);
