#include "engine/residency.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "engine/rank.h"
#include "engine/room.h"
#include "kernels/group.h"

/* Numbers of a connector's block. */
static uint64_t block_numbers(const struct ltx_config *config, int connector)
{
    uint64_t W = (uint64_t)config->connectors[connector].W;

    return 12 * W * W + (config->gated ? W * (uint64_t)config->connectors[connector].H : 0);
}

/* Columns of the projection, of each of which a hidden state takes D numbers. */
static uint64_t projection_width(const struct source *s)
{
    const struct ltx_config *c = &s->ltx_config;
    int audio = c->extractor == LTX_EXTRACTOR_V2 ? c->connectors[LTX_AUDIO].W : 0;

    return s->has_ltx ? (uint64_t)(c->connectors[LTX_VIDEO].W + audio) : 0;
}

/* Some layers: what a piece takes is the bytes of its matrices, beside which norms are nothing. */
static int portion_of_layers(struct portion *out, const struct rank *r, enum dtype compute,
                             struct error *err)
{
    const struct source *s = r->options.source;
    const struct gemma_config *c = &s->config;
    const struct ltx_connector_config *connectors = s->ltx_config.connectors;
    int n_blocks[PORTION_CONNECTORS] = {0}, n = 0, rc;
    uint64_t size = dtype_info(compute)->bytes, D = (uint64_t)c->D, *bytes;
    enum dtype table;

    if ((rc = source_table_type(s, &table, err)) != OK)
        return rc;
    for (int m = 0; m < LTX_N_MODALITIES && s->has_ltx; m++)
        n_blocks[m] = connectors[m].L;
    bytes = calloc((size_t)(1 + c->L + n_blocks[LTX_VIDEO] + n_blocks[LTX_AUDIO]), sizeof(*bytes));
    if (bytes == NULL)
        return error_set(err, ERR_MEM, "engine: no memory for a device map");
    bytes[n] = r->ops->is_host ? 0 : room_table_bytes(c, c->V, table); /* there it stays on disk */
    bytes[n++] += projection_width(s) * D * size;
    for (int i = 0; i < c->L; i++) {
        const struct gemma_attention *a = gemma_attention_of(c, i);
        uint64_t heads = 2 * ((uint64_t)c->H + (uint64_t)a->K) * (uint64_t)a->E;
        bytes[n++] = (heads + 3 * (uint64_t)c->F + projection_width(s)) * D * size;
    }
    for (int m = 0; m < LTX_N_MODALITIES; m++)
        for (int i = 0; i < n_blocks[m]; i++)
            bytes[n++] = block_numbers(&s->ltx_config, m) * size;
    *out = portion_by_layer(r->number, r->n_ranks, bytes, c->L, n_blocks);
    free(bytes);
    return OK;
}

static int share_of(struct portion *out, const struct rank *r, enum dtype compute,
                    struct error *err)
{
    if (r->options.shard_by == ENGINE_BY_LAYER)
        return portion_of_layers(out, r, compute, err);
    *out = portion_by_tensor(r->number, r->n_ranks);
    return OK;
}

static int count_portion(const struct rank *r, struct room *out, const struct portion *portion,
                         enum dtype compute, int max_batch_tokens, struct error *err)
{
    const struct source *s = r->options.source;
    enum dtype table;
    int rc;

    if ((rc = source_table_type(s, &table, err)) != OK)
        return rc;
    rc = room_count(out, &s->config, s->has_ltx ? &s->ltx_config : NULL, table, portion, r->number,
                    r->ops, compute, max_batch_tokens, err);
    if (r->options.home->device != NULL) /* the weights are there */
        out->weights = 0;
    return rc;
}

static int count_all(void *arg, struct room *out, enum dtype compute, int max_batch_tokens,
                     struct error *err)
{
    const struct rank *r = arg;
    struct portion all = portion_all(r->n_ranks);

    return count_portion(r, out, &all, compute, max_batch_tokens, err);
}

static int count_share(void *arg, struct room *out, enum dtype compute, int max_batch_tokens,
                       struct error *err)
{
    const struct rank *r = arg;
    struct portion share;
    int rc = share_of(&share, r, compute, err);

    return rc != OK ? rc : count_portion(r, out, &share, compute, max_batch_tokens, err);
}

static int check_room(struct rank *r, bool is_share, struct error *err)
{
    int most = r->options.max_batch_tokens;
    int fewest = most < ENGINE_MAX_TOKENS ? most : ENGINE_MAX_TOKENS;
    struct device_memory memory;
    char what[64] = "the model";
    int rc;

    if (r->ops->is_host)
        return OK;
    if ((rc = r->ops->memory(r->device, &memory, err)) != OK)
        return rc;
    if (is_share)
        snprintf(what, sizeof(what), "rank %d's share of the model", r->number);
    return room_check(what, &memory, r->options.compute, most, fewest,
                      is_share ? count_share : count_all, r, err);
}

/* For weights, asleep: one copy where all ranks have the same, else of every share, which are about
 * alike. */
static int check_host(struct rank *r, bool is_share, struct error *err)
{
    struct room room;
    uint64_t available, needed;
    int rc;

    if (!r->options.is_saved || r->options.home->device != NULL)
        return OK;
    rc = (is_share ? count_share : count_all)(r, &room, r->options.compute,
                                              r->options.max_batch_tokens, err);
    if (rc != OK || (rc = memory_available(&available, err)) != OK)
        return rc;
    needed = room.weights * (uint64_t)(is_share ? r->n_ranks : 1);
    if (needed <= available)
        return OK;
    return error_set(err, ERR_MEM,
                     "to sleep takes %.1f GB of the host's memory for the weights, and %.1f are "
                     "available",
                     (double)needed / 1e9, (double)available / 1e9);
}

/* What each rank tells the others about its device. */
struct note {
    uint64_t needed, free; /* bytes */
};

/* `bytes` of every rank's, in the order of the ranks, to each of them. */
static int tell_all(struct group *g, const void *own, void *all, size_t bytes, struct error *err)
{
    int rc;

    memcpy(group_slot(g, group_rank(g)), own, bytes);
    if ((rc = group_barrier(g, err)) != OK)
        return rc;
    for (int i = 0; i < group_n_ranks(g); i++)
        memcpy((char *)all + (size_t)i * bytes, group_slot(g, i), bytes);
    return group_barrier(g, err); /* before anybody writes there again */
}

/* Whether every rank's device has room for all; `lacking` is the first that has not. */
static int compare_rooms(struct rank *r, bool *all_have, int *lacking, struct note *of_lacking,
                         struct error *err)
{
    struct group *g = r->options.group;
    struct device_memory memory;
    struct room room;
    struct note own, all[GROUP_MAX_RANKS];
    int rc;

    if ((rc = count_all(r, &room, r->options.compute, r->options.max_batch_tokens, err)) != OK ||
        (rc = r->ops->memory(r->device, &memory, err)) != OK) {
        group_abort(g, err->text); /* the others wait */
        return rc;
    }
    own = (struct note){room_total(&room), memory.free};
    if ((rc = tell_all(g, &own, all, sizeof(own), err)) != OK)
        return rc;
    *all_have = true;
    for (int i = 0; i < r->n_ranks && *all_have; i++) {
        *of_lacking = all[i];
        *all_have = all[i].needed <= all[i].free;
        *lacking = i;
    }
    return OK;
}

static int choose_by_room(struct rank *r, bool *shares, struct error *err)
{
    struct note note = {0};
    bool all_have = true;
    int lacking = 0, rc;

    if ((rc = compare_rooms(r, &all_have, &lacking, &note, err)) != OK)
        return rc;
    *shares = !all_have;
    if (*shares && r->number == 0)
        log_info("residency",
                 "residency=sharded by=%s text=\"all of the model needs %.1f GB, and rank %d's "
                 "device has %.1f free\"",
                 engine_shard_by_name(r->options.shard_by), (double)note.needed / 1e9, lacking,
                 (double)note.free / 1e9);
    return OK;
}

/* Of what each rank came to: all fail as the first that did, none of them after minutes of loading.
 */
static int agree(struct rank *r, const struct error *own, struct error *err)
{
    struct error all[GROUP_MAX_RANKS];
    int rc;

    if ((rc = tell_all(r->options.group, own, all, sizeof(*own), err)) != OK)
        return rc;
    for (int i = 0; i < r->n_ranks; i++)
        if (all[i].code != OK)
            return error_set(err, all[i].code, "%s", all[i].text);
    return OK;
}

/* Whether a rank takes a share of the weights that it is to load. */
static int decide(struct rank *r, bool *shares, struct error *err)
{
    *shares = r->options.residency == ENGINE_RESIDENCY_SHARDED && r->n_ranks > 1;
    if (r->options.residency != ENGINE_RESIDENCY_AUTO || r->ops->is_host || r->n_ranks == 1)
        return OK; /* one rank's share is all */
    return choose_by_room(r, shares, err);
}

int residency_choose(struct rank *r, struct portion *out, struct error *err)
{
    const struct home *home = r->options.home;
    bool shares = home->replica.portion.kind != PORTION_ALL;
    struct error why = {0};
    int rc = OK;

    if (home->device == NULL && (rc = decide(r, &shares, err)) != OK)
        return rc;
    *out = portion_all(r->n_ranks);
    if (shares)
        rc = share_of(out, r, r->options.compute, &why);
    if (rc == OK && (rc = check_room(r, shares, &why)) == OK)
        rc = check_host(r, shares, &why);
    if (r->n_ranks > 1)
        return agree(r, &why, err);
    return rc == OK ? OK : error_set(err, (enum err_code)rc, "%s", why.text);
}
