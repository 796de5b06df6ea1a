/* A decoder's numbers from GGUF metadata: a small sound file, and the same with one key changed. */
#include <math.h>

#include "base/buf.h"
#include "engine/files/gemma_config.h"
#include "engine/files/gguf.h"
#include "tests/check.h"

static struct error err;

enum { REMOVED = 100 }; /* as a key's type: leave it out */

struct key {
    const char *name;
    int type;     /* GGUF_U32, GGUF_F32, GGUF_STRING, GGUF_ARRAY (of two bools) or REMOVED */
    double value; /* a number; of bools, bit i is element i */
    const char *text;
};

static const struct key sound[] = {
    {"general.architecture", GGUF_STRING, 0, "gemma3"},
    {"gemma3.block_count", GGUF_U32, 2, NULL},
    {"gemma3.embedding_length", GGUF_U32, 24, NULL},
    {"gemma3.feed_forward_length", GGUF_U32, 40, NULL},
    {"gemma3.context_length", GGUF_U32, 1000, NULL},
    {"gemma3.attention.head_count", GGUF_U32, 2, NULL},
    {"gemma3.attention.head_count_kv", GGUF_U32, 1, NULL},
    {"gemma3.attention.key_length", GGUF_U32, 16, NULL},
    {"gemma3.attention.value_length", GGUF_U32, 16, NULL},
    {"gemma3.attention.sliding_window", GGUF_U32, 512, NULL},
    {"gemma3.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-6, NULL},
    {"gemma3.rope.freq_base", GGUF_F32, 1e6, NULL},
    {"tokenizer.ggml.eos_token_id", GGUF_U32, 106, NULL},
};

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

static void put_key(struct buf *b, const struct key *key)
{
    float number = (float)key->value;
    uint32_t bits;

    put_text(b, key->name);
    put_int(b, (uint64_t)key->type, 4);
    memcpy(&bits, &number, sizeof(bits));
    if (key->type == GGUF_STRING) {
        put_text(b, key->text);
    } else if (key->type == GGUF_ARRAY) {
        put_int(b, GGUF_BOOL, 4);
        put_int(b, 2, 8);
        put_int(b, (unsigned)key->value & 1, 1);
        put_int(b, (unsigned)key->value >> 1 & 1, 1);
    } else {
        put_int(b, key->type == GGUF_F32 ? bits : (uint64_t)key->value, 4);
    }
}

/* The sound file's numbers with `change` (may be NULL) instead of its key, or added; the embedding
 * has `rows` rows of `width`. */
static int parse(struct gemma_config *c, const struct key *change, size_t rows, size_t width)
{
    const size_t n_sound = sizeof(sound) / sizeof(sound[0]);
    struct buf b = {.max = 1 << 20}, keys = {.max = 1 << 20};
    struct gguf *g = NULL;
    uint64_t n_keys = 0;
    int rc;

    for (size_t i = 0; i < n_sound; i++) {
        if (change != NULL && strcmp(change->name, sound[i].name) == 0)
            continue;
        put_key(&keys, &sound[i]);
        n_keys++;
    }
    if (change != NULL && change->type != REMOVED) {
        put_key(&keys, change);
        n_keys++;
    }
    put_int(&b, 0x46554747, 4); /* "GGUF" */
    put_int(&b, 3, 4);
    put_int(&b, rows > 0, 8);
    put_int(&b, n_keys, 8);
    if (buf_append(&b, keys.data, keys.len, NULL) != OK)
        abort();
    if (rows > 0) {
        put_text(&b, "token_embd.weight");
        put_int(&b, 2, 4);
        put_int(&b, width, 8);
        put_int(&b, rows, 8);
        put_int(&b, 0, 4);
        put_int(&b, 0, 8);
        while (b.len % 32 != 0)
            put_int(&b, 0, 1);
        for (size_t i = 0; i < rows * width; i++)
            put_int(&b, 0, 4);
    }
    if ((rc = gguf_parse(&g, b.data, b.len, "x.gguf", &err)) == OK)
        rc = gemma_config_from_gguf(c, g, gguf_find(g, "token_embd.weight"), &err);
    gguf_close(g);
    buf_free(&b);
    buf_free(&keys);
    return rc;
}

static void the_keys_of_llama_cpp_are_read(void)
{
    struct gemma_config c;

    CHECK_OK(parse(&c, NULL, 9, 24));
    CHECK_INT(c.kind, GEMMA_3);
    CHECK_INT(c.L, 2);
    CHECK_INT(c.D, 24);
    CHECK_INT(c.H, 2);
    CHECK_INT(c.sliding.K, 1);
    CHECK_INT(c.sliding.E, 16);
    CHECK_INT(c.F, 40);
    CHECK_INT(c.V, 9);
    CHECK(c.rms_norm_eps == 1e-6f);
    CHECK(c.query_pre_attn_scalar == 16);
    CHECK_INT(c.sliding_window, 512);
    CHECK_INT(c.max_position, 1000);
    CHECK(!c.is_global[0] && !c.is_global[1]);
    CHECK(c.global.rope.theta == 1e6 && c.global.rope.factor == 1);
    CHECK(c.sliding.rope.theta == 1e4 && c.sliding.rope.factor == 1);
    CHECK_INT(c.n_eos, 1);
    CHECK_INT(c.eos[0], 106);
}

static void layers_are_sliding_by_flags_or_by_period(void)
{
    const struct key flags = {"gemma3.attention.sliding_window_pattern", GGUF_ARRAY, 2, NULL};
    const struct key period = {"gemma3.attention.sliding_window_pattern", GGUF_U32, 2, NULL};
    const struct key six_layers = {"gemma3.block_count", GGUF_U32, 6, NULL};
    struct gemma_config c;

    CHECK_OK(parse(&c, &flags, 9, 24));
    CHECK(c.is_global[0] && !c.is_global[1]);
    CHECK_OK(parse(&c, &period, 9, 24));
    CHECK(!c.is_global[0] && c.is_global[1]);
    CHECK_OK(parse(&c, &six_layers, 9, 24));
    CHECK(!c.is_global[4] && c.is_global[5]);
}

static void the_score_factor_follows_llama_cpp(void)
{
    const struct key as_27b = {"gemma3.block_count", GGUF_U32, 62, NULL};
    const struct key stated = {"gemma3.attention.scale", GGUF_F32, 0.125, NULL};
    struct gemma_config c;

    CHECK_OK(parse(&c, &as_27b, 9, 24));
    CHECK(c.query_pre_attn_scalar == 12); /* D / H, not E */
    CHECK_OK(parse(&c, &stated, 9, 24));
    CHECK(fabs(c.query_pre_attn_scalar - 64) < 1e-9);
}

static void rotary_settings_are_read(void)
{
    const struct key factor = {"gemma3.rope.scaling.factor", GGUF_F32, 8, NULL};
    const struct key older = {"gemma3.rope.scale_linear", GGUF_F32, 4, NULL};
    const struct key local = {"gemma3.rope.freq_base_swa", GGUF_F32, 5000, NULL};
    struct gemma_config c;

    CHECK_OK(parse(&c, &factor, 9, 24));
    CHECK(c.global.rope.factor == 8 && c.sliding.rope.factor == 1);
    CHECK_OK(parse(&c, &older, 9, 24));
    CHECK(c.global.rope.factor == 4);
    CHECK_OK(parse(&c, &local, 9, 24));
    CHECK(c.sliding.rope.theta == 5000);
}

static const struct {
    struct key change;
    const char *words;
} broken[] = {
    {{"general.architecture", REMOVED, 0, NULL}, "x.gguf: general.architecture is missing"},
    {{"general.architecture", GGUF_STRING, 0, "llama"},
     "x.gguf: general.architecture is llama, expected gemma3"},
    {{"general.architecture", GGUF_STRING, 0, "gemma4"}, "Gemma 4 is read from safetensors only"},
    {{"general.architecture", GGUF_STRING, 0, "\033[2J"}, "is unreadable, expected gemma3"},
    {{"gemma3.block_count", REMOVED, 0, NULL}, "x.gguf: gemma3.block_count is missing"},
    {{"gemma3.block_count", GGUF_U32, 257, NULL},
     "x.gguf: gemma3.block_count is 257, expected 1 to 256"},
    {{"gemma3.block_count", GGUF_STRING, 0, "2"},
     "x.gguf: gemma3.block_count is string, expected an integer"},
    {{"gemma3.embedding_length", GGUF_U32, 25, NULL},
     "x.gguf: token_embd.weight: shape [9,24], want [V,25]"},
    {{"gemma3.attention.head_count_kv", GGUF_U32, 3, NULL},
     "x.gguf: 2 attention heads are no multiple of 3 key/value heads"},
    {{"gemma3.attention.value_length", GGUF_U32, 8, NULL},
     "x.gguf: gemma3.attention.value_length is 8, expected 16 (key_length)"},
    {{"gemma3.attention.sliding_window", GGUF_U32, 0, NULL},
     "x.gguf: gemma3.attention.sliding_window is 0, expected 1 to"},
    {{"gemma3.attention.sliding_window_pattern", GGUF_U32, 0, NULL},
     "x.gguf: gemma3.attention.sliding_window_pattern is 0, expected 1 to"},
    {{"gemma3.rope.freq_base", REMOVED, 0, NULL}, "x.gguf: gemma3.rope.freq_base is missing"},
    {{"gemma3.rope.freq_base", GGUF_F32, (double)INFINITY, NULL},
     "x.gguf: gemma3.rope.freq_base is inf, expected a finite number above 0"},
    {{"gemma3.rope.freq_base", GGUF_F32, (double)NAN, NULL}, "expected a finite number above 0"},
    {{"gemma3.rope.scaling.type", GGUF_STRING, 0, "yarn"},
     "x.gguf: gemma3.rope.scaling.type: only none and linear are supported"},
    {{"gemma3.rope.scaling.factor", GGUF_F32, 0, NULL},
     "x.gguf: gemma3.rope.scaling.factor is 0, expected a finite number above 0"},
    {{"gemma3.attention.layer_norm_rms_epsilon", GGUF_F32, 3, NULL},
     "x.gguf: an RMS epsilon of 1, expected between 0 and 1"},
    {{"gemma3.attention.scale", GGUF_F32, 1e30, NULL},
     "x.gguf: gemma3.attention.scale is 1e+30, out of range"},
    {{"gemma3.attn_logit_softcapping", GGUF_F32, 50, NULL},
     "x.gguf: gemma3.attn_logit_softcapping is not supported"},
};

static void each_fault_has_its_sentence(void)
{
    struct gemma_config c;

    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
        CHECK_ERR(parse(&c, &broken[i].change, 9, 24), ERR_FORMAT, broken[i].words);
    CHECK_ERR(parse(&c, NULL, 0, 0), ERR_FORMAT, "x.gguf: token_embd.weight: no such tensor");
}

int main(void)
{
    RUN(the_keys_of_llama_cpp_are_read);
    RUN(layers_are_sliding_by_flags_or_by_period);
    RUN(the_score_factor_follows_llama_cpp);
    RUN(rotary_settings_are_read);
    RUN(each_fault_has_its_sentence);
    return check_result();
}
