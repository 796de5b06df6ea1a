/* expected.c - see expected.h. */
#include "cli/expected.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/files/safetensors.h"
#include "service/formats/safetensors_writer.h"

enum {
    N_ROWS = 4,          /* of "hidden_states_rows" */
    WHOLE_TOKENS = 64,   /* up to so many, expected_write() stores all rows of hidden states */
    PIECE = 4096,        /* numbers decoded at once */
    MAX_JSON = 64 << 20, /* bytes */
    MAX_PROMPTS = 4096,
    PROMPT_TENSORS = 7, /* of a prompt in a file that we write, at most */
    N_MODALITIES = 2
};

/* float32 on any machine; the reference's own float32 is no closer to exact numbers than 1e-5 */
static const double BOUND_F32 = 1e-4;
/* times what the reference loses in bfloat16 */
static const double BOUND_BF16 = 1.25;
/* in float8, of random weights: docs/ACCURACY.md has what was seen */
static const double BOUND_F8 = 0.3;

static const char *const modality_names[N_MODALITIES] = {"video", "audio"};

struct ids {
    int32_t *data;
    int n;
};

struct expected {
    struct safetensors *file;
    const char *name; /* for messages; borrowed from `path` */
    char *path;
    json_t *losses; /* what the reference loses in bfloat16, by tensor; or NULL */
    json_t *json;   /* whose member that is */
    struct ids *prompts;
    int n_prompts;
};

/* ---- reading ---- */

static int add_prompt(struct expected *x, size_t n, int32_t **out, struct error *err)
{
    struct ids *prompts;

    if (n < 1 || n > ENGINE_MAX_TOKENS)
        return error_set(err, ERR_FORMAT, "%s: prompt %d has %zu token ids, expected 1 to %d",
                         x->name, x->n_prompts, n, ENGINE_MAX_TOKENS);
    if (x->n_prompts == MAX_PROMPTS)
        return error_set(err, ERR_FORMAT, "%s: more than %d prompts", x->name, MAX_PROMPTS);
    if ((prompts = realloc(x->prompts, (size_t)(x->n_prompts + 1) * sizeof(*prompts))) == NULL)
        return error_set(err, ERR_MEM, "verify: no memory for %d prompts", x->n_prompts + 1);
    x->prompts = prompts;
    if ((*out = malloc(n * sizeof(**out))) == NULL)
        return error_set(err, ERR_MEM, "verify: no memory for %zu tokens", n);
    prompts[x->n_prompts++] = (struct ids){*out, (int)n};
    return OK;
}

static int no_id(const struct expected *x, size_t token, struct error *err)
{
    return error_set(err, ERR_FORMAT, "%s: prompt %d: token %zu is no id", x->name,
                     x->n_prompts - 1, token);
}

/* From tensors <i>.token_ids, as many as follow one another. */
static int read_ids_tensors(struct expected *x, struct error *err)
{
    const struct tensor *t;
    char name[32];
    int32_t *ids;
    int rc;

    for (;;) {
        snprintf(name, sizeof(name), "%d.token_ids", x->n_prompts);
        if ((t = safetensors_find(x->file, name)) == NULL)
            return OK;
        if ((t->type != DTYPE_I32 && t->type != DTYPE_I64) || t->n_dims != 1)
            return error_set(err, ERR_FORMAT, "%s: %s is %s %s, expected a list of I32 or I64",
                             x->name, name, dtype_info(t->type)->name,
                             tensor_shape_text(t->n_dims, t->shape).text);
        if ((rc = add_prompt(x, t->shape[0], &ids, err)) != OK)
            return rc;
        for (size_t i = 0; i < t->shape[0]; i++) {
            int64_t wide;
            if (t->type == DTYPE_I32) {
                memcpy(&ids[i], (const char *)t->data + i * sizeof(int32_t), sizeof(int32_t));
                continue;
            }
            memcpy(&wide, (const char *)t->data + i * sizeof(wide), sizeof(wide));
            if (wide < 0 || wide > INT32_MAX)
                return no_id(x, i, err);
            ids[i] = (int32_t)wide;
        }
    }
}

static int read_ids_json(struct expected *x, const json_t *lists, struct error *err)
{
    const json_t *list, *id;
    size_t p, i;
    int32_t *ids;
    int rc;

    json_array_foreach(lists, p, list)
    {
        if ((rc = add_prompt(x, json_array_size(list), &ids, err)) != OK)
            return rc;
        json_array_foreach(list, i, id)
        {
            if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                json_integer_value(id) > INT32_MAX)
                return no_id(x, i, err);
            ids[i] = (int32_t)json_integer_value(id);
        }
    }
    return OK;
}

/* A number over 0, or a list of them. */
static bool is_loss(const json_t *value)
{
    const json_t *item;
    size_t i;

    if (!json_is_array(value))
        return json_is_number(value) && json_number_value(value) > 0;
    json_array_foreach(value, i, item)
    {
        if (!json_is_number(item) || !(json_number_value(item) > 0))
            return false;
    }
    return true;
}

/* The JSON file beside it: "x.json" of "x.safetensors". */
static int read_json(struct expected *x, const char *path, struct error *err)
{
    struct buf text = {.max = MAX_JSON};
    const json_t *value;
    const char *key;
    json_error_t why;
    int rc;

    if ((rc = file_read(&text, path, err)) != OK)
        goto out;
    x->json = json_loadb(text.len > 0 ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &why);
    if (x->json == NULL) {
        rc = error_set(err, ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
        goto out;
    }
    x->losses = json_object_get(x->json, "reference_bf16_relative_error");
    json_object_foreach(x->losses, key, value)
    {
        if (!is_loss(value)) {
            rc = error_set(err, ERR_FORMAT,
                           "%s: reference_bf16_relative_error: '%.40s' is no error above 0, nor a "
                           "list of them",
                           path, key);
            goto out;
        }
    }
    if (x->n_prompts == 0)
        rc = read_ids_json(x, json_object_get(x->json, "token_ids"), err);
out:
    buf_free(&text);
    return rc;
}

int expected_open(struct expected **out, const char *path, struct error *err)
{
    static const char ending[] = ".safetensors";
    size_t len = strlen(path), cut = sizeof(ending) - 1;
    char beside[4096];
    struct expected *x;
    int rc;

    *out = NULL;
    if (len >= cut && strcmp(path + len - cut, ending) == 0)
        len -= cut;
    if (len + sizeof(".json") > sizeof(beside))
        return error_set(err, ERR_SIZE, "%.80s...: too long a path", path);
    snprintf(beside, sizeof(beside), "%.*s.json", (int)len, path);
    if ((x = calloc(1, sizeof(*x))) == NULL || (x->path = strdup(path)) == NULL) {
        rc = error_set(err, ERR_MEM, "verify: no memory");
        goto out;
    }
    x->name = tensor_file_name(x->path);
    if ((rc = safetensors_open(&x->file, path, err)) != OK ||
        (rc = read_ids_tensors(x, err)) != OK ||
        (file_exists(beside) && (rc = read_json(x, beside, err)) != OK))
        goto out;
    if (x->n_prompts == 0) {
        rc = error_set(err, ERR_FORMAT,
                       "%s: no prompts: there is neither a tensor 0.token_ids nor a list token_ids "
                       "in %s",
                       path, tensor_file_name(beside));
        goto out;
    }
    *out = x;
    x = NULL;
out:
    expected_close(x);
    return rc;
}

void expected_close(struct expected *x)
{
    if (x == NULL)
        return;
    for (int i = 0; i < x->n_prompts; i++)
        free(x->prompts[i].data);
    free(x->prompts);
    json_decref(x->json);
    safetensors_close(x->file);
    free(x->path);
    free(x);
}

int expected_n_prompts(const struct expected *x)
{
    return x->n_prompts;
}

struct engine_prompt expected_prompt(const struct expected *x, int prompt)
{
    return (struct engine_prompt){.ids = x->prompts[prompt].data, .n = x->prompts[prompt].n};
}

/* ---- distances ---- */

struct distance {
    double difference, size; /* sums of squares */
};

static void distance_add(struct distance *d, const float *got, const struct tensor *want,
                         size_t from, size_t n)
{
    size_t bytes = dtype_info(want->type)->bytes;
    float numbers[PIECE];

    for (size_t done = 0, k; done < n; done += k) {
        k = n - done < PIECE ? n - done : PIECE;
        dtype_decode(numbers, (const char *)want->data + (from + done) * bytes, want->type, k);
        for (size_t i = 0; i < k; i++) {
            double off = (double)got[done + i] - (double)numbers[i];
            d->difference += off * off;
            d->size += (double)numbers[i] * (double)numbers[i];
        }
    }
}

static double distance_relative(const struct distance *d)
{
    if (d->size == 0.0)
        return d->difference == 0.0 ? 0.0 : (double)INFINITY;
    return sqrt(d->difference / d->size);
}

/* ---- checking ---- */

struct check {
    const struct expected *x;
    enum dtype compute;
    double bound; /* 0: the numerics' own */
    int prompt, n, extractor;
    struct verdict *verdict; /* of the level at hand */
    bool any;                /* something of it was compared */
};

/* "<prompt>.<what>" or, after the projection, "<prompt>.v2.<what>". */
static void name_tensor(const struct check *c, char *name, size_t cap, bool is_ltx,
                        const char *what)
{
    if (is_ltx)
        snprintf(name, cap, "%d.v%d.%s", c->prompt, c->extractor, what);
    else
        snprintf(name, cap, "%d.%s", c->prompt, what);
}

/* *out is NULL where the file has none. */
static int find(const struct check *c, const struct tensor **out, bool is_ltx, const char *what,
                int n_dims, const size_t *shape, struct error *err)
{
    const struct tensor *t;
    char name[64];

    name_tensor(c, name, sizeof(name), is_ltx, what);
    *out = t = safetensors_find(c->x->file, name);
    if (t == NULL)
        return OK;
    if (t->n_dims != n_dims || memcmp(t->shape, shape, (size_t)n_dims * sizeof(*shape)) != 0)
        return error_set(err, ERR_FORMAT, "%s: %s: shape %s, but this model makes %s", t->file,
                         t->name, tensor_shape_text(t->n_dims, t->shape).text,
                         tensor_shape_text(n_dims, shape).text);
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16)
        return error_set(err, ERR_FORMAT, "%s: %s: type %s, expected F32, F16 or BF16", t->file,
                         t->name, dtype_info(t->type)->name);
    return OK;
}

/* What the reference loses there in bfloat16; 0: the file does not say. `index`: of a list. */
static double loss(const struct check *c, bool is_ltx, const char *what, int index)
{
    const json_t *value;
    char name[64];

    name_tensor(c, name, sizeof(name), is_ltx, what);
    value = json_object_get(c->x->losses, name);
    if (json_is_array(value))
        value = json_array_get(value, (size_t)index);
    return json_number_value(value);
}

/* How near a number is to its bound, for comparing; one that is no number is past any. */
static double nearness(double error, double bound)
{
    return isnan(error) ? (double)INFINITY : bound > 0 ? error / bound : 0.0;
}

/* Notes one comparison; the verdict keeps the worst, and one with a bound before one without. */
static void note(struct check *c, const char *what, double error, double reference_loss)
{
    double bound = c->bound > 0                  ? c->bound
                   : c->compute == DTYPE_F32     ? BOUND_F32
                   : c->compute == DTYPE_F8_E4M3 ? BOUND_F8
                                                 : BOUND_BF16 * reference_loss;
    struct verdict *v = c->verdict;
    double now = nearness(error, bound), before = nearness(v->error, v->bound);

    if (c->any && (now < before || (now == before && error <= v->error)))
        return;
    c->any = true;
    snprintf(v->worst, sizeof(v->worst), "%s", what);
    v->error = error;
    v->bound = bound;
    v->passed = error <= bound;
}

static const struct engine_tensor *tensor_of(const struct engine_result *r, const char *name)
{
    for (int i = 0; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].name, name) == 0)
            return &r->tensors[i];
    return NULL; /* a modality that this model does not have */
}

/* The stored tokens of a long prompt. */
static void rows_of(int rows[N_ROWS], int n)
{
    rows[0] = 0;
    rows[1] = n > 1 ? 1 : 0;
    rows[2] = n / 2;
    rows[3] = n - 1;
}

static int check_hidden_states(struct check *c, const struct engine_result *r, struct error *err)
{
    const struct engine_tensor *got = tensor_of(r, "hidden_states");
    size_t S = got->shape[0], n = got->shape[1], D = got->shape[2];
    size_t some[] = {S, N_ROWS, D};
    const struct tensor *whole, *part, *want;
    int rows[N_ROWS], rc;

    if ((rc = find(c, &whole, false, "hidden_states", 3, got->shape, err)) != OK ||
        (rc = find(c, &part, false, "hidden_states_rows", 3, some, err)) != OK)
        return rc;
    rows_of(rows, (int)n);
    want = whole != NULL ? whole : part;
    for (size_t s = 0; want != NULL && s < S; s++) {
        const float *state = (const float *)got->data + s * n * D;
        struct distance d = {0};
        char what[32];
        if (whole != NULL)
            distance_add(&d, state, whole, s * n * D, n * D);
        for (size_t i = 0; whole == NULL && i < N_ROWS; i++)
            distance_add(&d, state + (size_t)rows[i] * D, part, (s * N_ROWS + i) * D, D);
        snprintf(what, sizeof(what), "state %zu", s);
        note(c, what, distance_relative(&d),
             loss(c, false, whole != NULL ? "hidden_states" : "hidden_states_rows", (int)s));
    }
    return OK;
}

static int check_features(struct check *c, const struct engine_result *r, struct error *err)
{
    for (int m = 0; m < N_MODALITIES; m++) {
        const struct engine_tensor *got;
        const struct tensor *want;
        struct distance d = {0};
        char name[32];
        int rc;
        snprintf(name, sizeof(name), "%s_features", modality_names[m]);
        if ((got = tensor_of(r, name)) == NULL)
            continue;
        if ((rc = find(c, &want, true, name, 2, got->shape, err)) != OK)
            return rc;
        if (want == NULL)
            continue;
        distance_add(&d, got->data, want, 0, got->shape[0] * got->shape[1]);
        note(c, modality_names[m], distance_relative(&d), loss(c, true, name, 0));
    }
    return OK;
}

/* The list of stored rows; *n is 0 where there is none. */
static int find_rows(const struct check *c, const struct tensor **out, size_t *n, struct error *err)
{
    const struct tensor *t;
    char name[64];

    name_tensor(c, name, sizeof(name), true, "rows");
    *out = t = safetensors_find(c->x->file, name);
    *n = 0;
    if (t == NULL)
        return OK;
    if (t->type != DTYPE_I64 || t->n_dims != 1 || t->shape[0] < 1 || t->shape[0] > ENGINE_ROWS)
        return error_set(err, ERR_FORMAT, "%s: %s is %s %s, expected 1 to %d numbers of I64",
                         t->file, name, dtype_info(t->type)->name,
                         tensor_shape_text(t->n_dims, t->shape).text, ENGINE_ROWS);
    for (size_t i = 0; i < t->shape[0]; i++) {
        int64_t row;
        memcpy(&row, (const char *)t->data + i * sizeof(row), sizeof(row));
        if (row < 0 || row >= ENGINE_ROWS)
            return error_set(err, ERR_FORMAT, "%s: %s: %lld is no row of %d", t->file, name,
                             (long long)row, ENGINE_ROWS);
    }
    *n = t->shape[0];
    return OK;
}

static int check_rows(struct check *c, const struct engine_tensor *got, int m,
                      const struct tensor *rows, size_t n_rows, struct error *err)
{
    size_t W = got->shape[1], shape[] = {n_rows, W};
    const struct tensor *want;
    struct distance d = {0};
    char what[32];
    int rc;

    if (n_rows == 0)
        return OK;
    if ((rc = find(c, &want, true, modality_names[m], 2, shape, err)) != OK || want == NULL)
        return rc;
    for (size_t i = 0; i < n_rows; i++) {
        int64_t row;
        memcpy(&row, (const char *)rows->data + i * sizeof(row), sizeof(row));
        distance_add(&d, (const float *)got->data + (size_t)row * W, want, i * W, W);
    }
    snprintf(what, sizeof(what), "%s%s", modality_names[m], n_rows < ENGINE_ROWS ? "_rows" : "");
    note(c, what, distance_relative(&d), loss(c, true, what, 0));
    return OK;
}

/* All rows, each times its weight: one wrong row anywhere shows. */
static int check_mix(struct check *c, const struct engine_tensor *got, int m, struct error *err)
{
    const struct tensor *weights = safetensors_find(c->x->file, "row_mix_weights"), *want;
    size_t W = got->shape[1];
    float factors[ENGINE_ROWS], *mix;
    struct distance d = {0};
    char name[32], what[32];
    int rc;

    snprintf(name, sizeof(name), "%s_row_mix", modality_names[m]);
    if ((rc = find(c, &want, true, name, 1, &W, err)) != OK || want == NULL)
        return rc;
    if (weights == NULL || weights->type != DTYPE_F32 || weights->n_dims != 1 ||
        weights->shape[0] != ENGINE_ROWS)
        return error_set(err, ERR_FORMAT, "%s: row_mix_weights, which %s needs, are no %d F32",
                         want->file, want->name, ENGINE_ROWS);
    dtype_decode(factors, weights->data, DTYPE_F32, ENGINE_ROWS);
    if ((mix = malloc(W * sizeof(*mix))) == NULL)
        return error_set(err, ERR_MEM, "verify: no memory for %zu numbers", W);
    for (size_t k = 0; k < W; k++) {
        double sum = 0.0;
        for (size_t row = 0; row < ENGINE_ROWS; row++)
            sum += (double)factors[row] * (double)((const float *)got->data)[row * W + k];
        mix[k] = (float)sum;
    }
    distance_add(&d, mix, want, 0, W);
    snprintf(what, sizeof(what), "%s, all rows", modality_names[m]);
    note(c, what, distance_relative(&d), loss(c, true, modality_names[m], 0));
    free(mix);
    return OK;
}

static int check_embeddings(struct check *c, const struct engine_result *r, struct error *err)
{
    const struct tensor *rows;
    size_t n_rows;
    int rc;

    if ((rc = find_rows(c, &rows, &n_rows, err)) != OK)
        return rc;
    for (int m = 0; m < N_MODALITIES; m++) {
        const struct engine_tensor *got = tensor_of(r, modality_names[m]);
        if (got != NULL && ((rc = check_rows(c, got, m, rows, n_rows, err)) != OK ||
                            (rc = check_mix(c, got, m, err)) != OK))
            return rc;
    }
    return OK;
}

static const struct level {
    const char *name;
    struct engine_request request;
    const char *tensors[2]; /* of which a file of this level has one */
    int (*check)(struct check *c, const struct engine_result *r, struct error *err);
} levels[EXPECTED_MAX_VERDICTS] = {
    {"hidden_states",
     {.level = ENGINE_HIDDEN_STATES},
     {"hidden_states", "hidden_states_rows"},
     check_hidden_states},
    {"features", {.level = ENGINE_FEATURES}, {"video_features", "audio_features"}, check_features},
    {"embeddings", {.level = ENGINE_EMBEDDINGS}, {"video", "audio"}, check_embeddings},
};

/* Whether the engine has that level and the file something of it. */
static bool has_level(const struct check *c, const struct level *level)
{
    bool is_ltx = level->request.level != ENGINE_HIDDEN_STATES;
    char name[64];

    for (int i = 0; i < 2 && (c->extractor > 0 || !is_ltx); i++) {
        name_tensor(c, name, sizeof(name), is_ltx, level->tensors[i]);
        if (safetensors_find(c->x->file, name) != NULL)
            return true;
    }
    return false;
}

int expected_check(const struct expected *x, struct engine *e, enum dtype compute, int prompt,
                   double bound, struct verdict verdicts[EXPECTED_MAX_VERDICTS], int *n_verdicts,
                   struct error *err)
{
    struct engine_prompt prompts[EXPECTED_MAX_VERDICTS];
    struct engine_result results[EXPECTED_MAX_VERDICTS];
    const struct level *wanted[EXPECTED_MAX_VERDICTS];
    struct check c = {.x = x,
                      .compute = compute,
                      .bound = bound,
                      .prompt = prompt,
                      .n = x->prompts[prompt].n,
                      .extractor = engine_info(e)->extractor};
    struct error why = {0};
    int n = 0, rc;

    *n_verdicts = 0;
    for (int i = 0; i < EXPECTED_MAX_VERDICTS; i++) {
        if (!has_level(&c, &levels[i]))
            continue;
        wanted[n] = &levels[i];
        prompts[n] = expected_prompt(x, prompt);
        prompts[n].request = &levels[i].request;
        if ((rc = engine_check_prompt(engine_info(e), &prompts[n], &why)) != OK)
            return error_set(err, rc, "%s: prompt %d: %s", x->name, prompt, why.text);
        n++;
    }
    if (n == 0 || (rc = engine_encode(e, prompts, n, results, err)) != OK)
        return n == 0 ? OK : rc;
    for (int i = 0; i < n; i++) {
        verdicts[*n_verdicts] =
            (struct verdict){.level = wanted[i]->name, .prompt = prompt, .n_tokens = c.n};
        c.verdict = &verdicts[*n_verdicts];
        c.any = false;
        if ((rc = wanted[i]->check(&c, &results[i], err)) != OK)
            goto out;
        *n_verdicts += c.any;
    }
out:
    for (int i = 0; i < n; i++)
        engine_result_free(&results[i]);
    return rc;
}

/* ---- writing ---- */

struct plan {
    struct safetensors_entry *entries;
    char (*names)[48];
    size_t n;
};

static void plan_add(struct plan *p, int prompt, int extractor, const char *what, const char *dtype,
                     int n_dims, const size_t *shape)
{
    struct safetensors_entry *e = &p->entries[p->n];
    char *name = p->names[p->n++];

    if (extractor > 0)
        snprintf(name, sizeof(*p->names), "%d.v%d.%s", prompt, extractor, what);
    else
        snprintf(name, sizeof(*p->names), "%d.%s", prompt, what);
    *e = (struct safetensors_entry){.name = name, .dtype = dtype, .n_dims = n_dims};
    e->bytes = strcmp(dtype, "I64") == 0 ? 8 : 4;
    for (int d = 0; d < n_dims; d++) {
        e->shape[d] = shape[d];
        e->bytes *= shape[d];
    }
}

/* The tensors of a prompt, in the order in which write_prompt() writes them. */
static void plan_prompt(struct plan *p, int prompt, size_t n, const struct engine_info *info)
{
    const size_t widths[N_MODALITIES] = {(size_t)info->video_width, (size_t)info->audio_width};
    size_t all_rows = ENGINE_ROWS;
    bool whole = n <= WHOLE_TOKENS;
    char name[32];

    plan_add(p, prompt, 0, "token_ids", "I32", 1, &n);
    plan_add(p, prompt, 0, whole ? "hidden_states" : "hidden_states_rows", "F32", 3,
             (size_t[]){(size_t)info->n_layers + 1, whole ? n : N_ROWS, (size_t)info->width});
    if (info->extractor == 0)
        return;
    for (int m = 0; m < N_MODALITIES; m++) {
        snprintf(name, sizeof(name), "%s_features", modality_names[m]);
        if (widths[m] > 0)
            plan_add(p, prompt, info->extractor, name, "F32", 2, (size_t[]){n, widths[m]});
    }
    plan_add(p, prompt, info->extractor, "rows", "I64", 1, &all_rows);
    for (int m = 0; m < N_MODALITIES; m++)
        if (widths[m] > 0)
            plan_add(p, prompt, info->extractor, modality_names[m], "F32", 2,
                     (size_t[]){ENGINE_ROWS, widths[m]});
}

static int write_hidden_states(struct file_writer *w, const struct engine_tensor *t,
                               struct error *err)
{
    size_t S = t->shape[0], n = t->shape[1], D = t->shape[2];
    int rows[N_ROWS], rc;

    if (n <= WHOLE_TOKENS)
        return file_writer_append(w, t->data, t->bytes, err);
    rows_of(rows, (int)n);
    for (size_t s = 0; s < S; s++)
        for (int i = 0; i < N_ROWS; i++)
            if ((rc = file_writer_append(w, (const float *)t->data + (s * n + (size_t)rows[i]) * D,
                                         D * sizeof(float), err)) != OK)
                return rc;
    return OK;
}

static int write_all_rows(struct file_writer *w, struct error *err)
{
    int64_t rows[ENGINE_ROWS];

    for (int i = 0; i < ENGINE_ROWS; i++)
        rows[i] = i;
    return file_writer_append(w, rows, sizeof(rows), err);
}

static int write_prompt(struct file_writer *w, struct engine *e, const struct engine_prompt *prompt,
                        struct error *err)
{
    struct engine_prompt prompts[EXPECTED_MAX_VERDICTS];
    struct engine_result results[EXPECTED_MAX_VERDICTS];
    int n = engine_info(e)->extractor > 0 ? EXPECTED_MAX_VERDICTS : 1, rc;

    for (int i = 0; i < n; i++)
        prompts[i] = (struct engine_prompt){prompt->ids, prompt->n, &levels[i].request};
    if ((rc = engine_encode(e, prompts, n, results, err)) != OK)
        return rc;
    if ((rc = file_writer_append(w, prompt->ids, (size_t)prompt->n * sizeof(int32_t), err)) != OK ||
        (rc = write_hidden_states(w, &results[0].tensors[0], err)) != OK)
        goto out;
    for (int i = 1; i < n; i++) {
        if (levels[i].request.level == ENGINE_EMBEDDINGS && (rc = write_all_rows(w, err)) != OK)
            goto out;
        for (int t = 0; t < results[i].n_tensors; t++)
            if (results[i].tensors[t].dtype == DTYPE_F32 && /* not the mask */
                (rc = file_writer_append(w, results[i].tensors[t].data, results[i].tensors[t].bytes,
                                         err)) != OK)
                goto out;
    }
out:
    for (int i = 0; i < n; i++)
        engine_result_free(&results[i]);
    return rc;
}

int expected_write(struct file_writer *w, struct engine *e, const struct engine_prompt *prompts,
                   int n_prompts, const char *made_by, struct error *err)
{
    const struct safetensors_metadata metadata = {"made_by", made_by};
    size_t cap = (size_t)n_prompts * PROMPT_TENSORS;
    struct plan plan = {.entries = calloc(cap, sizeof(*plan.entries)),
                        .names = calloc(cap, sizeof(*plan.names))};
    struct buf header = {.max = 16u << 20};
    int rc;

    if (n_prompts > MAX_PROMPTS) {
        rc = error_set(err, ERR_INPUT, "verify: %d prompts, at most %d", n_prompts, MAX_PROMPTS);
        goto out;
    }
    if (plan.entries == NULL || plan.names == NULL) {
        rc = error_set(err, ERR_MEM, "verify: no memory for %d prompts", n_prompts);
        goto out;
    }
    for (int i = 0; i < n_prompts; i++)
        plan_prompt(&plan, i, (size_t)prompts[i].n, engine_info(e));
    if ((rc = safetensors_write_header(&header, plan.entries, plan.n, &metadata, 1, err)) != OK ||
        (rc = file_writer_append(w, header.data, header.len, err)) != OK)
        goto out;
    for (int i = 0; i < n_prompts; i++)
        if ((rc = write_prompt(w, e, &prompts[i], err)) != OK)
            goto out;
    rc = file_writer_commit(w, err);
out:
    buf_free(&header);
    free(plan.entries);
    free(plan.names);
    return rc;
}
