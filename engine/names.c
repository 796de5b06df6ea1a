/* names.c - what engine.h's settings are called, in logs and by the options. */
#include "engine/engine.h"

const char *engine_strategy_name(enum engine_strategy strategy)
{
    static const char *const names[] = {"auto", "sharded", "replicated", "measured"};

    return names[strategy];
}

const char *engine_residency_name(enum engine_residency residency)
{
    static const char *const names[] = {"auto", "replicated", "sharded"};

    return names[residency];
}

const char *engine_shard_by_name(enum engine_shard_by shard_by)
{
    return shard_by == ENGINE_BY_LAYER ? "layer" : "tensor";
}
