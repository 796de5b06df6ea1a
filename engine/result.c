/* result.c - what may be wanted of a prompt, and room for it. */
#include "engine/result.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/files/ltx_checkpoint.h"

static const char *const feature_names[] = {"video_features", "audio_features"};
static const char *const embedding_names[] = {"video", "audio"};

const char *result_tensor_name(enum engine_level level, int modality)
{
    return level == ENGINE_EMBEDDINGS ? embedding_names[modality] : feature_names[modality];
}

/* Whether the level is there, and all that is wanted of it. */
static int check_level(const struct engine_info *info, const struct engine_request *request,
                       struct error *err)
{
    const char *level = request->level == ENGINE_FEATURES ? "features" : "embeddings";

    if (request->level == ENGINE_HIDDEN_STATES)
        return OK;
    if (request->level != ENGINE_FEATURES && request->level != ENGINE_EMBEDDINGS)
        return error_set(err, ERR_INPUT, "engine: there is no level %d", (int)request->level);
    if (info->extractor == 0)
        return error_set(err, ERR_INPUT,
                         "%s need an LTX checkpoint, and this model has none: it has hidden_states",
                         level);
    if (request->n_layers > 0)
        return error_set(err, ERR_INPUT, "layers are chosen of hidden_states, not of %s", level);
    if ((request->modalities & ~(unsigned)(ENGINE_VIDEO | ENGINE_AUDIO)) != 0)
        return error_set(err, ERR_INPUT, "engine: there are no modalities 0x%x",
                         request->modalities);
    if ((request->modalities & ENGINE_AUDIO) != 0 && info->audio_width == 0)
        return error_set(err, ERR_INPUT, "audio is wanted, and this LTX checkpoint is video-only");
    return OK;
}

int engine_check_request(const struct engine_info *info, const struct engine_request *request,
                         struct error *err)
{
    bool seen[ENGINE_MAX_LAYERS + 1] = {false};
    int rc;

    if ((rc = check_level(info, request, err)) != OK)
        return rc;
    if (request->dtype != DTYPE_F32 && request->dtype != DTYPE_F16 && request->dtype != DTYPE_BF16)
        return error_set(err, ERR_INPUT, "engine: results can be F32, F16 or BF16, not %s",
                         dtype_info(request->dtype)->name);
    for (int i = 0; i < request->n_layers; i++) {
        int layer = request->layers[i];
        if (layer < 0 || layer > info->n_layers)
            return error_set(err, ERR_INPUT, "layer %d is out of range: this model has 0 to %d",
                             layer, info->n_layers);
        if (seen[layer])
            return error_set(err, ERR_INPUT, "layer %d is wanted twice", layer);
        seen[layer] = true;
    }
    return OK;
}

int engine_check_prompt(const struct engine_info *info, const struct engine_prompt *prompt,
                        struct error *err)
{
    int rc;

    if (prompt->request == NULL)
        return error_set(err, ERR_INPUT, "it does not say what is wanted of it");
    if ((rc = engine_check_request(info, prompt->request, err)) != OK)
        return rc;
    if (prompt->n < 1 || prompt->n > info->max_tokens)
        return error_set(err, ERR_INPUT, "%d tokens, expected 1 to %d", prompt->n,
                         info->max_tokens);
    for (int t = 0; t < prompt->n; t++)
        if (prompt->ids[t] < 0 || prompt->ids[t] >= info->vocabulary)
            return error_set(err, ERR_INPUT, "token %d is %d, the model's vocabulary has 0 to %d",
                             t, (int)prompt->ids[t], info->vocabulary - 1);
    return OK;
}

bool request_wants(const struct engine_info *info, const struct engine_request *request, int m)
{
    bool there = (m == LTX_VIDEO ? info->video_width : info->audio_width) > 0;

    return there && (request->modalities == 0 || (request->modalities >> m & 1) != 0);
}

static void add_tensor(struct engine_result *r, const char *name, enum dtype dtype, int n_dims,
                       const size_t *shape)
{
    struct engine_tensor *t = &r->tensors[r->n_tensors++];

    *t = (struct engine_tensor){
        .name = name, .dtype = dtype, .n_dims = n_dims, .bytes = dtype_info(dtype)->bytes};
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        t->bytes *= shape[i];
    }
}

void result_describe(struct engine_result *r, const struct engine_info *info,
                     const struct engine_prompt *prompt)
{
    const struct engine_request *request = prompt->request;
    bool embeddings = request->level == ENGINE_EMBEDDINGS;
    size_t rows = embeddings ? ENGINE_ROWS : (size_t)prompt->n;
    int n_states = request->n_layers > 0 ? request->n_layers : info->n_layers + 1;

    *r = (struct engine_result){.n_tokens = prompt->n};
    if (request->level == ENGINE_HIDDEN_STATES) {
        size_t shape[3] = {(size_t)n_states, rows, (size_t)info->width};
        add_tensor(r, "hidden_states", request->dtype, 3, shape);
        return;
    }
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        size_t shape[2] = {rows, (size_t)(m == LTX_VIDEO ? info->video_width : info->audio_width)};
        if (request_wants(info, request, m))
            add_tensor(r, result_tensor_name(request->level, m), request->dtype, 2, shape);
    }
    if (embeddings)
        add_tensor(r, "mask", DTYPE_I64, 1, &rows);
}

void result_fill_mask(int64_t mask[ENGINE_ROWS])
{
    for (int i = 0; i < ENGINE_ROWS; i++)
        mask[i] = 1;
}

int result_create(struct engine_result *r, const struct engine_info *info,
                  const struct engine_prompt *prompt, struct error *err)
{
    result_describe(r, info, prompt);
    for (int k = 0; k < r->n_tensors; k++) {
        struct engine_tensor *t = &r->tensors[k];
        if ((t->data = malloc(t->bytes)) == NULL)
            return error_set(err, ERR_MEM, "engine: no memory for %zu bytes of %s", t->bytes,
                             t->name);
        if (t->dtype == DTYPE_I64)
            result_fill_mask(t->data);
    }
    return OK;
}

void engine_result_free(struct engine_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        free(result->tensors[i].data);
    *result = (struct engine_result){0};
}
