/* engine.h - prompts to tensors: the engine as a C library. Its only outside header.
 *
 *     struct engine_options options = {.model = "gemma-3-270m.gguf", .n_threads = 2};
 *     if (engine_open(&engine, &options, &err) != OK) ...
 *     struct engine_request request = {.dtype = DTYPE_F32};
 *     struct engine_prompt prompt = {ids, n, &request}; // ids from tokenizer_encode()
 *     struct engine_result result;
 *     if (engine_encode(engine, &prompt, 1, &result, &err) != OK) ...
 *     ... result.tensors[0].data ...
 *     engine_result_free(&result);
 *     engine_close(engine);
 *
 * An engine runs on one device or on several, its ranks, and takes a batch in one of two ways:
 * sharded, where all ranks work on each prompt, or replicated, where each has prompts of its own.
 * Results are the same but for rounding.
 *
 * An engine belongs to one thread at a time: the one that opened it, or one it was handed to while
 * no call was running. Of any thread's, also meanwhile: engine_info(), engine_steps(),
 * engine_is_asleep(), engine_check_request(), engine_check_prompt(), and engine_result_free() of a
 * result that has been handed out. It starts threads of its own, one a rank among them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "engine/level.h"
#include "kernels/dtype.h"

struct engine;
struct tokenizer;

enum engine_backend {
    ENGINE_CPU,
    ENGINE_CUDA,
    ENGINE_LOOPS /* the loop nests: slow, for checking */
};

/* How a batch is given to the ranks. */
enum engine_strategy {
    ENGINE_AUTO,       /* one prompt sharded, more replicated; where they are fewer than ranks, by
                          measured times */
    ENGINE_SHARDED,    /* always */
    ENGINE_REPLICATED, /* always */
    ENGINE_MEASURED    /* all by measured times */
};

/* What of the weights each rank has in its memory. */
enum engine_residency {
    ENGINE_RESIDENCY_AUTO,       /* all, where every rank's device has room for it, as a CPU has;
                                    else a share */
    ENGINE_RESIDENCY_REPLICATED, /* all, for batches of either strategy */
    ENGINE_RESIDENCY_SHARDED     /* a share: every batch is sharded, and nothing else of the files
                                    is read */
};
enum engine_shard_by {
    ENGINE_BY_TENSOR, /* of each layer's matrices the rank's part, and all of the connectors, whose
                         rows are what is shared there */
    ENGINE_BY_LAYER   /* some layers and connector blocks, whole, in their order, balanced by bytes:
                         ranks work one after another, which takes the fewest exchanges and the most
                         time. A rank's step, for deadline_ms, is then all of its layers. */
};

/* Which ranks have a prompt's tensors after a batch. */
enum engine_place {
    ENGINE_PLACE_OWNER, /* the one that it is given to; all that a caller of one process needs */
    ENGINE_PLACE_ALL    /* every rank, in its device's memory: engine_placed() */
};

enum {
    ENGINE_GROUP_ID_SIZE = 33,
    ENGINE_MAX_RANKS = 8,
    ENGINE_MAX_TOKENS = 1024, /* of a prompt, <bos> included: what LTX reads */
    ENGINE_ROWS = 1024,       /* of a prompt's embeddings, whatever its length */
    ENGINE_MAX_LAYERS = 256,
    ENGINE_MAX_LTX = 2,
    ENGINE_MAX_TENSORS = 3, /* of a result */
    ENGINE_MAX_BATCH_TOKENS = 1 << 16
};

/* Told now and then while a model loads, by the first rank, from a thread of the engine's. */
typedef void engine_progress_fn(void *arg, uint64_t bytes_done, uint64_t bytes_total);

/* A rank failed, which ends its engine. */
struct engine_failure {
    int rank;           /* of all of the group; whose fault it is, as far as can be told */
    const char *device; /* "cpu"; of a GPU a name that stays the same over restarts, "GPU-<uuid>";
                           NULL: it is another process's */
    const char *operation; /* what it was at: "layers" */
    const char *text;      /* a sentence, without any text of a prompt */
    bool blames_gpu;       /* the GPU itself failed; not: it is one of several that waited for each
                              other, or its memory is too small */
};
/* From the thread in the call that then returns an error, at most once. All is borrowed for it. */
typedef void engine_failed_fn(void *arg, const struct engine_failure *failure);

struct engine_options {
    const char *model;               /* directory, packed safetensors file or GGUF file; borrowed
                                        for engine_open(). "random:gemma-3-12b": that
                                        architecture with random numbers, for measuring, and with
                                        it "random:ltx-2.3" as an LTX checkpoint */
    const char *ltx[ENGINE_MAX_LTX]; /* LTX checkpoints: projection and connectors, in one file or
                                        in two; NULL: none, and hidden states are all there is */
    enum engine_backend backend;     /* ENGINE_LOOPS: the slow reference, for tests */
    enum dtype compute;              /* DTYPE_F32, DTYPE_BF16, or DTYPE_F8_E4M3: what matrix
                                        products compute in; with the last, which loses accuracy
                                        (docs/ACCURACY.md), all else is as in DTYPE_BF16 */
    int n_ranks;                     /* 0: 1. Rank r is visible GPU r; on a
                                        CPU ranks share its cores and one copy of the weights */
    const char *group;               /* NULL: all ranks are this process's. Else a name made by
                                        engine_make_group_id(), and this process has one of n_ranks
                                        ranks; others of this host have the others, and all make the
                                        same calls in the same order */
    int rank;                        /* with a group: which */
    enum engine_strategy strategy;
    const char *routes;              /* file that keeps measured times, written by engine_warm()
                                        where they decide; NULL: they are measured each time */
    enum engine_residency residency; /* sharded: not with ENGINE_REPLICATED */
    enum engine_shard_by shard_by;   /* where it comes to that */
    enum engine_place place;
    const char *const *left_out; /* [n_left_out] devices, by name, that are to have no rank */
    int n_left_out;
    int deadline_ms;            /* a rank that takes no step for so long hangs, and the engine
                                   fails; while it opens or is warmed, ten times as long; 0: a
                                   minute */
    bool sleeps;                /* engine_sleep() will be called; room for a copy of the weights in
                                   the host's memory is made sure of. Not on a CPU. */
    const struct engine *share; /* one of this process, not being opened or closed meanwhile, or
                                   NULL: where its files, backend, compute, n_ranks, residency,
                                   shard_by and sleeps are the same, so are the weights: none are
                                   loaded, none taken.
                                   Either may be closed first. */
    int n_threads;              /* of all ranks together; 0: one a core */
    int max_batch_tokens;       /* activations of each rank are sized for this; 0:
                                   ENGINE_MAX_TOKENS. More prompts than fit are encoded in
                                   several passes. */
    engine_progress_fn *progress; /* or NULL */
    void *progress_arg;
    engine_failed_fn *failed; /* or NULL */
    void *failed_arg;
};

struct engine_info {
    const char *architecture; /* "gemma3" or "gemma4" */
    const char *backend;      /* "cpu"; NULL from engine_read_info() */
    int n_ranks;              /* likewise 0 */
    char format[64];          /* "gguf v3", "safetensors, 5 shards" */
    int n_layers;             /* L; hidden states are numbered 0 (the embeddings) .. L */
    int width;                /* D */
    int vocabulary;           /* V: ids are below it */
    int max_tokens;           /* of a prompt, <bos> included */
    bool is_random;           /* the weights are random numbers: results mean nothing */
    char gemma_version[104];  /* "" where the model names none */
    /* what an LTX checkpoint adds; all 0 without one */
    char ltx_version[104];           /* "2.5.0"; "" where the checkpoint names none */
    int extractor;                   /* 1: LTX-2.0; 2: LTX-2.3 and 2.5 */
    int video_width;                 /* of features and embeddings */
    int audio_width;                 /* 0: a video-only checkpoint */
    enum engine_residency residency; /* what came of ENGINE_RESIDENCY_AUTO; one rank has all */
    enum engine_shard_by shard_by;
    size_t weights_bytes;  /* resident on each device, on that with the largest share; on a CPU the
                              embedding table stays in the file */
    uint64_t loaded_bytes; /* read from the files for that; 0: random weights */
    double load_s;         /* what that took, of the slowest rank */
    bool shares_weights;   /* they are those of engine_options.share */
};

struct engine_request {
    const int *layers; /* [n_layers] which hidden states, each 0 .. L, in the order wanted */
    int n_layers;      /* 0: all L + 1; must be 0 at the other levels */
    enum dtype dtype;  /* of the result: DTYPE_F32, DTYPE_F16 or DTYPE_BF16 */
    enum engine_level level;
    unsigned modalities; /* of features and embeddings; 0: all that the model has */
};

/* A prompt as ids: 1 .. ENGINE_MAX_TOKENS of them, <bos> first, as tokenizer_encode() gives.
 * Prompts of one call may want different things. All of it is borrowed for the call. */
struct engine_prompt {
    const int32_t *ids;
    int n;
    const struct engine_request *request;
};

/* One tensor of a result, row-major. */
struct engine_tensor {
    const char *name; /* a constant */
    enum dtype dtype;
    int n_dims;
    size_t shape[3];
    void *data;
    size_t bytes;
};

/* One prompt's tensors, by level, in this order and of the wanted type, but for `mask`:
 *   hidden_states  [states, tokens, width]   state s is the input of layer s (0: the scaled
 *                  embeddings); state L is the final norm of the last layer's output
 *   video_features [tokens, video_width], audio_features [tokens, audio_width]
 *   video [ENGINE_ROWS, video_width], audio [ENGINE_ROWS, audio_width],
 *   mask [ENGINE_ROWS] I64, all ones: the video model's attention mask
 * Freed by engine_result_free(). */
struct engine_result {
    int n_tokens, n_tensors;
    struct engine_tensor tensors[ENGINE_MAX_TENSORS];
};

/* A name for a group of processes, which no other group has. ERR_IO. */
int engine_make_group_id(char id[ENGINE_GROUP_ID_SIZE], struct error *err);

/* In a group of processes it returns when all have opened theirs.
 * ERR_IO, ERR_FORMAT: the model's files; ERR_INPUT: an option the backend cannot serve, or an LTX
 * checkpoint that needs another Gemma, or every device is left out; ERR_MEM; ERR_GPU. On failure
 * *out is NULL. */
int engine_open(struct engine **out, const struct engine_options *options, struct error *err);
/* NULL is fine. What failed on a GPU, or has a thread that hangs, is left as it is: the process is
 * to exit. */
void engine_close(struct engine *e);

/* Measures the times that a choice of strategy rests on, where any does, and pays at start for what
 * the first passes would: the first prompts of any number and length then take about as long as the
 * next. *seconds: what it took; a CPU has nothing to ready. */
int engine_warm(struct engine *e, double *seconds, struct error *err);

/* While there is nothing to do, the devices' memory for others: weights go to the host's memory and
 * come back to the same place, from no disk. What else a rank holds (activations, recorded passes,
 * the libraries' own) stays. Weights that engines share leave when all of these are asleep.
 * sleep: of an engine that is asleep: nothing. ERR_INPUT: it was not opened with `sleeps`; ERR_MEM:
 * the host has no memory for them, and it stays awake.
 * wake: also done by whatever needs the weights. ERR_MEM: others have the devices' memory by now;
 * it stays asleep, and can be asked again. *seconds (may be NULL): what it took; 0: it was awake.
 * is_asleep: from any thread. */
int engine_sleep(struct engine *e, struct error *err);
int engine_wake(struct engine *e, double *seconds, struct error *err);
bool engine_is_asleep(const struct engine *e);

/* Valid until engine_close(). */
const struct engine_info *engine_info(const struct engine *e);

/* What a model is, from its headers alone: to check a request before loading weights. */
int engine_read_info(struct engine_info *out, const char *model, struct error *err);
/* Adds to it what LTX checkpoints (NULL: none) would add, from their headers. Errors as
 * engine_open(). */
int engine_add_ltx_info(struct engine_info *info, const char *const ltx[ENGINE_MAX_LTX],
                        struct error *err);

/* Encodes all prompts; results[i] belongs to prompts[i], whatever else is in the call. On failure
 * no result is kept. In a group of processes results[i] has tensors where the prompt's owner is,
 * and with ENGINE_PLACE_ALL everywhere; results may be NULL there: they stay on the devices.
 * ERR_INPUT: a layer out of range or given twice, a level or a modality that this model does not
 * have, a prompt that is empty or too long, an id that is not in the vocabulary; the sentence names
 * it. ERR_FORMAT: a result has a NaN; the sentence names the weights that have one, if any.
 * ERR_GPU: a rank failed or hangs, which ends the whole engine: what is left is to close it, and to
 * exit. */
int engine_encode(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                  struct engine_result *results, struct error *err);
void engine_result_free(struct engine_result *result);

/* With ENGINE_PLACE_ALL: the tensors of the last batch's prompts, in their order, as a rank of this
 * process has them: their data is memory of that rank's device (of the host, on a CPU), valid until
 * the next batch. NULL: there are none. */
const struct engine_result *engine_placed(const struct engine *e, int rank);
/* One of them to the host's memory, `bytes` of it. */
int engine_read_placed(struct engine *e, int rank, int prompt, int tensor, void *to,
                       struct error *err);

/* How the last batch was run. */
struct engine_route {
    enum engine_strategy strategy; /* ENGINE_SHARDED or ENGINE_REPLICATED */
    const char *reason;            /* constant, one word: "one_prompt" */
    double predicted_ms, ms;       /* predicted 0: not known */
    double wake_ms;                /* before that: to wake the engine; 0: it was awake */
    double ratio;                  /* real by predicted time of this strategy's batches, the newest
                                      weighing most; 0: none was predicted */
    struct {
        int n_prompts;           /* 0: it took no part */
        double begin_ms, end_ms; /* from the batch's begin on */
    } ranks[ENGINE_MAX_RANKS];
};
const struct engine_route *engine_last_route(const struct engine *e);
const char *engine_strategy_name(enum engine_strategy strategy);    /* "sharded" */
const char *engine_residency_name(enum engine_residency residency); /* "sharded" */
const char *engine_shard_by_name(enum engine_shard_by shard_by);    /* "tensor" */

/* Computes the same and leaves it on the device, for measuring: what encoding takes without
 * the results' way out. Returns when all is computed. */
int engine_compute(struct engine *e, const struct engine_prompt *prompts, int n_prompts,
                   struct error *err);

/* The least that has to be done to take prompts of so many tokens to embeddings (without an LTX
 * checkpoint: to hidden states) in one pass: every weight read once, and the arithmetic of products
 * and attention. */
struct engine_stage_work {
    double bytes, operations;
};
struct engine_work {
    struct engine_stage_work gemma, extractor, connectors;
};
struct engine_work engine_work(const struct engine *e, const int *n_tokens, int n_prompts);

/* What the first rank's device reaches at its best, measured now, between other calls: reading
 * memory, and a large matrix product. 0 where the backend does not measure. */
int engine_measure(struct engine *e, double *bytes_per_s, double *operations_per_s,
                   struct error *err);

/* What is used of the first rank's device's memory (kernels/ops.h says what is counted), in bytes.
 */
int engine_memory(struct engine *e, uint64_t *peak_bytes, uint64_t *total_bytes, struct error *err);

/* Layers and connector blocks computed by all ranks since engine_open(). From any thread: that it
 * rises says that the engine works.
 */
uint64_t engine_steps(const struct engine *e);

/* SHA-256 over all the model's tensors, those of the LTX checkpoints that are used, and the
 * settings under which they compute, in hex: the same weights have the same digest, whatever file
 * they lie in under the same names and types. Reads every byte of them, once: the digest of files
 * that did not change since is remembered in the user's cache folder. Random weights: over the
 * names of their architectures. */
enum { ENGINE_DIGEST_SIZE = 65 };
int engine_weights_digest(const struct engine *e, char digest[ENGINE_DIGEST_SIZE],
                          struct error *err);

/* The checks of engine_encode() that need no weights. */
int engine_check_request(const struct engine_info *info, const struct engine_request *request,
                         struct error *err);
int engine_check_prompt(const struct engine_info *info, const struct engine_prompt *prompt,
                        struct error *err);

/* The tokenizer of a model, or of a tokenizer file, without reading any weights. */
int engine_load_tokenizer(struct tokenizer **out, const char *path, struct error *err);
/* Appends its compact form to `out`; the digest, in hex, is that of all of `out`. */
int engine_save_tokenizer(const struct tokenizer *t, struct buf *out,
                          char digest[ENGINE_DIGEST_SIZE], struct error *err);

/* Appends to `out` what a model directory or file is: format, architecture, sizes, types, and what
 * it lacks; with `all_tensors` a line for each tensor. ERR_FORMAT: not a model we know. */
int engine_inspect(struct buf *out, const char *path, bool all_tensors, struct error *err);
