/* work.h - what the three steps of a worker share. All of it outlives them. */
#pragma once
#include "engine/engine.h"
#include "engine/worker/belt.h"
#include "engine/worker/hand.h"
#include "engine/worker/vitals.h"
#include "engine/worker/worker.h"
#include "jobs/card.h"

struct work {
    const struct worker_options *options;
    const char *base; /* of the queue */
    const struct model_card *card;
    const struct engine_info *info;
    struct belt *belt;
    struct hand *hand;
    struct vitals *vitals;
};
