/* ltx_checkpoint.h - the text side of an LTX video model: the projection and the connectors.
 *
 * A checkpoint is a safetensors file of some tens of GB, nearly all of it the video model. Opening
 * maps it and reads its header; the few tensors asked for are read when touched, the rest never.
 * Projection and connectors may lie in two files. Never changes after opening: share one among any
 * number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/file.h"
#include "engine/files/tensor.h"

struct ltx_checkpoint;

enum {
    LTX_MAX_FILES = 2,
    LTX_ROWS = 1024 /* of every embedding: what the video model reads */
};

enum ltx_modality { LTX_VIDEO, LTX_AUDIO, LTX_N_MODALITIES };

/* How hidden states become features; named after the classes of the reference (ltx-core,
 * FeatureExtractorV1: LTX-2.0; V2: LTX-2.3 and 2.5). */
enum ltx_extractor { LTX_EXTRACTOR_V1 = 1, LTX_EXTRACTOR_V2 };

enum ltx_rope {
    LTX_ROPE_SPLIT,      /* by halves inside each head */
    LTX_ROPE_INTERLEAVED /* by neighbours, over the whole width */
};

struct ltx_connector_config {
    int H; /* heads */
    int E; /* head width, even */
    int W; /* width, H * E */
    int L; /* blocks; 0 is possible */
    int R; /* registers; LTX_ROWS % R == 0 */
};

/* What the metadata `config` says of the text side, defaults filled in. Plain data. */
struct ltx_config {
    enum ltx_extractor extractor;
    bool has_audio;                                           /* else it is a video-only model */
    struct ltx_connector_config connectors[LTX_N_MODALITIES]; /* audio's is 0 without it */
    enum ltx_rope rope;
    bool rope_float64; /* frequencies are computed in float64 */
    double max_pos;    /* positions are fractions of it */
    bool gated;        /* each head's result is scaled by what a small matrix makes of the input */
    bool ff_bias;
};

/* The config alone, from its JSON; `name` stands for the bytes in messages. What depends on the
 * file's tensors is left: `has_audio` is true and every R is 0.
 * ERR_FORMAT: no JSON, a number out of range, or a setting that is not served, by its name. */
int ltx_config_from_json(struct ltx_config *out, const void *json, size_t size, const char *name,
                         struct error *err);

/* One or two files. Where both hold the projection or the same connector, the first one's is taken,
 * whole. On success *out belongs to the caller (ltx_checkpoint_close). On failure *out is NULL.
 * ERR_IO: a file cannot be read. ERR_FORMAT: it is no LTX checkpoint; the sentence says what lacks.
 */
int ltx_checkpoint_open(struct ltx_checkpoint **out, const char *const *paths, int n_paths,
                        struct error *err);
/* To look at: the connectors of a file that may lack the projection. */
int ltx_checkpoint_open_connectors(struct ltx_checkpoint **out, const char *path,
                                   struct error *err);
void ltx_checkpoint_close(struct ltx_checkpoint *c); /* NULL is fine */

const struct ltx_config *ltx_checkpoint_config(const struct ltx_checkpoint *c);
bool ltx_checkpoint_has_projection(const struct ltx_checkpoint *c);
const char *ltx_checkpoint_model_version(const struct ltx_checkpoint *c); /* "2.5.0"; or NULL */
const char *ltx_checkpoint_gemma_version(const struct ltx_checkpoint *c); /* asked for; or NULL */

/* Metadata of checkpoints that `prompt-encoder random-ltx` makes: "seed 1". */
#define LTX_RANDOM_KEY "prompt_encoder_random_weights"
/* Its value, of any of the files: the weights are random numbers, and what they encode means
 * nothing; or NULL. */
const char *ltx_checkpoint_random(const struct ltx_checkpoint *c);

/* Whether this checkpoint was made for that Gemma (ltx-core, _check_gemma_version): one that names
 * a gemma_version needs exactly it, an older one needs a gemma3. `model_type` as config.json has
 * it; `gemma_version` its top-level entry, NULL where there is none.
 * ERR_INPUT: another Gemma; the sentence names both. */
int ltx_checkpoint_check_gemma(const struct ltx_checkpoint *c, const char *model_type,
                               const char *gemma_version, struct error *err);

/* All settings in one line: "extractor v2, video 3 x 64, 2 blocks, 128 registers, ...". Two configs
 * that compute differently have different texts. */
struct ltx_config_text {
    char text[320];
};
struct ltx_config_text ltx_config_text(const struct ltx_config *c);

/* "model.diffusion_model.video_embeddings_connector." */
const char *ltx_connector_prefix(enum ltx_modality modality);
const char *ltx_modality_name(enum ltx_modality modality); /* "video" */

/* A tensor of the projection ("text_embedding_projection.") or of a connector, of exactly that
 * shape, of type F32, F16 or BF16. The view is valid until the close, its data at any alignment.
 * ERR_FORMAT otherwise; file and tensor are named. */
int ltx_checkpoint_tensor(const struct ltx_checkpoint *c, struct tensor *out, const char *name,
                          int n_dims, const size_t *shape, struct error *err);

/* Whether that tensor is there, of whatever shape and type; *out (may be NULL) is then its view. */
bool ltx_checkpoint_find(const struct ltx_checkpoint *c, struct tensor *out, const char *name);

/* The files that it lies in, and which writing of each is open. */
int ltx_checkpoint_n_files(const struct ltx_checkpoint *c);
const char *ltx_checkpoint_path_at(const struct ltx_checkpoint *c, int i);
const struct file_identity *ltx_checkpoint_identity_at(const struct ltx_checkpoint *c, int i);
