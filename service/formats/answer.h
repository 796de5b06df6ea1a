/* answer.h - how an answer lies in its format, before its tensors exist.
 *
 * An answer is the tensors of one or several prompts. All sizes are known from the shapes, so a
 * format is a layout: runs of text made here (headers, JSON) and runs of tensor bytes named by
 * prompt and offset, as they are or in base64. Whoever sends it reads it from front to back and
 * gives tensor bytes when it has them. `prompt-encoder encode` writes its file through
 * the same layout, so it has the bytes that HTTP answers. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum { ANSWER_MAX_TENSORS = 8, ANSWER_MAX_DIMS = 4, ANSWER_JSON_MAX = 64 << 20 };

struct answer_tensor {
    char name[32]; /* without "p<i>." */
    char dtype[8]; /* as safetensors spell it: "BF16" */
    int n_dims;
    size_t shape[ANSWER_MAX_DIMS];
    size_t bytes;
};

/* One prompt's result: its tensors lie one after the other. */
struct answer_prompt {
    int n_tokens;
    bool truncated;
    int n_tensors;
    struct answer_tensor tensors[ANSWER_MAX_TENSORS];
};

struct answer {
    const char *model;         /* the id that requests use */
    const char *weights;       /* their digest, in hex */
    const char *tokenizer;     /* its digest, likewise */
    const char *gemma_version; /* "gemma4-12b-ltx-v1"; "" where the model names none */
    const char *output;        /* level: "hidden_states" */
    const char *layers;        /* "0,1,2"; "" where the level has none, as with the next three */
    const char *modalities;    /* "video,audio" */
    const char *extractor;     /* "v2" */
    const char *ltx_version;   /* "2.5.0" */
    int negative_index;        /* -1: there is no negative prompt */
    size_t n_prompts;
    const struct answer_prompt *prompts; /* [n_prompts] */
};

enum segment_kind { SEGMENT_TEXT, SEGMENT_RAW, SEGMENT_BASE64 };

struct segment {
    enum segment_kind kind;
    size_t bytes;  /* in the answer */
    size_t prompt; /* of tensor bytes */
    size_t offset; /* of the source: in the text, or in the prompt's tensors */
    size_t source_bytes;
};

struct layout {
    struct buf text;
    struct segment *segments; /* in order */
    size_t n_segments, cap;
    size_t bytes; /* of all: the answer's length */
};

/* `p<i>.<tensor>` for all tensors of all prompts, and as metadata, where there is such a thing:
 * extractor, gemma_version, layers, ltx_version, modalities, model, negative_index, output,
 * tokenizer, tokens, truncated, weights, widths. */
int layout_safetensors(struct layout *out, const struct answer *a, struct error *err);
/* The same in JSON, tensors in base64. ERR_SIZE: over ANSWER_JSON_MAX bytes of tensors. */
int layout_json(struct layout *out, const struct answer *a, struct error *err);
/* The only prompt's only tensor beside mask and ids. ERR_INPUT: there are more prompts or tensors,
 * or NumPy has no such type (bfloat16). */
int layout_npy(struct layout *out, const struct answer *a, struct error *err);
void layout_free(struct layout *l); /* a zeroed one is fine */

/* Where tensor bytes come from: *data is set to those of a prompt at `offset` and their number is
 * returned, as many as lie together; 0: not there yet, -1: they will never be. */
typedef long layout_source_fn(void *arg, size_t prompt, size_t offset, const uint8_t **data);

/* Copies up to `cap` bytes of the answer from `position` on. Returns their number; 0: the source
 * has none yet; -1: the source failed. A base64 group is given whole, so `cap` is at least 4. */
long layout_read(const struct layout *l, size_t position, void *out, size_t cap,
                 layout_source_fn *source, void *arg);
