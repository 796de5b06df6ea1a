/* What the files of one meaning write differently must lie in memory alike: norm factors as whole
 * factors, value rows in every layer, a scalar for every layer. */
#include "engine/model/weights.h"

#include <math.h>

#include "tests/check.h"

#define GEMMA3  PE_TESTS_DIR "/golden/gemma3-tiny"
#define GEMMA4  PE_TESTS_DIR "/golden/gemma4-tiny"
#define PACKED4 PE_TESTS_DIR "/golden/gemma4-tiny-te-single-file.safetensors"
#define GGUF    PE_SCRATCH_DIR "/models/tiny.gguf"

static const struct portion all = {.n_ranks = 1};
static struct error err;
static struct device *device;

struct loaded {
    struct model_file *file;
    struct weights *weights;
};

static struct loaded load(const char *path)
{
    struct loaded l = {0};

    CHECK_OK(model_file_open(&l.file, path, &err));
    CHECK_OK(weights_load(&l.weights, l.file, &all, ops_loops(), device, NULL, NULL, &err));
    return l;
}

static void unload(struct loaded *l)
{
    weights_free(l->weights);
    model_file_close(l->file);
}

/* `have` against what the file stores plus `added`. */
static void check_norm(const struct loaded *l, const char *name, const float *have, int n,
                       float added)
{
    const size_t shape[] = {(size_t)n};
    struct tensor stored;
    float *numbers = malloc((size_t)n * sizeof(float));

    CHECK(numbers != NULL);
    CHECK_OK(model_file_tensor(l->file, &stored, name, 1, shape, &err));
    dtype_decode(numbers, stored.data, stored.type, (size_t)n);
    for (int i = 0; i < n; i++)
        if (have[i] != numbers[i] + added)
            CHECK_FAIL("%s: factor %d is %.9g, the file has %.9g", name, i, (double)have[i],
                       (double)numbers[i]);
    free(numbers);
}

static void check_norms(const char *path, float added)
{
    struct loaded l = load(path);
    const struct gemma_config *c = model_file_config(l.file);

    for (int i = 0; i < c->L; i++) {
        const struct layer_weights *layer = &l.weights->layers[i];
        const struct {
            const char *name;
            const float *have;
            int n;
        } norms[] = {
            {"input_layernorm", layer->input_norm, c->D},
            {"post_attention_layernorm", layer->post_attention_norm, c->D},
            {"pre_feedforward_layernorm", layer->pre_ff_norm, c->D},
            {"post_feedforward_layernorm", layer->post_ff_norm, c->D},
            {"self_attn.q_norm", layer->q_norm, gemma_attention_of(c, i)->E},
            {"self_attn.k_norm", layer->k_norm, gemma_attention_of(c, i)->E},
        };
        for (size_t n = 0; n < sizeof(norms) / sizeof(norms[0]); n++) {
            char name[96];
            snprintf(name, sizeof(name), "layers.%d.%s.weight", i, norms[n].name);
            check_norm(&l, name, norms[n].have, norms[n].n, added);
        }
    }
    check_norm(&l, "norm.weight", l.weights->final_norm, c->D, added);
    unload(&l);
}

/* Gemma 3's safetensors store 1 less than the factor, its GGUF files the factor, and so does Gemma
 * 4 in any file. */
static void one_is_added_where_it_is_lacking_and_nowhere_else(void)
{
    check_norms(GEMMA3, 1.0f);
    check_norms(GGUF, 0.0f);
    check_norms(GEMMA4, 0.0f);
    check_norms(PACKED4, 0.0f);
}

/* The same model in two files: the same factors, but for one rounding of 1 + w in the file. */
static void both_conventions_of_gemma3_mean_the_same(void)
{
    struct loaded directory = load(GEMMA3), gguf = load(GGUF);

    for (int i = 0; i < directory.weights->n_layers; i++)
        for (int d = 0; d < model_file_config(directory.file)->D; d++) {
            float a = directory.weights->layers[i].input_norm[d];
            float b = gguf.weights->layers[i].input_norm[d];
            CHECK(fabsf(a - b) <= 2e-7f * fabsf(a));
        }
    unload(&gguf);
    unload(&directory);
}

static void layers_have_a_scalar_and_values(void)
{
    static const size_t one[] = {1};
    struct loaded gemma3 = load(GEMMA3), gemma4 = load(GEMMA4);
    const struct gemma_config *c = model_file_config(gemma4.file);
    struct tensor stored;

    for (int i = 0; i < gemma3.weights->n_layers; i++)
        CHECK(gemma3.weights->layers[i].scalar == 1.0f);
    for (int i = 0; i < gemma4.weights->n_layers; i++) {
        float scalar;
        char name[40];
        snprintf(name, sizeof(name), "layers.%d.layer_scalar", i);
        CHECK_OK(model_file_tensor(gemma4.file, &stored, name, 1, one, &err));
        dtype_decode(&scalar, stored.data, stored.type, 1);
        CHECK(gemma4.weights->layers[i].scalar == scalar && scalar != 1.0f);
        /* q, k and v rows of the layer's own widths, where v is k too */
        size_t rows =
            (size_t)(c->H + 2 * gemma_attention_of(c, i)->K) * (size_t)gemma_attention_of(c, i)->E;
        CHECK_INT(ops_loops()->matrix_bytes(gemma4.weights->layers[i].qkv),
                  rows * (size_t)c->D * sizeof(float));
    }
    unload(&gemma4);
    unload(&gemma3);
}

/* The progress ends at the sum of the tensors that are read, each once. */
static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;

    last[0] = done;
    last[1] = total;
}

static void bytes_are_counted_once(void)
{
    struct model_file *file;
    struct weights *w;
    uint64_t last[2] = {0}, stated, want = 0;

    CHECK_OK(model_file_open(&file, GEMMA4, &err));
    for (size_t i = 0; i < model_file_n_tensors(file); i++) {
        const struct tensor *t = model_file_tensor_at(file, i);
        if (strstr(t->name, "language_model") != NULL && strstr(t->name, "embed") == NULL &&
            strstr(t->name, "layer_scalar") == NULL)
            want += t->bytes;
    }
    CHECK_OK(weights_check(file, &stated, &err));
    CHECK_INT(stated, want);
    CHECK_OK(weights_load(&w, file, &all, ops_loops(), device, note_progress, last, &err));
    CHECK_INT(last[0], want);
    CHECK_INT(last[1], want);
    weights_free(w);
    model_file_close(file);
}

/* Of a device that has no memory for the fifth matrix. */
static int n_loaded;

static int short_load(struct device *d, struct matrix **out, const struct matrix_part *parts,
                      int n_parts, int K, const struct column_cuts *cuts, struct error *e)
{
    if (++n_loaded < 5)
        return ops_loops()->matrix_load(d, out, parts, n_parts, K, cuts, e);
    return error_set(e, ERR_MEM, "test: no memory");
}

static void a_matrix_that_finds_no_room_is_named(void)
{
    struct ops ops = *ops_loops();
    struct model_file *file;
    struct weights *w;

    ops.matrix_load = short_load;
    CHECK_OK(model_file_open(&file, GEMMA3, &err));
    CHECK_ERR(weights_load(&w, file, &all, &ops, device, NULL, NULL, &err), ERR_MEM,
              "model.safetensors: language_model.model.layers.1.self_attn.q_proj.weight: test: no "
              "memory");
    CHECK(w == NULL);
    model_file_close(file);
}

int main(void)
{
    struct device_options options = {.act = DTYPE_F32, .n_threads = 1};

    if (ops_loops()->open(&device, &options, &err) != OK) {
        printf("%s\n", err.text);
        return EXIT_FAILURE;
    }
    RUN(one_is_added_where_it_is_lacking_and_nowhere_else);
    RUN(both_conventions_of_gemma3_mean_the_same);
    RUN(layers_have_a_scalar_and_values);
    RUN(bytes_are_counted_once);
    RUN(a_matrix_that_finds_no_room_is_named);
    ops_loops()->close(device);
    return check_result();
}
