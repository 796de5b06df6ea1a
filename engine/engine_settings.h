/* engine_settings.h - which model a program opens, and how: the options that all of them share.
 *
 *     struct settings { struct engine_settings engine; ... };
 *     static const struct option options[] = {ENGINE_OPTIONS(FIELD(engine)), ..., {0}};
 */
#pragma once
#include <stddef.h>

#include "base/options.h"
#include "engine/engine.h"

struct engine_settings {
    const char *model, *model_id, *routes;
    struct option_list ltx;
    int backend, compute, strategy, residency, shard_by;
    int64_t threads, ranks, deadline_s;
};

#define ENGINE_FIELD(at, name) ((at) + offsetof(struct engine_settings, name))
/* Rows of an option table; `at` is where the struct engine_settings lies in the settings. */
#define ENGINE_OPTIONS(at)                                                                          \
    {"model", 'm', "PE_MODEL", OPT_TEXT, ENGINE_FIELD(at, model),                                   \
     NULL,    0,   0,          "PATH",   "model directory, packed file or GGUF file"},              \
        {"ltx", 0, "PE_LTX",       OPT_LIST, ENGINE_FIELD(at, ltx),                                 \
         NULL,  0, ENGINE_MAX_LTX, "PATH",   "LTX checkpoint, for features and embeddings"},        \
        {"model-id",                                                                                \
         0,                                                                                         \
         "PE_MODEL_ID",                                                                             \
         OPT_TEXT,                                                                                  \
         ENGINE_FIELD(at, model_id),                                                                \
         NULL,                                                                                      \
         0,                                                                                         \
         0,                                                                                         \
         "NAME",                                                                                    \
         "what requests call it; default: the path's last part"},                                   \
        {"backend",                                                                                 \
         0,                                                                                         \
         "PE_BACKEND",                                                                              \
         OPT_CHOICE,                                                                                \
         ENGINE_FIELD(at, backend),                                                                 \
         "cpu",                                                                                     \
         0,                                                                                         \
         0,                                                                                         \
         "cpu|cuda|loops",                                                                          \
         "what computes; loops: slow, for checking"},                                               \
        {"compute",                                                                                 \
         0,                                                                                         \
         "PE_COMPUTE",                                                                              \
         OPT_CHOICE,                                                                                \
         ENGINE_FIELD(at, compute),                                                                 \
         "float32",                                                                                 \
         0,                                                                                         \
         0,                                                                                         \
         "float32|bfloat16|float8",                                                                 \
         "what matrix products compute in; float8 loses accuracy"},                                 \
        {"threads", 0, "PE_THREADS", OPT_INT, ENGINE_FIELD(at, threads),                            \
         "0",       0, 1024,         "N",     "threads that compute, of all ranks; 0: one a core"}, \
        {"ranks", 0, "PE_RANKS",       OPT_INT, ENGINE_FIELD(at, ranks),                            \
         "0",     0, ENGINE_MAX_RANKS, "N",     "devices that compute together; 0: one"},           \
        {"strategy",                                                                                \
         0,                                                                                         \
         "PE_STRATEGY",                                                                             \
         OPT_CHOICE,                                                                                \
         ENGINE_FIELD(at, strategy),                                                                \
         "auto",                                                                                    \
         0,                                                                                         \
         0,                                                                                         \
         "auto|sharded|replicated|measured",                                                        \
         "all ranks at each prompt, or each at its own; auto: by their number"},                    \
        {"residency",                                                                               \
         0,                                                                                         \
         "PE_RESIDENCY",                                                                            \
         OPT_CHOICE,                                                                                \
         ENGINE_FIELD(at, residency),                                                               \
         "auto",                                                                                    \
         0,                                                                                         \
         0,                                                                                         \
         "auto|replicated|sharded",                                                                 \
         "weights: all on each device, or a share, and all batches sharded; auto: by memory"},      \
        {"shard-by",                                                                                \
         0,                                                                                         \
         "PE_SHARD_BY",                                                                             \
         OPT_CHOICE,                                                                                \
         ENGINE_FIELD(at, shard_by),                                                                \
         "tensor",                                                                                  \
         0,                                                                                         \
         0,                                                                                         \
         "tensor|layer",                                                                            \
         "a share is a part of each layer, or some layers, one device after another"},              \
        {"routes",                                                                                  \
         0,                                                                                         \
         "PE_ROUTES",                                                                               \
         OPT_TEXT,                                                                                  \
         ENGINE_FIELD(at, routes),                                                                  \
         NULL,                                                                                      \
         0,                                                                                         \
         0,                                                                                         \
         "FILE",                                                                                    \
         "keeps the times that strategies are chosen by; default: measured at each start"},         \
    {                                                                                               \
        "rank-deadline", 0, "PE_RANK_DEADLINE", OPT_INT, ENGINE_FIELD(at, deadline_s), "60", 1,     \
            3600, "S", "seconds without a step after which a rank hangs, and the engine fails"      \
    }

/* ERR_INPUT: no model is given, or its id is none. */
int engine_settings_check(const struct engine_settings *s, struct error *err);

/* What requests call the model: --model-id, else the path's last part without ".gguf" and with '-'
 * for what is not of A-Z a-z 0-9 . _ -. ERR_INPUT: neither makes a name. */
enum { ENGINE_MODEL_ID_SIZE = 64 };
int engine_settings_model_id(char out[ENGINE_MODEL_ID_SIZE], const struct engine_settings *s,
                             struct error *err);

/* For engine_open(); the caller adds batch and progress. Its texts are those of `s`. */
struct engine_options engine_settings_options(const struct engine_settings *s);

/* As the options spell them: "cpu", "float32". */
const char *engine_settings_backend(const struct engine_settings *s);
const char *engine_settings_strategy(const struct engine_settings *s);
const char *engine_settings_compute(const struct engine_settings *s);
