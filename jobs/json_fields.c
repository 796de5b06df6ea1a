#include "jobs/json_fields.h"

#include <stdio.h>
#include <string.h>

int json_fields_parse(json_t **out, const char *text, size_t len, size_t n_fields, const char *what,
                      struct error *err)
{
    json_error_t why;
    json_t *root;

    *out = NULL;
    /* not why.text, which repeats what it met */
    if ((root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why)) == NULL)
        return error_set(err, ERR_FORMAT, "%s: bad JSON at byte %d", what, why.position);
    if (!json_is_object(root) || json_object_size(root) != n_fields) {
        json_decref(root);
        return error_set(err, ERR_FORMAT, "%s: not an object of %zu fields", what, n_fields);
    }
    *out = root;
    return OK;
}

int json_fields_text(char *out, size_t cap, const json_t *object, const char *field,
                     const char *what, struct error *err)
{
    const json_t *value = json_object_get(object, field);
    size_t len = json_string_length(value);
    const char *text = json_string_value(value);

    if (text == NULL || len >= cap)
        return error_set(err, ERR_FORMAT, "%s: %s is no text of less than %zu bytes", what, field,
                         cap);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return error_set(err, ERR_FORMAT, "%s: %s has control characters", what, field);
    memcpy(out, text, len);
    out[len] = '\0';
    return OK;
}

int json_fields_int(int64_t *out, const json_t *object, const char *field, int64_t min, int64_t max,
                    const char *what, struct error *err)
{
    const json_t *value = json_object_get(object, field);
    int64_t n = (int64_t)json_integer_value(value);

    if (!json_is_integer(value) || n < min || n > max)
        return error_set(err, ERR_FORMAT, "%s: %s is no whole number from %lld to %lld", what,
                         field, (long long)min, (long long)max);
    *out = n;
    return OK;
}

int json_fields_bool(bool *out, const json_t *object, const char *field, const char *what,
                     struct error *err)
{
    const json_t *value = json_object_get(object, field);

    if (!json_is_boolean(value))
        return error_set(err, ERR_FORMAT, "%s: %s is neither true nor false", what, field);
    *out = json_is_true(value);
    return OK;
}
