#include "service/formats/safetensors_writer.h"

#include <stdint.h>

#include "service/formats/json_text.h"

static int append_metadata(struct buf *out, const struct safetensors_metadata *metadata, size_t n,
                           struct error *err)
{
    int rc;

    if (n == 0)
        return OK;
    if ((rc = buf_printf(out, err, "\"__metadata__\":{")) != OK)
        return rc;
    for (size_t i = 0; i < n; i++)
        if ((i > 0 && (rc = buf_append(out, ",", 1, err)) != OK) ||
            (rc = json_text_append(out, metadata[i].key, err)) != OK ||
            (rc = buf_append(out, ":", 1, err)) != OK ||
            (rc = json_text_append(out, metadata[i].value, err)) != OK)
            return rc;
    return buf_append(out, "}", 1, err);
}

static int append_tensor(struct buf *out, const struct safetensors_entry *t, size_t offset,
                         struct error *err)
{
    int rc;

    if ((rc = json_text_append(out, t->name, err)) != OK ||
        (rc = buf_printf(out, err, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype)) != OK)
        return rc;
    for (int i = 0; i < t->n_dims; i++)
        if ((rc = buf_printf(out, err, "%s%zu", i > 0 ? "," : "", t->shape[i])) != OK)
            return rc;
    return buf_printf(out, err, "],\"data_offsets\":[%zu,%zu]}", offset, offset + t->bytes);
}

int safetensors_write_header(struct buf *out, const struct safetensors_entry *tensors,
                             size_t n_tensors, const struct safetensors_metadata *metadata,
                             size_t n_metadata, struct error *err)
{
    size_t start = out->len, offset = 0;
    uint64_t length;
    void *prefix;
    int rc;

    if ((rc = buf_extend(out, &prefix, 8, err)) != OK ||
        (rc = buf_append(out, "{", 1, err)) != OK ||
        (rc = append_metadata(out, metadata, n_metadata, err)) != OK)
        return rc;
    for (size_t i = 0; i < n_tensors; i++) {
        if ((i > 0 || n_metadata > 0) && (rc = buf_append(out, ",", 1, err)) != OK)
            return rc;
        if ((rc = append_tensor(out, &tensors[i], offset, err)) != OK)
            return rc;
        offset += tensors[i].bytes;
    }
    if ((rc = buf_append(out, "}", 1, err)) != OK)
        return rc;
    while ((out->len - start) % 8 != 0)
        if ((rc = buf_append(out, " ", 1, err)) != OK)
            return rc;
    length = out->len - start - 8;
    for (int i = 0; i < 8; i++)
        out->data[start + i] = (char)(length >> (8 * i) & 0xff);
    return OK;
}
