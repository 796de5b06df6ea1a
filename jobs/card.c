/* card.c - see card.h.
 *
 * All cards are one hash, `pe:cards`, field "<id>:<weights>:<compute>"; when each was registered
 * first and last lies beside it in `pe:cards:first` and `pe:cards:seen`, under the same fields. A
 * tokenizer is one string, `pe:tokenizer:<digest>`. What belongs together is written and read in
 * one transaction, so a card is never visible without its tokenizer. */
#include "jobs/card.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/json_fields.h"
#include "jobs/redis.h"
#include "jobs/reply.h"

#define CARDS "pe:cards"
#define FIRST "pe:cards:first"
#define SEEN  "pe:cards:seen"

enum {
    VERSION = 4,
    N_FIELDS = 19, /* of a card's JSON */
    NAME_SIZE = CARD_ID_SIZE + CARD_DIGEST_SIZE + CARD_WORD_SIZE,
    KEY_SIZE = CARD_DIGEST_SIZE + 16,
    TIME_SIZE = 24,
    TRIES = 16, /* of a transaction that others disturb */
    SHA256_SIZE = 32
};

static bool is_plain(const char *word, size_t size)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strnlen(word, size);

    return len > 0 && len < size && strspn(word, plain) == len;
}

static bool is_digest(const char *text)
{
    return strnlen(text, CARD_DIGEST_SIZE) == CARD_DIGEST_SIZE - 1 &&
           strspn(text, "0123456789abcdef") == CARD_DIGEST_SIZE - 1;
}

static int digest(char out[CARD_DIGEST_SIZE], const void *data, size_t size, struct error *err)
{
    unsigned char sum[SHA256_SIZE];

    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, size, sum) != 0)
        return error_set(err, ERR_IO, "card: no SHA-256");
    for (size_t i = 0; i < sizeof(sum); i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
    return OK;
}

static void name_of(char out[NAME_SIZE], const char *id, const char *weights, const char *compute)
{
    snprintf(out, NAME_SIZE, "%s:%s:%s", id, weights, compute);
}

static void tokenizer_key(char out[KEY_SIZE], const struct model_card *card)
{
    snprintf(out, KEY_SIZE, "pe:tokenizer:%s", card->tokenizer);
}

static int check_names(const char *id, const char *weights, const char *compute, struct error *err)
{
    if (!is_plain(id, CARD_ID_SIZE))
        return error_set(err, ERR_INPUT, "card: a model's id is not 1 to %d of a-z A-Z 0-9 . _ -",
                         CARD_ID_SIZE - 1);
    if (!is_digest(weights))
        return error_set(err, ERR_INPUT, "card: %s: the weights' digest is no SHA-256 in hex", id);
    if (!is_plain(compute, CARD_WORD_SIZE))
        return error_set(err, ERR_INPUT,
                         "card: %s: what it computes in is not 1 to %d of a-z A-Z 0-9 . _ -", id,
                         CARD_WORD_SIZE - 1);
    return OK;
}

/* ---- a card as JSON ---- */

static int write_card(char **out, const struct model_card *c, struct error *err)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:b, s:i, s:i, s:i, s:i, "
        "s:s, s:b}",
        "version", VERSION, "id", c->id, "weights", c->weights, "compute", c->compute, "tokenizer",
        c->tokenizer, "architecture", c->architecture, "engine_version", c->engine_version,
        "n_states", c->n_states, "width", c->width, "max_tokens", c->max_tokens, "vocabulary",
        c->vocabulary, "gemma_version", c->gemma_version, "has_hidden_states", c->has_hidden_states,
        "extractor", c->extractor, "rows", c->rows, "video_width", c->video_width, "audio_width",
        c->audio_width, "ltx_version", c->ltx_version, "is_asleep", c->is_asleep);

    *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (*out == NULL)
        return error_set(err, ERR_INPUT, "card: %s: a text that is not UTF-8, or no memory", c->id);
    return OK;
}

static int read_small(int *out, const json_t *root, const char *field, int min, const char *what,
                      struct error *err)
{
    int64_t n = 0;
    int rc = json_fields_int(&n, root, field, min, 1 << 30, what, err);

    *out = (int)n;
    return rc;
}

/* Features and embeddings: all of what describes them, or nothing. */
static int read_ltx(struct model_card *c, const json_t *root, const char *what, struct error *err)
{
    int64_t extractor = 0;
    int min, rc;

    if ((rc = json_fields_int(&extractor, root, "extractor", 0, 2, what, err)) != OK)
        return rc;
    c->extractor = (int)extractor;
    min = c->extractor > 0 ? 1 : 0;
    if ((rc = read_small(&c->rows, root, "rows", min, what, err)) != OK ||
        (rc = read_small(&c->video_width, root, "video_width", min, what, err)) != OK ||
        (rc = read_small(&c->audio_width, root, "audio_width", 0, what, err)) != OK ||
        (rc = json_fields_text(c->ltx_version, sizeof(c->ltx_version), root, "ltx_version", what,
                               err)) != OK)
        return rc;
    if (c->extractor == 0 && (c->rows > 0 || c->video_width > 0 || c->audio_width > 0))
        return error_set(err, ERR_FORMAT, "%s: features without an extractor", what);
    return OK;
}

/* `name` is the field it lies under, which it must be about. */
static int read_card(struct model_card *c, const char *name, const char *text, size_t len,
                     struct error *err)
{
    char what[NAME_SIZE + 8], own_name[NAME_SIZE];
    int64_t version;
    json_t *root;
    int rc;

    *c = (struct model_card){0};
    snprintf(what, sizeof(what), "card %s", name);
    if ((rc = json_fields_parse(&root, text, len, N_FIELDS, what, err)) != OK)
        return rc;
    if ((rc = json_fields_int(&version, root, "version", VERSION, VERSION, what, err)) != OK ||
        (rc = json_fields_text(c->id, sizeof(c->id), root, "id", what, err)) != OK ||
        (rc = json_fields_text(c->weights, sizeof(c->weights), root, "weights", what, err)) != OK ||
        (rc = json_fields_text(c->compute, sizeof(c->compute), root, "compute", what, err)) != OK ||
        (rc = json_fields_text(c->tokenizer, sizeof(c->tokenizer), root, "tokenizer", what, err)) !=
            OK ||
        (rc = json_fields_text(c->architecture, sizeof(c->architecture), root, "architecture", what,
                               err)) != OK ||
        (rc = json_fields_text(c->engine_version, sizeof(c->engine_version), root, "engine_version",
                               what, err)) != OK ||
        (rc = read_small(&c->n_states, root, "n_states", 1, what, err)) != OK ||
        (rc = read_small(&c->width, root, "width", 1, what, err)) != OK ||
        (rc = read_small(&c->max_tokens, root, "max_tokens", 1, what, err)) != OK ||
        (rc = read_small(&c->vocabulary, root, "vocabulary", 1, what, err)) != OK ||
        (rc = json_fields_text(c->gemma_version, sizeof(c->gemma_version), root, "gemma_version",
                               what, err)) != OK ||
        (rc = json_fields_bool(&c->has_hidden_states, root, "has_hidden_states", what, err)) !=
            OK ||
        (rc = json_fields_bool(&c->is_asleep, root, "is_asleep", what, err)) != OK ||
        (rc = read_ltx(c, root, what, err)) != OK)
        goto out;
    name_of(own_name, c->id, c->weights, c->compute);
    if (!is_plain(c->id, CARD_ID_SIZE) || !is_digest(c->weights) ||
        !is_plain(c->compute, CARD_WORD_SIZE) || !is_digest(c->tokenizer) ||
        strcmp(own_name, name) != 0)
        rc = error_set(err, ERR_FORMAT, "%s: its names and digests are not in order", what);
out:
    json_decref(root);
    return rc;
}

/* Pair i of an HGETALL reply; the name is made fit to be shown. */
static int read_pair(struct model_card *c, const redisReply *reply, size_t i, struct error *err)
{
    const redisReply *field = reply->element[2 * i], *value = reply->element[2 * i + 1];
    char name[NAME_SIZE];

    if (field->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING)
        return error_set(err, ERR_FORMAT, "card: %s is no hash of texts", CARDS);
    snprintf(name, sizeof(name), "%s", field->str);
    for (char *p = name; *p != '\0'; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f)
            *p = '?';
    return read_card(c, name, value->str, value->len, err);
}

/* ---- transactions ---- */

static int begin(struct redis *q, struct error *err)
{
    const char *multi[] = {"MULTI"};

    return redis_append(q, 1, multi, NULL, err);
}

/* Sends it after n commands and gives their answers. *done is false, and *out NULL, when a key that
 * was watched changed meanwhile. */
static int commit(struct redis *q, size_t n, redisReply **out, bool *done, struct error *err)
{
    const char *exec[] = {"EXEC"};
    redisReply *reply;
    int rc;

    *out = NULL;
    if ((rc = redis_append(q, 1, exec, NULL, err)) != OK)
        return rc;
    for (size_t i = 0; i < n + 1; i++) { /* OK, QUEUED .. */
        if ((rc = redis_read(q, &reply, err)) != OK)
            return rc;
        freeReplyObject(reply);
    }
    if ((rc = redis_read(q, &reply, err)) != OK)
        return rc;
    *done = reply_is_array(reply, n);
    for (size_t i = 0; *done && i < n; i++)
        if (reply->element[i]->type == REDIS_REPLY_ERROR)
            rc = error_set(err, ERR_FORMAT, "card: %s, %s or %s is no hash in redis at %s", CARDS,
                           FIRST, SEEN, redis_address(q));
    if (rc == OK && *done)
        *out = reply;
    else
        freeReplyObject(reply);
    return rc;
}

static int disturbed(const char *id, struct error *err)
{
    return error_set(err, ERR_BUSY, "card: %s: the cards change all the time", id);
}

/* After TIME: [seconds, microseconds]. */
static bool read_time(int64_t *now_ms, const redisReply *reply)
{
    int64_t s, us;

    if (!reply_is_array(reply, 2) ||
        !reply_digits(&s, reply->element[0], 0, INT64_MAX / 1000 - 1) ||
        !reply_digits(&us, reply->element[1], 0, 999999))
        return false;
    *now_ms = s * 1000 + us / 1000;
    return true;
}

/* ---- registering ---- */

/* Watches the tokenizer's key from now on. */
static int look_for_tokenizer(struct redis *q, const char *key, bool *there, int64_t *now_ms,
                              struct error *err)
{
    const char *commands[][2] = {{"WATCH", key}, {"EXISTS", key}, {"TIME", NULL}};
    redisReply *reply;
    bool good = true;
    int rc = OK;

    *there = false;
    for (int i = 0; i < 3 && rc == OK; i++)
        rc = redis_append(q, commands[i][1] != NULL ? 2 : 1, commands[i], NULL, err);
    for (int i = 0; i < 3 && rc == OK; i++) {
        if ((rc = redis_read(q, &reply, err)) != OK)
            break;
        if (i == 1)
            *there = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
        if (i == 2)
            good = read_time(now_ms, reply);
        freeReplyObject(reply);
    }
    if (rc == OK && !good)
        rc = error_set(err, ERR_FORMAT, "card: redis at %s does not know the time",
                       redis_address(q));
    return rc;
}

static void unwatch(struct redis *q)
{
    redisReply *reply;

    if (redis_commandf(q, &reply, NULL, "UNWATCH") == OK)
        freeReplyObject(reply);
}

/* *done is false when the tokenizer came or went meanwhile. */
static int try_register(struct redis *q, const struct model_card *card, const char *name,
                        const char *text, const void *tokenizer, size_t size, bool *done,
                        struct error *err)
{
    char key[KEY_SIZE], now[TIME_SIZE];
    const char *set[] = {"SET", key, tokenizer}, *put[] = {"HSET", CARDS, name, text};
    const char *first[] = {"HSETNX", FIRST, name, now}, *seen[] = {"HSET", SEEN, name, now};
    size_t set_len[3];
    redisReply *reply;
    int64_t now_ms = 0;
    bool there;
    int rc;

    tokenizer_key(key, card);
    if ((rc = look_for_tokenizer(q, key, &there, &now_ms, err)) != OK)
        return rc;
    if (!there && tokenizer == NULL) {
        unwatch(q);
        return error_set(err, ERR_FORMAT, "card: %s: its tokenizer is missing in redis at %s",
                         card->id, redis_address(q));
    }
    snprintf(now, sizeof(now), "%" PRId64, now_ms);
    set_len[0] = 3;
    set_len[1] = strlen(key);
    set_len[2] = size;
    if ((rc = begin(q, err)) != OK ||
        (!there && (rc = redis_append(q, 3, set, set_len, err)) != OK) ||
        (rc = redis_append(q, 4, put, NULL, err)) != OK ||
        (rc = redis_append(q, 4, first, NULL, err)) != OK ||
        (rc = redis_append(q, 4, seen, NULL, err)) != OK ||
        (rc = commit(q, there ? 3 : 4, &reply, done, err)) != OK)
        return rc;
    if (*done)
        freeReplyObject(reply);
    return OK;
}

int card_register(struct redis *q, const struct model_card *card, const void *tokenizer,
                  size_t tokenizer_size, struct error *err)
{
    char name[NAME_SIZE], sum[CARD_DIGEST_SIZE], *text = NULL;
    struct model_card again;
    bool done = false;
    int rc;

    if ((rc = check_names(card->id, card->weights, card->compute, err)) != OK ||
        (tokenizer != NULL && (rc = digest(sum, tokenizer, tokenizer_size, err)) != OK))
        return rc;
    if (tokenizer != NULL && strcmp(sum, card->tokenizer) != 0)
        return error_set(err, ERR_INPUT, "card: %s: the tokenizer has another digest", card->id);
    name_of(name, card->id, card->weights, card->compute);
    if ((rc = write_card(&text, card, err)) != OK)
        return rc;
    /* what nobody could read must not get in */
    rc = read_card(&again, name, text, strlen(text), err);
    for (int i = 0; i < TRIES && rc == OK && !done; i++)
        rc = try_register(q, card, name, text, tokenizer, tokenizer_size, &done, err);
    free(text);
    return rc != OK || done ? rc : disturbed(card->id, err);
}

/* ---- listing ---- */

static int best_first(const void *a, const void *b)
{
    const struct model_card *x = a, *y = b;
    int64_t p = x->is_live ? x->registered_ms : x->seen_ms;
    int64_t r = y->is_live ? y->registered_ms : y->seen_ms;

    if (x->is_live != y->is_live)
        return x->is_live ? -1 : 1;
    if (p != r)
        return p > r ? -1 : 1;
    if (strcmp(x->id, y->id) != 0)
        return strcmp(x->id, y->id);
    if (strcmp(x->weights, y->weights) != 0)
        return strcmp(x->weights, y->weights);
    return strcmp(x->compute, y->compute);
}

/* The time of the card called `name` in an HGETALL reply. */
static bool find_time(int64_t *out, const redisReply *times, const redisReply *name)
{
    for (size_t i = 0; i + 1 < times->elements; i += 2)
        if (times->element[i]->type == REDIS_REPLY_STRING && times->element[i]->len == name->len &&
            memcmp(times->element[i]->str, name->str, name->len) == 0)
            return reply_digits(out, times->element[i + 1], 0, INT64_MAX);
    return false;
}

/* `all`: [TIME, cards, first, seen]. */
static void read_all(struct model_card *out, size_t *n, char *left_out, size_t left_out_cap,
                     const redisReply *all, int64_t now_ms)
{
    const redisReply *cards = all->element[1];
    size_t len = 0;

    left_out[0] = '\0';
    for (size_t i = 0; i < cards->elements / 2; i++) {
        struct model_card *c = &out[*n];
        struct error why = {0};
        int rc = read_pair(c, cards, i, &why);

        if (rc == OK && (!find_time(&c->registered_ms, all->element[2], cards->element[2 * i]) ||
                         !find_time(&c->seen_ms, all->element[3], cards->element[2 * i])))
            rc = error_set(&why, ERR_FORMAT, "card %s: nobody knows when it was registered", c->id);
        if (rc != OK) { /* one of another version, say: the others are good all the same */
            if (len < left_out_cap)
                len += (size_t)snprintf(left_out + len, left_out_cap - len, "%s%s",
                                        len > 0 ? "; " : "", why.text);
            continue;
        }
        c->is_live = now_ms - c->seen_ms < CARD_LIVE_MS;
        (*n)++;
    }
}

/* Time and hashes as they are in one moment. */
static int get_all(struct redis *q, redisReply **out, int64_t *now_ms, struct error *err)
{
    const char *time[] = {"TIME"}, *hashes[] = {CARDS, FIRST, SEEN};
    bool good, done;
    int rc;

    if ((rc = begin(q, err)) != OK || (rc = redis_append(q, 1, time, NULL, err)) != OK)
        return rc;
    for (int i = 0; i < 3; i++) {
        const char *get[] = {"HGETALL", hashes[i]};
        if ((rc = redis_append(q, 2, get, NULL, err)) != OK)
            return rc;
    }
    if ((rc = commit(q, 4, out, &done, err)) != OK)
        return rc;
    good = done && read_time(now_ms, (*out)->element[0]);
    for (size_t i = 1; good && i < 4; i++)
        good =
            (*out)->element[i]->type == REDIS_REPLY_ARRAY && (*out)->element[i]->elements % 2 == 0;
    if (good)
        return OK;
    if (done)
        freeReplyObject(*out);
    *out = NULL;
    return error_set(err, ERR_FORMAT, "card: redis at %s: an answer that is none of cards",
                     redis_address(q));
}

int card_list(struct redis *q, struct model_card *out, size_t cap, size_t *n, char *left_out,
              size_t left_out_cap, struct error *err)
{
    struct model_card *all;
    redisReply *reply;
    size_t count = 0, n_pairs;
    int64_t now_ms = 0;
    int rc;

    *n = 0;
    if ((rc = get_all(q, &reply, &now_ms, err)) != OK)
        return rc;
    n_pairs = reply->element[1]->elements / 2;
    if ((all = calloc(n_pairs + 1, sizeof(*all))) == NULL) {
        freeReplyObject(reply);
        return error_set(err, ERR_MEM, "card: no memory for %zu cards", n_pairs);
    }
    read_all(all, &count, left_out, left_out_cap, reply, now_ms);
    freeReplyObject(reply);
    qsort(all, count, sizeof(*all), best_first);
    *n = count < cap ? count : cap;
    if (*n > 0)
        memcpy(out, all, *n * sizeof(*out));
    free(all);
    return OK;
}

/* ---- removing ---- */

/* The key of the tokenizer that only the card `name` needs; "" when others do, or may: a card that
 * cannot be read keeps all. */
static void find_orphan(char key[KEY_SIZE], const redisReply *cards, const char *name)
{
    struct model_card removed = {0}, other;

    key[0] = '\0';
    for (size_t i = 0; i < cards->elements / 2; i++)
        if (strcmp(cards->element[2 * i]->str, name) == 0 &&
            read_pair(&removed, cards, i, NULL) != OK)
            return;
    if (removed.tokenizer[0] == '\0')
        return;
    for (size_t i = 0; i < cards->elements / 2; i++)
        if (strcmp(cards->element[2 * i]->str, name) != 0 &&
            (read_pair(&other, cards, i, NULL) != OK ||
             strcmp(other.tokenizer, removed.tokenizer) == 0))
            return;
    tokenizer_key(key, &removed);
}

/* *done is false when the cards changed meanwhile. */
static int try_remove(struct redis *q, const char *name, bool *done, bool *removed,
                      struct error *err)
{
    char orphan[KEY_SIZE];
    const char *watch[] = {"WATCH", CARDS}, *unlink[] = {"UNLINK", orphan};
    const char *hashes[] = {CARDS, FIRST, SEEN}, *get[] = {"HGETALL", CARDS};
    redisReply *reply;
    int rc;

    if ((rc = redis_command(q, &reply, 2, watch, NULL, err)) != OK)
        return rc;
    freeReplyObject(reply);
    if ((rc = redis_command(q, &reply, 2, get, NULL, err)) != OK) {
        unwatch(q);
        return rc;
    }
    find_orphan(orphan, reply, name);
    freeReplyObject(reply);
    if ((rc = begin(q, err)) != OK)
        return rc;
    for (int i = 0; i < 3; i++) {
        const char *remove[] = {"HDEL", hashes[i], name};
        if ((rc = redis_append(q, 3, remove, NULL, err)) != OK)
            return rc;
    }
    if ((orphan[0] != '\0' && (rc = redis_append(q, 2, unlink, NULL, err)) != OK) ||
        (rc = commit(q, orphan[0] != '\0' ? 4 : 3, &reply, done, err)) != OK)
        return rc;
    if (*done) {
        *removed = reply->element[0]->integer == 1;
        freeReplyObject(reply);
    }
    return OK;
}

int card_remove(struct redis *q, const char *id, const char *weights, const char *compute,
                bool *removed, struct error *err)
{
    char name[NAME_SIZE];
    bool done = false;
    int rc;

    *removed = false;
    if ((rc = check_names(id, weights, compute, err)) != OK)
        return rc;
    name_of(name, id, weights, compute);
    for (int i = 0; i < TRIES && !done; i++)
        if ((rc = try_remove(q, name, &done, removed, err)) != OK)
            return rc;
    return done ? OK : disturbed(id, err);
}

/* ---- tokenizers ---- */

int card_tokenizer(struct redis *q, const struct model_card *card, struct buf *out,
                   struct error *err)
{
    char key[KEY_SIZE], sum[CARD_DIGEST_SIZE];
    const char *argv[] = {"GET", key};
    redisReply *reply;
    int rc;

    out->len = 0;
    tokenizer_key(key, card);
    if ((rc = redis_command(q, &reply, 2, argv, NULL, err)) != OK)
        return rc;
    if (reply->type != REDIS_REPLY_STRING) {
        rc = error_set(err, ERR_FORMAT, "card: %s: its tokenizer is missing in redis at %s",
                       card->id, redis_address(q));
        goto out;
    }
    if ((rc = digest(sum, reply->str, reply->len, err)) != OK)
        goto out;
    if (strcmp(sum, card->tokenizer) != 0) {
        rc = error_set(err, ERR_FORMAT,
                       "card: %s: its tokenizer has digest %.12s.., expected %.12s..", card->id,
                       sum, card->tokenizer);
        goto out;
    }
    rc = buf_append(out, reply->str, reply->len, err);
out:
    freeReplyObject(reply);
    return rc;
}
