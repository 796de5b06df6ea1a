/* config.json in its spellings, and everything it may say that is refused. GGUF metadata are in
 * test_gemma_config_gguf.c. */
#include "engine/files/gemma_config.h"

#include "base/file.h"
#include "tests/check.h"

static struct error err;

static int parse(struct gemma_config *c, const char *json)
{
    return gemma_config_from_json(c, json, strlen(json), "config.json", &err);
}

/* A flat config with these members besides its model_type. */
static int parse_text(struct gemma_config *c, const char *members)
{
    char json[1024];

    snprintf(json, sizeof(json), "{\"model_type\":\"gemma3_text\"%s%s}", members[0] ? "," : "",
             members);
    return parse(c, json);
}

static void the_tiny_config_is_read(void)
{
    struct gemma_config c;
    struct file_map map;

    CHECK_OK(file_map_open(&map, PE_TESTS_DIR "/golden/gemma3-tiny/config.json", &err));
    CHECK_OK(gemma_config_from_json(&c, map.data, map.size, "config.json", &err));
    file_map_close(&map);
    CHECK_INT(c.kind, GEMMA_3);
    CHECK_INT(c.L, 7);
    CHECK_INT(c.D, 128);
    CHECK_INT(c.H, 4);
    CHECK_INT(c.K, 2);
    CHECK_INT(c.E, 64);
    CHECK_INT(c.F, 320);
    CHECK_INT(c.V, 1408);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 48);
    CHECK_INT(c.sliding_window, 32);
    CHECK_INT(c.max_position, 131072);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], i == 5);
    CHECK(c.rope_global.theta == 1000000 && c.rope_global.factor == 8);
    CHECK(c.rope_local.theta == 10000 && c.rope_local.factor == 1);
    CHECK_INT(c.n_eos, 2);
    CHECK_INT(c.eos[1], 1363);
}

static void absent_settings_are_those_of_transformers(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text(&c, ""));
    CHECK_INT(c.L, 26);
    CHECK_INT(c.D, 2304);
    CHECK_INT(c.H, 8);
    CHECK_INT(c.K, 4);
    CHECK_INT(c.E, 256);
    CHECK_INT(c.F, 9216);
    CHECK_INT(c.V, 262208);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 256);
    CHECK_INT(c.sliding_window, 4096);
    CHECK_INT(c.max_position, 131072);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], (i + 1) % 6 == 0);
    CHECK(c.rope_global.theta == 1000000 && c.rope_global.factor == 1);
    CHECK(c.rope_local.theta == 10000 && c.rope_local.factor == 1);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(c.eos[0], 1);
}

/* What google/gemma-3-4b-it says and leaves out. */
static void a_released_config_is_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse(&c, "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],"
                       "\"eos_token_id\":[1,106],\"model_type\":\"gemma3\",\"text_config\":{"
                       "\"hidden_size\":2560,\"intermediate_size\":10240,"
                       "\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,"
                       "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},"
                       "\"sliding_window\":1024},\"torch_dtype\":\"bfloat16\"}"));
    CHECK_INT(c.L, 34);
    CHECK_INT(c.D, 2560);
    CHECK_INT(c.H, 8);
    CHECK_INT(c.V, 262208);
    CHECK_INT(c.sliding_window, 1024);
    CHECK(c.rope_global.factor == 8 && c.rope_local.factor == 1);
    CHECK_INT(c.eos[1], 106);
}

static void the_newer_spelling_is_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text(&c, "\"num_hidden_layers\":2,"
                            "\"layer_types\":[\"full_attention\",\"sliding_attention\"],"
                            "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
                            "\"factor\":4,\"rope_theta\":5e5},\"sliding_attention\":"
                            "{\"rope_type\":\"default\",\"rope_theta\":2e4}}"));
    CHECK(c.is_global[0] && !c.is_global[1]);
    CHECK(c.rope_global.theta == 5e5 && c.rope_global.factor == 4);
    CHECK(c.rope_local.theta == 2e4 && c.rope_local.factor == 1);
    /* what rope_parameters leaves out comes from the older settings, then from the defaults */
    CHECK_OK(parse_text(&c, "\"rope_theta\":7,\"rope_parameters\":{\"full_attention\":{},"
                            "\"sliding_attention\":{}}"));
    CHECK(c.rope_global.theta == 7 && c.rope_local.theta == 10000);
}

static void older_and_harmless_settings_are_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text(&c, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"));
    CHECK(c.rope_global.factor == 2);
    CHECK_OK(parse_text(&c, "\"rope_scaling\":null,\"attn_logit_softcapping\":null,"
                            "\"final_logit_softcapping\":30.0,\"attention_bias\":false,"
                            "\"use_bidirectional_attention\":null,\"query_pre_attn_scalar\":168.5,"
                            "\"sliding_window_pattern\":1,\"eos_token_id\":7"));
    CHECK(c.query_pre_attn_scalar == 168.5);
    CHECK(c.is_global[0] && c.is_global[25]);
    CHECK_INT(c.eos[0], 7);
}

static const struct {
    const char *json, *words;
} wrong_kinds[] = {
    {"", "config.json: bad JSON"},
    {"7", "config.json: the JSON is an integer, expected an object"},
    {"{}", "config.json: model_type is missing, expected gemma3"},
    {"{\"model_type\":3}", "config.json: model_type is an integer, expected a string"},
    {"{\"model_type\":\"gemma4_unified\"}",
     "config.json: model_type is gemma4_unified, expected gemma3: Gemma 4 is not supported yet"},
    {"{\"model_type\":\"gemma2\"}",
     "config.json: model_type is gemma2, expected gemma3 or gemma3_text"},
    {"{\"model_type\":\"gemma3\"}", "config.json: text_config is missing, expected an object"},
    {"{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"llama\"}}",
     "config.json: text_config: model_type is llama, expected gemma3_text"},
    {"{\"model_type\":\"gemma3_text\",\"model_type\":\"gemma3\"}", "duplicate"},
    {"{\"model_type\":\"gemma3\",\"text_config\":{},\"quantization_config\":{}}",
     "config.json: quantization_config: quantised directories are not supported"},
};

static const struct {
    const char *members, *words;
} wrong_settings[] = {
    {"\"hidden_activation\":\"silu\"",
     "config.json: hidden_activation is silu, expected gelu_pytorch_tanh"},
    {"\"attention_bias\":true", "config.json: attention_bias is true, expected false"},
    {"\"attn_logit_softcapping\":50.0", "config.json: attn_logit_softcapping is not supported"},
    {"\"use_bidirectional_attention\":true", "use_bidirectional_attention is true, expected false"},
    {"\"use_bidirectional_attention\":\"all\"", "use_bidirectional_attention is a string"},
    {"\"num_hidden_layers\":0", "config.json: num_hidden_layers is 0, expected 1 to 256"},
    {"\"num_hidden_layers\":257", "config.json: num_hidden_layers is 257, expected 1 to 256"},
    {"\"hidden_size\":\"2304\"", "config.json: hidden_size is a string, expected an integer"},
    {"\"hidden_size\":2304.0", "config.json: hidden_size is a fraction, expected an integer"},
    {"\"hidden_size\":-1", "config.json: hidden_size is -1, expected 1 to 65536"},
    {"\"vocab_size\":4294967296", "config.json: vocab_size is 4294967296, expected 1 to 4194304"},
    {"\"sliding_window\":null", "config.json: sliding_window is null, expected an integer"},
    {"\"sliding_window_pattern\":0", "config.json: sliding_window_pattern is 0, expected 1 to"},
    {"\"num_key_value_heads\":3",
     "config.json: 8 attention heads are no multiple of 3 key/value heads"},
    {"\"head_dim\":63", "config.json: a head width of 63, expected an even number"},
    {"\"rms_norm_eps\":0", "config.json: rms_norm_eps is 0, expected more than 0"},
    {"\"rms_norm_eps\":1e-60", "config.json: an RMS epsilon of 0, expected between 0 and 1"},
    {"\"rms_norm_eps\":2", "config.json: an RMS epsilon of 1, expected between 0 and 1"},
    {"\"query_pre_attn_scalar\":\"x\"",
     "config.json: query_pre_attn_scalar is a string, expected a number"},
    {"\"rope_theta\":-5", "config.json: rope_theta is -5, expected more than 0"},
    {"\"rope_scaling\":[]", "config.json: rope_scaling is an array, expected an object"},
    {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}",
     "config.json: rope_scaling: rope_type is yarn, expected default or linear"},
    {"\"rope_scaling\":{\"rope_type\":\"linear\"}", "config.json: rope_scaling: factor is missing"},
    {"\"rope_parameters\":{\"rope_theta\":1e6}",
     "config.json: rope_parameters has no full_attention"},
    {"\"rope_parameters\":{\"full_attention\":{}}",
     "config.json: rope_parameters has no sliding_attention"},
    {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\"},"
     "\"sliding_attention\":{}}",
     "config.json: rope_parameters.full_attention: rope_type is proportional, expected default"},
    {"\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25},"
     "\"sliding_attention\":{}}",
     "rope_parameters.full_attention: partial_rotary_factor 0.25 is not supported"},
    {"\"layer_types\":[\"full_attention\"]",
     "config.json: layer_types is an array of 1, expected an array of 26 (num_hidden_layers)"},
    {"\"num_hidden_layers\":1,\"layer_types\":[\"chunked_attention\"]",
     "config.json: layer_types[0] is chunked_attention, expected full_attention or "
     "sliding_attention"},
    {"\"eos_token_id\":\"x\"", "config.json: eos_token_id is no token id"},
    {"\"eos_token_id\":[1,2,3,4,5,6,7,8,9]", "config.json: eos_token_id has more than 8 ids"},
};

static void each_fault_has_its_sentence(void)
{
    struct gemma_config c;

    for (size_t i = 0; i < sizeof(wrong_kinds) / sizeof(wrong_kinds[0]); i++)
        CHECK_ERR(parse(&c, wrong_kinds[i].json), ERR_FORMAT, wrong_kinds[i].words);
    for (size_t i = 0; i < sizeof(wrong_settings) / sizeof(wrong_settings[0]); i++)
        CHECK_ERR(parse_text(&c, wrong_settings[i].members), ERR_FORMAT, wrong_settings[i].words);
}

static void every_cut_is_refused(void)
{
    struct gemma_config c;
    struct file_map map;

    CHECK_OK(file_map_open(&map, PE_TESTS_DIR "/golden/gemma3-tiny/config.json", &err));
    for (size_t cut = 0; cut < map.size; cut++)
        CHECK_ERR(gemma_config_from_json(&c, map.data, cut, "cut.json", &err), ERR_FORMAT,
                  "cut.json: ");
    file_map_close(&map);
}

int main(void)
{
    RUN(the_tiny_config_is_read);
    RUN(absent_settings_are_those_of_transformers);
    RUN(a_released_config_is_read);
    RUN(the_newer_spelling_is_read);
    RUN(older_and_harmless_settings_are_read);
    RUN(each_fault_has_its_sentence);
    RUN(every_cut_is_refused);
    return check_result();
}
