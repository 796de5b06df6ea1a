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

static int parse_flat(struct gemma_config *c, const char *model_type, const char *members)
{
    char json[1024];

    snprintf(json, sizeof(json), "{\"model_type\":\"%s\"%s%s}", model_type, members[0] ? "," : "",
             members);
    return parse(c, json);
}

/* A flat config with these members besides its model_type. */
static int parse_text(struct gemma_config *c, const char *members)
{
    return parse_flat(c, "gemma3_text", members);
}

static int parse_text4(struct gemma_config *c, const char *members)
{
    return parse_flat(c, "gemma4_unified_text", members);
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
    CHECK_INT(c.sliding.K, 2);
    CHECK_INT(c.sliding.E, 64);
    CHECK_INT(c.F, 320);
    CHECK_INT(c.V, 1408);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 48);
    CHECK_INT(c.sliding_window, 32);
    CHECK_INT(c.max_position, 131072);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], i == 5);
    CHECK(c.global.rope.theta == 1000000 && c.global.rope.factor == 8);
    CHECK(c.sliding.rope.theta == 10000 && c.sliding.rope.factor == 1);
    CHECK(c.global.K == 2 && c.global.E == 64 && !c.global.k_is_v);
    CHECK(c.global.rope.n_turning == 32 && c.sliding.rope.n_turning == 32);
    CHECK(!c.norm_v && !c.has_layer_scalars);
    CHECK_TEXT(c.version, "");
    CHECK_INT(c.n_eos, 2);
    CHECK_INT(c.eos[1], 1363);
}

static void the_tiny_gemma4_config_is_read(void)
{
    struct gemma_config c;
    struct file_map map;

    CHECK_OK(file_map_open(&map, PE_TESTS_DIR "/golden/gemma4-tiny/config.json", &err));
    CHECK_OK(gemma_config_from_json(&c, map.data, map.size, "config.json", &err));
    file_map_close(&map);
    CHECK_INT(c.kind, GEMMA_4);
    CHECK_TEXT(gemma_kind_name(c.kind), "gemma4");
    CHECK_TEXT(c.version, "gemma4-12b-ltx-v1");
    CHECK_INT(c.L, 6);
    CHECK_INT(c.D, 128);
    CHECK_INT(c.H, 4);
    CHECK_INT(c.F, 320);
    CHECK_INT(c.V, 1408);
    CHECK_INT(c.sliding_window, 32);
    CHECK_INT(c.max_position, 262144);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 1);
    CHECK(c.norm_v && c.has_layer_scalars);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], i == 5);
    CHECK(c.sliding.K == 2 && c.sliding.E == 64 && !c.sliding.k_is_v);
    CHECK(c.global.K == 1 && c.global.E == 128 && c.global.k_is_v);
    CHECK(c.sliding.rope.theta == 10000 && c.sliding.rope.factor == 1);
    CHECK(c.global.rope.theta == 1000000 && c.global.rope.factor == 1);
    CHECK_INT(c.sliding.rope.n_turning, 32);
    CHECK_INT(c.global.rope.n_turning, 16); /* a quarter of 64 pairs */
    CHECK(gemma_attention_of(&c, 5) == &c.global && gemma_attention_of(&c, 4) == &c.sliding);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(c.eos[0], 1);
}

static void absent_settings_are_those_of_transformers(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text(&c, ""));
    CHECK_INT(c.L, 26);
    CHECK_INT(c.D, 2304);
    CHECK_INT(c.H, 8);
    CHECK_INT(c.sliding.K, 4);
    CHECK_INT(c.sliding.E, 256);
    CHECK_INT(c.F, 9216);
    CHECK_INT(c.V, 262208);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 256);
    CHECK_INT(c.sliding_window, 4096);
    CHECK_INT(c.max_position, 131072);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], (i + 1) % 6 == 0);
    CHECK(c.global.rope.theta == 1000000 && c.global.rope.factor == 1);
    CHECK(c.sliding.rope.theta == 10000 && c.sliding.rope.factor == 1);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(c.eos[0], 1);
}

static void absent_settings_of_gemma4_are_those_of_transformers(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text4(&c, ""));
    CHECK_INT(c.kind, GEMMA_4);
    CHECK_INT(c.L, 30);
    CHECK_INT(c.D, 2304);
    CHECK_INT(c.H, 8);
    CHECK_INT(c.F, 9216);
    CHECK_INT(c.V, 262144);
    CHECK_INT(c.sliding_window, 1024);
    CHECK_INT(c.max_position, 262144);
    CHECK(c.query_pre_attn_scalar == 1);
    for (int i = 0; i < c.L; i++)
        CHECK_INT(c.is_global[i], (i + 1) % 6 == 0);
    CHECK(c.sliding.K == 4 && c.sliding.E == 256);
    CHECK(c.global.K == 4 && c.global.E == 512 && !c.global.k_is_v); /* global_head_dim's default */
    CHECK(c.sliding.rope.theta == 10000 && c.sliding.rope.n_turning == 128);
    CHECK(c.global.rope.theta == 1000000 && c.global.rope.n_turning == 64);
}

#define TWO_LAYERS                                                                                 \
    "\"num_hidden_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
#define TWELVE "\"num_hidden_layers\":12,\"attention_k_eq_v\":true,"

static void heads_of_global_layers_are_found(void)
{
    struct gemma_config c;

    /* without per_layer_config */
    CHECK_OK(parse_text4(&c, TWELVE "\"global_head_dim\":64,\"num_global_key_value_heads\":2"));
    CHECK(c.global.E == 64 && c.global.K == 2 && c.global.k_is_v);
    CHECK(c.sliding.E == 256 && c.sliding.K == 4 && !c.sliding.k_is_v);
    CHECK_OK(parse_text4(&c, TWELVE "\"num_global_key_value_heads\":null"));
    CHECK(c.global.E == 512 && c.global.K == 4);
    /* it counts only where keys are values */
    CHECK_OK(parse_text4(&c, "\"num_global_key_value_heads\":2"));
    CHECK(c.global.K == 4 && !c.global.k_is_v);
    /* per_layer_config wins; its keys are numbers, whatever their zeros */
    CHECK_OK(parse_text4(&c, TWELVE "\"global_head_dim\":64,\"per_layer_config\":{\"05\":"
                                    "{\"head_dim\":32},\"011\":{\"head_dim\":32}}"));
    CHECK(c.global.E == 32 && c.global.K == 4 && c.sliding.E == 256);
    CHECK_OK(parse_text4(&c, TWO_LAYERS "\"per_layer_config\":{\"0\":{\"num_key_value_heads\":8},"
                                        "\"1\":{\"head_dim\":20,\"num_key_value_heads\":1}}"));
    CHECK(c.sliding.E == 256 && c.sliding.K == 8 && c.global.E == 20 && c.global.K == 1);
    /* none, or null: all layers are alike */
    CHECK_OK(parse_text4(&c, "\"global_head_dim\":64,\"per_layer_config\":{}"));
    CHECK(c.global.E == 256 && c.global.K == 4);
    CHECK_OK(parse_text4(&c, "\"global_head_dim\":64,\"per_layer_config\":null"));
    CHECK(c.global.E == 256 && c.global.K == 4);
}

static void proportional_rope_is_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text4(&c, "\"per_layer_config\":{},\"head_dim\":22,\"rope_parameters\":{"
                             "\"full_attention\":{\"rope_type\":\"proportional\",\"factor\":4,"
                             "\"partial_rotary_factor\":0.5,\"rope_theta\":5e5},"
                             "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2,"
                             "\"rope_theta\":2e4}}"));
    CHECK(c.global.rope.theta == 5e5 && c.global.rope.factor == 4);
    CHECK_INT(c.global.rope.n_turning, 5); /* of 11, rounded down */
    CHECK(c.sliding.rope.theta == 2e4 && c.sliding.rope.factor == 2);
    CHECK_INT(c.sliding.rope.n_turning, 11);
}

static void harmless_settings_of_gemma4_are_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text4(&c, "\"num_kv_shared_layers\":0,\"use_double_wide_mlp\":false,"
                             "\"enable_moe_block\":false,\"num_experts\":null,"
                             "\"hidden_size_per_layer_input\":0,\"attn_logit_softcapping\":null,"
                             "\"final_logit_softcapping\":30.0,"
                             "\"use_bidirectional_attention\":\"vision\""));
    CHECK_OK(parse_text4(&c, "\"use_bidirectional_attention\":null,\"rope_parameters\":null,"
                             "\"attention_k_eq_v\":null,\"gemma_version\":null"));
    CHECK_TEXT(c.version, "");
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
    CHECK(c.global.rope.factor == 8 && c.sliding.rope.factor == 1);
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
    CHECK(c.global.rope.theta == 5e5 && c.global.rope.factor == 4);
    CHECK(c.sliding.rope.theta == 2e4 && c.sliding.rope.factor == 1);
    /* what rope_parameters leaves out comes from the older settings, then from the defaults */
    CHECK_OK(parse_text(&c, "\"rope_theta\":7,\"rope_parameters\":{\"full_attention\":{},"
                            "\"sliding_attention\":{}}"));
    CHECK(c.global.rope.theta == 7 && c.sliding.rope.theta == 10000);
}

static void older_and_harmless_settings_are_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse_text(&c, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"));
    CHECK(c.global.rope.factor == 2);
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
    {"{}", "config.json: model_type is missing, expected gemma3 or gemma4_unified"},
    {"{\"model_type\":3}", "config.json: model_type is an integer, expected a string"},
    {"{\"model_type\":\"gemma2\"}", "config.json: model_type is gemma2, expected gemma3, "
                                    "gemma4_unified or one of these with _text"},
    /* a relative with other layers: inputs of their own, experts */
    {"{\"model_type\":\"gemma4\"}",
     "config.json: model_type is gemma4, expected gemma3, gemma4_un"},
    {"{\"model_type\":\"gemma4_text\"}", "config.json: model_type is gemma4_text, expected gemma3"},
    {"{\"model_type\":\"gemma4_unified\"}",
     "config.json: text_config is missing, expected an object"},
    {"{\"model_type\":\"gemma4_unified\",\"text_config\":{\"model_type\":\"gemma3_text\"}}",
     "config.json: text_config: model_type is gemma3_text, expected gemma4_unified_text"},
    {"{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma4_unified_text\"}}",
     "config.json: text_config: model_type is gemma4_unified_text, expected gemma3_text"},
    {"{\"model_type\":\"gemma4_unified\",\"text_config\":{},\"gemma_version\":4}",
     "config.json: gemma_version is an integer, expected a string"},
    {"{\"model_type\":\"gemma4_unified\",\"text_config\":{},\"gemma_version\":\"\"}",
     "config.json: gemma_version is empty, longer than 63 bytes or has control characters"},
    {"{\"model_type\":\"gemma4_unified\",\"text_config\":{},\"gemma_version\":\"a\\nb\"}",
     "config.json: gemma_version is empty, longer than 63 bytes or has control characters"},
    {"{\"model_type\":\"gemma4_unified\",\"text_config\":{},\"gemma_version\":\""
     "0123456789012345678901234567890123456789012345678901234567890123\"}",
     "config.json: gemma_version is empty, longer than 63 bytes or has control characters"},
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
    {"\"attn_logit_softcapping\":50.0",
     "config.json: attn_logit_softcapping is a fraction, expected none: it is not supported"},
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

static const struct {
    const char *members, *words;
} wrong_gemma4_settings[] = {
    {"\"num_kv_shared_layers\":4",
     "config.json: num_kv_shared_layers is 4, expected 0: it is not supported"},
    {"\"use_double_wide_mlp\":true",
     "config.json: use_double_wide_mlp is true, expected false: it is not supported"},
    {"\"enable_moe_block\":true", "config.json: enable_moe_block is true, expected false"},
    {"\"num_experts\":8", "config.json: num_experts is 8, expected 0"},
    {"\"top_k_experts\":2", "config.json: top_k_experts is 2, expected 0"},
    {"\"moe_intermediate_size\":704", "config.json: moe_intermediate_size is 704, expected 0"},
    {"\"hidden_size_per_layer_input\":256",
     "config.json: hidden_size_per_layer_input is 256, expected 0: it is not supported"},
    {"\"attention_bias\":true", "config.json: attention_bias is true, expected false"},
    {"\"attn_logit_softcapping\":50.0",
     "config.json: attn_logit_softcapping is a fraction, expected none: it is not supported"},
    {"\"hidden_activation\":\"silu\"", "hidden_activation is silu, expected gelu_pytorch_tanh"},
    {"\"use_bidirectional_attention\":\"all\"",
     "config.json: use_bidirectional_attention is all, expected vision or null"},
    {"\"use_bidirectional_attention\":true", "use_bidirectional_attention is true, expected a str"},
    {"\"query_pre_attn_scalar\":256", "config.json: query_pre_attn_scalar is 256, expected 0"},
    {"\"rope_scaling\":{\"factor\":8}", "config.json: rope_scaling is an object, expected none"},
    {"\"rope_theta\":1000000.0", "config.json: rope_theta is a fraction, expected none"},
    {"\"rope_local_base_freq\":10000", "config.json: rope_local_base_freq is 10000, expected 0"},
    {"\"attention_k_eq_v\":1",
     "config.json: attention_k_eq_v is an integer, expected true or false"},
    {"\"global_head_dim\":1025", "config.json: global_head_dim is 1025, expected 2 to 1024"},
    {"\"global_head_dim\":255", "config.json: a head width of 255, expected an even number"},
    {"\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3",
     "config.json: 8 attention heads are no multiple of 3 key/value heads"},
    {"\"num_hidden_layers\":7",
     "config.json: layer_types: the last layer is sliding, expected full"},
    {"\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]",
     "config.json: layer_types: the last layer is sliding, expected full_attention"},
    {"\"per_layer_config\":[]", "config.json: per_layer_config is an array, expected an object"},
    {"\"per_layer_config\":{\"30\":{}}", "config.json: per_layer_config: 30 is no layer's number"},
    {"\"per_layer_config\":{\"-1\":{}}", "config.json: per_layer_config: -1 is no layer's number"},
    {"\"per_layer_config\":{\"\":{}}", "config.json: per_layer_config:  is no layer's number"},
    {"\"per_layer_config\":{\"4294967296\":{}}",
     "per_layer_config: 4294967296 is no layer's number"},
    {"\"per_layer_config\":{\"5\":{},\"05\":{}}", "per_layer_config: 05 is there twice"},
    {"\"per_layer_config\":{\"05\":7}",
     "config.json: per_layer_config.05 is an integer, expected an object"},
    {"\"per_layer_config\":{\"5\":{\"head_dim\":0}}",
     "config.json: per_layer_config.5: head_dim is 0, expected 2 to 1024"},
    {"\"per_layer_config\":{\"5\":{\"num_key_value_heads\":\"1\"}}",
     "config.json: per_layer_config.5: num_key_value_heads is a string, expected an integer"},
    {"\"per_layer_config\":{\"5\":{\"intermediate_size\":4}}",
     "config.json: per_layer_config.5: intermediate_size is not supported, only head_dim and"},
    {"\"per_layer_config\":{\"5\":{\"skip\":[\"mlp\"]}}",
     "per_layer_config.5: skip is not supported"},
    {"\"per_layer_config\":{\"5\":{\"head_dim\":512}}",
     "config.json: per_layer_config: layer 11 has 4 key/value heads of 256, but another global "
     "layer "
     "4 of 512"},
    {"\"per_layer_config\":{\"3\":{\"num_key_value_heads\":2}}",
     "per_layer_config: layer 3 has 2 key/value heads of 256, but another sliding layer 4 of 256"},
    {"\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}",
     "config.json: rope_parameters has no sliding_attention"},
    {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\"}}",
     "config.json: rope_parameters.full_attention: rope_theta is missing"},
    {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
     "\"partial_rotary_factor\":1.5}}",
     "config.json: rope_parameters.full_attention: partial_rotary_factor is 1.5, at most 1"},
    {"\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25,\"rope_theta\":1}}",
     "rope_parameters.full_attention: partial_rotary_factor 0.25 is not supported"},
    {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":1}}",
     "rope_parameters.full_attention: rope_type is yarn, expected default, proportional or linear"},
};

static void each_fault_has_its_sentence(void)
{
    struct gemma_config c;

    for (size_t i = 0; i < sizeof(wrong_kinds) / sizeof(wrong_kinds[0]); i++)
        CHECK_ERR(parse(&c, wrong_kinds[i].json), ERR_FORMAT, wrong_kinds[i].words);
    for (size_t i = 0; i < sizeof(wrong_settings) / sizeof(wrong_settings[0]); i++)
        CHECK_ERR(parse_text(&c, wrong_settings[i].members), ERR_FORMAT, wrong_settings[i].words);
    for (size_t i = 0; i < sizeof(wrong_gemma4_settings) / sizeof(wrong_gemma4_settings[0]); i++)
        CHECK_ERR(parse_text4(&c, wrong_gemma4_settings[i].members), ERR_FORMAT,
                  wrong_gemma4_settings[i].words);
}

static void every_cut_is_refused(void)
{
    static const char *const paths[] = {PE_TESTS_DIR "/golden/gemma3-tiny/config.json",
                                        PE_TESTS_DIR "/golden/gemma4-tiny/config.json"};
    struct gemma_config c;
    struct file_map map;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        CHECK_OK(file_map_open(&map, paths[i], &err));
        for (size_t cut = 0; cut < map.size; cut++)
            CHECK_ERR(gemma_config_from_json(&c, map.data, cut, "cut.json", &err), ERR_FORMAT,
                      "cut.json: ");
        file_map_close(&map);
    }
}

int main(void)
{
    RUN(the_tiny_config_is_read);
    RUN(the_tiny_gemma4_config_is_read);
    RUN(absent_settings_are_those_of_transformers);
    RUN(absent_settings_of_gemma4_are_those_of_transformers);
    RUN(heads_of_global_layers_are_found);
    RUN(proportional_rope_is_read);
    RUN(harmless_settings_of_gemma4_are_read);
    RUN(a_released_config_is_read);
    RUN(the_newer_spelling_is_read);
    RUN(older_and_harmless_settings_are_read);
    RUN(each_fault_has_its_sentence);
    RUN(every_cut_is_refused);
    return check_result();
}
