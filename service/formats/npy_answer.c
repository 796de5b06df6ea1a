/* npy_answer.c - one tensor as NumPy's .npy, version 1: a magic, a Python dict as text, the bytes.
 * No objects, so np.load(..., allow_pickle=False) reads it. */
#include <string.h>

#include "service/formats/layout.h"

/* NumPy has no bfloat16. */
static const char *numpy_type(const char *dtype)
{
    return strcmp(dtype, "F16") == 0   ? "<f2"
           : strcmp(dtype, "F32") == 0 ? "<f4"
           : strcmp(dtype, "I32") == 0 ? "<i4"
                                       : NULL;
}

int layout_npy(struct layout *out, const struct answer *a, struct error *err)
{
    const struct answer_tensor *t = &a->prompts[0].tensors[0];
    struct buf *text = &out->text;
    int rc;

    *out = (struct layout){.text.max = 4096};
    if (a->n_prompts != 1 || a->prompts[0].n_tensors < 1)
        return error_set(err, ERR_INPUT, "npy holds one tensor, so it takes one prompt, not %zu",
                         a->n_prompts);
    for (int i = 1; i < a->prompts[0].n_tensors; i++)
        if (!answer_is_beside(&a->prompts[0].tensors[i]))
            return error_set(err, ERR_INPUT,
                             "npy holds one tensor, and this result has %s and %s; ask for one of "
                             "the modalities, or for another format",
                             t->name, a->prompts[0].tensors[i].name);
    if (numpy_type(t->dtype) == NULL)
        return error_set(err, ERR_INPUT, "npy has no type for %s; ask for dtype float16 or float32",
                         t->dtype);
    if ((rc = buf_append(text, "\x93NUMPY\x01\x00\x00\x00", 10, err)) != OK ||
        (rc = buf_printf(text, err, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                         numpy_type(t->dtype))) != OK)
        goto out;
    for (int d = 0; d < t->n_dims; d++)
        if ((rc = buf_printf(text, err, "%zu,%s", t->shape[d], d + 1 < t->n_dims ? " " : "")) != OK)
            goto out;
    if ((rc = buf_printf(text, err, "), }")) != OK)
        goto out;
    while ((text->len + 1) % 64 != 0) /* the data begins on a multiple of 64 */
        if ((rc = buf_append(text, " ", 1, err)) != OK)
            goto out;
    if ((rc = buf_append(text, "\n", 1, err)) != OK)
        goto out;
    text->data[8] = (char)((text->len - 10) & 0xff);
    text->data[9] = (char)((text->len - 10) >> 8);
    if ((rc = layout_add_text(out, err)) == OK)
        rc = layout_add_tensors(out, SEGMENT_RAW, 0, 0, t->bytes, err);
out:
    if (rc != OK)
        layout_free(out);
    return rc;
}
