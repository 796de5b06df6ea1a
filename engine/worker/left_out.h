/* left_out.h - what the engine's program does about ranks that fail: one line in the log, and with
 * a state folder an account of GPUs, so that one that fails again and again has no rank any more.
 */
#pragma once
#include "base/error.h"
#include "engine/engine.h"
#include "engine/worker/gpu_record.h"

/* Plain data; outlives the engine that it was told of. */
struct left_out {
    char path[4096]; /* of the account; "": there is none */
    struct gpu_record record;
    const char *gpus[GPU_RECORD_MAX];
    int n;
};

/* Reads the account in the folder `state` (made where it is missing; NULL: no account), logs which
 * GPUs are left out, and tells `options`. ERR_IO, ERR_SIZE, ERR_FORMAT. */
int left_out_read(struct left_out *out, const char *state, struct engine_options *options,
                  struct error *err);

/* The failure of an open that some GPUs were left out of, with what can be done about it. */
int left_out_explain(const struct left_out *l, const struct error *why, struct error *err);
