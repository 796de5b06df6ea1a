/* cache.c - see cache.h.
 *
 * A result is written under a temporary name, its expiry renewed with each piece, as a cache may
 * evict it at any moment and the next piece would begin it anew. WATCH and a count of its fields
 * prove that it is whole before one transaction gives it its name: no reader sees a part, and a
 * writer that dies leaves nothing that stays. */
#include "jobs/cache.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/size.h"
#include "jobs/job.h"
#include "jobs/json_fields.h"
#include "jobs/redis.h"
#include "jobs/redis_policy.h"
#include "jobs/reply.h"

enum {
    VERSION = 5,          /* of the header */
    TEMPORARY_MS = 60000, /* an unfinished result's life after its last piece */
    KEY_SIZE = JOB_ID_SIZE + 2,
    N_FIELDS = 17 /* of the header's JSON */
};

struct cache {
    struct redis *servers[CACHE_MAX_URLS];
    size_t n_servers;
};

/* ---- which server ---- */

/* Each server gets a number for the id, and the highest has it: when a server is added or taken
 * away, only its own share moves. FNV-1a, then the finish of splitmix64. */
static uint64_t weight(const char *address, const char *id)
{
    uint64_t h = HASH_START;

    for (const char *p = address; *p != '\0'; p++)
        h = hash_add(h, (unsigned char)*p);
    h = hash_add(h, 0); /* a NUL between the two */
    for (const char *p = id; *p != '\0'; p++)
        h = hash_add(h, (unsigned char)*p);
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

static size_t server_of(const struct cache *c, const char *id)
{
    uint64_t best = 0;
    size_t found = 0;

    for (size_t i = 0; i < c->n_servers; i++) {
        uint64_t w = weight(redis_address(c->servers[i]), id);

        if (i == 0 || w > best) {
            best = w;
            found = i;
        }
    }
    return found;
}

static int locate(const struct cache *c, const char *id, struct redis **r, char key[KEY_SIZE],
                  struct error *err)
{
    if (!job_id_is_plain(id))
        return error_set(err, ERR_INPUT, "cache: a result's id is not 1 to %d of a-z A-Z 0-9 _ -",
                         JOB_ID_SIZE - 1);
    *r = c->servers[server_of(c, id)];
    snprintf(key, KEY_SIZE, "r:%s", id);
    return OK;
}

/* ---- opening ---- */

/* Calls `visit` with each of the addresses. */
static int for_each_url(const char *urls, int (*visit)(void *arg, const char *url, struct error *),
                        void *arg, struct error *err)
{
    int rc = OK;

    while (rc == OK) {
        size_t len = strcspn(urls, ",");
        char *url = strndup(urls, len);

        if (url == NULL)
            return error_set(err, ERR_MEM, "cache: no memory for an address");
        rc = visit(arg, url, err);
        free(url);
        if (urls[len] == '\0')
            break;
        urls += len + 1;
    }
    return rc;
}

struct opening {
    struct cache *cache;
    int timeout_ms;
};

static int open_server(void *arg, const char *url, struct error *err)
{
    struct opening *o = arg;
    struct cache *c = o->cache;
    int rc;

    if (c->n_servers == CACHE_MAX_URLS)
        return error_set(err, ERR_INPUT, "cache: more than %d addresses", CACHE_MAX_URLS);
    if ((rc = redis_open(&c->servers[c->n_servers], url, o->timeout_ms, err)) != OK)
        return rc;
    redis_set_role(c->servers[c->n_servers], REDIS_CACHE);
    c->n_servers++;
    return OK;
}

int cache_open(struct cache **out, const char *urls, int timeout_ms, struct error *err)
{
    struct opening o = {.timeout_ms = timeout_ms};
    int rc;

    *out = NULL;
    if ((o.cache = calloc(1, sizeof(*o.cache))) == NULL)
        return error_set(err, ERR_MEM, "cache: no memory");
    if ((rc = for_each_url(urls, open_server, &o, err)) != OK) {
        cache_close(o.cache);
        return rc;
    }
    *out = o.cache;
    return OK;
}

void cache_close(struct cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_servers; i++)
        redis_close(c->servers[i]);
    free(c);
}

struct checking {
    bool assumed, shared;
    char *warning;
    size_t warning_cap;
};

static int check_server(void *arg, const char *url, struct error *err)
{
    static const char needs[] = "one that evicts";
    const int timeout_ms = 5000;
    struct checking *c = arg;
    struct redis_policy p;
    struct redis *r = NULL;
    const char *policy;
    int rc;

    if ((rc = redis_open(&r, url, timeout_ms, err)) != OK ||
        (rc = redis_policy_read(&p, r, err)) != OK)
        goto out;
    policy = p.maxmemory_policy;
    if (c->shared && strcmp(policy, "volatile-lfu") != 0)
        rc = redis_policy_object(r, "cache beside a queue", "maxmemory-policy", policy,
                                 "volatile-lfu", "volatile-lfu", c->assumed, c->warning,
                                 c->warning_cap, err);
    else if (strncmp(policy, "allkeys-", 8) != 0 && strncmp(policy, "volatile-", 9) != 0)
        rc = redis_policy_object(r, "cache", "maxmemory-policy", policy, needs, "allkeys-lfu",
                                 c->assumed, c->warning, c->warning_cap, err);
    if (rc == OK && p.maxmemory <= 0)
        rc = redis_policy_object(r, "cache", "maxmemory", p.maxmemory == 0 ? "0" : "", "a limit",
                                 "4gb", c->assumed, c->warning, c->warning_cap, err);
    if (rc == OK && !c->shared && strcmp(p.appendonly, "yes") == 0 && c->warning != NULL &&
        c->warning[0] == '\0')
        snprintf(c->warning, c->warning_cap,
                 "redis at %s: appendonly is yes, a cache is faster without: CONFIG SET appendonly "
                 "no",
                 redis_address(r));
out:
    redis_close(r);
    return rc;
}

int cache_check_policy(const char *urls, bool assumed, bool shared_with_queue, char *warning,
                       size_t warning_cap, struct error *err)
{
    struct checking c = {assumed, shared_with_queue, warning_cap > 0 ? warning : NULL, warning_cap};

    if (c.warning != NULL)
        c.warning[0] = '\0';
    return for_each_url(urls, check_server, &c, err);
}

/* ---- what is there ---- */

int cache_exists(struct cache *c, const char *id, bool *exists, struct error *err)
{
    return cache_exist_all(c, &id, 1, exists, err);
}

int cache_ping(struct cache *c, struct error *err)
{
    const char *argv[] = {"PING"};
    int rc;

    for (size_t s = 0; s < c->n_servers; s++) {
        redisReply *reply;
        if ((rc = redis_command(c->servers[s], &reply, 1, argv, NULL, err)) != OK)
            return rc;
        freeReplyObject(reply);
    }
    return OK;
}

int cache_exist_all(struct cache *c, const char *const *ids, size_t n, bool *exist,
                    struct error *err)
{
    char key[KEY_SIZE];
    const char *argv[] = {"EXISTS", key};
    struct redis *r;
    int rc;

    for (size_t i = 0; i < n; i++) {
        exist[i] = false;
        if ((rc = locate(c, ids[i], &r, key, err)) != OK) /* before anything is sent */
            return rc;
    }
    for (size_t s = 0; s < c->n_servers; s++) {
        for (size_t i = 0; i < n; i++) {
            if ((rc = locate(c, ids[i], &r, key, err)) != OK)
                return rc;
            if (r == c->servers[s] && (rc = redis_append(r, 2, argv, NULL, err)) != OK)
                return rc;
        }
        for (size_t i = 0; i < n; i++) {
            redisReply *reply;

            if (server_of(c, ids[i]) != s)
                continue;
            if ((rc = redis_read(c->servers[s], &reply, err)) != OK)
                return rc;
            exist[i] = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
            freeReplyObject(reply);
        }
    }
    return OK;
}

size_t cache_n_pieces(const struct cache_header *h)
{
    return h->bytes / CACHE_PIECE + (h->bytes % CACHE_PIECE != 0);
}

static size_t piece_size(const struct cache_header *h, size_t index)
{
    size_t begin = index * CACHE_PIECE;

    return h->bytes - begin < CACHE_PIECE ? h->bytes - begin : CACHE_PIECE;
}

/* ---- the header ---- */

/* The tensors fill the result, and each shape can be that of its bytes. */
static bool tensors_fill(const struct cache_header *h)
{
    size_t sum = 0;

    if (h->n_tensors < 1 || h->n_tensors > CACHE_MAX_TENSORS)
        return false;
    for (int i = 0; i < h->n_tensors; i++) {
        const struct cache_tensor *t = &h->tensors[i];
        size_t n = 1;

        if (t->n_dims < 0 || t->n_dims > CACHE_MAX_DIMS || !size_add(&sum, sum, t->bytes))
            return false;
        for (int d = 0; d < t->n_dims; d++)
            if (!size_mul(&n, n, t->shape[d]))
                return false;
        if (n == 0 ? t->bytes != 0 : t->bytes % n != 0 || t->bytes / n < 1 || t->bytes / n > 8)
            return false;
    }
    return sum == h->bytes && cache_n_pieces(h) <= CACHE_MAX_PIECES;
}

static uint32_t combined_crc(const struct cache_header *h)
{
    uint32_t crc = 0;

    for (size_t i = 0; i < cache_n_pieces(h); i++)
        crc = crc32c_combine(crc, h->piece_crc32c[i], piece_size(h, i));
    return crc;
}

static bool is_plain_text(const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')
            return false;
    return true;
}

static int write_header(char **out, const struct cache_header *h, struct error *err)
{
    json_t *tensors = json_array(), *pieces = json_array(), *root;

    for (int i = 0; i < h->n_tensors; i++) {
        const struct cache_tensor *t = &h->tensors[i];
        json_t *shape = json_array();

        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:o, s:I}", "name", t->name, "dtype", t->dtype,
                                        "shape", shape, "bytes", (json_int_t)t->bytes));
    }
    for (size_t i = 0; i < cache_n_pieces(h); i++)
        json_array_append_new(pieces, json_integer(h->piece_crc32c[i]));
    root = json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:b, s:o, s:I, s:o, s:I}",
        "version", VERSION, "model", h->model, "weights", h->weights, "tokenizer", h->tokenizer,
        "gemma_version", h->gemma_version, "output", h->output, "layers", h->layers, "modalities",
        h->modalities, "extractor", h->extractor, "ltx_version", h->ltx_version, "route", h->route,
        "n_tokens", h->n_tokens, "truncated", h->truncated, "tensors", tensors, "bytes",
        (json_int_t)h->bytes, "pieces", pieces, "crc32c", (json_int_t)h->crc32c);
    *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (*out == NULL)
        return error_set(err, ERR_INPUT, "cache: a result's header that is no text, or no memory");
    return OK;
}

static int read_tensor(struct cache_tensor *t, const json_t *entry, struct error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    int64_t bytes;
    int rc;

    if (json_object_size(entry) != 4 || !json_is_array(shape) ||
        json_array_size(shape) > CACHE_MAX_DIMS)
        return error_set(err, ERR_FORMAT, "result: a tensor of other fields or dimensions");
    if ((rc = json_fields_text(t->name, sizeof(t->name), entry, "name", "result", err)) != OK ||
        (rc = json_fields_text(t->dtype, sizeof(t->dtype), entry, "dtype", "result", err)) != OK ||
        (rc = json_fields_int(&bytes, entry, "bytes", 0, INT64_MAX, "result", err)) != OK)
        return rc;
    t->bytes = (size_t)bytes;
    t->n_dims = (int)json_array_size(shape);
    for (int d = 0; d < t->n_dims; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return error_set(err, ERR_FORMAT, "result: a dimension that is no size");
        t->shape[d] = (size_t)json_integer_value(size);
    }
    return OK;
}

static int read_pieces(struct cache_header *h, const json_t *pieces, struct error *err)
{
    if (!json_is_array(pieces) || json_array_size(pieces) != cache_n_pieces(h))
        return error_set(err, ERR_FORMAT, "result: not one checksum a piece");
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *crc = json_array_get(pieces, i);

        if (!json_is_integer(crc) || json_integer_value(crc) < 0 ||
            json_integer_value(crc) > UINT32_MAX)
            return error_set(err, ERR_FORMAT, "result: a checksum that is none");
        h->piece_crc32c[i] = (uint32_t)json_integer_value(crc);
    }
    if (combined_crc(h) != h->crc32c)
        return error_set(err, ERR_FORMAT, "result: its checksums do not agree");
    return OK;
}

static int read_header(struct cache_header *h, const char *text, size_t len, struct error *err)
{
    const json_t *tensors;
    int64_t version, n_tokens, bytes, crc;
    json_t *root;
    int rc;

    *h = (struct cache_header){0};
    if ((rc = json_fields_parse(&root, text, len, N_FIELDS, "result", err)) != OK)
        return rc;
    if ((rc = json_fields_int(&version, root, "version", VERSION, VERSION, "result", err)) != OK ||
        (rc = json_fields_text(h->model, sizeof(h->model), root, "model", "result", err)) != OK ||
        (rc = json_fields_text(h->weights, sizeof(h->weights), root, "weights", "result", err)) !=
            OK ||
        (rc = json_fields_text(h->tokenizer, sizeof(h->tokenizer), root, "tokenizer", "result",
                               err)) != OK ||
        (rc = json_fields_text(h->gemma_version, sizeof(h->gemma_version), root, "gemma_version",
                               "result", err)) != OK ||
        (rc = json_fields_text(h->output, sizeof(h->output), root, "output", "result", err)) !=
            OK ||
        (rc = json_fields_text(h->layers, sizeof(h->layers), root, "layers", "result", err)) !=
            OK ||
        (rc = json_fields_text(h->modalities, sizeof(h->modalities), root, "modalities", "result",
                               err)) != OK ||
        (rc = json_fields_text(h->extractor, sizeof(h->extractor), root, "extractor", "result",
                               err)) != OK ||
        (rc = json_fields_text(h->ltx_version, sizeof(h->ltx_version), root, "ltx_version",
                               "result", err)) != OK ||
        (rc = json_fields_text(h->route, sizeof(h->route), root, "route", "result", err)) != OK ||
        (rc = json_fields_int(&n_tokens, root, "n_tokens", 0, INT32_MAX, "result", err)) != OK ||
        (rc = json_fields_bool(&h->truncated, root, "truncated", "result", err)) != OK ||
        (rc = json_fields_int(&bytes, root, "bytes", 0, INT64_MAX, "result", err)) != OK ||
        (rc = json_fields_int(&crc, root, "crc32c", 0, UINT32_MAX, "result", err)) != OK)
        goto out;
    h->n_tokens = (int)n_tokens;
    h->bytes = (size_t)bytes;
    h->crc32c = (uint32_t)crc;
    if (!is_plain_text(h->route)) {
        rc = error_set(err, ERR_FORMAT, "result: a route that is no plain text");
        goto out;
    }
    tensors = json_object_get(root, "tensors");
    if (!json_is_array(tensors) || json_array_size(tensors) > CACHE_MAX_TENSORS) {
        rc = error_set(err, ERR_FORMAT, "result: not 1 to %d tensors", CACHE_MAX_TENSORS);
        goto out;
    }
    h->n_tensors = (int)json_array_size(tensors);
    for (int i = 0; i < h->n_tensors; i++)
        if ((rc = read_tensor(&h->tensors[i], json_array_get(tensors, (size_t)i), err)) != OK)
            goto out;
    if (!tensors_fill(h)) {
        rc = error_set(err, ERR_FORMAT, "result: tensors that do not make up its bytes");
        goto out;
    }
    rc = read_pieces(h, json_object_get(root, "pieces"), err);
out:
    json_decref(root);
    return rc;
}

/* ---- writing ---- */

/* A place in the parts. */
struct cursor {
    const void *const *parts;
    const size_t *part_bytes;
    size_t part, offset;
};

/* The next `len` bytes: where they lie, or gathered in `room` when they cross parts. */
static const void *next_bytes(struct cursor *c, size_t len, char *room)
{
    size_t done = 0;

    while (c->offset == c->part_bytes[c->part] && len > 0) {
        c->part++;
        c->offset = 0;
    }
    if (c->part_bytes[c->part] - c->offset >= len) {
        const char *from = (const char *)c->parts[c->part] + c->offset;

        c->offset += len;
        return from;
    }
    while (done < len) {
        size_t left = c->part_bytes[c->part] - c->offset;
        size_t n = left < len - done ? left : len - done;

        memcpy(room + done, (const char *)c->parts[c->part] + c->offset, n);
        done += n;
        c->offset += n;
        if (c->offset == c->part_bytes[c->part] && done < len) {
            c->part++;
            c->offset = 0;
        }
    }
    return room;
}

static int check_parts(const struct cache_header *h, const size_t *part_bytes, size_t n_parts,
                       struct error *err)
{
    size_t sum = 0;

    for (size_t i = 0; i < n_parts; i++)
        if (!size_add(&sum, sum, part_bytes[i]))
            sum = SIZE_MAX;
    if (n_parts < 1 || sum != h->bytes || !tensors_fill(h))
        return error_set(
            err, ERR_INPUT,
            "cache: %zu bytes in parts for a result of %zu, at most %d tensors and %zu "
            "bytes",
            sum, h->bytes, CACHE_MAX_TENSORS, (size_t)CACHE_MAX_PIECES * CACHE_PIECE);
    return OK;
}

/* One field of the result and its expiry, without waiting for the answers. */
static int append_field(struct redis *r, const char *key, const char *field, const void *data,
                        size_t len, struct error *err)
{
    char life[16];
    const char *set[] = {"HSET", key, field, data}, *expire[] = {"PEXPIRE", key, life};
    const size_t set_len[] = {4, strlen(key), strlen(field), len};
    int rc;

    snprintf(life, sizeof(life), "%d", TEMPORARY_MS);
    if ((rc = redis_append(r, 4, set, set_len, err)) != OK)
        return rc;
    return redis_append(r, 3, expire, NULL, err);
}

static int evicted(const struct redis *r, struct error *err)
{
    return error_set(err, ERR_MEM,
                     "redis at %s: a result was evicted while it was written: the cache is too "
                     "small",
                     redis_address(r));
}

/* Header and pieces under a name that expires; they are all there when this returns OK, and any
 * change from then on makes the next EXEC answer nil. */
static int write_temporary(struct redis *r, const char *key, const struct cache_header *h,
                           struct cursor parts, char *room, struct error *err)
{
    const char *watch[] = {"WATCH", key}, *count[] = {"HLEN", key};
    size_t n = cache_n_pieces(h), n_fields = 0;
    char *header = NULL, field[24];
    int rc;

    if ((rc = write_header(&header, h, err)) != OK)
        return rc;
    if ((rc = append_field(r, key, "h", header, strlen(header), err)) != OK)
        goto out;
    for (size_t i = 0; i < n; i++) {
        size_t len = piece_size(h, i);

        snprintf(field, sizeof(field), "%zu", i);
        if ((rc = append_field(r, key, field, next_bytes(&parts, len, room), len, err)) != OK)
            goto out;
    }
    if ((rc = redis_append(r, 2, watch, NULL, err)) != OK ||
        (rc = redis_append(r, 2, count, NULL, err)) != OK)
        goto out;
    for (size_t i = 0; i < 2 * (n + 1) + 2; i++) {
        redisReply *reply;

        if ((rc = redis_read(r, &reply, err)) != OK)
            goto out;
        if (reply->type == REDIS_REPLY_INTEGER)
            n_fields = (size_t)reply->integer; /* the last answer is the count */
        freeReplyObject(reply);
    }
    if (n_fields != n + 1)
        rc = evicted(r, err);
out:
    free(header);
    return rc;
}

static int publish(struct redis *r, const char *temporary, const char *key, int64_t ttl_ms,
                   bool replace, bool *stored, struct error *err)
{
    char life[24];
    const char *multi[] = {"MULTI"}, *expire[] = {"PEXPIRE", temporary, life};
    const char *rename[] = {replace ? "RENAME" : "RENAMENX", temporary, key};
    const char *unlink[] = {"UNLINK", temporary}; /* what lost to an earlier writer */
    const char *exec[] = {"EXEC"};
    redisReply *reply = NULL;
    int rc;

    snprintf(life, sizeof(life), "%" PRId64, ttl_ms);
    /* the expiry goes along with the key; set afterwards, it could hit the other writer's result */
    if ((rc = redis_append(r, 1, multi, NULL, err)) != OK ||
        (rc = redis_append(r, 3, expire, NULL, err)) != OK ||
        (rc = redis_append(r, 3, rename, NULL, err)) != OK ||
        (rc = redis_append(r, 2, unlink, NULL, err)) != OK ||
        (rc = redis_append(r, 1, exec, NULL, err)) != OK)
        return rc;
    for (int i = 0; i < 5; i++) {
        if (reply != NULL)
            freeReplyObject(reply);
        if ((rc = redis_read(r, &reply, err)) != OK)
            return rc;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[1]->type == REDIS_REPLY_ERROR)
        rc = evicted(r, err);
    else
        *stored = replace || reply->element[1]->integer == 1;
    freeReplyObject(reply);
    return rc;
}

/* Best effort: what cannot be removed expires. */
static void drop_temporary(struct redis *r, const char *key)
{
    redisReply *reply;

    if (redis_commandf(r, &reply, NULL, "UNWATCH") != OK)
        return;
    freeReplyObject(reply);
    if (redis_commandf(r, &reply, NULL, "UNLINK %s", key) == OK)
        freeReplyObject(reply);
}

/* A tenth either way, so that what was computed together does not expire together. */
static int64_t jitter(int64_t ttl_ms, const unsigned char random[2])
{
    return ttl_ms + ttl_ms / 10 * ((random[0] << 8 | random[1]) - 32768) / 32768;
}

int cache_put(struct cache *c, const char *id, struct cache_header *h, const void *const *parts,
              const size_t *part_bytes, size_t n_parts, int64_t ttl_ms, bool replace, bool *stored,
              struct error *err)
{
    const struct cursor start = {parts, part_bytes, 0, 0};
    struct cursor cursor = start;
    char key[KEY_SIZE], temporary[KEY_SIZE + 20];
    unsigned char random[2 + 8];
    uint64_t mark;
    char *room = NULL;
    struct redis *r;
    bool exists = false;
    int rc;

    *stored = false;
    if ((rc = locate(c, id, &r, key, err)) != OK ||
        (rc = check_parts(h, part_bytes, n_parts, err)) != OK)
        return rc;
    if (!is_plain_text(h->route))
        return error_set(err, ERR_INPUT, "cache: a route that is no plain text");
    if (ttl_ms < 1 || ttl_ms > INT64_MAX / 65536)
        return error_set(err, ERR_INPUT, "cache: a life of %" PRId64 " ms", ttl_ms);
    if (gnutls_rnd(GNUTLS_RND_NONCE, random, sizeof(random)) != 0)
        return error_set(err, ERR_IO, "cache: no random numbers");
    if ((room = malloc(CACHE_PIECE)) == NULL)
        return error_set(err, ERR_MEM, "cache: no memory for a piece");

    for (size_t i = 0; i < cache_n_pieces(h); i++) {
        size_t len = piece_size(h, i);

        h->piece_crc32c[i] = crc32c(0, next_bytes(&cursor, len, room), len);
    }
    h->crc32c = combined_crc(h);
    if (!replace && (rc = cache_exists(c, id, &exists, err)) != OK)
        goto out;
    if (exists)
        goto out; /* megabytes not sent in vain */
    memcpy(&mark, random + 2, sizeof(mark));
    snprintf(temporary, sizeof(temporary), "%s:%016" PRIx64, key, mark);
    if ((rc = write_temporary(r, temporary, h, start, room, err)) != OK ||
        (rc = publish(r, temporary, key, jitter(ttl_ms, random), replace, stored, err)) != OK)
        drop_temporary(r, temporary);
out:
    free(room);
    return rc;
}

/* ---- reading ---- */

/* Whether `reply` is that piece, as it was written. */
static bool is_piece(const struct cache_header *h, size_t index, const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STRING && reply->len == piece_size(h, index) &&
           crc32c(0, reply->str, reply->len) == h->piece_crc32c[index];
}

/* The fields `h` and `0`, and whether there is anything, as they are in one moment: a result that
 * is published between two looks must not seem to be one without a header. *out is
 * [[h, 0], exists]. */
static int look(struct redis *r, const char *key, redisReply **out, struct error *err)
{
    const char *multi[] = {"MULTI"}, *get[] = {"HMGET", key, "h", "0"}, *exec[] = {"EXEC"};
    const char *exists[] = {"EXISTS", key};
    redisReply *reply = NULL;
    int rc;

    *out = NULL;
    if ((rc = redis_append(r, 1, multi, NULL, err)) != OK ||
        (rc = redis_append(r, 4, get, NULL, err)) != OK ||
        (rc = redis_append(r, 2, exists, NULL, err)) != OK ||
        (rc = redis_append(r, 1, exec, NULL, err)) != OK)
        return rc;
    for (int i = 0; i < 4; i++) {
        if (reply != NULL)
            freeReplyObject(reply);
        if ((rc = redis_read(r, &reply, err)) != OK)
            return rc;
    }
    if (!reply_is_array(reply, 2) || reply->element[1]->type != REDIS_REPLY_INTEGER) {
        freeReplyObject(reply);
        return error_set(err, ERR_FORMAT, "redis at %s: no answer to what is there",
                         redis_address(r));
    }
    *out = reply;
    return OK;
}

int cache_get_begin(struct cache *c, const char *id, struct cache_header *out,
                    struct buf *first_piece, bool *found, bool *damaged, struct error *err)
{
    const redisReply *fields;
    char key[KEY_SIZE];
    redisReply *reply;
    struct redis *r;
    int rc;

    *found = *damaged = false;
    first_piece->len = 0;
    if ((rc = locate(c, id, &r, key, err)) != OK || (rc = look(r, key, &reply, err)) != OK)
        return rc;
    fields = reply->element[0];
    *found = reply_is_array(fields, 2) && fields->element[0]->type == REDIS_REPLY_STRING &&
             read_header(out, fields->element[0]->str, fields->element[0]->len, NULL) == OK &&
             (out->bytes == 0 || is_piece(out, 0, fields->element[1]));
    *damaged = !*found && reply->element[1]->integer == 1;
    if (*found && out->bytes > 0)
        rc = buf_append(first_piece, fields->element[1]->str, fields->element[1]->len, err);
    freeReplyObject(reply);
    if (*damaged)
        rc = cache_delete(c, id, err);
    return rc;
}

/* A piece that is not what the header says: *damaged when the header is still the same. */
static int look_again(struct redis *r, const char *key, const struct cache_header *h, bool *damaged,
                      struct error *err)
{
    const char *argv[] = {"HGET", key, "h"};
    struct cache_header now;
    redisReply *reply;
    int rc;

    if ((rc = redis_command(r, &reply, 3, argv, NULL, err)) != OK)
        return rc;
    *damaged = reply->type == REDIS_REPLY_STRING &&
               (read_header(&now, reply->str, reply->len, NULL) != OK ||
                (now.crc32c == h->crc32c && now.bytes == h->bytes));
    freeReplyObject(reply);
    return OK;
}

int cache_get_piece(struct cache *c, const char *id, const struct cache_header *h, size_t index,
                    struct buf *out, bool *found, bool *damaged, struct error *err)
{
    char key[KEY_SIZE], field[24];
    const char *argv[] = {"HGET", key, field};
    redisReply *reply;
    struct redis *r;
    int rc;

    *found = *damaged = false;
    out->len = 0;
    if ((rc = locate(c, id, &r, key, err)) != OK)
        return rc;
    if (index >= cache_n_pieces(h))
        return error_set(err, ERR_INPUT, "cache: piece %zu of %zu", index, cache_n_pieces(h));
    snprintf(field, sizeof(field), "%zu", index);
    if ((rc = redis_command(r, &reply, 3, argv, NULL, err)) != OK)
        return rc;
    if (is_piece(h, index, reply)) {
        rc = buf_append(out, reply->str, reply->len, err);
        *found = rc == OK;
        freeReplyObject(reply);
        return rc;
    }
    freeReplyObject(reply);

    /* gone, or replaced since its header was read, is no damage */
    if ((rc = look_again(r, key, h, damaged, err)) != OK || !*damaged)
        return rc;
    return cache_delete(c, id, err);
}

int cache_delete(struct cache *c, const char *id, struct error *err)
{
    char key[KEY_SIZE];
    const char *argv[] = {"UNLINK", key};
    redisReply *reply;
    struct redis *r;
    int rc;

    if ((rc = locate(c, id, &r, key, err)) != OK ||
        (rc = redis_command(r, &reply, 2, argv, NULL, err)) != OK)
        return rc;
    freeReplyObject(reply);
    return OK;
}
