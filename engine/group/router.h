/* router.h - which strategy a batch takes, and how long that should take.
 *
 *     router_create(&r, &options, &err);
 *     if (!router_load(r, path)) {
 *         router_measure(r, run, arg, 20000, &err);
 *         router_save(r, path, &err);
 *     }
 *     route = router_choose(r, n_tokens, n_prompts);
 *     ... the batch runs ...
 *     router_note(r, &route, ms);
 *
 * By the rule one prompt is sharded over all ranks, two or more are replicated, some to each. A
 * table of times, measured on these devices, says better where there are more than two prompts and
 * fewer than ranks, as some ranks would have nothing to do; with ROUTING_MEASURED it says so of all
 * batches. The table is about the kind of batch that was measured: where requests want less (hidden
 * states, one modality) predictions are too long for both strategies.
 *
 * A router belongs to one thread. */
#pragma once
#include <stdbool.h>

#include "base/error.h"
#include "kernels/group.h"

enum strategy {
    STRATEGY_SHARDED,    /* all ranks work on each prompt */
    STRATEGY_REPLICATED, /* each rank works on prompts of its own */
    N_STRATEGIES
};
const char *strategy_name(enum strategy s); /* "sharded", "replicated" */

enum routing { ROUTING_AUTO, ROUTING_SHARDED, ROUTING_REPLICATED, ROUTING_MEASURED };

struct router_options {
    enum routing routing;
    int n_ranks;          /* 1 .. GROUP_MAX_RANKS */
    int max_tokens;       /* of a prompt, and */
    int max_batch_tokens; /* of all of a batch: none with more is measured */

    /* What a table's times belong to, with all of the above; a line of text each, copied. */
    const char *weights; /* digests */
    const char *backend; /* and what it computes in */
    const char *devices; /* names, in the order of the ranks */
    const char *version; /* of the program */
};

struct route {
    enum strategy strategy;
    const char *reason;  /* constant, one word: "one_prompt" */
    double predicted_ms; /* 0: not known */
};

struct router;

/* On success *out belongs to the caller, without a table. ERR_INPUT: a text of the options is
 * missing or not one line. */
int router_create(struct router **out, const struct router_options *options, struct error *err);
void router_free(struct router *r); /* NULL is fine */

/* Runs a batch of so many prompts of so many tokens each, from ids to results, and says how long it
 * took. */
typedef int router_run_fn(void *arg, enum strategy strategy, int n_prompts, int n_tokens,
                          double *ms, struct error *err);

/* Measures what choosing and predicting need; nothing where a strategy is forced or there is one
 * rank. Begins with few prompts and tokens and stops when the runs took more than budget_ms
 * together; both strategies have then been measured alike. On failure, which is that of `run`,
 * there is no table. */
int router_measure(struct router *r, router_run_fn *run, void *arg, double budget_ms,
                   struct error *err);

/* Whether the table at `path` was taken. A missing one is not; nor, with a line in the log, one of
 * other devices, weights or options, or one that is damaged. Nothing to measure: always true. */
bool router_load(struct router *r, const char *path);
/* Whole or not at all. */
int router_save(const struct router *r, const char *path, struct error *err);

/* n_tokens [n_prompts], n_prompts >= 1. The same for the same table and batch. */
struct route router_choose(const struct router *r, const int *n_tokens, int n_prompts);

/* How long a batch took that router_choose() had routed. Changes no later choice. */
void router_note(struct router *r, const struct route *route, double real_ms);
/* Real by predicted time of the strategy's noted batches, the newest weighing most: 1 where the
 * predictions are right, 0 while there is none. */
double router_ratio(const struct router *r, enum strategy strategy);
