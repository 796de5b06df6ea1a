/* LTX checkpoints: settings with their defaults, what is refused and how, versions, two files. */
#define _DEFAULT_SOURCE /* mincore() */
#include "engine/files/ltx_checkpoint.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/ltx/connector_rope.h"
#include "engine/ltx/ltx_weights.h"
#include "tests/check.h"
#include "tests/safetensors_edit.h"

#define GOLDEN PE_TESTS_DIR "/golden"
#define V1     GOLDEN "/ltx-tiny-v1.safetensors"
#define V2     GOLDEN "/ltx-tiny-v2.safetensors"
#define FOLDER PE_SCRATCH_DIR "/ltx"
#define ONE    FOLDER "/one.safetensors"
#define OTHER  FOLDER "/other.safetensors"

#define VIDEO "model.diffusion_model.video_embeddings_connector."
#define AUDIO "model.diffusion_model.audio_embeddings_connector."
#define BLOCK "transformer_1d_blocks."

enum { TINY_S = 8, TINY_D = 128 }; /* gemma3-tiny */

static const struct portion all = {.n_ranks = 1};
static struct error err;

/* ---- the config ---- */

static int read_config(struct ltx_config *c, const char *transformer)
{
    char json[1024];
    int len = snprintf(json, sizeof(json), "{\"transformer\":{%s},\"vae\":{}}", transformer);

    return ltx_config_from_json(c, json, (size_t)len, "x", &err);
}

static void defaults_are_the_reference_s(void)
{
    struct ltx_config c;

    CHECK_OK(read_config(&c, ""));
    CHECK_INT(c.extractor, LTX_EXTRACTOR_V1);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        CHECK_INT(c.connectors[m].H, 30);
        CHECK_INT(c.connectors[m].E, 128);
        CHECK_INT(c.connectors[m].W, 3840);
        CHECK_INT(c.connectors[m].L, 2);
    }
    CHECK_INT(c.rope, LTX_ROPE_SPLIT);
    CHECK(!c.rope_float64 && !c.gated && c.ff_bias && c.has_audio);
    CHECK(c.max_pos == 1.0);
    /* null is "not set" */
    CHECK_OK(read_config(&c, "\"connector_num_layers\":null,\"frequencies_precision\":null,"
                             "\"rope_type\":null,\"connector_ff_bias\":null"));
    CHECK_INT(c.connectors[LTX_VIDEO].L, 2);
    CHECK(c.ff_bias);
}

static void settings_are_read(void)
{
    struct ltx_config c;

    CHECK_OK(read_config(&c, "\"connector_num_attention_heads\":32,\"connector_num_layers\":8,"
                             "\"audio_connector_attention_head_dim\":64,"
                             "\"num_attention_heads\":7,\"attention_head_dim\":9,"
                             "\"connector_positional_embedding_max_pos\":[4096],"
                             "\"connector_apply_gated_attention\":true,"
                             "\"frequencies_precision\":\"float64\",\"connector_ff_bias\":false,"
                             "\"caption_proj_before_connector\":true,"
                             "\"caption_projection_first_linear\":false,"
                             "\"caption_proj_input_norm\":false,"
                             "\"caption_projection_second_linear\":false"));
    CHECK_INT(c.extractor, LTX_EXTRACTOR_V2);
    CHECK_INT(c.connectors[LTX_VIDEO].W, 4096);
    CHECK_INT(c.connectors[LTX_VIDEO].L, 8);
    /* each of audio's falls back alone */
    CHECK_INT(c.connectors[LTX_AUDIO].H, 32);
    CHECK_INT(c.connectors[LTX_AUDIO].E, 64);
    CHECK_INT(c.connectors[LTX_AUDIO].L, 8);
    CHECK(c.max_pos == 4096.0 && c.gated && c.rope_float64 && !c.ff_bias);
    CHECK_OK(read_config(&c,
                         "\"rope_type\":\"interleaved\",\"audio_connector_num_layers\":3,"
                         "\"audio_connector_num_attention_heads\":5,\"connector_num_layers\":0"));
    CHECK_INT(c.rope, LTX_ROPE_INTERLEAVED);
    CHECK_INT(c.connectors[LTX_AUDIO].H, 5);
    CHECK_INT(c.connectors[LTX_AUDIO].L, 3);
    CHECK_INT(c.connectors[LTX_VIDEO].L, 0);
}

static void wrong_settings_are_named(void)
{
    static const struct {
        const char *transformer, *words;
    } cases[] = {
        {"\"rope_type\":\"spiral\"", "rope_type is spiral, expected split or interleaved"},
        {"\"rope_type\":1", "rope_type is an integer"},
        {"\"frequencies_precision\":\"bfloat16\"", "frequencies_precision is bfloat16"},
        {"\"connector_num_layers\":257", "connector_num_layers is 257, expected 0 to 256"},
        {"\"connector_num_layers\":-1", "connector_num_layers is -1"},
        {"\"connector_num_attention_heads\":0", "connector_num_attention_heads is 0"},
        {"\"connector_num_attention_heads\":2.5", "is a fraction, expected an integer"},
        {"\"connector_attention_head_dim\":513", "connector_attention_head_dim is 513"},
        {"\"connector_attention_head_dim\":127", "is 127, expected an even number"},
        {"\"connector_attention_head_dim\":512,\"connector_num_attention_heads\":1000",
         "is 512000, expected 4 to 65536"},
        {"\"connector_attention_head_dim\":2,\"connector_num_attention_heads\":1",
         "is 2, expected 4 to"},
        {"\"audio_connector_attention_head_dim\":1", "audio_connector_attention_head_dim is 1"},
        {"\"connector_positional_embedding_max_pos\":4096", "is no list of one number"},
        {"\"connector_positional_embedding_max_pos\":[20,2048]", "is no list of one number"},
        {"\"connector_positional_embedding_max_pos\":[\"1\"]", "is no list of one number"},
        {"\"connector_positional_embedding_max_pos\":[0]", "max_pos is 0, expected more than 0"},
        {"\"connector_apply_gated_attention\":1", "is an integer, expected true or false"},
        {"\"connector_ff_bias\":\"no\"", "connector_ff_bias is a string"},
        {"\"caption_proj_before_connector\":true",
         "is missing beside caption_proj_before_connector: an extractor that is not known"},
        {"\"caption_proj_before_connector\":false",
         "caption_proj_before_connector is false, expected true"},
        {"\"caption_projection_first_linear\":true",
         "caption_projection_first_linear is true, expected false"},
        {"\"caption_proj_input_norm\":null", "caption_proj_input_norm is null, expected false"},
        {"\"caption_projection_second_linear\":0", "is an integer, expected false"},
    };
    struct ltx_config c;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_ERR(read_config(&c, cases[i].transformer), ERR_FORMAT, cases[i].words);
    CHECK_ERR(ltx_config_from_json(&c, "{}", 2, "x", &err), ERR_FORMAT,
              "x: metadata config: transformer is missing");
    CHECK_ERR(ltx_config_from_json(&c, "{\"transformer\":[]}", 18, "x", &err), ERR_FORMAT,
              "transformer is an array");
    CHECK_ERR(ltx_config_from_json(&c, "[1]", 3, "x", &err), ERR_FORMAT, "an array");
    CHECK_ERR(ltx_config_from_json(&c, "{\"a\":1,\"a\":2}", 13, "x", &err), ERR_FORMAT, "bad JSON");
}

/* Two configs that compute differently are told apart by their texts, as the digest needs. */
static void texts_tell_configs_apart(void)
{
    static const char *const changes[][2] = {
        {"rope_type", "\"interleaved\""},
        {"frequencies_precision", "\"float32\""},
        {"connector_positional_embedding_max_pos", "[4095]"},
        {"connector_apply_gated_attention", "false"},
        {"connector_ff_bias", "false"},
        {"connector_num_layers", "1"},
        {"audio_connector_num_layers", "1"},
    };
    struct ltx_config_text texts[8];
    struct edit f;

    for (size_t i = 0; i < 8; i++) {
        const char *config;
        struct ltx_config c;
        edit_load(&f, V2);
        if (i < 7)
            edit_set_config(&f, changes[i][0], changes[i][1]);
        config = json_string_value(json_object_get(f.metadata, "config"));
        CHECK_OK(ltx_config_from_json(&c, config, strlen(config), "x", &err));
        texts[i] = ltx_config_text(&c);
        for (size_t j = 0; j < i; j++)
            CHECK(strcmp(texts[i].text, texts[j].text) != 0);
        edit_free(&f);
    }
    CHECK(strstr(texts[7].text, "extractor v2, video 3 x 64 with 2 blocks") != NULL);
}

/* ---- files ---- */

static int open_paths(struct ltx_checkpoint **c, const char *first, const char *second)
{
    const char *const paths[] = {first, second};

    return ltx_checkpoint_open(c, paths, second != NULL ? 2 : 1, &err);
}

/* Opens and looks at every tensor. */
static int open_and_find(const char *first, const char *second)
{
    struct ltx_checkpoint *c;
    struct tensor *tensors;
    size_t n;
    int rc;

    if ((rc = open_paths(&c, first, second)) != OK)
        return rc;
    rc = ltx_weights_find(c, TINY_S, TINY_D, &tensors, &n, &err);
    free(tensors);
    ltx_checkpoint_close(c);
    return rc;
}

static void both_tiny_ones_open(void)
{
    struct ltx_checkpoint *c;
    struct tensor *tensors;
    size_t n;

    CHECK_OK(open_paths(&c, V1, NULL));
    CHECK_INT(ltx_checkpoint_config(c)->extractor, LTX_EXTRACTOR_V1);
    CHECK_INT(ltx_checkpoint_config(c)->rope, LTX_ROPE_INTERLEAVED);
    CHECK_INT(ltx_checkpoint_config(c)->connectors[LTX_AUDIO].R, 128);
    CHECK_OK(ltx_weights_find(c, TINY_S, TINY_D, &tensors, &n, &err));
    CHECK_INT(n, 1 + 2 * (1 + 2 * 14));
    free(tensors);
    ltx_checkpoint_close(c);
    CHECK_OK(open_paths(&c, V2, NULL));
    CHECK_INT(ltx_checkpoint_config(c)->extractor, LTX_EXTRACTOR_V2);
    CHECK_INT(ltx_checkpoint_config(c)->connectors[LTX_VIDEO].W, 192);
    CHECK_INT(ltx_checkpoint_config(c)->connectors[LTX_AUDIO].W, 64);
    CHECK(ltx_checkpoint_model_version(c) == NULL && ltx_checkpoint_gemma_version(c) == NULL);
    CHECK_OK(ltx_weights_find(c, TINY_S, TINY_D, &tensors, &n, &err));
    CHECK_INT(n, 4 + 2 * (1 + 2 * 16));
    free(tensors);
    ltx_checkpoint_close(c);
}

static void projection_and_connectors_may_be_apart(void)
{
    struct ltx_checkpoint *c;
    struct edit f;

    edit_load(&f, V2);
    edit_remove(&f, "text_embedding_projection.");
    edit_write(&f, ONE, 0);
    edit_free(&f);
    edit_load(&f, V2);
    edit_remove(&f, "model.diffusion_model.");
    edit_set_metadata(&f, "config", NULL);
    edit_write(&f, OTHER, 0);
    edit_free(&f);
    CHECK_OK(open_and_find(ONE, OTHER));
    CHECK_OK(open_and_find(OTHER, ONE));
    CHECK_ERR(open_paths(&c, ONE, NULL), ERR_FORMAT,
              "one.safetensors: no tensors text_embedding_projection.*: the projection is missing");
    CHECK_ERR(open_paths(&c, OTHER, NULL), ERR_FORMAT,
              "other.safetensors: no tensors " VIDEO "*: the connectors are missing");
    CHECK_ERR(open_paths(&c, ONE, ONE), ERR_FORMAT, "one.safetensors and one.safetensors: no");
}

/* Where both have a part it is the first one's, and whole: no mixture of two models. */
static void the_first_file_wins(void)
{
    const char *name = "text_embedding_projection.audio_aggregate_embed.weight";
    const size_t shape[] = {64, (size_t)TINY_S * TINY_D};
    struct ltx_checkpoint *c;
    struct tensor t;
    struct edit f;

    edit_load(&f, V2);
    edit_remove(&f, name);
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_ERR(open_paths(&c, ONE, V2), ERR_FORMAT,
              "one.safetensors: text_embedding_projection.aud");
    CHECK_OK(open_paths(&c, V2, ONE));
    CHECK_OK(ltx_checkpoint_tensor(c, &t, name, 2, shape, &err));
    CHECK_TEXT(t.file, "ltx-tiny-v2.safetensors");
    ltx_checkpoint_close(c);
}

static void a_model_without_audio_is_whole(void)
{
    struct ltx_checkpoint *c;
    struct edit f;

    edit_load(&f, V2);
    edit_remove(&f, AUDIO);
    edit_write(&f, ONE, 0);
    CHECK_ERR(open_paths(&c, ONE, NULL), ERR_FORMAT, "no tensors " AUDIO "*: the audio connector");
    edit_remove(&f, "text_embedding_projection.audio_");
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_OK(open_paths(&c, ONE, NULL));
    CHECK(!ltx_checkpoint_config(c)->has_audio);
    CHECK_INT(ltx_checkpoint_config(c)->connectors[LTX_AUDIO].W, 0);
    ltx_checkpoint_close(c);
    CHECK_OK(open_and_find(ONE, NULL));
    edit_load(&f, V1); /* whose projection serves both */
    edit_remove(&f, AUDIO);
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_OK(open_and_find(ONE, NULL));
}

static void refused(const char *base, const char *name, void (*change)(struct edit *),
                    const char *words)
{
    struct edit f;

    edit_load(&f, base);
    if (change != NULL)
        change(&f);
    if (name != NULL)
        edit_remove(&f, name);
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_ERR(open_and_find(ONE, NULL), ERR_FORMAT, words);
}

static void drop_config(struct edit *f)
{
    edit_set_metadata(f, "config", NULL);
}

static void break_config(struct edit *f)
{
    edit_set_metadata(f, "config", "{\"transformer\":{}");
}

static void fewer_registers(struct edit *f)
{
    struct edit_tensor *t = edit_find(f, VIDEO "learnable_registers");

    t->shape[0] = 100;
    t->bytes = t->bytes / 128 * 100;
}

static void other_width(struct edit *f)
{
    edit_set_config(f, "connector_attention_head_dim", "32");
}

static void one_block(struct edit *f)
{
    edit_set_config(f, "connector_num_layers", "1");
    edit_set_config(f, "audio_connector_num_layers", "1");
}

static void no_gate(struct edit *f)
{
    edit_set_config(f, "connector_apply_gated_attention", "false");
}

static void wrong_bias(struct edit *f)
{
    struct edit_tensor *t = edit_find(f, VIDEO BLOCK "1.ff.net.0.proj.bias");

    t->n_dims = 2;
    t->shape[1] = t->shape[0];
    t->shape[0] = 1;
}

static void quantised(struct edit *f)
{
    struct edit_tensor *t = edit_find(f, AUDIO BLOCK "0.attn1.to_q.weight");

    t->type = DTYPE_F8_E4M3;
    t->bytes /= 2;
}

static void version_is_no_text(struct edit *f)
{
    edit_set_metadata(f, "gemma_source_checkpoint", "{\"gemma_version\":3}");
}

static void version_is_no_json(struct edit *f)
{
    edit_set_metadata(f, "gemma_source_checkpoint", "gemma4-12b-ltx-v1");
}

static void version_with_a_line(struct edit *f)
{
    edit_set_metadata(f, "model_version", "2.3\nx");
}

static void random_with_a_line(struct edit *f)
{
    edit_set_metadata(f, LTX_RANDOM_KEY, "seed 1\nerror all_is_lost");
}

static void what_lacks_is_named(void)
{
    refused(V2, NULL, drop_config, "one.safetensors: no metadata config");
    refused(V2, NULL, break_config, "one.safetensors: bad JSON");
    refused(V2, VIDEO "learnable_registers", NULL, VIDEO "learnable_registers: no such tensor");
    refused(V2, NULL, fewer_registers, "shape [100,192], want [R,192] with an R that divides 1024");
    refused(V2, NULL, other_width, "learnable_registers: shape [128,192], want [R,96]");
    refused(V2, NULL, one_block, BLOCK "1.attn1.to_q.weight is there, but the config has 1 block");
    refused(V2, NULL, no_gate, "to_gate_logits.weight is there, but the config's");
    refused(V2, NULL, wrong_bias, "1.ff.net.0.proj.bias: shape [1,768], want [768]");
    refused(V2, NULL, quantised, "type F8_E4M3 is not supported, expected F32, F16 or BF16");
    refused(V2, NULL, version_is_no_text, "gemma_version is an integer, expected a string");
    refused(V2, NULL, version_is_no_json, "metadata gemma_source_checkpoint: bad JSON");
    refused(V2, NULL, version_with_a_line, "metadata model_version is no version");
    refused(V2, NULL, random_with_a_line, "metadata " LTX_RANDOM_KEY " is no line of text");
    refused(V2, AUDIO BLOCK "1.attn1.k_norm", NULL, "1.attn1.k_norm.weight: no such tensor");
    refused(V2, VIDEO BLOCK "0.ff.net.2.bias", NULL, "0.ff.net.2.bias: no such tensor");
    refused(V2, VIDEO BLOCK "1.attn1.to_gate_logits.bias", NULL, "to_gate_logits.bias: no such");
    refused(V2, "text_embedding_projection.video_aggregate_embed.bias", NULL,
            "text_embedding_projection.video_aggregate_embed.bias: no such tensor");
    refused(V1, "text_embedding_projection.", NULL, "the projection is missing");
}

/* Either file of a pair may be the random one. */
static void random_ones_say_so(void)
{
    struct ltx_checkpoint *c;
    struct edit f;

    CHECK_OK(open_paths(&c, V2, NULL));
    CHECK(ltx_checkpoint_random(c) == NULL);
    ltx_checkpoint_close(c);
    edit_load(&f, V2);
    edit_remove(&f, "model.diffusion_model.");
    edit_set_metadata(&f, LTX_RANDOM_KEY, "seed 3");
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_OK(open_paths(&c, V2, ONE));
    CHECK_TEXT(ltx_checkpoint_random(c), "seed 3");
    ltx_checkpoint_close(c);
}

/* Connectors without a projection can be looked at, and are never taken for a whole. */
static void connectors_alone(void)
{
    struct ltx_checkpoint *c;
    struct tensor *tensors;
    struct edit f;
    size_t n, n_whole;

    CHECK_OK(ltx_checkpoint_open_connectors(&c, V2, &err));
    CHECK(ltx_checkpoint_has_projection(c));
    CHECK_OK(ltx_weights_find(c, 8, 128, &tensors, &n_whole, &err));
    free(tensors);
    ltx_checkpoint_close(c);
    edit_load(&f, V2);
    edit_remove(&f, "text_embedding_projection.");
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_ERR(open_paths(&c, ONE, NULL), ERR_FORMAT, "the projection is missing");
    CHECK_OK(ltx_checkpoint_open_connectors(&c, ONE, &err));
    CHECK(!ltx_checkpoint_has_projection(c));
    CHECK(ltx_checkpoint_config(c)->has_audio);
    CHECK_OK(ltx_weights_find(c, 8, 128, &tensors, &n, &err));
    CHECK_INT(n, n_whole - 4);
    free(tensors);
    ltx_checkpoint_close(c);
}

/* A checkpoint made for a Gemma of another size, in one sentence. */
static void another_gemma_is_named(void)
{
    struct ltx_checkpoint *c;
    struct tensor *tensors;
    size_t n;

    CHECK_OK(open_paths(&c, V2, NULL));
    CHECK_ERR(ltx_weights_find(c, 35, 2560, &tensors, &n, &err), ERR_FORMAT,
              "ltx-tiny-v2.safetensors: text_embedding_projection.video_aggregate_embed.weight: "
              "made for another Gemma: its rows have 1024 numbers, but this Gemma has 35 hidden "
              "states of 2560, which makes 89600");
    CHECK(tensors == NULL);
    ltx_checkpoint_close(c);
}

static void not_to_be_read(void)
{
    struct ltx_checkpoint *c;

    CHECK_ERR(open_paths(&c, FOLDER "/nothing", NULL), ERR_IO, "nothing");
    CHECK_ERR(open_paths(&c, GOLDEN "/prompts.json", NULL), ERR_FORMAT, "prompts.json");
    CHECK_ERR(open_paths(&c, GOLDEN "/gemma3-tiny/model.safetensors", NULL), ERR_FORMAT,
              "model.safetensors: no tensors " VIDEO "*: the connectors are missing");
    CHECK(c == NULL);
}

/* ---- versions ---- */

static void check_version(const char *source, const char *model_version, const char *type,
                          const char *gemma_version, int want, const char *words)
{
    struct ltx_checkpoint *c;
    struct edit f;

    edit_load(&f, V2);
    edit_set_metadata(&f, "gemma_source_checkpoint", source);
    edit_set_metadata(&f, "model_version", model_version);
    edit_write(&f, ONE, 0);
    edit_free(&f);
    CHECK_OK(open_paths(&c, ONE, NULL));
    if (want == OK)
        CHECK_OK(ltx_checkpoint_check_gemma(c, type, gemma_version, &err));
    else
        CHECK_ERR(ltx_checkpoint_check_gemma(c, type, gemma_version, &err), want, words);
    ltx_checkpoint_close(c);
}

static void versions_must_agree(void)
{
    const char *v1 = "{\"ltx_version\":\"2.5.0\",\"gemma_version\":\"gemma4-12b-ltx-v1\"}";

    check_version(NULL, NULL, "gemma3", NULL, OK, "");
    check_version(NULL, "2.3.0", "gemma3", NULL, OK, "");
    check_version(NULL, "2.3.9-rc1", "gemma3", "any", OK, "");
    check_version(NULL, "0.9", "gemma3", NULL, OK, "");
    check_version(v1, "2.5.0", "gemma4_unified", "gemma4-12b-ltx-v1", OK, "");
    check_version(v1, NULL, "gemma3", "gemma4-12b-ltx-v1", OK, "");
    check_version(v1, "2.5.0", "gemma3", NULL, ERR_INPUT,
                  "one.safetensors needs a Gemma of gemma_version gemma4-12b-ltx-v1, but this one "
                  "is a gemma3 without a gemma_version");
    check_version(v1, "2.5.0", "gemma4_unified", "gemma4-12b-ltx-v2", ERR_INPUT,
                  "of gemma_version gemma4-12b-ltx-v1, but this one is a gemma4_unified of "
                  "gemma_version gemma4-12b-ltx-v2");
    check_version(
        NULL, "2.3.0", "gemma4_unified", "gemma4-12b-ltx-v1", ERR_INPUT,
        "(model_version 2.3.0, without gemma_source_checkpoint) needs a Gemma of "
        "model_type gemma3, but this one is a gemma4_unified of gemma_version gemma4-12b");
    check_version(NULL, NULL, "gemma4_unified", NULL, ERR_INPUT, "(model_version not given");
    check_version(NULL, "2.4.0", "gemma3", NULL, ERR_FORMAT, "model_version 2.4.0 must name");
    check_version(NULL, "2.5.0-rc1", "gemma3", "x", ERR_FORMAT,
                  "model_version 2.5.0-rc1 must name");
    check_version(NULL, "10.0", "gemma3", NULL, ERR_FORMAT, "model_version 10.0 must name");
    check_version(NULL, "new", "gemma3", NULL, ERR_FORMAT, "model_version is 'new', no version");
    check_version(NULL, "2.", "gemma3", NULL, ERR_FORMAT, "model_version is '2.', no version");
}

static void two_files_of_two_models(void)
{
    struct ltx_checkpoint *c;
    struct edit f;

    edit_load(&f, V2);
    edit_set_metadata(&f, "gemma_source_checkpoint", "{\"gemma_version\":\"a\"}");
    edit_write(&f, ONE, 0);
    edit_set_metadata(&f, "gemma_source_checkpoint", "{\"gemma_version\":\"b\"}");
    edit_write(&f, OTHER, 0);
    edit_free(&f);
    CHECK_ERR(open_paths(&c, ONE, OTHER), ERR_FORMAT,
              "one is for gemma_version a, the other for b");
    CHECK_OK(open_paths(&c, V2, OTHER)); /* said once is enough */
    CHECK_TEXT(ltx_checkpoint_gemma_version(c), "b");
    ltx_checkpoint_close(c);
}

/* ---- loading ---- */

static int load(const char *path)
{
    struct device_options options = {.act = DTYPE_F32, .n_threads = 1};
    const struct ops *ops = ops_cpu();
    struct ltx_checkpoint *c = NULL;
    struct ltx_weights *w = NULL;
    struct device *d;
    int rc;

    if (ops->open(&d, &options, &err) != OK)
        abort();
    if ((rc = open_paths(&c, path, NULL)) == OK)
        rc = ltx_weights_load(&w, c, TINY_S, TINY_D, &all, ops, d, DTYPE_F32, NULL, NULL, &err);
    ltx_weights_free(w);
    ltx_checkpoint_close(c);
    ops->close(d);
    return rc;
}

static void weights_that_are_no_numbers(void)
{
    static const char *const names[] = {
        "text_embedding_projection.audio_aggregate_embed.weight",
        "text_embedding_projection.video_aggregate_embed.bias",
        VIDEO "learnable_registers",
        AUDIO BLOCK "1.ff.net.2.weight",
        VIDEO BLOCK "0.attn1.q_norm.weight",
    };
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n, bytes = dtype_info(types[i % 3])->bytes;
        struct edit_tensor *t;
        struct edit f;
        float *values, last;
        edit_load(&f, V2);
        values = edit_floats(&f, names[i], &n);
        last = values[n - 1];
        for (int bad = 0; bad < 2; bad++) {
            values[n - 1] = bad == 0 ? last : i % 2 == 0 ? NAN : -INFINITY;
            t = edit_find(&f, names[i]);
            t->data = malloc(n * bytes);
            CHECK(t->data != NULL);
            dtype_encode(t->data, values, types[i % 3], n);
            t->type = types[i % 3];
            t->bytes = n * bytes;
            edit_write(&f, ONE, 0);
            free(t->data);
            t->data = NULL;
            if (bad == 0)
                CHECK_OK(load(ONE));
            else
                CHECK_ERR(load(ONE), ERR_FORMAT, "holds a NaN or an infinity");
            CHECK(bad == 0 || strstr(err.text, names[i]) != NULL);
        }
        free(values);
        edit_free(&f);
    }
}

/* A file of 40 GB, of which the text side is some MB: what is not needed is not read. */
static void the_video_model_is_not_read(void)
{
    const uint64_t padding = 40000000000u;
    struct timespec begin, end;
    struct stat st;
    struct edit f;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages, in_memory = 0;
    unsigned char *present;
    void *map;
    double seconds;
    int fd;

    unlink(ONE);
    edit_load(&f, V2);
    edit_write(&f, ONE, padding);
    edit_free(&f);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK_OK(load(ONE));
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    fd = open(ONE, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size > padding);
    pages = ((size_t)st.st_size + page - 1) / page;
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    present = malloc(pages);
    CHECK(map != MAP_FAILED && present != NULL && mincore(map, (size_t)st.st_size, present) == 0);
    for (size_t i = 0; i < pages; i++)
        in_memory += present[i] & 1;
    munmap(map, (size_t)st.st_size);
    close(fd);
    free(present);
    unlink(ONE);
    printf("     %.2f s, %.1f MB of %.0f GB in memory\n", seconds, (double)(in_memory * page) / 1e6,
           (double)st.st_size / 1e9);
    CHECK(in_memory > 0);
    CHECK(in_memory < pages / 100);
    CHECK(seconds < 10.0); /* usually 0.1; 40 GB cannot be read in that time */
}

/* ---- rotary tables ---- */

/* Entries worked out apart from this code, with torch's own linspace and 50 digits between the
 * roundings. A double rounding or a fast pow() shows in the fourth digit of the fast ones. */
static void rope_tables(void)
{
    enum { W = 192, P = 1024, M = W / 2 };
    static const struct {
        bool float64;
        int row, i;
        float cos, sin;
    } entries[] = {
        {false, 0, 0, -4.37113883e-08f, -1.0f},
        {false, 0, 95, 0.999999821f, -0.000599238498f},
        {false, 1, 95, 0.183611333f, 0.982998908f},
        {false, 1, 60, 0.959282577f, 0.282448024f},
        {false, 513, 47, 0.593538225f, 0.804805815f},
        {false, 1023, 94, -0.775173664f, 0.631748199f},
        {false, 1023, 31, -0.985694647f, 0.168541089f},
        {false, 700, 48, -0.140247226f, -0.990116537f},
        {true, 0, 0, -4.37113883e-08f, -1.0f},
        {true, 0, 95, 0.99999994f, 0.000377323944f},
        {true, 1, 95, 0.182651296f, 0.983177781f},
        {true, 1, 60, 0.959317088f, 0.28233093f},
        {true, 513, 47, 0.593532085f, 0.804810345f},
        {true, 1023, 94, -0.776098251f, 0.630612016f},
        {true, 1023, 31, -0.985694766f, 0.16854015f},
        {true, 700, 48, -0.140247226f, -0.990116537f},
    };
    float *cos_table = malloc(P * M * sizeof(float)), *sin_table = malloc(P * M * sizeof(float));
    struct ltx_config c = {.max_pos = 4096};

    CHECK(cos_table != NULL && sin_table != NULL);
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        size_t at = (size_t)entries[i].row * M + entries[i].i;
        c.rope_float64 = entries[i].float64;
        connector_rope_build(cos_table, sin_table, &c, W, P, DTYPE_F32);
        if (!(fabsf(cos_table[at] - entries[i].cos) <= 6e-8f &&
              fabsf(sin_table[at] - entries[i].sin) <= 6e-8f))
            CHECK_FAIL("entry %zu: got %.9g, %.9g, want %.9g, %.9g", i, (double)cos_table[at],
                       (double)sin_table[at], (double)entries[i].cos, (double)entries[i].sin);
    }
    connector_rope_build(cos_table, sin_table, &c, W, P, DTYPE_BF16);
    for (int i = 0; i < P * M; i++)
        CHECK(cos_table[i] == bf16_to_float(bf16_from_float(cos_table[i])));
    free(cos_table);
    free(sin_table);
}

int main(void)
{
    mkdir(FOLDER, 0755); /* may be there already */
    RUN(defaults_are_the_reference_s);
    RUN(settings_are_read);
    RUN(wrong_settings_are_named);
    RUN(texts_tell_configs_apart);
    RUN(both_tiny_ones_open);
    RUN(projection_and_connectors_may_be_apart);
    RUN(the_first_file_wins);
    RUN(a_model_without_audio_is_whole);
    RUN(what_lacks_is_named);
    RUN(random_ones_say_so);
    RUN(connectors_alone);
    RUN(another_gemma_is_named);
    RUN(not_to_be_read);
    RUN(versions_must_agree);
    RUN(two_files_of_two_models);
    RUN(weights_that_are_no_numbers);
    RUN(the_video_model_is_not_read);
    RUN(rope_tables);
    return check_result();
}
