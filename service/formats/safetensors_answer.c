#include <stdio.h>
#include <stdlib.h>

#include "service/formats/layout.h"
#include "service/formats/safetensors_writer.h"

enum { TEXT_MAX = 1 << 20 };

/* The prompts' tensors as the header names them. */
struct entries {
    size_t n;
    struct safetensors_entry *list;
    char (*names)[64];
};

static int fill_entries(struct entries *e, const struct answer *a, struct error *err)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n_prompts; i++)
        n += (size_t)a->prompts[i].n_tensors;
    if ((e->list = calloc(n + 1, sizeof(*e->list))) == NULL ||
        (e->names = calloc(n + 1, sizeof(*e->names))) == NULL)
        return error_set(err, ERR_MEM, "answer: no memory for %zu tensors", n);
    for (size_t i = 0; i < a->n_prompts; i++)
        for (int k = 0; k < a->prompts[i].n_tensors; k++) {
            const struct answer_tensor *t = &a->prompts[i].tensors[k];
            struct safetensors_entry *entry = &e->list[e->n];
            snprintf(e->names[e->n], sizeof(e->names[0]), "p%zu.%s", i, t->name);
            *entry = (struct safetensors_entry){
                .name = e->names[e->n], .dtype = t->dtype, .n_dims = t->n_dims, .bytes = t->bytes};
            for (int d = 0; d < t->n_dims; d++)
                entry->shape[d] = t->shape[d];
            e->n++;
        }
    return OK;
}

int layout_safetensors(struct layout *out, const struct answer *a, struct error *err)
{
    struct buf tokens = {.max = TEXT_MAX}, truncated = {.max = TEXT_MAX};
    struct buf widths = {.max = TEXT_MAX};
    struct safetensors_metadata metadata[13];
    struct entries entries = {0};
    size_t n = 0;
    char negative[16];
    int rc;

    *out = (struct layout){.text.max = 16 * TEXT_MAX};
    if ((rc = fill_entries(&entries, a, err)) != OK ||
        (rc = answer_append_tokens(&tokens, a, err)) != OK ||
        (rc = answer_append_truncated(&truncated, a, err)) != OK ||
        (rc = answer_append_widths(&widths, a, err)) != OK)
        goto out;
    if (a->extractor[0] != '\0')
        metadata[n++] = (struct safetensors_metadata){"extractor", a->extractor};
    if (a->gemma_version[0] != '\0')
        metadata[n++] = (struct safetensors_metadata){"gemma_version", a->gemma_version};
    if (a->layers[0] != '\0')
        metadata[n++] = (struct safetensors_metadata){"layers", a->layers};
    if (a->ltx_version[0] != '\0')
        metadata[n++] = (struct safetensors_metadata){"ltx_version", a->ltx_version};
    if (a->modalities[0] != '\0')
        metadata[n++] = (struct safetensors_metadata){"modalities", a->modalities};
    metadata[n++] = (struct safetensors_metadata){"model", a->model};
    if (a->negative_index >= 0) {
        snprintf(negative, sizeof(negative), "%d", a->negative_index);
        metadata[n++] = (struct safetensors_metadata){"negative_index", negative};
    }
    metadata[n++] = (struct safetensors_metadata){"output", a->output};
    metadata[n++] = (struct safetensors_metadata){"tokenizer", a->tokenizer};
    metadata[n++] = (struct safetensors_metadata){"tokens", tokens.data};
    metadata[n++] = (struct safetensors_metadata){"truncated", truncated.data};
    metadata[n++] = (struct safetensors_metadata){"weights", a->weights};
    if (widths.len > 0)
        metadata[n++] = (struct safetensors_metadata){"widths", widths.data};
    if ((rc = safetensors_write_header(&out->text, entries.list, entries.n, metadata, n, err)) !=
            OK ||
        (rc = layout_add_text(out, err)) != OK)
        goto out;
    for (size_t i = 0; i < a->n_prompts && rc == OK; i++)
        rc = layout_add_tensors(out, SEGMENT_RAW, i, 0, answer_prompt_bytes(&a->prompts[i]), err);
out:
    if (rc != OK)
        layout_free(out);
    buf_free(&tokens);
    buf_free(&truncated);
    buf_free(&widths);
    free(entries.list);
    free(entries.names);
    return rc;
}
