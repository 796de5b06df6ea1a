/* Whole models as users have them: the tiny one, and directories and files written here. */
#include "engine/files/model_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/check.h"
#include "tokenizer/tokenizer.h"

#define TINY   PE_TESTS_DIR "/golden/gemma3-tiny"
#define PACKED PE_TESTS_DIR "/golden/gemma4-tiny-te-single-file.safetensors"
#define FOLDER PE_SCRATCH_DIR "/model-file"

static struct error err;

/* --- writing -------------------------------------------------------------------------------- */

static void write_file(const char *name, const void *data, size_t size)
{
    char path[1024];
    FILE *f;

    mkdir(FOLDER, 0755); /* may be there already */
    snprintf(path, sizeof(path), FOLDER "/%s", name);
    if ((f = fopen(path, "wb")) == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
}

static void start_again(void)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    char path[1024];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), FOLDER "/%s", names[i]);
        unlink(path);
    }
}

static void write_config(void)
{
    static const char config[] =
        "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":1,\"hidden_size\":4}";

    write_file("config.json", config, sizeof(config) - 1);
}

/* A file whose header is `header`, with `data_size` zero bytes. */
static void write_safetensors(const char *name, const char *header, size_t data_size)
{
    uint8_t bytes[1024] = {0};
    size_t len = strlen(header);

    bytes[0] = (uint8_t)len;
    bytes[1] = (uint8_t)(len >> 8);
    memcpy(bytes + 8, header, len);
    write_file(name, bytes, 8 + len + data_size);
}

#define TWO_BYTES(at, end) "{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[" #at "," #end "]}"

static void put_int(struct buf *b, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++, x >>= 8)
        if (buf_append(b, &(uint8_t){(uint8_t)x}, 1, NULL) != OK)
            abort();
}

static void put_text(struct buf *b, const char *text)
{
    put_int(b, strlen(text), 8);
    if (buf_append(b, text, strlen(text), NULL) != OK)
        abort();
}

static void put_u32(struct buf *b, const char *key, uint32_t value)
{
    put_text(b, key);
    put_int(b, 4, 4);
    put_int(b, value, 4);
}

static void put_text_key(struct buf *b, const char *key, const char *value)
{
    put_text(b, key);
    put_int(b, 8, 4);
    put_text(b, value);
}

/* --- directories ---------------------------------------------------------------------------- */

static void the_tiny_directory_opens(void)
{
    static const struct {
        const char *name;
        int n_dims;
        size_t shape[2];
    } want[] = {
        {"embed_tokens.weight", 2, {1408, 128}},
        {"norm.weight", 1, {128, 0}},
        {"layers.6.self_attn.q_proj.weight", 2, {256, 128}},
        {"layers.6.self_attn.k_proj.weight", 2, {128, 128}},
        {"layers.6.self_attn.v_proj.weight", 2, {128, 128}},
        {"layers.6.self_attn.o_proj.weight", 2, {128, 256}},
        {"layers.6.self_attn.q_norm.weight", 1, {64, 0}},
        {"layers.6.self_attn.k_norm.weight", 1, {64, 0}},
        {"layers.6.input_layernorm.weight", 1, {128, 0}},
        {"layers.6.post_attention_layernorm.weight", 1, {128, 0}},
        {"layers.6.pre_feedforward_layernorm.weight", 1, {128, 0}},
        {"layers.6.post_feedforward_layernorm.weight", 1, {128, 0}},
        {"layers.6.mlp.gate_proj.weight", 2, {320, 128}},
        {"layers.6.mlp.up_proj.weight", 2, {320, 128}},
        {"layers.6.mlp.down_proj.weight", 2, {128, 320}},
    };
    struct model_file *m;
    struct tensor t;

    CHECK_OK(model_file_open(&m, TINY, &err));
    CHECK_TEXT(model_file_format(m), "safetensors");
    CHECK(model_file_norms_lack_one(m));
    CHECK_INT(model_file_config(m)->L, 7);
    CHECK_INT(model_file_n_tensors(m), 132);
    CHECK(model_file_tensor_at(m, 131) != NULL && model_file_tensor_at(m, 132) == NULL);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        CHECK_OK(model_file_tensor(m, &t, want[i].name, want[i].n_dims, want[i].shape, &err));
        CHECK_INT(t.type, DTYPE_BF16);
    }
    model_file_close(m);
}

static void a_tensor_that_is_not_as_expected_is_named(void)
{
    const size_t shape[] = {1152, 128};
    struct model_file *m;
    struct tensor t;

    CHECK_OK(model_file_open(&m, TINY, &err));
    CHECK_ERR(model_file_tensor(m, &t, "layers.3.mlp.up_proj.weight", 2, shape, &err), ERR_FORMAT,
              "model.safetensors: language_model.model.layers.3.mlp.up_proj.weight: shape "
              "[320,128], want [1152,128]");
    CHECK_ERR(model_file_tensor(m, &t, "norm.weight", 2, shape, &err), ERR_FORMAT,
              "model.safetensors: language_model.model.norm.weight: shape [128], want [1152,128]");
    CHECK_ERR(
        model_file_tensor(m, &t, "layers.7.mlp.up_proj.weight", 2, shape, &err), ERR_FORMAT,
        "model.safetensors: language_model.model.layers.7.mlp.up_proj.weight: no such tensor");
    model_file_close(m);
}

static void every_prefix_is_found(void)
{
    static const char *const prefixes[] = {"", "model.", "language_model.model.",
                                           "model.language_model.", "text.encoder."};
    const size_t shape[] = {1, 2};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        struct model_file *m;
        struct tensor t;
        char header[256];

        start_again();
        write_config();
        snprintf(header, sizeof(header),
                 "{\"%sembed_tokens.weight\":" TWO_BYTES(
                     0, 2) ",\"not_embed_tokens.weight\":" TWO_BYTES(2, 4) "}",
                 prefixes[i]);
        write_safetensors("model.safetensors", header, 4);
        CHECK_OK(model_file_open(&m, FOLDER, &err));
        /* found, and only then refused for what it is */
        CHECK_ERR(model_file_tensor(m, &t, "embed_tokens.weight", 2, shape, &err), ERR_FORMAT,
                  "embed_tokens.weight: type U8 is not supported, expected F32, F16, BF16");
        model_file_close(m);
    }
}

static void no_or_two_decoders_are_refused(void)
{
    struct model_file *m;

    start_again();
    write_config();
    write_safetensors("model.safetensors", "{}", 0);
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_FORMAT,
              "model.safetensors: no tensor's name ends in embed_tokens.weight");
    CHECK(m == NULL);
    write_safetensors("model.safetensors",
                      "{\"a.embed_tokens.weight\":" TWO_BYTES(
                          0, 2) ",\"b.embed_tokens.weight\":" TWO_BYTES(2, 4) "}",
                      4);
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_FORMAT,
              "model.safetensors: both a.embed_tokens.weight and b.embed_tokens.weight");
}

static void a_directory_without_its_parts_says_which(void)
{
    struct model_file *m;

    start_again();
    mkdir(FOLDER, 0755);
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_IO, "config.json: No such file");
    write_config();
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_IO,
              "holds neither model.safetensors nor model.safetensors.index.json");
    CHECK_ERR(model_file_open(&m, FOLDER "/nothing", &err), ERR_IO, "nothing: No such file");
    write_file("config.json", "{\"model_type\":\"gemma4\"}", 23);
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_FORMAT,
              "config.json: model_type is gemma4, expected gemma3, gemma4_unified");
}

static void a_sharded_directory_opens(void)
{
    static const char index[] =
        "{\"weight_map\":{\"model.embed_tokens.weight\":\"1.safetensors\"}}";
    struct model_file *m;

    start_again();
    write_config();
    write_file("model.safetensors.index.json", index, sizeof(index) - 1);
    write_safetensors("1.safetensors", "{\"model.embed_tokens.weight\":" TWO_BYTES(0, 2) "}", 2);
    CHECK_OK(model_file_open(&m, FOLDER, &err));
    CHECK_TEXT(model_file_format(m), "safetensors, 1 shards");
    CHECK_INT(model_file_n_tensors(m), 1);
    model_file_close(m);
    write_safetensors("1.safetensors", "{\"model.embed_tokens.weight\":" TWO_BYTES(0, 2) "}", 1);
    CHECK_ERR(model_file_open(&m, FOLDER, &err), ERR_FORMAT,
              "1.safetensors: model.embed_tokens.weight: ends at byte 2 of the data");
}

static void other_files_are_refused_as_what_they_are(void)
{
    struct model_file *m;
    struct tokenizer *t;

    CHECK_ERR(model_file_open(&m, TINY "/config.json", &err), ERR_FORMAT,
              "config.json: no Gemma directory, safetensors or GGUF file, by its first bytes");
    CHECK_ERR(model_file_open(&m, TINY "/model.safetensors", &err), ERR_FORMAT,
              "model.safetensors: safetensors without gemma_config: expected its whole directory");
    CHECK(m == NULL);
    CHECK_ERR(model_file_load_tokenizer(&t, TINY "/model.safetensors", &err), ERR_FORMAT,
              "model.safetensors: tokenizer_json: no such tensor");
}

/* --- packed files ---------------------------------------------------------------------------- */

static void a_packed_file_opens(void)
{
    const size_t global_k[] = {128, 128}, scalar[] = {1};
    struct model_file *m;
    struct tokenizer *t;
    struct tensor tensor;

    CHECK_OK(model_file_open(&m, PACKED, &err));
    CHECK_TEXT(model_file_format(m), "safetensors, packed in one file");
    CHECK_INT(model_file_config(m)->kind, GEMMA_4);
    CHECK_TEXT(model_file_config(m)->version, "gemma4-12b-ltx-v1");
    CHECK(!model_file_norms_lack_one(m));
    CHECK_OK(model_file_tensor(m, &tensor, "layers.5.self_attn.k_proj.weight", 2, global_k, &err));
    CHECK_TEXT(tensor.name, "model.layers.5.self_attn.k_proj.weight");
    CHECK_OK(model_file_tensor(m, &tensor, "layers.5.layer_scalar", 1, scalar, &err));
    CHECK_ERR(model_file_tensor(m, &tensor, "layers.5.self_attn.v_proj.weight", 2, global_k, &err),
              ERR_FORMAT,
              "single-file.safetensors: model.layers.5.self_attn.v_proj.weight: no such tensor");
    CHECK_OK(model_file_tokenizer(m, &t, &err));
    CHECK_INT(tokenizer_n_ids(t), 1367);
    tokenizer_free(t);
    model_file_close(m);
    CHECK_OK(model_file_load_tokenizer(&t, PACKED, &err));
    CHECK_INT(tokenizer_bos(t), 2);
    tokenizer_free(t);
}

#define CONFIG(text) "{\"__metadata__\":{\"gemma_config\":\"" text "\"},"
#define SMALL        "{\\\"model_type\\\":\\\"gemma3_text\\\"}"

/* The name is no hint, and the settings are read as strictly as a config.json. */
static void a_broken_packed_file_is_named(void)
{
    static const struct {
        const char *header, *words;
    } wrong[] = {
        {CONFIG("{") "\"x\":" TWO_BYTES(0, 2) "}", "packed.bin: gemma_config: bad JSON"},
        {CONFIG("{}") "\"x\":" TWO_BYTES(0, 2) "}",
         "packed.bin: gemma_config: model_type is missing"},
        {CONFIG(SMALL) "\"x\":" TWO_BYTES(0, 2) "}",
         "packed.bin: no tensor's name ends in embed_tokens.weight"},
        {CONFIG(SMALL) "\"x\":" TWO_BYTES(0, 1) "}", "packed.bin: x: "},
    };
    struct model_file *m;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_safetensors("packed.bin", wrong[i].header, 2);
        CHECK_ERR(model_file_open(&m, FOLDER "/packed.bin", &err), ERR_FORMAT, wrong[i].words);
        CHECK(m == NULL);
    }
}

static void a_packed_file_without_a_sound_tokenizer_says_so(void)
{
    static const struct {
        const char *type, *words;
    } wrong[] = {
        {"\"dtype\":\"U8\",\"shape\":[2]", "packed.bin: tokenizer_json: "}, /* two zero bytes */
        {"\"dtype\":\"I8\",\"shape\":[2]", "packed.bin: tokenizer_json: "},
        {"\"dtype\":\"U8\",\"shape\":[1,2]",
         "packed.bin: tokenizer_json: U8 [1,2], expected one row of U8 or I8"},
        {"\"dtype\":\"BF16\",\"shape\":[1]",
         "packed.bin: tokenizer_json: BF16 [1], expected one row of U8 or I8"},
    };
    struct model_file *m;
    struct tokenizer *t;
    char header[512];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(header, sizeof(header),
                 CONFIG(SMALL) "\"embed_tokens.weight\":" TWO_BYTES(
                     0, 2) ",\"tokenizer_json\":{%s,\"data_offsets\":[2,4]}}",
                 wrong[i].type);
        write_safetensors("packed.bin", header, 4);
        CHECK_OK(model_file_open(&m, FOLDER "/packed.bin", &err));
        CHECK_ERR(model_file_tokenizer(m, &t, &err), ERR_FORMAT, wrong[i].words);
        CHECK(t == NULL);
        CHECK_ERR(model_file_load_tokenizer(&t, FOLDER "/packed.bin", &err), ERR_FORMAT,
                  wrong[i].words);
        model_file_close(m);
    }
}

/* --- GGUF ----------------------------------------------------------------------------------- */

/* One layer; `extra` is a key with a number, or NULL. */
static void write_gguf_as(const char *name, const char *extra, uint32_t value)
{
    struct buf b = {.max = 1 << 16};

    put_int(&b, 0x46554747, 4);
    put_int(&b, 3, 4);
    put_int(&b, 2, 8);
    put_int(&b, 10 + (extra != NULL), 8);
    put_text_key(&b, "general.architecture", "gemma3");
    put_u32(&b, "gemma3.block_count", 1);
    put_u32(&b, "gemma3.embedding_length", 2);
    put_u32(&b, "gemma3.feed_forward_length", 4);
    put_u32(&b, "gemma3.context_length", 10);
    put_u32(&b, "gemma3.attention.head_count", 1);
    put_u32(&b, "gemma3.attention.key_length", 2);
    put_u32(&b, "gemma3.attention.sliding_window", 5);
    put_u32(&b, "gemma3.rope.freq_base", 10000);
    put_text(&b, "gemma3.attention.layer_norm_rms_epsilon");
    put_int(&b, 6, 4);
    put_int(&b, 0x358637bd, 4); /* 1e-6f */
    if (extra != NULL)
        put_u32(&b, extra, value);
    put_text(&b, "token_embd.weight");
    put_int(&b, 2, 4);
    put_int(&b, 2, 8);
    put_int(&b, 3, 8); /* three rows of two */
    put_int(&b, 0, 4);
    put_int(&b, 0, 8);
    put_text(&b, "blk.0.post_ffw_norm.weight");
    put_int(&b, 1, 4);
    put_int(&b, 2, 8);
    put_int(&b, 0, 4);
    put_int(&b, 32, 8);
    while (b.len % 32 != 0)
        put_int(&b, 0, 1);
    put_int(&b, 0, 8);
    for (int i = 0; i < 4; i++)
        put_int(&b, 0, 8);
    write_file(name, b.data, b.len);
    buf_free(&b);
}

/* The name is no hint. */
static void write_gguf(const char *extra, uint32_t value)
{
    write_gguf_as("model.bin", extra, value);
}

/* Part `i` of `n`, with nothing but one tensor of two numbers, or none. */
static void write_part(const char *name, uint32_t i, uint32_t n, const char *tensor)
{
    struct buf b = {.max = 1 << 12};

    put_int(&b, 0x46554747, 4);
    put_int(&b, 3, 4);
    put_int(&b, tensor != NULL, 8);
    put_int(&b, 2, 8);
    put_u32(&b, "split.no", i);
    put_u32(&b, "split.count", n);
    if (tensor != NULL) {
        put_text(&b, tensor);
        put_int(&b, 1, 4);
        put_int(&b, 2, 8);
        put_int(&b, 0, 4);
        put_int(&b, 0, 8);
    }
    while (b.len % 32 != 0)
        put_int(&b, 0, 1);
    put_int(&b, 0, 8);
    write_file(name, b.data, b.len);
    buf_free(&b);
}

static void a_gguf_file_opens_whatever_it_is_called(void)
{
    const size_t embedding[] = {3, 2}, norm[] = {2};
    struct model_file *m;
    struct tensor t;

    write_gguf(NULL, 0);
    CHECK_OK(model_file_open(&m, FOLDER "/model.bin", &err));
    CHECK_TEXT(model_file_format(m), "gguf v3");
    CHECK(!model_file_norms_lack_one(m));
    CHECK_INT(model_file_config(m)->V, 3);
    CHECK_OK(model_file_tensor(m, &t, "embed_tokens.weight", 2, embedding, &err));
    CHECK_TEXT(t.name, "token_embd.weight");
    CHECK_OK(model_file_tensor(m, &t, "layers.0.post_feedforward_layernorm.weight", 1, norm, &err));
    CHECK_TEXT(t.name, "blk.0.post_ffw_norm.weight");
    CHECK_ERR(model_file_tensor(m, &t, "norm.weight", 1, norm, &err), ERR_FORMAT,
              "model.bin: output_norm.weight: no such tensor");
    CHECK_ERR(model_file_tensor(m, &t, "layers.0.mlp.gate_proj.weight", 1, norm, &err), ERR_FORMAT,
              "model.bin: blk.0.ffn_gate.weight: no such tensor");
    CHECK_ERR(model_file_tensor(m, &t, "layers.0.other.weight", 1, norm, &err), ERR_FORMAT,
              "model.bin: layers.0.other.weight: no such name in a Gemma model");
    model_file_close(m);
}

#define PART(i) "split-0000" #i "-of-00003.gguf"

static void a_split_gguf_opens_by_its_first_file(void)
{
    const size_t norm[] = {2};
    struct model_file *m;
    struct tensor t;

    write_gguf("split.count", 1);
    CHECK_OK(model_file_open(&m, FOLDER "/model.bin", &err));
    CHECK_TEXT(model_file_format(m), "gguf v3");
    model_file_close(m);
    write_gguf_as(PART(1), "split.count", 3);
    write_part(PART(2), 1, 3, NULL);
    write_part(PART(3), 2, 3, "output_norm.weight");
    CHECK_OK(model_file_open(&m, FOLDER "/" PART(1), &err));
    CHECK_TEXT(model_file_format(m), "gguf v3, 3 files");
    CHECK_INT(model_file_n_tensors(m), 3);
    CHECK(model_file_tensor_at(m, 2) != NULL && model_file_tensor_at(m, 3) == NULL);
    CHECK_OK(model_file_tensor(m, &t, "norm.weight", 1, norm, &err));
    CHECK_TEXT(t.file, PART(3));
    model_file_close(m);
}

static void parts_that_do_not_belong_together_are_named(void)
{
    struct model_file *m;

    write_gguf("split.count", 3);
    CHECK_ERR(model_file_open(&m, FOLDER "/model.bin", &err), ERR_FORMAT,
              "model.bin: split.count is 3: give the first of its files, whose name ends in "
              "-00001-of-00003.gguf");
    write_gguf("split.count", 0);
    CHECK_ERR(model_file_open(&m, FOLDER "/model.bin", &err), ERR_FORMAT,
              "model.bin: split.count is 0, expected 1 to 1000");
    write_gguf("split.count", 4000000000u);
    CHECK_ERR(model_file_open(&m, FOLDER "/model.bin", &err), ERR_FORMAT,
              "model.bin: split.count is 4000000000, expected 1 to 1000");
    write_gguf("split.tensors.count", 7);
    CHECK_ERR(model_file_open(&m, FOLDER "/model.bin", &err), ERR_FORMAT,
              "model.bin: split.tensors.count is 7, but its files have 2");
    write_gguf_as(PART(1), "split.count", 3);
    write_part(PART(2), 1, 3, NULL);
    unlink(FOLDER "/" PART(3));
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(1), &err), ERR_IO, PART(3) ": No such file");
    write_part(PART(3), 1, 3, NULL);
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(1), &err), ERR_FORMAT,
              PART(3) ": split.no is 1, expected 2");
    write_part(PART(3), 2, 4, NULL);
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(1), &err), ERR_FORMAT,
              PART(3) ": split.count is 4, but 3 in the first file");
    write_part(PART(3), 2, 3, "token_embd.weight");
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(1), &err), ERR_FORMAT,
              "token_embd.weight: there are two tensors of this name");
    CHECK(m == NULL);
    /* a part that is not the first */
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(2), &err), ERR_FORMAT,
              PART(2) ": split.no is 1, expected 0");
    unlink(FOLDER "/" PART(1));
    CHECK_ERR(model_file_open(&m, FOLDER "/" PART(1), &err), ERR_IO, PART(1) ": No such file");
}

static void a_gguf_without_a_vocabulary_has_no_tokenizer(void)
{
    struct model_file *m;
    struct tokenizer *t;

    write_gguf(NULL, 0);
    CHECK_OK(model_file_open(&m, FOLDER "/model.bin", &err));
    CHECK_ERR(model_file_tokenizer(m, &t, &err), ERR_FORMAT,
              "model.bin: tokenizer.ggml.model is missing");
    CHECK(t == NULL);
    model_file_close(m);
}

enum { N_PIECES = 5 + 256 };

/* Metadata only: five pieces, then the bytes. `n_scores` of them have a score; <bos> has the id
 * `bos`. */
static void write_vocabulary(const char *model, uint64_t n_scores, uint32_t bos)
{
    static const char *const pieces[] = {"<bos>", "a", "b", "ab", "\xe2\x96\x81"};
    struct buf b = {.max = 1 << 16};
    char byte[8];

    put_int(&b, 0x46554747, 4);
    put_int(&b, 3, 4);
    put_int(&b, 0, 8);
    put_int(&b, 5, 8);
    put_text_key(&b, "tokenizer.ggml.model", model);
    put_text(&b, "tokenizer.ggml.tokens");
    put_int(&b, 9, 4);
    put_int(&b, 8, 4);
    put_int(&b, N_PIECES, 8);
    for (int i = 0; i < N_PIECES; i++) {
        snprintf(byte, sizeof(byte), "<0x%02X>", (unsigned)(i - 5) & 0xff);
        put_text(&b, i < 5 ? pieces[i] : byte);
    }
    put_text(&b, "tokenizer.ggml.scores");
    put_int(&b, 9, 4);
    put_int(&b, 6, 4);
    put_int(&b, n_scores, 8);
    for (uint64_t i = 0; i < n_scores; i++)
        put_int(&b, 0, 4);
    put_text(&b, "tokenizer.ggml.token_type");
    put_int(&b, 9, 4);
    put_int(&b, 5, 4);
    put_int(&b, N_PIECES, 8);
    for (int i = 0; i < N_PIECES; i++)
        put_int(&b, i == 0 ? PIECE_CONTROL : i < 5 ? PIECE_NORMAL : PIECE_BYTE, 4);
    put_u32(&b, "tokenizer.ggml.bos_token_id", bos);
    write_file("vocabulary.gguf", b.data, b.len);
    buf_free(&b);
}

static void a_gguf_vocabulary_becomes_a_tokenizer(void)
{
    struct token_list list = {0};
    struct tokenizer *t;

    write_vocabulary("llama", N_PIECES, 0);
    CHECK_OK(model_file_load_tokenizer(&t, FOLDER "/vocabulary.gguf", &err));
    CHECK_INT(tokenizer_n_ids(t), N_PIECES);
    CHECK_INT(tokenizer_bos(t), 0);
    CHECK_OK(tokenizer_encode(t, "ab", 2, 0, &list, &err));
    CHECK_INT(list.n, 2);
    CHECK_INT(list.ids[1], 3);
    token_list_free(&list);
    tokenizer_free(t);
}

static void a_broken_gguf_vocabulary_is_refused(void)
{
    struct tokenizer *t;

    write_vocabulary("gpt2", N_PIECES, 0);
    CHECK_ERR(model_file_load_tokenizer(&t, FOLDER "/vocabulary.gguf", &err), ERR_FORMAT,
              "vocabulary.gguf: tokenizer.ggml.model is not llama");
    write_vocabulary("llama", 3, 0);
    CHECK_ERR(model_file_load_tokenizer(&t, FOLDER "/vocabulary.gguf", &err), ERR_FORMAT,
              "vocabulary.gguf: 261 tokenizer.ggml.tokens, but 3 scores and 261 types");
    write_vocabulary("llama", N_PIECES, N_PIECES);
    CHECK_ERR(model_file_load_tokenizer(&t, FOLDER "/vocabulary.gguf", &err), ERR_FORMAT,
              "vocabulary.gguf: tokenizer.ggml.bos_token_id is 261, but there are 261 tokens");
    CHECK(t == NULL);
}

static void a_tokenizer_is_found_beside_or_without_the_weights(void)
{
    static const char *const paths[] = {TINY, TINY "/tokenizer.json"};
    struct model_file *m;
    struct tokenizer *t;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        CHECK_OK(model_file_load_tokenizer(&t, paths[i], &err));
        CHECK_INT(tokenizer_n_ids(t), 1367);
        tokenizer_free(t);
    }
    CHECK_OK(model_file_open(&m, TINY, &err));
    CHECK_OK(model_file_tokenizer(m, &t, &err));
    CHECK_INT(tokenizer_bos(t), 2);
    tokenizer_free(t);
    model_file_close(m);
    CHECK_ERR(model_file_load_tokenizer(&t, FOLDER "/nothing", &err), ERR_IO, "No such file");
}

int main(void)
{
    RUN(the_tiny_directory_opens);
    RUN(a_tensor_that_is_not_as_expected_is_named);
    RUN(every_prefix_is_found);
    RUN(no_or_two_decoders_are_refused);
    RUN(a_directory_without_its_parts_says_which);
    RUN(a_sharded_directory_opens);
    RUN(other_files_are_refused_as_what_they_are);
    RUN(a_packed_file_opens);
    RUN(a_broken_packed_file_is_named);
    RUN(a_packed_file_without_a_sound_tokenizer_says_so);
    RUN(a_gguf_file_opens_whatever_it_is_called);
    RUN(a_split_gguf_opens_by_its_first_file);
    RUN(parts_that_do_not_belong_together_are_named);
    RUN(a_gguf_without_a_vocabulary_has_no_tokenizer);
    RUN(a_gguf_vocabulary_becomes_a_tokenizer);
    RUN(a_broken_gguf_vocabulary_is_refused);
    RUN(a_tokenizer_is_found_beside_or_without_the_weights);
    model_file_close(NULL);
    return check_result();
}
