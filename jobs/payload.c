#define _GNU_SOURCE /* explicit_bzero */
#include "jobs/payload.h"

#include <stdlib.h>
#include <string.h>

/* Of the other levels; the longest of those that begin alike first. */
static const char *const modalities_words[] = {"video,audio", "video", "audio"};
enum { N_MODALITIES_WORDS = sizeof(modalities_words) / sizeof(modalities_words[0]) };

/* Layers are of hidden states alone, modalities of all other levels. */
static bool has_layers(const struct payload *p)
{
    return strcmp(p->output, "hidden_states") == 0;
}

/* The reader's place. */
struct scan {
    const char *at, *end, *begin;
};

static bool take(struct scan *s, const char *text)
{
    size_t len = strlen(text);

    if ((size_t)(s->end - s->at) < len || memcmp(s->at, text, len) != 0)
        return false;
    s->at += len;
    return true;
}

/* A whole number, 0 .. max, spelled without leading zeros. */
static bool take_int(struct scan *s, int32_t max, int32_t *out)
{
    const char *first = s->at;
    int64_t value = 0;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        value = value * 10 + (*s->at++ - '0');
        if (value > max)
            return false;
    }
    *out = (int32_t)value;
    return s->at > first && (*first != '0' || s->at == first + 1);
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static bool take_word(struct scan *s, char out[PAYLOAD_WORD_SIZE])
{
    size_t n = 0;

    while (s->at < s->end && is_word_char(*s->at)) {
        if (n + 1 == PAYLOAD_WORD_SIZE)
            return false;
        out[n++] = *s->at++;
    }
    out[n] = '\0';
    return n > 0;
}

static bool take_bool(struct scan *s, bool *out)
{
    *out = take(s, "true");
    return *out || take(s, "false");
}

static bool take_layers(struct scan *s, struct payload *p)
{
    int32_t layer;

    if (!has_layers(p))
        return true;
    do {
        if (p->n_layers == PAYLOAD_MAX_LAYERS || !take_int(s, PAYLOAD_MAX_LAYERS - 1, &layer))
            return false;
        p->layers[p->n_layers++] = (int)layer;
    } while (take(s, ","));
    return true;
}

static bool take_modalities(struct scan *s, struct payload *p)
{
    if (has_layers(p))
        return true;
    for (int i = 0; i < N_MODALITIES_WORDS; i++)
        if (take(s, modalities_words[i])) {
            memcpy(p->modalities, modalities_words[i], strlen(modalities_words[i]) + 1);
            return true;
        }
    return false;
}

/* `cap` ids have room. */
static bool take_ids(struct scan *s, struct payload *p, size_t cap)
{
    do {
        if ((size_t)p->n_ids == cap || !take_int(s, INT32_MAX, &p->ids[p->n_ids]))
            return false;
        p->n_ids++;
    } while (take(s, ","));
    return true;
}

int payload_read(struct payload *out, const char *data, size_t len, struct error *err)
{
    struct scan s = {data, data + len, data};
    size_t cap = 1;

    memset(out, 0, sizeof(*out));
    if (len > PAYLOAD_MAX_BYTES)
        return error_set(err, ERR_FORMAT, "payload: %zu bytes, at most %d", len, PAYLOAD_MAX_BYTES);
    for (size_t i = 0; i < len; i++)
        cap += data[i] == ',';
    if (cap > PAYLOAD_MAX_IDS)
        cap = PAYLOAD_MAX_IDS;
    if ((out->ids = malloc(cap * sizeof(*out->ids))) == NULL)
        return error_set(err, ERR_MEM, "payload: no memory for %zu ids", cap);
    if (take(&s, "{\"v\":2,\"output\":\"") && take_word(&s, out->output) &&
        take(&s, "\",\"layers\":[") && take_layers(&s, out) && take(&s, "],\"modalities\":\"") &&
        take_modalities(&s, out) && take(&s, "\",\"dtype\":\"") && take_word(&s, out->dtype) &&
        take(&s, "\",\"truncated\":") && take_bool(&s, &out->truncated) &&
        take(&s, ",\"ttl_s\":") && take_int(&s, PAYLOAD_MAX_TTL_S, &out->ttl_s) &&
        take(&s, ",\"ids\":[") && take_ids(&s, out, cap) && take(&s, "]}") && s.at == s.end)
        return OK;
    payload_free(out);
    return error_set(err, ERR_FORMAT, "payload: byte %zu of %zu is not what version 2 has there",
                     (size_t)(s.at - s.begin), len);
}

static bool is_word(const char *text)
{
    size_t n = 0;

    while (n < PAYLOAD_WORD_SIZE && is_word_char(text[n]))
        n++;
    return n > 0 && n < PAYLOAD_WORD_SIZE && text[n] == '\0';
}

/* Layers or modalities, whatever the level has. */
static bool is_level_complete(const struct payload *p)
{
    if (has_layers(p))
        return p->n_layers >= 1 && p->n_layers <= PAYLOAD_MAX_LAYERS && p->modalities[0] == '\0';
    for (int i = 0; i < N_MODALITIES_WORDS; i++)
        if (strcmp(p->modalities, modalities_words[i]) == 0)
            return p->n_layers == 0;
    return false;
}

int payload_write(struct buf *out, const struct payload *p, struct error *err)
{
    int rc;

    if (!is_word(p->output) || !is_word(p->dtype) || !is_level_complete(p) || p->n_ids < 1 ||
        p->n_ids > PAYLOAD_MAX_IDS || p->ttl_s < 0 || p->ttl_s > PAYLOAD_MAX_TTL_S)
        return error_set(err, ERR_INPUT, "payload: a field is out of its bounds");
    if ((rc = buf_printf(out, err, "{\"v\":2,\"output\":\"%s\",\"layers\":[", p->output)) != OK)
        return rc;
    for (int i = 0; i < p->n_layers; i++) {
        if (p->layers[i] < 0 || p->layers[i] >= PAYLOAD_MAX_LAYERS)
            return error_set(err, ERR_INPUT, "payload: layer %d is out of bounds", p->layers[i]);
        if ((rc = buf_printf(out, err, "%s%d", i > 0 ? "," : "", p->layers[i])) != OK)
            return rc;
    }
    if ((rc = buf_printf(out, err,
                         "],\"modalities\":\"%s\",\"dtype\":\"%s\",\"truncated\":%s,\"ttl_s\":%d,"
                         "\"ids\":[",
                         p->modalities, p->dtype, p->truncated ? "true" : "false", p->ttl_s)) != OK)
        return rc;
    for (int i = 0; i < p->n_ids; i++) {
        if (p->ids[i] < 0)
            return error_set(err, ERR_INPUT, "payload: id %d is negative", (int)p->ids[i]);
        if ((rc = buf_printf(out, err, "%s%d", i > 0 ? "," : "", (int)p->ids[i])) != OK)
            return rc;
    }
    return buf_printf(out, err, "]}");
}

void payload_free(struct payload *p)
{
    if (p->ids != NULL)
        explicit_bzero(p->ids, (size_t)p->n_ids * sizeof(*p->ids));
    free(p->ids);
    p->ids = NULL;
    p->n_ids = 0;
}
