/* replica.h - a model's weights on one device, or its rank's portion of them, for the ranks that
 * compute with them: one on a GPU, all ranks of a CPU. Read-only once loaded. */
#pragma once
#include "engine/ltx/ltx_weights.h"
#include "engine/model/weights.h"
#include "engine/source.h"

struct replica {
    const struct ops *ops;
    struct device *device; /* whose memory they take; borrowed */
    struct portion portion;
    struct weights *weights;
    struct ltx_weights *ltx_weights; /* NULL: no LTX checkpoint */
    size_t bytes;                    /* resident */
    uint64_t loaded_bytes;           /* read from the files for that */
    double load_s;                   /* what that took */
};

struct replica_options {
    const struct source *source;
    const struct ops *ops;
    struct device *device;
    enum dtype act;               /* the device's compute type */
    struct portion portion;       /* what is loaded */
    engine_progress_fn *progress; /* or NULL */
    void *progress_arg;
};

/* By the device's thread. Errors as engine_open(). *out is to be freed in any case. */
int replica_load(struct replica *out, const struct replica_options *options, struct error *err);
void replica_free(struct replica *r); /* one of zeros is fine */
