#include "engine/placement.h"

#include <stdlib.h>
#include <string.h>

#include "engine/group/share.h"
#include "engine/rank.h"
#include "engine/result.h"

enum { BOUNDARY = 256 }; /* of a tensor in the device's memory */

static size_t rounded(size_t bytes)
{
    return (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
}

static bool is_mask(const struct engine_tensor *t)
{
    return t->dtype == DTYPE_I64;
}

/* Bytes of a tensor, with what an exchange of equal pieces of its rows puts behind them. */
static size_t room_of(const struct rank *r, const struct engine_tensor *t, enum engine_level level)
{
    size_t rows = ENGINE_ROWS + ENGINE_MAX_RANKS; /* n_ranks * rows.each at most */

    if (level != ENGINE_EMBEDDINGS || is_mask(t) || r->n_ranks == 1)
        return rounded(t->bytes);
    return rounded(rows * (t->bytes / ENGINE_ROWS));
}

/* What the tensors of all prompts are, by the host's results of the same shapes. */
static int plan(struct rank *r, const struct rank_batch *batch, size_t *bytes, struct error *err)
{
    struct placement *p = &r->placement;

    if (batch->n_prompts > p->n_room) {
        free(p->results);
        p->n_room = 0;
        if ((p->results = calloc((size_t)batch->n_prompts, sizeof(*p->results))) == NULL)
            return error_set(err, ERR_MEM, "engine: no memory for %d results", batch->n_prompts);
        p->n_room = batch->n_prompts;
    }
    p->n = batch->n_prompts;
    *bytes = 0;
    for (int i = 0; i < p->n; i++) {
        result_describe(&p->results[i], r->info, &batch->prompts[i]);
        for (int k = 0; k < p->results[i].n_tensors; k++)
            *bytes += room_of(r, &p->results[i].tensors[k], batch->prompts[i].request->level);
    }
    return OK;
}

int placement_begin(struct rank *r, const struct rank_batch *batch, struct error *err)
{
    struct placement *p = &r->placement;
    size_t bytes = 0, at = 0;
    int rc;

    if ((rc = plan(r, batch, &bytes, err)) != OK)
        return rc;
    result_fill_mask(p->mask);
    if (bytes > p->room) {
        r->ops->release(r->device, p->memory);
        p->memory = NULL;
        p->room = 0;
        if ((rc = r->ops->alloc(r->device, &p->memory, bytes, err)) != OK)
            return rc;
        p->room = bytes;
    }
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->results[i].n_tensors; k++) {
            struct engine_tensor *t = &p->results[i].tensors[k];
            t->data = (char *)p->memory + at;
            at += room_of(r, t, batch->prompts[i].request->level);
            if (is_mask(t) &&
                (rc = r->ops->upload(r->device, t->data, p->mask, t->bytes, err)) != OK)
                return rc;
        }
    return OK;
}

/* Of a sharded batch every rank has all but the embeddings, and of those its own rows. */
static int gather_rows(struct rank *r, struct engine_tensor *t, struct error *err)
{
    struct share_piece rows = share_rows(ENGINE_ROWS, r->number, r->n_ranks);
    size_t piece = (size_t)rows.each * (t->bytes / ENGINE_ROWS);

    return r->ops->all_gather(r->device, t->data, (char *)t->data + r->number * piece, piece, err);
}

/* Where ranks have whole layers, a state is on the one that made it. */
static int send_states(struct rank *r, const struct engine_tensor *t,
                       const struct engine_request *request, struct error *err)
{
    size_t n = t->shape[0], bytes = t->bytes / n;
    int rc = OK;

    for (size_t i = 0; i < n && rc == OK; i++) {
        int state = request->n_layers > 0 ? request->layers[i] : (int)i;
        rc = r->ops->broadcast(r->device, (char *)t->data + i * bytes, bytes,
                               portion_owner(&r->replica->portion, state), err);
    }
    return rc;
}

/* There embeddings are on the rank that has a connector's last block. */
static int send_embeddings(struct rank *r, const struct engine_tensor *t, struct error *err)
{
    bool is_video = strcmp(t->name, result_tensor_name(ENGINE_EMBEDDINGS, LTX_VIDEO)) == 0;
    int root = portion_connector_last(&r->replica->portion, is_video ? LTX_VIDEO : LTX_AUDIO);

    return r->ops->broadcast(r->device, t->data, t->bytes, root, err);
}

/* Of a sharded batch: features are everywhere, and the rest comes together. */
static int exchange_sharded(struct rank *r, struct engine_tensor *t,
                            const struct engine_request *request, struct error *err)
{
    bool by_layer = r->replica->portion.kind == PORTION_LAYER;

    if (request->level == ENGINE_HIDDEN_STATES && by_layer)
        return send_states(r, t, request, err);
    if (request->level == ENGINE_EMBEDDINGS)
        return by_layer ? send_embeddings(r, t, err) : gather_rows(r, t, err);
    return OK;
}

int placement_exchange(struct rank *r, const struct rank_batch *batch, struct error *err)
{
    struct placement *p = &r->placement;
    int rc;

    for (int i = 0; i < p->n && r->n_ranks > 1; i++)
        for (int k = 0; k < p->results[i].n_tensors; k++) {
            struct engine_tensor *t = &p->results[i].tensors[k];
            if (is_mask(t))
                continue;
            if (batch->sharded)
                rc = exchange_sharded(r, t, batch->prompts[i].request, err);
            else
                rc = r->ops->broadcast(r->device, t->data, t->bytes, batch->rank_of[i], err);
            if (rc != OK)
                return rc;
        }
    return OK;
}

int placement_download(struct rank *r, const struct rank_batch *batch, struct error *err)
{
    struct placement *p = &r->placement;
    int rc;

    for (int i = 0; i < p->n && batch->results != NULL; i++)
        for (int k = 0; k < batch->results[i].n_tensors; k++) {
            struct engine_tensor *to = &batch->results[i].tensors[k];
            if (!batch->all_download && batch->rank_of[i] != r->number)
                continue;
            if (!is_mask(to) &&
                (rc = r->ops->download(r->device, to->data, p->results[i].tensors[k].data,
                                       to->bytes, err)) != OK)
                return rc;
        }
    return OK;
}

void placement_free(struct rank *r)
{
    if (r->device != NULL)
        r->ops->release(r->device, r->placement.memory);
    free(r->placement.results);
}
