/* json_object.c - see json_object.h. */
#include "engine/files/json_object.h"

int json_object_parse(json_t **out, const void *data, size_t size, const char *name,
                      struct error *err)
{
    json_error_t why;
    json_t *root;

    *out = NULL;
    root =
        json_loadb(data != NULL ? data : "", size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (root == NULL)
        return error_set(err, ERR_FORMAT, "%s: bad JSON at line %d: %s", name, why.line, why.text);
    if (!json_is_object(root)) {
        int rc = error_set(err, ERR_FORMAT, "%s: the JSON is %s, expected an object", name,
                           json_object_kind(root));
        json_decref(root);
        return rc;
    }
    *out = root;
    return OK;
}

const char *json_object_kind(const json_t *value)
{
    if (value == NULL)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}
