#include "engine/engine_settings.h"

#include <string.h>

#include "base/cores.h"

static const char id_letters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

/* In the order of the options' words. */
static const struct {
    const char *name;
    enum engine_backend backend;
} backends[] = {{"cpu", ENGINE_CPU}, {"cuda", ENGINE_CUDA}, {"loops", ENGINE_LOOPS}};
static const struct {
    const char *name;
    enum dtype type;
} computes[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float8", DTYPE_F8_E4M3}};
static const enum engine_strategy strategies[] = {ENGINE_AUTO, ENGINE_SHARDED, ENGINE_REPLICATED,
                                                  ENGINE_MEASURED};
static const enum engine_residency residencies[] = {
    ENGINE_RESIDENCY_AUTO, ENGINE_RESIDENCY_REPLICATED, ENGINE_RESIDENCY_SHARDED};
static const enum engine_shard_by shares[] = {ENGINE_BY_TENSOR, ENGINE_BY_LAYER};

int engine_settings_check(const struct engine_settings *s, struct error *err)
{
    char id[ENGINE_MODEL_ID_SIZE];

    if (s->model == NULL)
        return error_set(err, ERR_INPUT, "no model: give --model PATH or set PE_MODEL");
    return engine_settings_model_id(id, s, err);
}

static int check_id(const char *id, struct error *err)
{
    size_t len = strlen(id);

    if (len >= ENGINE_MODEL_ID_SIZE)
        return error_set(err, ERR_INPUT, "--model-id: '%.80s' is longer than %d characters", id,
                         ENGINE_MODEL_ID_SIZE - 1);
    if (strspn(id, id_letters) != len)
        return error_set(err, ERR_INPUT, "--model-id: '%s' is not of A-Z a-z 0-9 . _ - alone", id);
    return OK;
}

int engine_settings_model_id(char out[ENGINE_MODEL_ID_SIZE], const struct engine_settings *s,
                             struct error *err)
{
    size_t len = strlen(s->model), start;
    int rc;

    if (s->model_id != NULL) {
        if ((rc = check_id(s->model_id, err)) == OK)
            memcpy(out, s->model_id, strlen(s->model_id) + 1);
        return rc;
    }
    while (len > 0 && s->model[len - 1] == '/')
        len--;
    for (start = len; start > 0 && s->model[start - 1] != '/';)
        start--;
    if (len - start > 5 && strncmp(s->model + len - 5, ".gguf", 5) == 0)
        len -= 5;
    if (len == start || len - start >= ENGINE_MODEL_ID_SIZE)
        return error_set(err, ERR_INPUT, "%s: give the model a name with --model-id", s->model);
    for (size_t i = 0; i < len - start; i++)
        out[i] = strchr(id_letters, s->model[start + i]) != NULL ? s->model[start + i] : '-';
    out[len - start] = '\0';
    return OK;
}

struct engine_options engine_settings_options(const struct engine_settings *s)
{
    return (struct engine_options){
        .model = s->model,
        .ltx = {option_list_at(&s->ltx, 0), option_list_at(&s->ltx, 1)},
        .backend = backends[s->backend].backend,
        .compute = computes[s->compute].type,
        .n_ranks = (int)s->ranks,
        .routes = s->routes,
        .strategy = strategies[s->strategy],
        .residency = residencies[s->residency],
        .shard_by = shares[s->shard_by],
        .deadline_ms = (int)s->deadline_s * 1000,
        .n_threads = s->threads > 0 ? (int)s->threads : cores_available(),
    };
}

const char *engine_settings_backend(const struct engine_settings *s)
{
    return backends[s->backend].name;
}

const char *engine_settings_compute(const struct engine_settings *s)
{
    return computes[s->compute].name;
}

const char *engine_settings_strategy(const struct engine_settings *s)
{
    return engine_strategy_name(strategies[s->strategy]);
}
