/* router.c - see router.h.
 *
 * The table is a list of cells: a strategy, a number of prompts, tokens of each, and the time. It
 * has 1, 2, .. n_ranks prompts, then twice and four times as many. Times in between are
 * interpolated in the tokens that a rank has to get through, as they, beside the number of prompts,
 * decide: sharded, all of the batch's; replicated, those of the busiest rank. As a file it is text,
 * and what is read must be, byte for byte, what would be written: so nothing but a table of this
 * router is ever taken for one. */
#include "engine/group/router.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"

enum {
    N_LENGTHS = 4,
    MAX_CELLS = N_STRATEGIES * (GROUP_MAX_RANKS + 2) * N_LENGTHS,
    RUNS = 4,           /* the first makes plans and is not counted */
    MAX_US = 999999999, /* of a cell: nine digits */
    FILE_MAX = 1 << 16,
    NEWEST = 16 /* a note changes the ratio by at least one part of so many */
};

static const int lengths[N_LENGTHS] = {16, 64, 256, 1024};

struct cell {
    enum strategy strategy;
    int n_prompts, n_tokens; /* of each */
    int us;                  /* 0: not measured */
};

struct router {
    struct router_options options; /* its texts are in `head` */
    struct buf head;               /* the first lines of a table's file */
    struct cell cells[MAX_CELLS];  /* of a strategy: rising in prompts, then in tokens */
    int n_cells;
    struct {
        double mean;
        int n;
    } ratio[N_STRATEGIES];
};

const char *strategy_name(enum strategy s)
{
    return s == STRATEGY_SHARDED ? "sharded" : "replicated";
}

/* ---- what is measured ---- */

/* By the rule, and of what the table decides. */
static bool is_wanted(const struct router_options *o, enum strategy strategy, int n_prompts)
{
    if (o->n_ranks == 1 || o->routing == ROUTING_SHARDED || o->routing == ROUTING_REPLICATED)
        return false;
    if (o->routing == ROUTING_MEASURED || (n_prompts > 2 && n_prompts < o->n_ranks))
        return true;
    return strategy == (n_prompts == 1 ? STRATEGY_SHARDED : STRATEGY_REPLICATED);
}

static void plan_prompts(struct router *r, int n_prompts)
{
    const struct router_options *o = &r->options;

    for (int i = 0; i < N_LENGTHS; i++) {
        if (lengths[i] > o->max_tokens || lengths[i] > o->max_batch_tokens / n_prompts)
            break;
        for (enum strategy s = 0; s < N_STRATEGIES; s++)
            if (is_wanted(o, s, n_prompts))
                r->cells[r->n_cells++] = (struct cell){s, n_prompts, lengths[i], 0};
    }
}

static bool is_line(const char *text)
{
    if (text == NULL || *text == '\0')
        return false;
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

int router_create(struct router **out, const struct router_options *options, struct error *err)
{
    const struct router_options *o = options;
    struct router *r;
    int rc;

    *out = NULL;
    assert(o->n_ranks >= 1 && o->n_ranks <= GROUP_MAX_RANKS);
    if (!is_line(o->weights) || !is_line(o->backend) || !is_line(o->devices) ||
        !is_line(o->version))
        return error_set(err, ERR_INPUT,
                         "router: weights, backend, devices and version want a line of text each");
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return error_set(err, ERR_MEM, "router: no memory");
    r->options = *o;
    r->options.weights = r->options.backend = r->options.devices = r->options.version = NULL;
    r->head.max = FILE_MAX / 2;
    if ((rc = buf_printf(&r->head, err,
                         "prompt-encoder routing table\nversion %s\nweights %s\nbackend %s\n"
                         "devices %s\nranks %d\nmeasured %s\ntokens %d %d\n",
                         o->version, o->weights, o->backend, o->devices, o->n_ranks,
                         o->routing == ROUTING_MEASURED ? "all" : "auto", o->max_tokens,
                         o->max_batch_tokens)) != OK) {
        router_free(r);
        return rc;
    }
    for (int n = 1; n <= o->n_ranks; n++)
        plan_prompts(r, n);
    plan_prompts(r, 2 * o->n_ranks);
    plan_prompts(r, 4 * o->n_ranks);
    *out = r;
    return OK;
}

void router_free(struct router *r)
{
    if (r == NULL)
        return;
    buf_free(&r->head);
    free(r);
}

static void forget(struct router *r)
{
    for (int i = 0; i < r->n_cells; i++)
        r->cells[i].us = 0;
}

static double middle_of_three(double a, double b, double c)
{
    double low = a < b ? a : b, high = a < b ? b : a;

    return c < low ? low : c > high ? high : c;
}

static int measure_cell(struct cell *cell, router_run_fn *run, void *arg, double *spent_ms,
                        struct error *err)
{
    double ms[RUNS], us;
    int rc;

    for (int i = 0; i < RUNS; i++) {
        if ((rc = run(arg, cell->strategy, cell->n_prompts, cell->n_tokens, &ms[i], err)) != OK)
            return rc;
        *spent_ms += ms[i];
    }
    us = middle_of_three(ms[1], ms[2], ms[3]) * 1e3 + 0.5;
    cell->us = us < 1.0 ? 1 : us > MAX_US ? MAX_US : (int)us;
    return OK;
}

int router_measure(struct router *r, router_run_fn *run, void *arg, double budget_ms,
                   struct error *err)
{
    double spent_ms = 0.0;
    int n = 0, rc;

    forget(r);
    for (; n < r->n_cells; n++) {
        const struct cell *cell = &r->cells[n], *before = &r->cells[n > 0 ? n - 1 : 0];

        /* never between two strategies of one batch */
        if (spent_ms > budget_ms &&
            (cell->n_prompts != before->n_prompts || cell->n_tokens != before->n_tokens))
            break;
        if ((rc = measure_cell(&r->cells[n], run, arg, &spent_ms, err)) != OK) {
            forget(r);
            return rc;
        }
    }
    if (r->n_cells > 0)
        log_info("routing_measured", "batches=%d of=%d ms=%.0f", n, r->n_cells, spent_ms);
    return OK;
}

/* ---- the file ---- */

static int render(const struct router *r, struct buf *out, struct error *err)
{
    int rc;

    if ((rc = buf_append(out, r->head.data, r->head.len, err)) != OK)
        return rc;
    for (int i = 0; i < r->n_cells; i++) {
        const struct cell *c = &r->cells[i];

        if (c->us > 0 && (rc = buf_printf(out, err, "us %s %d %d %d\n", strategy_name(c->strategy),
                                          c->n_prompts, c->n_tokens, c->us)) != OK)
            return rc;
    }
    return buf_printf(out, err, "crc32c %08x\n", (unsigned)crc32c(0, out->data, out->len));
}

int router_save(const struct router *r, const char *path, struct error *err)
{
    struct buf text = {.max = FILE_MAX};
    int rc;

    if ((rc = render(r, &text, err)) == OK)
        rc = file_write_text(path, text.data, err);
    buf_free(&text);
    return rc;
}

/* What can be read of the lines after the head; whether that was all, rendering it shows. */
static void parse_cells(struct router *r, const char *line)
{
    char name[16];
    int n_prompts, n_tokens, us;

    for (; sscanf(line, "us %15s %9d %9d %9d", name, &n_prompts, &n_tokens, &us) == 4; line++) {
        for (int i = 0; i < r->n_cells; i++) {
            struct cell *c = &r->cells[i];

            if (c->n_prompts == n_prompts && c->n_tokens == n_tokens &&
                strcmp(strategy_name(c->strategy), name) == 0)
                c->us = us;
        }
        if ((line = strchr(line, '\n')) == NULL)
            return;
    }
}

/* NULL, or why it is not a table of this router. */
static const char *parse(struct router *r, const struct buf *text)
{
    struct buf again = {.max = FILE_MAX};
    const char *why = NULL;

    if (text->len < r->head.len || memcmp(text->data, r->head.data, r->head.len) != 0)
        return "made_for_another";
    parse_cells(r, text->data + r->head.len);
    if (render(r, &again, NULL) != OK || again.len != text->len ||
        memcmp(again.data, text->data, text->len) != 0)
        why = "damaged";
    buf_free(&again);
    return why;
}

bool router_load(struct router *r, const char *path)
{
    struct buf text = {.max = FILE_MAX};
    struct error err = {0};
    const char *why;

    forget(r);
    if (r->n_cells == 0)
        return true;
    if (!file_exists(path))
        return false;
    if (file_read(&text, path, &err) != OK) {
        log_warn("routing_table_dropped", "path=%s why=\"%s\"", path, err.text);
        return false;
    }
    if ((why = parse(r, &text)) != NULL) {
        log_warn("routing_table_dropped", "path=%s why=\"%s\"", path, why);
        forget(r);
    }
    buf_free(&text);
    return why == NULL;
}

/* ---- choosing ---- */

/* Tokens that a rank has to get through, about. */
static double tokens_of_a_rank(const struct router *r, enum strategy strategy, double all,
                               double longest)
{
    double share = all / r->options.n_ranks;

    if (strategy == STRATEGY_SHARDED)
        return all;
    return share > longest ? share : longest;
}

/* ms of n_prompts that were measured, at x tokens of a rank: on the line between the two nearest
 * cells. Below the first as that one, as the weights are read for any number of tokens; above the
 * last on the last line, which is not let fall. 0: no cell. */
static double time_of(const struct router *r, enum strategy strategy, int n_prompts, double x)
{
    double x0 = 0, t0 = 0, x1 = 0, t1 = 0; /* the line's ends */
    int n = 0;

    for (int i = 0; i < r->n_cells && (n < 2 || x > x1); i++) {
        const struct cell *c = &r->cells[i];

        if (c->strategy != strategy || c->n_prompts != n_prompts || c->us == 0)
            continue;
        x0 = x1;
        t0 = t1;
        x1 = tokens_of_a_rank(r, strategy, (double)n_prompts * c->n_tokens, c->n_tokens);
        t1 = c->us / 1e3;
        if (n++ == 0 && x <= x1)
            return t1;
    }
    if (n < 2 || (x > x1 && t1 < t0))
        return t1;
    return t0 + (t1 - t0) * (x - x0) / (x1 - x0);
}

/* 0: not known. Between two numbers of prompts on the line between them, above the most in
 * proportion. */
static double predict(const struct router *r, enum strategy strategy, double all, double longest,
                      int n_prompts)
{
    double x = tokens_of_a_rank(r, strategy, all, longest), low_ms, high_ms;
    int low = 0, high = INT_MAX;

    for (int i = 0; i < r->n_cells; i++) {
        const struct cell *c = &r->cells[i];

        if (c->strategy != strategy || c->us == 0)
            continue;
        if (c->n_prompts <= n_prompts && c->n_prompts > low)
            low = c->n_prompts;
        if (c->n_prompts >= n_prompts && c->n_prompts < high)
            high = c->n_prompts;
    }
    if (low != n_prompts && low < r->options.n_ranks)
        return 0.0;      /* up to a prompt a rank no number of them tells about another */
    if (high == INT_MAX) /* as so many batches of the largest kind */
        return time_of(r, strategy, low, x * low / n_prompts) * n_prompts / low;
    low_ms = time_of(r, strategy, low, x);
    if (low == high)
        return low_ms;
    high_ms = time_of(r, strategy, high, x);
    return low_ms + (high_ms - low_ms) * (n_prompts - low) / (high - low);
}

struct route router_choose(const struct router *r, const int *n_tokens, int n_prompts)
{
    double all = 0.0, longest = 0.0, ms[N_STRATEGIES];
    int n_ranks = r->options.n_ranks;
    enum routing routing = r->options.routing;
    enum strategy strategy = STRATEGY_REPLICATED;
    const char *reason;

    assert(n_prompts >= 1);
    for (int i = 0; i < n_prompts; i++) {
        all += n_tokens[i];
        longest = n_tokens[i] > longest ? n_tokens[i] : longest;
    }
    for (enum strategy s = 0; s < N_STRATEGIES; s++)
        ms[s] = predict(r, s, all, longest, n_prompts);

    if (n_prompts == 1)
        strategy = STRATEGY_SHARDED;
    if (routing == ROUTING_SHARDED || routing == ROUTING_REPLICATED) {
        strategy = routing == ROUTING_SHARDED ? STRATEGY_SHARDED : STRATEGY_REPLICATED;
        reason = "forced";
    } else if (n_ranks == 1) {
        strategy = STRATEGY_REPLICATED;
        reason = "one_rank";
    } else if (routing == ROUTING_AUTO && n_prompts == 1) {
        reason = "one_prompt";
    } else if (routing == ROUTING_AUTO && n_prompts == 2) {
        reason = "two_prompts";
    } else if (routing == ROUTING_AUTO && n_prompts >= n_ranks) {
        reason = "a_prompt_a_rank";
    } else if (ms[STRATEGY_SHARDED] == 0.0 || ms[STRATEGY_REPLICATED] == 0.0) {
        reason = "not_measured"; /* so by the rule */
    } else {
        strategy =
            ms[STRATEGY_SHARDED] < ms[STRATEGY_REPLICATED] ? STRATEGY_SHARDED : STRATEGY_REPLICATED;
        reason = "measured";
    }
    return (struct route){strategy, reason, ms[strategy]};
}

void router_note(struct router *r, const struct route *route, double real_ms)
{
    double *mean = &r->ratio[route->strategy].mean;
    int *n = &r->ratio[route->strategy].n;

    if (route->predicted_ms == 0.0)
        return;
    if (*n < NEWEST)
        ++*n;
    *mean += (real_ms / route->predicted_ms - *mean) / *n;
}

double router_ratio(const struct router *r, enum strategy strategy)
{
    return r->ratio[strategy].mean;
}
