/* stub_engine.c - an engine.h without a model, for tests of everything around it.
 *
 * Stands in for libengine under the real worker and its main(). Numbers follow from the ids and the
 * weights' name alone, so that any client can work them out again: with
 *     seed = FNV-1a (32 bit) of the weights' name, then of each id as 4 little-endian bytes
 * number i of a result's states (in file order, state by state) is (seed + state * 1000003 + i) mod
 * 65536 as float32; features and embeddings are made alike, in the place of states 1000 (video) and
 * 1001. Reads the environment for what is to go wrong:
 *     STUB_WEIGHTS    the weights' name (default "stub")
 *     STUB_STATES, STUB_WIDTH    the shape of its results (default 3 and 8)
 *     STUB_VIDEO, STUB_AUDIO    the widths of features and embeddings (default 0: none)
 *     STUB_MS         how long a batch takes
 *     STUB_POISON     an id: a batch that holds it kills the process
 *     STUB_HANG       an id: a batch that holds it never ends
 *     STUB_CHECK_HANG an id: a prompt that holds it is checked for ever
 *     STUB_FREE_HANG  a number of states: a result of so many is freed for ever, once stored
 *     STUB_BROKEN     an id: on a batch that holds it the device fails
 *     STUB_SLOW       an id: a batch that holds it takes a second and a half
 *     STUB_SICK       a path: while a file is there, a pass of one token is out of memory
 *     STUB_FULL       a path: while a file is there, it does not wake
 *     STUB_MEMORY     prompts; a batch of more is out of memory
 *     STUB_PREDICTED  ms that are predicted for a batch of several prompts, twice what it takes
 * It has as many ranks as it is told: one prompt is sharded over all, more are replicated. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"

enum { VOCABULARY = 1 << 20 };

struct engine {
    struct engine_info info;
    bool is_asleep;
    const char *weights, *sick;
    long ms, poison, hang, slow, broken, memory; /* -1: not set */
    _Atomic uint64_t steps;
    struct engine_route route;
};

static long setting(const char *name, long fallback)
{
    const char *text = getenv(name);

    return text == NULL ? fallback : strtol(text, NULL, 10);
}

int engine_open(struct engine **out, const struct engine_options *options, struct error *err)
{
    struct engine *e = calloc(1, sizeof(*e));

    *out = e;
    if (e == NULL)
        return error_set(err, ERR_MEM, "stub: no memory");
    e->weights = getenv("STUB_WEIGHTS") == NULL ? "stub" : getenv("STUB_WEIGHTS");
    e->sick = getenv("STUB_SICK");
    e->ms = setting("STUB_MS", 0);
    e->poison = setting("STUB_POISON", -1);
    e->hang = setting("STUB_HANG", -1);
    e->slow = setting("STUB_SLOW", -1);
    e->broken = setting("STUB_BROKEN", -1);
    e->memory = setting("STUB_MEMORY", -1);
    e->info = (struct engine_info){.architecture = "stub",
                                   .backend = "stub",
                                   .n_ranks = options->n_ranks > 0 ? options->n_ranks : 1,
                                   .n_layers = (int)setting("STUB_STATES", 3) - 1,
                                   .width = (int)setting("STUB_WIDTH", 8),
                                   .vocabulary = VOCABULARY,
                                   .max_tokens = ENGINE_MAX_TOKENS,
                                   .video_width = (int)setting("STUB_VIDEO", 0),
                                   .audio_width = (int)setting("STUB_AUDIO", 0)};
    if (e->info.video_width > 0) {
        e->info.extractor = 2;
        snprintf(e->info.ltx_version, sizeof(e->info.ltx_version), "2.3.0");
    }
    return OK;
}

int engine_warm(struct engine *e, double *seconds, struct error *err)
{
    (void)e;
    (void)err;
    *seconds = 0.0;
    return OK;
}

int engine_sleep(struct engine *e, struct error *err)
{
    (void)err;
    e->is_asleep = true;
    return OK;
}

int engine_wake(struct engine *e, double *seconds, struct error *err)
{
    const char *full = getenv("STUB_FULL");

    if (full != NULL && access(full, F_OK) == 0)
        return error_set(err, ERR_MEM, "stub: others have the memory");
    *seconds = e->is_asleep ? 0.25 : 0.0;
    e->is_asleep = false;
    return OK;
}

bool engine_is_asleep(const struct engine *e)
{
    return e->is_asleep;
}

void engine_close(struct engine *e)
{
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

static bool holds(const struct engine_prompt *p, long id)
{
    for (int i = 0; id >= 0 && i < p->n; i++)
        if (p->ids[i] == id)
            return true;
    return false;
}

int engine_check_prompt(const struct engine_info *info, const struct engine_prompt *prompt,
                        struct error *err)
{
    while (holds(prompt, setting("STUB_CHECK_HANG", -1)))
        clock_pause_ms(100);
    for (int i = 0; i < prompt->request->n_layers; i++)
        if (prompt->request->layers[i] < 0 || prompt->request->layers[i] > info->n_layers)
            return error_set(err, ERR_INPUT, "stub: layer %d", prompt->request->layers[i]);
    if (prompt->request->level != ENGINE_HIDDEN_STATES && info->extractor == 0)
        return error_set(err, ERR_INPUT, "stub: no LTX");
    return OK;
}

static uint32_t fnv(uint32_t hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static struct engine_tensor *add_tensor(struct engine_result *r, const char *name, enum dtype dtype,
                                        int n_dims, const size_t *shape)
{
    struct engine_tensor *t = &r->tensors[r->n_tensors++];

    *t = (struct engine_tensor){
        .name = name, .dtype = dtype, .n_dims = n_dims, .bytes = dtype_info(dtype)->bytes};
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        t->bytes *= shape[i];
    }
    if ((t->data = malloc(t->bytes)) == NULL)
        abort();
    return t;
}

/* `numbers` of them, the first at number `first` of the tensor. */
static void fill(struct engine_tensor *t, size_t first, size_t numbers, uint32_t seed,
                 uint32_t state)
{
    float *row = malloc(numbers * sizeof(float));

    if (row == NULL)
        abort();
    for (size_t i = 0; i < numbers; i++)
        row[i] = (float)((seed + state * 1000003u + (uint32_t)i) % 65536u);
    dtype_encode((char *)t->data + first * dtype_info(t->dtype)->bytes, row, t->dtype, numbers);
    free(row);
}

static void make_states(const struct engine *e, const struct engine_prompt *p,
                        struct engine_result *r, uint32_t seed)
{
    const struct engine_request *q = p->request;
    size_t n = (size_t)(q->n_layers > 0 ? q->n_layers : e->info.n_layers + 1);
    size_t shape[] = {n, (size_t)p->n, (size_t)e->info.width}, numbers = shape[1] * shape[2];
    struct engine_tensor *t = add_tensor(r, "hidden_states", q->dtype, 3, shape);

    for (size_t s = 0; s < n; s++)
        fill(t, s * numbers, numbers, seed, q->n_layers > 0 ? (uint32_t)q->layers[s] : (uint32_t)s);
}

static void make_modalities(const struct engine *e, const struct engine_prompt *p,
                            struct engine_result *r, uint32_t seed)
{
    static const char *const names[][2] = {{"video_features", "audio_features"},
                                           {"video", "audio"}};
    const int widths[] = {e->info.video_width, e->info.audio_width};
    bool embeddings = p->request->level == ENGINE_EMBEDDINGS;
    size_t rows = embeddings ? ENGINE_ROWS : (size_t)p->n;

    for (unsigned m = 0; m < 2; m++) {
        size_t shape[] = {rows, (size_t)widths[m]};
        if (widths[m] > 0 &&
            (p->request->modalities == 0 || (p->request->modalities >> m & 1) != 0))
            fill(add_tensor(r, names[embeddings][m], p->request->dtype, 2, shape), 0,
                 shape[0] * shape[1], seed, 1000 + m);
    }
    if (embeddings) {
        int64_t *mask = add_tensor(r, "mask", DTYPE_I64, 1, &rows)->data;
        for (size_t i = 0; i < rows; i++)
            mask[i] = 1;
    }
}

static void encode_one(const struct engine *e, const struct engine_prompt *p,
                       struct engine_result *r)
{
    uint32_t seed = fnv(2166136261u, e->weights, strlen(e->weights));

    seed = fnv(seed, p->ids, (size_t)p->n * sizeof(int32_t));
    *r = (struct engine_result){.n_tokens = p->n};
    if (p->request->level == ENGINE_HIDDEN_STATES)
        make_states(e, p, r, seed);
    else
        make_modalities(e, p, r, seed);
}

static void note_route(struct engine *e, int n_prompts)
{
    int n_ranks = e->info.n_ranks;

    e->route = (struct engine_route){.strategy = ENGINE_SHARDED, .reason = "one_prompt", .ms = 7.0};
    if (n_prompts > 1) {
        double predicted_ms = (double)setting("STUB_PREDICTED", 0);
        e->route = (struct engine_route){.strategy = ENGINE_REPLICATED,
                                         .reason = "a_prompt_a_rank",
                                         .predicted_ms = predicted_ms,
                                         .ms = predicted_ms / 2,
                                         .ratio = predicted_ms > 0.0 ? 0.5 : 0.0};
    }
    for (int r = 0; r < n_ranks; r++)
        e->route.ranks[r].n_prompts = n_prompts == 1 || r < n_prompts;
}

const struct engine_route *engine_last_route(const struct engine *e)
{
    return &e->route;
}

int engine_encode(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                  struct engine_result *results, struct error *err)
{
    memset(results, 0, (size_t)n_prompts * sizeof(*results));
    if (e->memory >= 0 && n_prompts > e->memory)
        return error_set(err, ERR_MEM, "stub: %d prompts are too many", n_prompts);
    if (e->sick != NULL && n_prompts == 1 && prompts[0].n == 1 && access(e->sick, F_OK) == 0)
        return error_set(err, ERR_MEM, "stub: sick");
    for (int i = 0; i < n_prompts; i++) {
        if (holds(&prompts[i], e->poison))
            raise(SIGKILL);
        while (holds(&prompts[i], e->hang))
            clock_pause_ms(100);
        if (holds(&prompts[i], e->slow))
            clock_pause_ms(1500);
        if (holds(&prompts[i], e->broken))
            return error_set(err, ERR_GPU, "stub: broken");
    }
    clock_pause_ms(e->ms);
    for (int i = 0; i < n_prompts; i++)
        encode_one(e, &prompts[i], &results[i]);
    note_route(e, n_prompts);
    e->steps++;
    return OK;
}

void engine_result_free(struct engine_result *result)
{
    while (result->n_tensors > 0 && result->tensors[0].n_dims == 3 &&
           (long)result->tensors[0].shape[0] == setting("STUB_FREE_HANG", -1))
        clock_pause_ms(100);
    for (int i = 0; i < result->n_tensors; i++)
        free(result->tensors[i].data);
    *result = (struct engine_result){0};
}

uint64_t engine_steps(const struct engine *e)
{
    return e->steps;
}

int engine_weights_digest(const struct engine *e, char digest[ENGINE_DIGEST_SIZE],
                          struct error *err)
{
    uint32_t hash = fnv(2166136261u, e->weights, strlen(e->weights));

    (void)err;
    for (int i = 0; i < 8; i++, hash = fnv(hash, "x", 1))
        snprintf(digest + 8 * i, 9, "%08x", hash);
    return OK;
}
