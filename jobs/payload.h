/* payload.h - what a job asks for, as it lies in the queue: service writes it, the worker reads it.
 *
 *     {"v":2,"output":"hidden_states","layers":[0,26],"modalities":"","dtype":"bfloat16",
 *      "truncated":false,"ttl_s":0,"ids":[2,4521,107]}
 *     {"v":2,"output":"embeddings","layers":[],"modalities":"video,audio", and so on }
 *
 * It is JSON for whoever looks into Redis, but there is one spelling only: these fields in this
 * order, without spaces. So the reader is small, and whatever did not come from our writer is
 * refused. All numbers are bounded; a worker still checks ids and layers against its model. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
    PAYLOAD_MAX_IDS = 1 << 16,
    PAYLOAD_MAX_LAYERS = 256, /* layers are numbered below it, too */
    PAYLOAD_MAX_BYTES = 1 << 20,
    PAYLOAD_MAX_TTL_S = 30 * 24 * 3600,
    PAYLOAD_WORD_SIZE = 24,
    PAYLOAD_MODALITIES_SIZE = 16
};

struct payload {
    char output[PAYLOAD_WORD_SIZE]; /* level, [a-z_]+: "hidden_states" */
    char dtype[PAYLOAD_WORD_SIZE];  /* [a-z0-9]+: "bfloat16" */
    int n_layers; /* of hidden_states at least 1, as all are written out; of other levels 0 */
    int layers[PAYLOAD_MAX_LAYERS];
    /* "video", "audio" or "video,audio"; of hidden_states "" */
    char modalities[PAYLOAD_MODALITIES_SIZE];
    bool truncated; /* the prompt was longer than the ids; goes into the result's header */
    int ttl_s;      /* how long the cache keeps the result; 0: as long as it usually does */
    int n_ids;      /* at least 1 */
    int32_t *ids;   /* [n_ids] */
};

/* Appends it to `out`, which had better be a secret one: ids are as good as the prompt. ERR_INPUT:
 * it is not what payload_read() would take. */
int payload_write(struct buf *out, const struct payload *p, struct error *err);
/* On success ids belong to *out (payload_free). ERR_FORMAT: the sentence names the place. */
int payload_read(struct payload *out, const char *data, size_t len, struct error *err);
void payload_free(struct payload *p); /* wipes the ids; a zeroed one is fine */
