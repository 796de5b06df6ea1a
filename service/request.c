/* request.c - see request.h.
 *
 * jansson parses; three things come before it: the check for UTF-8 (so that it has its own code),
 * a count of depth and values (jansson allows 2048 levels and builds all before we could look), and
 * the flag that refuses doubled keys. Its messages quote the text near the fault, which may be a
 * prompt: only the line and the column are passed on. */
#include "service/request.h"

#include <stdint.h>
#include <string.h>

static const size_t dtype_bytes[] = {
    [DTYPE_NAME_BFLOAT16] = 2, [DTYPE_NAME_FLOAT16] = 2, [DTYPE_NAME_FLOAT32] = 4};
static const char *const output_words[] = {"hidden_states", "features", "embeddings", NULL};
static const char *const dtype_words[] = {"bfloat16", "float16", "float32", NULL};
static const char *const overflow_words[] = {"truncate", "error", NULL};
static const char *const cache_words[] = {"use", "refresh", "bypass", NULL};

/* Bytes of the UTF-8 character at `s`, or 0 when there is none: overlong forms, surrogates and what
 * lies above U+10FFFF are refused. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (n == 0 || n > left || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

static bool check_utf8(const char *body, size_t len, struct problem *p)
{
    for (size_t i = 0, n; i < len; i += n)
        if ((n = utf8_length((const unsigned char *)body + i, len - i)) == 0)
            return problem_set(p, PROBLEM_BAD_UTF8, "byte %zu of the body is not UTF-8", i);
    return true;
}

/* Counts brackets, texts and other values; wrong JSON may pass, the parser finds it. */
static bool check_complexity(const char *body, size_t len, struct problem *p)
{
    size_t depth = 0, tokens = 0;
    bool in_text = false, in_word = false;

    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (in_text) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_text = false;
            continue;
        }
        if (strchr(" \t\r\n,:]}", c) != NULL && c != '\0') {
            in_word = false;
            if ((c == ']' || c == '}') && depth > 0)
                depth--;
            continue;
        }
        if (c == '[' || c == '{') {
            if (++depth > REQUEST_MAX_DEPTH)
                return problem_set(p, PROBLEM_TOO_COMPLEX, "the JSON is nested over %d levels deep",
                                   REQUEST_MAX_DEPTH);
        } else if (c == '"') {
            in_text = true;
        } else if (in_word) {
            continue;
        }
        in_word = c != '"' && c != '[' && c != '{';
        if (++tokens > REQUEST_MAX_TOKENS)
            return problem_set(p, PROBLEM_TOO_COMPLEX, "the JSON has over %d values",
                               REQUEST_MAX_TOKENS);
    }
    return true;
}

static bool parse_object(struct request *out, const char *body, size_t len, struct problem *p)
{
    json_error_t fault;

    if (!check_utf8(body, len, p) || !check_complexity(body, len, p))
        return false;
    out->root =
        json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &fault);
    if (out->root == NULL) {
        bool doubled = json_error_code(&fault) == json_error_duplicate_key;
        if (len == 0)
            return problem_set(p, PROBLEM_BAD_JSON, "the body is empty; expected a JSON object");
        return problem_set(p, doubled ? PROBLEM_DUPLICATE_FIELD : PROBLEM_BAD_JSON,
                           "the body %s at line %d, column %d",
                           doubled ? "gives a field twice" : "stops being JSON", fault.line,
                           fault.column);
    }
    if (!json_is_object(out->root))
        return problem_set(p, PROBLEM_INVALID_FIELD, "the body must be a JSON object");
    return true;
}

/* A field's name may be anything a client wrote: shown only when it looks like a name. */
static bool unknown_field(const char *name, struct problem *p)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

    if (n == 0 || n > 40 || name[n] != '\0')
        return problem_set(p, PROBLEM_UNKNOWN_FIELD, "a field has a name that is not known");
    return problem_set(p, PROBLEM_UNKNOWN_FIELD, "there is no field '%s'", name);
}

static bool check_fields(const json_t *root, const char *const *known, struct problem *p)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)root, name, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0)
            i++;
        if (known[i] == NULL)
            return unknown_field(name, p);
    }
    return true;
}

static bool add_prompt(struct request *r, const json_t *value, const char *field, struct problem *p)
{
    if (!json_is_string(value))
        return problem_set(p, PROBLEM_INVALID_FIELD, "'%s' must hold text", field);
    if (r->n_prompts == REQUEST_MAX_PROMPTS)
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "at most %d prompts a request, the negative one included",
                           REQUEST_MAX_PROMPTS);
    r->prompts[r->n_prompts++] =
        (struct request_prompt){json_string_value(value), json_string_length(value)};
    return true;
}

static bool read_prompts(struct request *r, struct problem *p)
{
    const json_t *one = json_object_get(r->root, "prompt");
    const json_t *many = json_object_get(r->root, "prompts");
    const json_t *negative = json_object_get(r->root, "negative_prompt");

    if ((one == NULL) == (many == NULL))
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "give either 'prompt' (text) or 'prompts' (a list of 1 to %d)",
                           REQUEST_MAX_PROMPTS);
    if (one != NULL && !add_prompt(r, one, "prompt", p))
        return false;
    if (many != NULL && (!json_is_array(many) || json_array_size(many) == 0))
        return problem_set(p, PROBLEM_INVALID_FIELD, "'prompts' must be a list of 1 to %d texts",
                           REQUEST_MAX_PROMPTS);
    for (size_t i = 0; i < json_array_size(many); i++)
        if (!add_prompt(r, json_array_get(many, i), "prompts", p))
            return false;
    if (negative != NULL && !add_prompt(r, negative, "negative_prompt", p))
        return false;
    r->has_negative = negative != NULL;
    return true;
}

static bool read_model(struct request *r, struct problem *p)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const json_t *value = json_object_get(r->root, "model");
    const char *text = json_string_value(value);

    if (value == NULL)
        return true;
    if (text == NULL || text[0] == '\0' || json_string_length(value) > REQUEST_MAX_MODEL ||
        strspn(text, allowed) != json_string_length(value))
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "'model' must be a model's name as /v1/models lists them");
    r->model = text;
    return true;
}

/* One of `words`, by its index; absent leaves *out. */
static bool read_choice(int *out, const json_t *root, const char *field, const char *const *words,
                        struct problem *p)
{
    const json_t *value = json_object_get(root, field);
    const char *text = json_string_value(value);
    char list[96] = "";
    size_t len = 0;

    if (value == NULL)
        return true;
    for (int i = 0; words[i] != NULL; i++) {
        if (text != NULL && strcmp(words[i], text) == 0 &&
            strlen(words[i]) == json_string_length(value)) {
            *out = i;
            return true;
        }
        len +=
            (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    return problem_set(p, PROBLEM_INVALID_FIELD, "'%s' must be one of: %s", field, list);
}

static bool read_layers(struct request *r, struct problem *p)
{
    const json_t *list = json_object_get(r->root, "layers");
    bool seen[REQUEST_MAX_LAYERS] = {false};

    if (list == NULL)
        return true;
    if (!json_is_array(list) || json_array_size(list) == 0 ||
        json_array_size(list) > REQUEST_MAX_LAYERS)
        return problem_set(p, PROBLEM_INVALID_FIELD, "'layers' must be a list of 1 to %d numbers",
                           REQUEST_MAX_LAYERS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0 || layer >= REQUEST_MAX_LAYERS)
            return problem_set(p, PROBLEM_INVALID_FIELD,
                               "'layers': item %zu is no whole number from 0 to %d", i,
                               REQUEST_MAX_LAYERS - 1);
        if (seen[layer])
            return problem_set(p, PROBLEM_INVALID_FIELD, "'layers': %d is wanted twice",
                               (int)layer);
        seen[layer] = true;
        r->layers[r->n_layers++] = (int)layer;
    }
    return true;
}

static bool read_modalities(struct request *r, struct problem *p)
{
    const json_t *list = json_object_get(r->root, "modalities");
    size_t n = json_array_size(list);

    if (list == NULL)
        return true;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        const char *text = json_string_length(item) == 5 ? json_string_value(item) : "";
        unsigned modality = strcmp(text, "video") == 0   ? MODALITY_VIDEO
                            : strcmp(text, "audio") == 0 ? MODALITY_AUDIO
                                                         : 0;
        if (modality == 0)
            return problem_set(p, PROBLEM_INVALID_FIELD,
                               "'modalities': item %zu is neither video nor audio", i);
        if ((r->modalities & modality) != 0)
            return problem_set(p, PROBLEM_INVALID_FIELD, "'modalities': %s is wanted twice", text);
        r->modalities |= modality;
    }
    return n > 0 || problem_set(p, PROBLEM_INVALID_FIELD,
                                "'modalities' must be a list of video, audio or both");
}

/* Layers are of hidden states, modalities of the other levels. */
static bool check_level(const struct request *r, struct problem *p)
{
    const char *by_default = r->has_output ? "" : ", which is this model's default output";

    if (r->output == OUTPUT_HIDDEN_STATES && r->modalities != 0)
        return problem_set(
            p, PROBLEM_INVALID_FIELD,
            "'modalities' applies to features and embeddings, not to hidden_states%s", by_default);
    if (r->output != OUTPUT_HIDDEN_STATES && r->n_layers > 0)
        return problem_set(p, PROBLEM_INVALID_FIELD,
                           "'layers' applies to hidden_states, not to %s%s",
                           output_words[r->output], by_default);
    return true;
}

bool request_settle_output(struct request *r, enum request_output fallback, struct problem *p)
{
    if (r->has_output)
        return true; /* checked when it was read */
    r->output = fallback;
    return check_level(r, p);
}

bool request_parse_encode(struct request *out, const char *body, size_t len, struct problem *p)
{
    static const char *const known[] = {
        "prompt", "prompts", "negative_prompt", "model",       "output", "modalities",
        "layers", "dtype",   "cache",           "on_overflow", NULL};
    int output = -1, dtype = DTYPE_NAME_BFLOAT16, overflow = 0, cache = CACHE_USE;

    memset(out, 0, sizeof(*out));
    if (!parse_object(out, body, len, p) || !check_fields(out->root, known, p) ||
        !read_prompts(out, p) || !read_model(out, p) ||
        !read_choice(&output, out->root, "output", output_words, p) ||
        !read_choice(&dtype, out->root, "dtype", dtype_words, p) ||
        !read_choice(&overflow, out->root, "on_overflow", overflow_words, p) ||
        !read_choice(&cache, out->root, "cache", cache_words, p) || !read_layers(out, p) ||
        !read_modalities(out, p))
        return false;
    out->has_output = output >= 0;
    if (out->has_output)
        out->output = (enum request_output)output;
    out->dtype = (enum request_dtype)dtype;
    out->overflow_is_error = overflow == 1;
    out->cache = (enum request_cache)cache;
    return !out->has_output || check_level(out, p);
}

bool request_parse_tokenize(struct request *out, const char *body, size_t len, struct problem *p)
{
    static const char *const known[] = {"prompt", "prompts", "model", NULL};

    memset(out, 0, sizeof(*out));
    return parse_object(out, body, len, p) && check_fields(out->root, known, p) &&
           read_prompts(out, p) && read_model(out, p);
}

void request_free(struct request *r)
{
    /* jansson owns the texts and does not hand them out for writing; they are ours all the same */
    for (size_t i = 0; i < r->n_prompts; i++) {
        volatile char *text = (volatile char *)(uintptr_t)r->prompts[i].text;
        for (size_t k = 0; k < r->prompts[i].len; k++)
            text[k] = 0;
    }
    json_decref(r->root);
    *r = (struct request){0};
}

const char *request_output_name(enum request_output output)
{
    return output_words[output];
}

const char *request_modalities_name(unsigned modalities)
{
    static const char *const names[] = {"", "video", "audio", "video,audio"};

    return names[modalities & (MODALITY_VIDEO | MODALITY_AUDIO)];
}

const char *request_dtype_name(enum request_dtype dtype)
{
    return dtype_words[dtype];
}

size_t request_dtype_bytes(enum request_dtype dtype)
{
    return dtype_bytes[dtype];
}
