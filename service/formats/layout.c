#include "service/formats/layout.h"

#include <stdlib.h>
#include <string.h>

static int add_segment(struct layout *l, const struct segment *s, struct error *err)
{
    if (s->bytes == 0)
        return OK;
    if (l->n_segments == l->cap) {
        size_t cap = l->cap == 0 ? 16 : 2 * l->cap;
        struct segment *segments = realloc(l->segments, cap * sizeof(*segments));
        if (segments == NULL)
            return error_set(err, ERR_MEM, "answer: no memory for %zu segments", cap);
        l->segments = segments;
        l->cap = cap;
    }
    l->segments[l->n_segments++] = *s;
    l->bytes += s->bytes;
    return OK;
}

int layout_add_text(struct layout *l, struct error *err)
{
    size_t begin = 0;

    for (size_t i = 0; i < l->n_segments; i++)
        if (l->segments[i].kind == SEGMENT_TEXT)
            begin += l->segments[i].bytes;
    return add_segment(
        l, &(struct segment){SEGMENT_TEXT, l->text.len - begin, 0, begin, l->text.len - begin},
        err);
}

int layout_add_tensors(struct layout *l, enum segment_kind kind, size_t prompt, size_t offset,
                       size_t bytes, struct error *err)
{
    size_t length = kind == SEGMENT_BASE64 ? (bytes + 2) / 3 * 4 : bytes;

    return add_segment(l, &(struct segment){kind, length, prompt, offset, bytes}, err);
}

void layout_free(struct layout *l)
{
    buf_free(&l->text);
    free(l->segments);
    *l = (struct layout){0};
}

int answer_append_tokens(struct buf *out, const struct answer *a, struct error *err)
{
    int rc = OK;

    for (size_t i = 0; i < a->n_prompts && rc == OK; i++)
        rc = buf_printf(out, err, "%s%d", i > 0 ? "," : "", a->prompts[i].n_tokens);
    return rc;
}

int answer_append_truncated(struct buf *out, const struct answer *a, struct error *err)
{
    int rc = OK;

    for (size_t i = 0; i < a->n_prompts && rc == OK; i++)
        rc = buf_printf(out, err, "%s%s", i > 0 ? "," : "",
                        a->prompts[i].truncated ? "true" : "false");
    return rc;
}

bool answer_is_beside(const struct answer_tensor *t)
{
    return strcmp(t->name, "mask") == 0 || strcmp(t->name, "token_ids") == 0;
}

int answer_append_widths(struct buf *out, const struct answer *a, struct error *err)
{
    const struct answer_prompt *p = &a->prompts[0]; /* all have the same */
    bool any = false;
    int rc = OK;

    for (int i = 0; i < p->n_tensors && rc == OK; i++) {
        const struct answer_tensor *t = &p->tensors[i];
        if (answer_is_beside(t) || t->n_dims == 0)
            continue;
        rc = buf_printf(out, err, "%s%zu", any ? "," : "", t->shape[t->n_dims - 1]);
        any = true;
    }
    return rc;
}

size_t answer_prompt_bytes(const struct answer_prompt *p)
{
    size_t bytes = 0;

    for (int i = 0; i < p->n_tensors; i++)
        bytes += p->tensors[i].bytes;
    return bytes;
}

/* ---- reading ---- */

/* The four characters of group `group`; 0: bytes are missing, -1: the source failed. */
static long encode_group(const struct segment *s, size_t group, char out[4],
                         layout_source_fn *source, void *arg)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t begin = 3 * group;
    size_t n = s->source_bytes - begin < 3 ? s->source_bytes - begin : 3;
    uint32_t bits = 0;

    for (size_t i = 0; i < 3; i++) {
        const uint8_t *data;
        if (i < n) {
            long there = source(arg, s->prompt, s->offset + begin + i, &data);
            if (there <= 0)
                return there;
        }
        bits = bits << 8 | (i < n ? *data : 0);
    }
    for (size_t i = 0; i < 4; i++)
        out[i] = i <= n ? alphabet[bits >> (18 - 6 * i) & 63] : '=';
    return 4;
}

/* Whole groups of [data, n) at once. */
static size_t encode_run(const uint8_t *data, size_t n, char *out, size_t cap)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t groups = n / 3 < cap / 4 ? n / 3 : cap / 4;

    for (size_t g = 0; g < groups; g++, data += 3, out += 4) {
        uint32_t bits = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        out[0] = alphabet[bits >> 18];
        out[1] = alphabet[bits >> 12 & 63];
        out[2] = alphabet[bits >> 6 & 63];
        out[3] = alphabet[bits & 63];
    }
    return 4 * groups;
}

/* From byte `at` of a base64 segment, which may lie inside a group. */
static long read_base64(const struct segment *s, size_t at, char *out, size_t cap,
                        layout_source_fn *source, void *arg)
{
    size_t group = at / 4, inside = at % 4, offset = 3 * group;
    const uint8_t *data;
    char four[4];
    long there;

    if (inside == 0) {
        if ((there = source(arg, s->prompt, s->offset + offset, &data)) <= 0)
            return there;
        if ((size_t)there > s->source_bytes - offset)
            there = (long)(s->source_bytes - offset);
        if (there >= 3 && cap >= 4)
            return (long)encode_run(data, (size_t)there, out, cap);
    }
    /* the last group, one that two pieces share, or the rest of one */
    if ((there = encode_group(s, group, four, source, arg)) <= 0)
        return there;
    if (cap > 4 - inside)
        cap = 4 - inside;
    memcpy(out, four + inside, cap);
    return (long)cap;
}

long layout_read(const struct layout *l, size_t position, void *out, size_t cap,
                 layout_source_fn *source, void *arg)
{
    for (size_t i = 0; i < l->n_segments; i++) {
        const struct segment *s = &l->segments[i];
        const uint8_t *data;
        size_t left;
        long there;

        if (position >= s->bytes) {
            position -= s->bytes;
            continue;
        }
        if (s->kind == SEGMENT_BASE64)
            return read_base64(s, position, out, cap, source, arg);
        left = s->bytes - position;
        if (s->kind == SEGMENT_TEXT) {
            data = (const uint8_t *)l->text.data + s->offset + position;
            there = (long)left;
        } else if ((there = source(arg, s->prompt, s->offset + position, &data)) <= 0) {
            return there;
        }
        if ((size_t)there > left)
            there = (long)left;
        if ((size_t)there > cap)
            there = (long)cap;
        memcpy(out, data, (size_t)there);
        return there;
    }
    return 0;
}
