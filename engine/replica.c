#include "engine/replica.h"

#include "base/clock.h"

/* Both loads as one, to whoever wants to be told. */
struct progress {
    const struct replica_options *options;
    uint64_t before, ltx_bytes, done, total; /* bytes */
};

static void tell(struct progress *p, uint64_t bytes_done)
{
    p->done = bytes_done;
    if (p->options->progress != NULL)
        p->options->progress(p->options->progress_arg, bytes_done, p->total);
}

static void gemma_progress(void *arg, uint64_t bytes_done, uint64_t bytes_total)
{
    struct progress *p = arg;

    p->before = bytes_done;
    p->total = bytes_total + p->ltx_bytes;
    tell(p, bytes_done);
}

static void ltx_progress(void *arg, uint64_t bytes_done)
{
    struct progress *p = arg;

    tell(p, p->before + bytes_done);
}

static int load_files(struct replica *r, const struct replica_options *o, struct error *err)
{
    const struct source *s = o->source;
    struct progress p = {.options = o};
    int S = s->config.L + 1, D = s->config.D, rc;

    if ((s->checkpoint != NULL &&
         (rc = ltx_weights_bytes(s->checkpoint, S, D, &o->portion, &p.ltx_bytes, err)) != OK) ||
        (rc = weights_load(&r->weights, s->file, &o->portion, o->ops, o->device, gemma_progress, &p,
                           err)) != OK ||
        (s->checkpoint != NULL &&
         (rc = ltx_weights_load(&r->ltx_weights, s->checkpoint, S, D, &o->portion, o->ops,
                                o->device, o->act, ltx_progress, &p, err)) != OK))
        return rc;
    r->loaded_bytes = p.done;
    return OK;
}

static int make_random(struct replica *r, const struct replica_options *o, struct error *err)
{
    const struct source *s = o->source;
    int rc = weights_random(&r->weights, &s->config, &o->portion, o->ops, o->device, err);

    if (rc != OK || !s->has_ltx)
        return rc;
    return ltx_weights_random(&r->ltx_weights, &s->ltx_config, s->config.L + 1, s->config.D,
                              &o->portion, o->ops, o->device, o->act, err);
}

int replica_load(struct replica *out, const struct replica_options *options, struct error *err)
{
    int64_t start_ns = clock_now_ns();
    int rc;

    *out = (struct replica){
        .ops = options->ops, .device = options->device, .portion = options->portion};
    rc = options->source->file == NULL ? make_random(out, options, err)
                                       : load_files(out, options, err);
    /* what loading alone needs is given back, and what was uploaded has been read */
    if (rc != OK ||
        (out->ops->loading_end != NULL && (rc = out->ops->loading_end(out->device, err)) != OK) ||
        (rc = out->ops->sync(out->device, err)) != OK)
        return rc;
    out->load_s = clock_ms_since(start_ns) / 1e3;
    out->bytes = out->weights->bytes;
    if (out->ltx_weights != NULL)
        out->bytes += out->ltx_weights->bytes;
    return OK;
}

void replica_free(struct replica *r)
{
    ltx_weights_free(r->ltx_weights);
    weights_free(r->weights);
    *r = (struct replica){0};
}
