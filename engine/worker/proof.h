/* proof.h - that an engine computes: a forward pass of one token. */
#pragma once
#include "base/error.h"
#include "engine/engine.h"

/* Encodes <bos> alone, on every rank: the devices work, and all of a pass's memory is there.
 * `whole`: as far as the engine goes, once at start; else not through LTX's connectors, whose 1024
 * rows take seconds on a CPU. ERR_GPU: it fails, or gives no numbers; ERR_MEM and the like: it may
 * be better next time. */
int proof_run(struct engine *engine, bool whole, struct error *err);
