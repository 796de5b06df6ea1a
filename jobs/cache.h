/* cache.h - results in Redis C: hashes of checked pieces under the job's id.
 *
 * A result appears whole or not at all: it is written under a temporary name that expires, then
 * renamed (never over an existing one) and given its time to live in one transaction. Each piece
 * carries a CRC32C that the reader checks. Losing C loses no job. Several addresses share the keys
 * by rendezvous hashing. A struct cache belongs to one thread.
 *
 * A result `r:<id>` has the fields `h` (header) and `0`, `1`, .. (pieces of CACHE_PIECE bytes). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "jobs/job.h"

struct cache;

enum {
    CACHE_PIECE = 1 << 20,
    CACHE_MAX_TENSORS = 8,
    CACHE_MAX_DIMS = 4,
    CACHE_MAX_URLS = 16,
    CACHE_MAX_PIECES = 1024,    /* of a result: 1 GiB */
    CACHE_TTL_S = 7 * 24 * 3600 /* with a jitter of a tenth either way */
};

struct cache_tensor {
    char name[32]; /* without the prompt's prefix: "hidden_states" */
    char dtype[8]; /* as safetensors spell it: "BF16" */
    int n_dims;
    size_t shape[CACHE_MAX_DIMS];
    size_t bytes;
};

/* What a result says of itself. Its tensors lie one after another in the pieces. */
struct cache_header {
    char model[64];          /* the id that requests use */
    char weights[65];        /* SHA-256 in hex */
    char tokenizer[65];      /* likewise, of its compact form */
    char gemma_version[104]; /* of the Gemma, where it names one */
    char output[24];         /* level: "hidden_states" */
    char layers[1024];       /* "0,1,2": those of hidden states; "" at the other levels */
    char modalities[16];     /* "video,audio": those of the other levels */
    char extractor[8];       /* LTX's, of the other levels: "v2" */
    char ltx_version[104];   /* of the checkpoint, where it names one */
    char route[96];          /* how it was computed, for people, and no part of what it is: ASCII
                                for a quoted string of HTTP, so without '"' and '\\'; or "" */
    int n_tokens;
    bool truncated;
    int n_tensors;
    struct cache_tensor tensors[CACHE_MAX_TENSORS];
    size_t bytes;    /* of all tensors */
    uint32_t crc32c; /* of all bytes: part of the ETag */
    uint32_t piece_crc32c[CACHE_MAX_PIECES];
};

/* `urls`: one address or several, separated by commas. Nothing is connected yet. */
int cache_open(struct cache **out, const char *urls, int timeout_ms, struct error *err);
void cache_close(struct cache *c); /* NULL is fine */
/* Whether each server may be a cache: a memory limit, and a policy that evicts. One sentence else.
 */
int cache_check_policy(const char *urls, bool assumed, bool shared_with_queue, char *warning,
                       size_t warning_cap, struct error *err);

/* Whether every server answers. */
int cache_ping(struct cache *c, struct error *err);
int cache_exists(struct cache *c, const char *id, bool *exists, struct error *err);
/* Several at once, one round trip a server. */
int cache_exist_all(struct cache *c, const char *const *ids, size_t n, bool *exist,
                    struct error *err);

/* Writes a result whose tensors are given as n_parts runs of bytes, h->bytes in all (its checksums
 * are filled in). The first writer wins: *stored is false when there was one already, which then
 * stays. `replace`: takes its place instead. ERR_MEM: C is full, or too small to hold it while it
 * is written. ERR_INPUT: the tensors do not make up h->bytes, or the route is no such text. */
int cache_put(struct cache *c, const char *id, struct cache_header *h, const void *const *parts,
              const size_t *part_bytes, size_t n_parts, int64_t ttl_ms, bool replace, bool *stored,
              struct error *err);

/* The header and piece 0, checked, in one round trip; `first_piece` (its max at least CACHE_PIECE)
 * is replaced. *found false: there is none, or what is there is damaged (then it was deleted and
 * *damaged set). */
int cache_get_begin(struct cache *c, const char *id, struct cache_header *out,
                    struct buf *first_piece, bool *found, bool *damaged, struct error *err);
/* Piece `index` of it, checked; `out` (its max at least CACHE_PIECE) is replaced. *found false
 * without *damaged: the result is gone, or was replaced since its header was read. */
int cache_get_piece(struct cache *c, const char *id, const struct cache_header *h, size_t index,
                    struct buf *out, bool *found, bool *damaged, struct error *err);
size_t cache_n_pieces(const struct cache_header *h);
int cache_delete(struct cache *c, const char *id, struct error *err);
