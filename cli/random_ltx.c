/* random_ltx.c - prompt-encoder random-ltx: an LTX checkpoint of random weights for a Gemma.
 *
 * For trying the whole path without tens of GB of video model, and for timing it in real sizes. The
 * layout is that of LTX's own files, text side only. Numbers are uniform about their mean, spread
 * so that features and rows keep the size of real ones, and made by integer arithmetic: the same
 * settings and seed give the same file everywhere. What the file is stands in its name, in its
 * metadata, and in a warning of every program that opens it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/options.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "engine/files/ltx_checkpoint.h"
#include "kernels/ops.h"
#include "service/formats/json_text.h"
#include "service/formats/safetensors_writer.h"

enum {
    REGISTERS = 128,
    MAX_POS = 4096,
    MAX_WIDTH = 1 << 13,
    MAX_HEADS = 64,
    MAX_BLOCKS = 64,
    BLOCK_TENSORS = 16, /* at most */
    PIECE = 1 << 16     /* numbers made at once */
};

enum { V1, V2 }; /* as --extractor has them */

struct settings {
    const char *model, *out;
    int extractor;
    int64_t video_width, audio_width, heads, blocks, seed;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"model", 'm', "PE_MODEL", OPT_TEXT, FIELD(model), NULL, 0, 0, "PATH",
     "the Gemma that it is for"},
    {"out", 'o', NULL, OPT_TEXT, FIELD(out), NULL, 0, 0, "FILE",
     "where to write; 'random' must be in the name"},
    {"extractor", 0, NULL, OPT_CHOICE, FIELD(extractor), "v2", 0, 0, "v1|v2",
     "v1: as LTX-2.0; v2: as LTX-2.3 and 2.5, with gates"},
    {"video-width", 0, NULL, OPT_INT, FIELD(video_width), "512", 4, MAX_WIDTH, "N",
     "of video embeddings (LTX-2.3: 4096)"},
    {"audio-width", 0, NULL, OPT_INT, FIELD(audio_width), "256", 0, MAX_WIDTH, "N",
     "of audio embeddings (LTX-2.3: 2048); 0: none; v1: as video"},
    {"heads", 0, NULL, OPT_INT, FIELD(heads), "8", 1, MAX_HEADS, "N",
     "attention heads of each connector (LTX-2.3: 32)"},
    {"blocks", 0, NULL, OPT_INT, FIELD(blocks), "2", 0, MAX_BLOCKS, "N",
     "of each connector (LTX-2.3: 8)"},
    {"seed", 0, NULL, OPT_INT, FIELD(seed), "1", 0, INT32_MAX, "N",
     "the same seed gives the same file"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder random-ltx",
    .usage = "--model PATH -o FILE [options]",
    .about =
        "Writes an LTX checkpoint (projection and connectors) of RANDOM weights that fits the\n"
        "model: to try features and embeddings, and to time them. What it encodes means\n"
        "nothing.",
    .options = options,
};

/* A tensor to be: numbers uniform in mean - spread .. mean + spread. */
struct planned {
    char name[128];
    int n_dims;
    size_t shape[2];
    float mean, spread;
};

struct plan {
    struct planned *tensors;
    size_t n, cap;
};

static void add(struct plan *p, const char *prefix, const char *name, size_t rows, size_t columns,
                double mean, double deviation)
{
    struct planned *t = &p->tensors[p->n++];

    *t = (struct planned){.n_dims = columns > 0 ? 2 : 1,
                          .shape = {rows, columns},
                          .mean = (float)mean,
                          .spread = (float)(deviation * sqrt(3.0))};
    snprintf(t->name, sizeof(t->name), "%s%s", prefix, name);
}

/* Inputs of unit size give outputs of unit size. */
static void add_linear(struct plan *p, const char *prefix, const char *layer, size_t out, size_t in,
                       bool biased)
{
    char name[64];

    snprintf(name, sizeof(name), "%s.weight", layer);
    add(p, prefix, name, out, in, 0.0, 1.0 / sqrt((double)in));
    snprintf(name, sizeof(name), "%s.bias", layer);
    if (biased)
        add(p, prefix, name, out, 0, 0.0, 0.1);
}

static void add_connector(struct plan *p, const struct settings *s, enum ltx_modality modality,
                          size_t W)
{
    char prefix[100];

    add(p, ltx_connector_prefix(modality), "learnable_registers", REGISTERS, W, 0.0, 1.0);
    for (int i = 0; i < (int)s->blocks; i++) {
        snprintf(prefix, sizeof(prefix), "%stransformer_1d_blocks.%d.",
                 ltx_connector_prefix(modality), i);
        add_linear(p, prefix, "attn1.to_q", W, W, true);
        add_linear(p, prefix, "attn1.to_k", W, W, true);
        add_linear(p, prefix, "attn1.to_v", W, W, true);
        add_linear(p, prefix, "attn1.to_out.0", W, W, true);
        /* over 1: attention that prefers some rows, else the prompt drowns in the registers */
        add(p, prefix, "attn1.q_norm.weight", W, 0, 1.5, 0.1);
        add(p, prefix, "attn1.k_norm.weight", W, 0, 1.5, 0.1);
        if (s->extractor == V2)
            add_linear(p, prefix, "attn1.to_gate_logits", (size_t)s->heads, W, true);
        add_linear(p, prefix, "ff.net.0.proj", 4 * W, W, true);
        add_linear(p, prefix, "ff.net.2", W, 4 * W, true);
    }
}

/* `columns`: hidden states times their width. */
static int make_plan(struct plan *p, const struct settings *s, size_t columns, struct error *err)
{
    static const char prefix[] = "text_embedding_projection.";
    size_t widths[LTX_N_MODALITIES] = {(size_t)s->video_width, (size_t)s->audio_width};

    p->cap = 6 + LTX_N_MODALITIES * (size_t)s->blocks * BLOCK_TENSORS;
    if ((p->tensors = calloc(p->cap, sizeof(*p->tensors))) == NULL)
        return error_set(err, ERR_MEM, "random-ltx: no memory for %zu tensors", p->cap);
    if (s->extractor == V1)
        add_linear(p, prefix, "aggregate_embed", widths[LTX_VIDEO], columns, false);
    for (int m = 0; m < LTX_N_MODALITIES; m++) {
        if (widths[m] == 0)
            continue;
        if (s->extractor == V2)
            add_linear(p, prefix,
                       m == LTX_VIDEO ? "video_aggregate_embed" : "audio_aggregate_embed",
                       widths[m], columns, true);
        add_connector(p, s, (enum ltx_modality)m, widths[m]);
    }
    return OK;
}

/* The metadata `config`, with the keys of LTX-2.3's. */
static int write_config(struct buf *out, const struct settings *s, struct error *err)
{
    int heads = (int)s->heads, video = (int)s->video_width, audio = (int)s->audio_width;
    int blocks = (int)s->blocks, rc;

    /* without audio its keys stay as video's: the file has no tensors for them */
    if (audio == 0)
        audio = video;
    if ((rc = buf_printf(
             out, err,
             "{\"transformer\": {\"num_attention_heads\": %d, \"attention_head_dim\": %d, "
             "\"audio_num_attention_heads\": %d, \"audio_attention_head_dim\": %d, "
             "\"connector_num_attention_heads\": %d, \"connector_attention_head_dim\": %d, "
             "\"connector_num_layers\": %d, \"audio_connector_num_attention_heads\": %d, "
             "\"audio_connector_attention_head_dim\": %d, \"audio_connector_num_layers\": %d, "
             "\"rope_type\": \"split\", \"frequencies_precision\": \"float64\", "
             "\"connector_positional_embedding_max_pos\": [%d], "
             "\"connector_apply_gated_attention\": %s",
             heads, video / heads, heads, audio / heads, heads, video / heads, blocks, heads,
             audio / heads, blocks, MAX_POS, s->extractor == V2 ? "true" : "false")) != OK ||
        (s->extractor == V2 &&
         (rc = buf_printf(out, err,
                          ", \"caption_proj_before_connector\": true, "
                          "\"caption_projection_first_linear\": false, "
                          "\"caption_proj_input_norm\": false, "
                          "\"caption_projection_second_linear\": false")) != OK))
        return rc;
    return buf_printf(out, err, "}}");
}

static int write_header(struct buf *out, const struct plan *p, const struct settings *s,
                        const struct engine_info *gemma, size_t *bytes, struct error *err)
{
    struct safetensors_entry *entries = calloc(p->n, sizeof(*entries));
    struct safetensors_metadata metadata[4];
    struct buf config = {.max = 4096}, source = {.max = 1024};
    char random[32];
    size_t n = 0;
    int rc = OK;

    *bytes = 0;
    if (entries == NULL) {
        rc = error_set(err, ERR_MEM, "random-ltx: no memory for %zu tensors", p->n);
        goto out;
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct planned *t = &p->tensors[i];
        struct safetensors_entry *e = &entries[i];
        *e = (struct safetensors_entry){.name = t->name, .dtype = "BF16", .n_dims = t->n_dims};
        e->bytes = sizeof(bf16);
        for (int d = 0; d < t->n_dims; d++) {
            e->shape[d] = t->shape[d];
            e->bytes *= t->shape[d];
        }
        *bytes += e->bytes;
    }
    if ((rc = write_config(&config, s, err)) != OK)
        goto out;
    metadata[n++] = (struct safetensors_metadata){"config", config.data};
    if (gemma->gemma_version[0] != '\0') {
        if ((rc = buf_printf(&source, err, "{\"gemma_version\": ")) != OK ||
            (rc = json_text_append(&source, gemma->gemma_version, err)) != OK ||
            (rc = buf_printf(&source, err, "}")) != OK)
            goto out;
        metadata[n++] = (struct safetensors_metadata){"gemma_source_checkpoint", source.data};
    }
    metadata[n++] =
        (struct safetensors_metadata){"model_version", s->extractor == V1                ? "2.0.0"
                                                       : gemma->gemma_version[0] != '\0' ? "2.5.0"
                                                                                         : "2.3.0"};
    snprintf(random, sizeof(random), "seed %d", (int)s->seed);
    metadata[n++] = (struct safetensors_metadata){LTX_RANDOM_KEY, random};
    rc = safetensors_write_header(out, entries, p->n, metadata, n, err);
out:
    buf_free(&config);
    buf_free(&source);
    free(entries);
    return rc;
}

/* splitmix64 (Steele, Lea and Flood 2014): 24 bits of it, 0 to 1. */
static float next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)(x >> 40) * (1.0f / 16777216.0f);
}

static int write_tensors(struct file_writer *w, const struct plan *p, uint64_t seed,
                         struct error *err)
{
    float *numbers = malloc(PIECE * sizeof(*numbers));
    bf16 *rounded = malloc(PIECE * sizeof(*rounded));
    uint64_t state = seed;
    int rc = OK;

    if (numbers == NULL || rounded == NULL) {
        rc = error_set(err, ERR_MEM, "random-ltx: no memory for %d numbers", PIECE);
        goto out;
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct planned *t = &p->tensors[i];
        size_t left = t->shape[0] * (t->n_dims > 1 ? t->shape[1] : 1), n;
        for (; left > 0; left -= n) {
            n = left < PIECE ? left : PIECE;
            for (size_t k = 0; k < n; k++)
                numbers[k] = t->mean + t->spread * (2.0f * next_random(&state) - 1.0f);
            dtype_encode(rounded, numbers, DTYPE_BF16, n);
            if ((rc = file_writer_append(w, rounded, n * sizeof(*rounded), err)) != OK)
                goto out;
        }
    }
out:
    free(numbers);
    free(rounded);
    return rc;
}

static int check_width(int64_t width, const char *flag, const struct settings *s, struct error *err)
{
    int64_t head = width / s->heads;

    if (width % s->heads != 0 || head % 2 != 0 || (width > 0 && width < 4) || head > OPS_MAX_HEAD)
        return error_set(err, ERR_INPUT,
                         "%s: %lld is not %d heads of an even width, at most %d each", flag,
                         (long long)width, (int)s->heads, OPS_MAX_HEAD);
    return OK;
}

static int check_settings(struct settings *s, const struct engine_info *gemma, struct error *err)
{
    int rc;

    if (s->extractor == V1)
        s->audio_width = s->video_width; /* one projection serves both */
    if ((rc = check_width(s->video_width, "--video-width", s, err)) != OK ||
        (rc = check_width(s->audio_width, "--audio-width", s, err)) != OK)
        return rc;
    /* as LTX has it: each generation of its checkpoints names its Gemma, or means a Gemma 3 */
    if (gemma->gemma_version[0] == '\0' && strcmp(gemma->architecture, "gemma3") != 0)
        return error_set(err, ERR_INPUT,
                         "%s: a %s without gemma_version: no LTX checkpoint is for such a model",
                         s->model, gemma->architecture);
    return OK;
}

int command_random_ltx(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct engine_info gemma;
    struct plan plan = {0};
    struct buf header = {.max = 16u << 20};
    struct file_writer *writer = NULL;
    const char *slash;
    size_t bytes;
    int n_rest, rc;
    bool help;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        goto out;
    if (help) {
        options_help(&program, stdout);
        goto out;
    }
    if (n_rest != 0 || settings.model == NULL || settings.out == NULL) {
        rc = error_set(err, ERR_INPUT, "random-ltx takes --model PATH and -o FILE");
        goto out;
    }
    slash = strrchr(settings.out, '/');
    if (strstr(slash != NULL ? slash : settings.out, "random") == NULL) {
        rc = error_set(err, ERR_INPUT,
                       "%s: nobody shall take it for a real one: put 'random' in the name",
                       settings.out);
        goto out;
    }
    if ((rc = engine_read_info(&gemma, settings.model, err)) != OK ||
        (rc = check_settings(&settings, &gemma, err)) != OK ||
        (rc = make_plan(&plan, &settings, ((size_t)gemma.n_layers + 1) * gemma.width, err)) != OK ||
        (rc = write_header(&header, &plan, &settings, &gemma, &bytes, err)) != OK ||
        (rc = file_writer_open(&writer, settings.out, err)) != OK ||
        (rc = file_writer_append(writer, header.data, header.len, err)) != OK ||
        (rc = write_tensors(writer, &plan, (uint64_t)settings.seed, err)) != OK ||
        (rc = file_writer_commit(writer, err)) != OK)
        goto out;
    printf("wrote %s: %zu tensors, %.1f MB of random numbers\n", settings.out, plan.n,
           (double)(header.len + bytes) / 1e6);
out:
    file_writer_close(writer);
    buf_free(&header);
    free(plan.tensors);
    return rc;
}
