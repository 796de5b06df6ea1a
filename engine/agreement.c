/* agreement.c - ranks that are processes of their own agree on a batch before they run it.
 *
 * Each was handed the batch by its own caller, and each would choose a strategy by itself.
 * Collectives of ranks that do not run the same would wait for each other, or add up what does not
 * belong together; so the first rank's batch and choice count, and who has another batch says so.
 */
#include "base/hash.h"
#include "engine/engine_private.h"

struct agreement {
    uint64_t batch; /* what identifies it */
    int32_t strategy;
};

struct agreeing {
    struct engine *e;
    struct agreement mine, first;
};

static uint64_t identify(const struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                         bool has_results)
{
    uint64_t hash = hash_add(hash_add(HASH_START, (uint64_t)n_prompts), has_results);

    hash = hash_add(hash, e->place);
    for (int i = 0; i < n_prompts; i++) {
        const struct engine_request *r = prompts[i].request;
        hash = hash_add(hash_add(hash_add(hash, r->level), r->dtype), r->modalities);
        for (int k = 0; k < r->n_layers; k++)
            hash = hash_add(hash, (uint64_t)r->layers[k]);
        hash = hash_add(hash_add(hash, (uint64_t)r->n_layers), (uint64_t)prompts[i].n);
        for (int t = 0; t < prompts[i].n; t++)
            hash = hash_add(hash, (uint64_t)prompts[i].ids[t]);
    }
    return hash;
}

static int share_agreement(void *arg, int rank, struct error *err)
{
    struct agreeing *a = arg;
    struct group *group = a->e->groups[rank];
    int rc;

    a->first = a->mine;
    if ((rc = group_share(group, &a->first, sizeof(a->first), 0, err)) != OK)
        return rc;
    if (a->first.batch == a->mine.batch)
        return OK;
    error_set(err, ERR_GPU, "rank %d was handed another batch than rank 0", group_rank(group));
    group_abort(group, "it was handed another batch than rank 0");
    return ERR_GPU;
}

int engine_agree(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                 bool has_results, enum strategy *strategy, struct error *err)
{
    struct team_watch watch = engine_watch(e);
    struct agreeing a = {.e = e};
    int rc;

    a.mine.batch = identify(e, prompts, n_prompts, has_results);
    a.mine.strategy = (int32_t)*strategy;
    watch.deadline_ms = 0; /* the group has one */
    if ((rc = engine_run(e, TEAM_ALL, share_agreement, &a, &watch, true, err)) == OK)
        *strategy = (enum strategy)a.first.strategy;
    return rc;
}
