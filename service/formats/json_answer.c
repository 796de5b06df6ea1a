#include <string.h>

#include "service/formats/json_text.h"
#include "service/formats/layout.h"

static int append_tensor(struct layout *l, const struct answer_tensor *t, size_t prompt,
                         size_t offset, struct error *err)
{
    struct buf *text = &l->text;
    int rc;

    if ((rc = json_text_append(text, t->name, err)) != OK ||
        (rc = buf_printf(text, err, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype)) != OK)
        return rc;
    for (int d = 0; d < t->n_dims; d++)
        if ((rc = buf_printf(text, err, "%s%zu", d > 0 ? "," : "", t->shape[d])) != OK)
            return rc;
    if ((rc = buf_printf(text, err, "],\"data\":\"")) != OK ||
        (rc = layout_add_text(l, err)) != OK ||
        (rc = layout_add_tensors(l, SEGMENT_BASE64, prompt, offset, t->bytes, err)) != OK)
        return rc;
    return buf_printf(text, err, "\"}");
}

static int append_prompt(struct layout *l, const struct answer_prompt *p, size_t index,
                         struct error *err)
{
    size_t offset = 0;
    int rc;

    if ((rc = buf_printf(&l->text, err, "%s{\"tokens\":%d,\"truncated\":%s,\"tensors\":{",
                         index > 0 ? "," : "", p->n_tokens, p->truncated ? "true" : "false")) != OK)
        return rc;
    for (int k = 0; k < p->n_tensors; k++) {
        if ((k > 0 && (rc = buf_append(&l->text, ",", 1, err)) != OK) ||
            (rc = append_tensor(l, &p->tensors[k], index, offset, err)) != OK)
            return rc;
        offset += p->tensors[k].bytes;
    }
    return buf_printf(&l->text, err, "}}");
}

/* A version as its model names it; nothing where it names none. */
static int append_version(struct buf *text, const char *name, const char *version,
                          struct error *err)
{
    int rc;

    if (version[0] == '\0')
        return OK;
    if ((rc = buf_printf(text, err, "\"%s\":", name)) != OK ||
        (rc = json_text_append(text, version, err)) != OK)
        return rc;
    return buf_printf(text, err, ",");
}

/* What the level has: layers, or modalities and whose they are. */
static int append_level(struct buf *text, const struct answer *a, struct error *err)
{
    const char *word = a->modalities;
    int rc;

    if ((rc = buf_printf(text, err, "\"output\":\"%s\",", a->output)) != OK ||
        (a->layers[0] != '\0' && (rc = buf_printf(text, err, "\"layers\":[%s],", a->layers)) != OK))
        return rc;
    while (*word != '\0') {
        size_t len = strcspn(word, ",");
        if ((rc = buf_printf(text, err, "%s\"%.*s\"",
                             word == a->modalities ? "\"modalities\":[" : ",", (int)len, word)) !=
            OK)
            return rc;
        word += len + (word[len] == ',');
    }
    if ((a->modalities[0] != '\0' && (rc = buf_printf(text, err, "],")) != OK) ||
        (a->extractor[0] != '\0' &&
         (rc = buf_printf(text, err, "\"extractor\":\"%s\",", a->extractor)) != OK))
        return rc;
    if ((rc = append_version(text, "ltx_version", a->ltx_version, err)) != OK ||
        (rc = buf_printf(text, err, "\"widths\":[")) != OK ||
        (rc = answer_append_widths(text, a, err)) != OK)
        return rc;
    return buf_printf(text, err, "],");
}

int layout_json(struct layout *out, const struct answer *a, struct error *err)
{
    size_t bytes = 0;
    int rc;

    *out = (struct layout){.text.max = 16 << 20};
    for (size_t i = 0; i < a->n_prompts; i++)
        bytes += answer_prompt_bytes(&a->prompts[i]);
    if (bytes > ANSWER_JSON_MAX)
        return error_set(err, ERR_SIZE,
                         "%zu bytes of tensors are too many for JSON, which goes up to %d; ask for "
                         "application/safetensors",
                         bytes, ANSWER_JSON_MAX);
    if ((rc = buf_printf(&out->text, err, "{\"model\":")) != OK ||
        (rc = json_text_append(&out->text, a->model, err)) != OK ||
        (rc = buf_printf(&out->text, err, ",\"weights\":\"%s\",\"tokenizer\":\"%s\",", a->weights,
                         a->tokenizer)) != OK ||
        (rc = append_version(&out->text, "gemma_version", a->gemma_version, err)) != OK ||
        (rc = append_level(&out->text, a, err)) != OK ||
        (a->negative_index >= 0 &&
         (rc = buf_printf(&out->text, err, "\"negative_index\":%d,", a->negative_index)) != OK) ||
        (rc = buf_printf(&out->text, err, "\"prompts\":[")) != OK)
        goto out;
    for (size_t i = 0; i < a->n_prompts; i++)
        if ((rc = append_prompt(out, &a->prompts[i], i, err)) != OK)
            goto out;
    if ((rc = buf_printf(&out->text, err, "]}\n")) == OK)
        rc = layout_add_text(out, err);
out:
    if (rc != OK)
        layout_free(out);
    return rc;
}
