#include "engine/worker/left_out.h"

#include <time.h>

#include "base/file.h"
#include "base/log.h"

/* A rank failed; `arg` is the account. */
static void note(void *arg, const struct engine_failure *failure)
{
    struct left_out *l = arg;
    const char *device = failure->device != NULL ? failure->device : "unknown";
    struct error err = {0};

    log_error("rank_failed", "rank=%d device=%s operation=\"%s\" text=\"%s\"", failure->rank,
              device, failure->operation, failure->text);
    if (l->path[0] == '\0' || !failure->blames_gpu)
        return;
    gpu_record_add(&l->record, (int64_t)time(NULL), device, failure->text);
    if (gpu_record_write(&l->record, l->path, &err) != OK)
        log_warn("gpu_not_recorded", "gpu=%s text=\"%s\"", device, err.text);
}

int left_out_read(struct left_out *out, const char *state, struct engine_options *options,
                  struct error *err)
{
    int rc;

    *out = (struct left_out){0};
    options->failed = note;
    options->failed_arg = out;
    if (state == NULL)
        return OK;
    if ((rc = file_make_folder(state, err)) != OK ||
        (rc = file_join(out->path, sizeof(out->path), state, "failed-gpus", err)) != OK ||
        (rc = gpu_record_read(&out->record, out->path, err)) != OK)
        return rc;
    out->n = gpu_record_left_out(&out->record, out->gpus);
    for (int i = 0; i < out->n; i++)
        log_warn("gpu_left_out",
                 "gpu=%s file=%s text=\"it failed twice within an hour; delete its lines there to "
                 "use it again\"",
                 out->gpus[i], out->path);
    options->left_out = out->gpus;
    options->n_left_out = out->n;
    return OK;
}

int left_out_explain(const struct left_out *l, const struct error *why, struct error *err)
{
    if (l->n == 0 || why->code != ERR_INPUT)
        return error_set(err, why->code, "%s", why->text);
    return error_set(err, why->code, "%s; they failed twice: delete %s", why->text, l->path);
}
