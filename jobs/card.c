/* card.c - see card.h.
 *
 * All cards are one hash, `pe:cards`, field "<id>:<weights>"; a tokenizer is one string,
 * `pe:tokenizer:<digest>`. A card is never visible without its tokenizer: that is stored first, and
 * removed in the transaction that removes the last card that names it. */
#include "jobs/card.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "jobs/json_fields.h"
#include "jobs/redis.h"

#define CARDS "pe:cards"

enum {
    VERSION = 1,
    N_FIELDS = 12, /* of a card's JSON */
    NAME_SIZE = CARD_ID_SIZE + CARD_DIGEST_SIZE,
    KEY_SIZE = CARD_DIGEST_SIZE + 16,
    REMOVE_TRIES = 16,
    SHA256_SIZE = 32
};

static bool is_plain(const char *id)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strnlen(id, CARD_ID_SIZE);

    return len > 0 && len < CARD_ID_SIZE && strspn(id, plain) == len;
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

static void name_of(char out[NAME_SIZE], const char *id, const char *weights)
{
    snprintf(out, NAME_SIZE, "%s:%s", id, weights);
}

static void tokenizer_key(char out[KEY_SIZE], const struct model_card *card)
{
    snprintf(out, KEY_SIZE, "pe:tokenizer:%s", card->tokenizer);
}

static int check_names(const char *id, const char *weights, struct error *err)
{
    if (!is_plain(id))
        return error_set(err, ERR_INPUT, "card: a model's id is not 1 to %d of a-z A-Z 0-9 . _ -",
                         CARD_ID_SIZE - 1);
    if (!is_digest(weights))
        return error_set(err, ERR_INPUT, "card: %s: the weights' digest is no SHA-256 in hex", id);
    return OK;
}

/* ---- a card as JSON ---- */

static int write_card(char **out, const struct model_card *c, struct error *err)
{
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:I}", "version", VERSION, "id",
        c->id, "weights", c->weights, "tokenizer", c->tokenizer, "architecture", c->architecture,
        "engine_version", c->engine_version, "n_states", c->n_states, "width", c->width,
        "max_tokens", c->max_tokens, "vocabulary", c->vocabulary, "has_hidden_states",
        c->has_hidden_states, "registered_ms", (json_int_t)c->registered_ms);

    *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (*out == NULL)
        return error_set(err, ERR_INPUT, "card: %s: a text that is not UTF-8, or no memory", c->id);
    return OK;
}

static int read_small(int *out, const json_t *root, const char *field, const char *what,
                      struct error *err)
{
    int64_t n = 0;
    int rc = json_fields_int(&n, root, field, 1, 1 << 30, what, err);

    *out = (int)n;
    return rc;
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
        (rc = json_fields_text(c->tokenizer, sizeof(c->tokenizer), root, "tokenizer", what, err)) !=
            OK ||
        (rc = json_fields_text(c->architecture, sizeof(c->architecture), root, "architecture", what,
                               err)) != OK ||
        (rc = json_fields_text(c->engine_version, sizeof(c->engine_version), root, "engine_version",
                               what, err)) != OK ||
        (rc = read_small(&c->n_states, root, "n_states", what, err)) != OK ||
        (rc = read_small(&c->width, root, "width", what, err)) != OK ||
        (rc = read_small(&c->max_tokens, root, "max_tokens", what, err)) != OK ||
        (rc = read_small(&c->vocabulary, root, "vocabulary", what, err)) != OK ||
        (rc = json_fields_bool(&c->has_hidden_states, root, "has_hidden_states", what, err)) !=
            OK ||
        (rc = json_fields_int(&c->registered_ms, root, "registered_ms", 0, INT64_MAX, what, err)) !=
            OK)
        goto out;
    name_of(own_name, c->id, c->weights);
    if (!is_plain(c->id) || !is_digest(c->weights) || !is_digest(c->tokenizer) ||
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

/* ---- verbs ---- */

static int ask_number(struct redis *q, long long *out, int argc, const char **argv,
                      const size_t *argv_len, struct error *err)
{
    redisReply *reply;
    int rc;

    if ((rc = redis_command(q, &reply, argc, argv, argv_len, err)) != OK)
        return rc;
    if (out != NULL)
        *out = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    return OK;
}

static int store_tokenizer(struct redis *q, const struct model_card *card, const void *tokenizer,
                           size_t size, struct error *err)
{
    char key[KEY_SIZE];
    const char *exists[] = {"EXISTS", key}, *set[] = {"SET", key, tokenizer};
    size_t set_len[3];
    long long there;
    int rc;

    tokenizer_key(key, card);
    if ((rc = ask_number(q, &there, 2, exists, NULL, err)) != OK || there == 1)
        return rc;
    set_len[0] = 3;
    set_len[1] = strlen(key);
    set_len[2] = size;
    return ask_number(q, NULL, 3, set, set_len, err);
}

int card_register(struct redis *q, const struct model_card *card, const void *tokenizer,
                  size_t tokenizer_size, struct error *err)
{
    char name[NAME_SIZE], sum[CARD_DIGEST_SIZE], *text = NULL;
    const char *set[] = {"HSET", CARDS, name, NULL};
    struct model_card again;
    int rc;

    if ((rc = check_names(card->id, card->weights, err)) != OK ||
        (rc = digest(sum, tokenizer, tokenizer_size, err)) != OK)
        return rc;
    if (strcmp(sum, card->tokenizer) != 0)
        return error_set(err, ERR_INPUT, "card: %s: the tokenizer has another digest", card->id);
    name_of(name, card->id, card->weights);
    if ((rc = write_card(&text, card, err)) != OK)
        return rc;
    /* what nobody could read must not get in */
    if ((rc = read_card(&again, name, text, strlen(text), err)) != OK)
        goto out;
    set[3] = text;
    if ((rc = store_tokenizer(q, card, tokenizer, tokenizer_size, err)) != OK ||
        (rc = ask_number(q, NULL, 4, set, NULL, err)) != OK)
        goto out;
    /* an admin may have removed another card of this tokenizer in between */
    rc = store_tokenizer(q, card, tokenizer, tokenizer_size, err);
out:
    free(text);
    return rc;
}

static int newest_first(const void *a, const void *b)
{
    const struct model_card *x = a, *y = b;

    if (x->registered_ms != y->registered_ms)
        return x->registered_ms > y->registered_ms ? -1 : 1;
    return strcmp(x->id, y->id) != 0 ? strcmp(x->id, y->id) : strcmp(x->weights, y->weights);
}

static int get_all(struct redis *q, redisReply **out, struct error *err)
{
    const char *argv[] = {"HGETALL", CARDS};
    int rc;

    if ((rc = redis_command(q, out, 2, argv, NULL, err)) != OK)
        return rc;
    if ((*out)->type == REDIS_REPLY_ARRAY && (*out)->elements % 2 == 0)
        return OK;
    freeReplyObject(*out);
    *out = NULL;
    return error_set(err, ERR_FORMAT, "card: %s is no hash", CARDS);
}

int card_list(struct redis *q, struct model_card *out, size_t cap, size_t *n, struct error *err)
{
    struct model_card *all;
    redisReply *reply;
    size_t count = 0;
    int rc;

    *n = 0;
    if ((rc = get_all(q, &reply, err)) != OK)
        return rc;
    if ((all = calloc(reply->elements / 2 + 1, sizeof(*all))) == NULL) {
        freeReplyObject(reply);
        return error_set(err, ERR_MEM, "card: no memory for %zu cards", reply->elements / 2);
    }
    for (size_t i = 0; i < reply->elements / 2; i++) {
        struct error why = {0};
        if (read_pair(&all[count], reply, i, &why) == OK)
            count++;
        else /* one of another version, say: the others are good all the same */
            log_warn("card_unreadable", "text=\"%s\"", why.text);
    }
    freeReplyObject(reply);
    qsort(all, count, sizeof(*all), newest_first);
    *n = count < cap ? count : cap;
    if (*n > 0)
        memcpy(out, all, *n * sizeof(*out));
    free(all);
    return OK;
}

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
static int try_remove(struct redis *q, const char *name, bool *done, struct error *err)
{
    char orphan[KEY_SIZE];
    const char *watch[] = {"WATCH", CARDS}, *multi[] = {"MULTI"}, *exec[] = {"EXEC"};
    const char *remove_card[] = {"HDEL", CARDS, name}, *remove_tokenizer[] = {"UNLINK", orphan};
    redisReply *reply;
    int rc;

    if ((rc = ask_number(q, NULL, 2, watch, NULL, err)) != OK ||
        (rc = get_all(q, &reply, err)) != OK)
        return rc;
    find_orphan(orphan, reply, name);
    freeReplyObject(reply);
    if ((rc = ask_number(q, NULL, 1, multi, NULL, err)) != OK ||
        (rc = ask_number(q, NULL, 3, remove_card, NULL, err)) != OK ||
        (orphan[0] != '\0' && (rc = ask_number(q, NULL, 2, remove_tokenizer, NULL, err)) != OK) ||
        (rc = redis_command(q, &reply, 1, exec, NULL, err)) != OK)
        return rc;
    *done = reply->type == REDIS_REPLY_ARRAY;
    freeReplyObject(reply);
    return OK;
}

int card_remove(struct redis *q, const char *id, const char *weights, struct error *err)
{
    char name[NAME_SIZE];
    bool done = false;
    int rc;

    if ((rc = check_names(id, weights, err)) != OK)
        return rc;
    name_of(name, id, weights);
    for (int i = 0; i < REMOVE_TRIES && !done; i++)
        if ((rc = try_remove(q, name, &done, err)) != OK)
            return rc;
    return done ? OK : error_set(err, ERR_BUSY, "card: %s: the cards change all the time", id);
}

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
