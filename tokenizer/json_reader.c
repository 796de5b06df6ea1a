/* json_reader.c - see json_reader.h.
 *
 * Why this is here beside jansson: a real tokenizer.json is 33 MB with 1.3 million strings, and a
 * parser that builds a tree of them takes 0.4 s, most of the time an engine has to become ready.
 * Reading in place takes a fraction of that and no memory. jansson serves every other JSON here.
 *
 * The reader keeps no stack: the caller's own nesting is the stack, and `fresh` alone says whether
 * a comma is due. Only json_skip() meets nesting that nobody mirrors; there one bit a level tells
 * objects from arrays. A string without escapes is handed out where it lies in the file; only one
 * with escapes is decoded into the reader. */
#include "tokenizer/json_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/utf8.h"

void json_reader_init(struct json_reader *r, const void *data, size_t size, const char *name)
{
    r->name = name;
    r->data = data != NULL ? data : ""; /* an empty file is mapped as NULL */
    r->size = size;
    r->at = 0;
    r->fresh = false;
}

void json_seek(struct json_reader *r, size_t at)
{
    r->at = at;
    r->fresh = false;
}

bool json_text_is(const struct json_text *text, const char *word)
{
    return text->len == strlen(word) && memcmp(text->data, word, text->len) == 0;
}

int json_error(const struct json_reader *r, struct error *err, const char *fmt, ...)
{
    char words[256];
    size_t line = 1;
    va_list args;

    va_start(args, fmt);
    vsnprintf(words, sizeof(words), fmt, args);
    va_end(args);
    for (size_t i = 0; i < r->at && i < r->size; i++)
        line += r->data[i] == '\n';
    return error_set(err, ERR_FORMAT, "%s: line %zu, byte %zu: %s", r->name, line, r->at, words);
}

static int unexpected(const struct json_reader *r, const char *wanted, struct error *err)
{
    if (r->at >= r->size)
        return json_error(r, err, "the file ends where %s should be", wanted);
    if (r->data[r->at] > ' ' && r->data[r->at] <= '~')
        return json_error(r, err, "found '%c', expected %s", r->data[r->at], wanted);
    return json_error(r, err, "found byte 0x%02X, expected %s", (unsigned char)r->data[r->at],
                      wanted);
}

static void skip_blanks(struct json_reader *r)
{
    const char *p = r->data + r->at, *end = r->data + r->size;

    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    r->at = (size_t)(p - r->data);
}

/* The next byte that is no blank; 0 at the end, where no value starts either. */
static char next_byte(struct json_reader *r)
{
    skip_blanks(r);
    return r->at < r->size ? r->data[r->at] : '\0';
}

int json_peek(struct json_reader *r, enum json_kind *kind, struct error *err)
{
    char c = next_byte(r);

    switch (c) {
    case '{':
        *kind = JSON_OBJECT;
        return OK;
    case '[':
        *kind = JSON_ARRAY;
        return OK;
    case '"':
        *kind = JSON_STRING;
        return OK;
    case 't':
        *kind = JSON_TRUE;
        return OK;
    case 'f':
        *kind = JSON_FALSE;
        return OK;
    case 'n':
        *kind = JSON_NULL;
        return OK;
    default:
        if (c == '-' || (c >= '0' && c <= '9')) {
            *kind = JSON_NUMBER;
            return OK;
        }
        return unexpected(r, "a value", err);
    }
}

int json_enter(struct json_reader *r, enum json_kind kind, struct error *err)
{
    bool object = kind == JSON_OBJECT;

    if (next_byte(r) != (object ? '{' : '['))
        return unexpected(r, object ? "an object" : "an array", err);
    r->at++;
    r->fresh = true;
    return OK;
}

/* Past the comma to the next element, or past the closing bracket. */
static int next_element(struct json_reader *r, char close, bool *more, struct error *err)
{
    char c = next_byte(r);
    bool fresh = r->fresh;

    r->fresh = false;
    *more = c != close;
    if (c == close) {
        r->at++;
        return OK;
    }
    if (fresh)
        return OK;
    if (c != ',')
        return unexpected(r, close == '}' ? "',' or '}'" : "',' or ']'", err);
    r->at++;
    return OK;
}

int json_next_item(struct json_reader *r, bool *more, struct error *err)
{
    return next_element(r, ']', more, err);
}

/* The four digits after "\u". */
static int read_hex4(struct json_reader *r, uint32_t *out, struct error *err)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->size ? r->data[r->at] : '\0';

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            value = value << 4 | (uint32_t)(c - 'A' + 10);
        else
            return unexpected(r, "four hexadecimal digits", err);
    }
    *out = value;
    return OK;
}

/* At a backslash: past the whole escape, a surrogate pair included, and the character it means. */
static int read_escape(struct json_reader *r, uint32_t *out, struct error *err)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter;
    uint32_t low = 0;
    int rc;

    r->at++;
    if (r->at >= r->size)
        return unexpected(r, "an escape", err);
    if (r->data[r->at] != 'u') {
        letter = memchr(letters, r->data[r->at], sizeof(letters) - 1);
        if (letter == NULL)
            return unexpected(r, "an escape", err);
        r->at++;
        *out = (unsigned char)meanings[letter - letters];
        return OK;
    }
    r->at++;
    if ((rc = read_hex4(r, out, err)) != OK)
        return rc;
    if (*out >= 0xdc00 && *out <= 0xdfff)
        return json_error(r, err, "the second half of a surrogate pair without the first");
    if (*out < 0xd800 || *out > 0xdbff)
        return OK;
    if (r->size - r->at < 2 || r->data[r->at] != '\\' || r->data[r->at + 1] != 'u')
        return unexpected(r, "the second half of a surrogate pair", err);
    r->at += 2;
    if ((rc = read_hex4(r, &low, err)) != OK)
        return rc;
    if (low < 0xdc00 || low > 0xdfff)
        return json_error(r, err, "the first half of a surrogate pair without the second");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return OK;
}

/* Bytes that stand for themselves, from `at` on: up to a quote, a backslash or an error. */
static int plain_run(struct json_reader *r, struct error *err)
{
    size_t n;
    uint32_t c = 0;

    while (r->at < r->size) {
        unsigned char b = (unsigned char)r->data[r->at];

        if (b == '"' || b == '\\')
            return OK;
        if (b < 0x20)
            return unexpected(r, "a string without bare control characters", err);
        if (b < 0x80) {
            r->at++;
            continue;
        }
        if ((n = utf8_decode(r->data + r->at, r->size - r->at, &c)) == 0)
            return unexpected(r, "UTF-8", err);
        r->at += n;
    }
    return unexpected(r, "the end of a string", err);
}

/* A whole string. With `out` NULL it is only checked, and may be of any length. */
static int read_string(struct json_reader *r, struct json_text *out, struct error *err)
{
    size_t from, len = 0;
    bool decoded = false;
    uint32_t c = 0;
    int rc;

    if (next_byte(r) != '"')
        return unexpected(r, "a string", err);
    r->at++;
    for (;;) {
        char bytes[UTF8_MAX];
        size_t n;

        from = r->at;
        if ((rc = plain_run(r, err)) != OK)
            return rc;
        if (r->data[r->at] == '"' && !decoded)
            break; /* handed out in place */
        if (out != NULL) {
            if (r->at - from > JSON_MAX_TEXT - len)
                return json_error(r, err, "a string of more than %d bytes", JSON_MAX_TEXT);
            memcpy(r->text + len, r->data + from, r->at - from);
            len += r->at - from;
        }
        if (r->data[r->at] == '"')
            break;
        decoded = true;
        if ((rc = read_escape(r, &c, err)) != OK)
            return rc;
        n = utf8_encode(bytes, c);
        if (out != NULL) {
            if (n > JSON_MAX_TEXT - len)
                return json_error(r, err, "a string of more than %d bytes", JSON_MAX_TEXT);
            memcpy(r->text + len, bytes, n);
            len += n;
        }
    }
    if (out != NULL && !decoded && r->at - from > JSON_MAX_TEXT)
        return json_error(r, err, "a string of more than %d bytes", JSON_MAX_TEXT);
    if (out != NULL)
        *out = decoded ? (struct json_text){r->text, len}
                       : (struct json_text){r->data + from, r->at - from};
    r->at++;
    return OK;
}

int json_next_key(struct json_reader *r, struct json_text *key, bool *more, struct error *err)
{
    int rc;

    if ((rc = next_element(r, '}', more, err)) != OK || !*more)
        return rc;
    if ((rc = read_string(r, key, err)) != OK)
        return rc;
    if (next_byte(r) != ':')
        return unexpected(r, "':'", err);
    r->at++;
    return OK;
}

static bool is_digit(const struct json_reader *r)
{
    return r->at < r->size && r->data[r->at] >= '0' && r->data[r->at] <= '9';
}

static int skip_digits(struct json_reader *r, struct error *err)
{
    if (!is_digit(r))
        return unexpected(r, "a digit", err);
    while (is_digit(r))
        r->at++;
    return OK;
}

static int skip_number(struct json_reader *r, struct error *err)
{
    int rc;

    if (r->data[r->at] == '-')
        r->at++;
    if (r->at < r->size && r->data[r->at] == '0')
        r->at++; /* nothing may follow a leading zero but a fraction or an exponent */
    else if ((rc = skip_digits(r, err)) != OK)
        return rc;
    if (r->at < r->size && r->data[r->at] == '.') {
        r->at++;
        if ((rc = skip_digits(r, err)) != OK)
            return rc;
    }
    if (r->at < r->size && (r->data[r->at] == 'e' || r->data[r->at] == 'E')) {
        r->at++;
        if (r->at < r->size && (r->data[r->at] == '+' || r->data[r->at] == '-'))
            r->at++;
        return skip_digits(r, err);
    }
    return OK;
}

static int skip_word(struct json_reader *r, const char *word, struct error *err)
{
    size_t len = strlen(word);

    if (r->size - r->at < len || memcmp(r->data + r->at, word, len) != 0)
        return unexpected(r, word, err);
    r->at += len;
    return OK;
}

/* A value that is neither object nor array, left undecoded. */
static int skip_scalar(struct json_reader *r, struct error *err)
{
    enum json_kind kind;
    int rc;

    if ((rc = json_peek(r, &kind, err)) != OK)
        return rc;
    switch (kind) {
    case JSON_STRING:
        return read_string(r, NULL, err);
    case JSON_NUMBER:
        return skip_number(r, err);
    case JSON_TRUE:
        return skip_word(r, "true", err);
    case JSON_FALSE:
        return skip_word(r, "false", err);
    case JSON_NULL:
        return skip_word(r, "null", err);
    case JSON_OBJECT:
    case JSON_ARRAY:
        break;
    }
    return unexpected(r, "a string, a number, true, false or null", err);
}

int json_read_text(struct json_reader *r, struct json_text *out, struct error *err)
{
    return read_string(r, out, err);
}

int json_read_scalar(struct json_reader *r, struct json_text *out, struct error *err)
{
    size_t from;
    int rc;

    if (next_byte(r) == '"')
        return read_string(r, out, err);
    from = r->at;
    if ((rc = skip_scalar(r, err)) != OK)
        return rc;
    *out = (struct json_text){r->data + from, r->at - from};
    return OK;
}

int json_read_int(struct json_reader *r, int64_t *out, struct error *err)
{
    enum json_kind kind;
    size_t from, at;
    bool negative;
    int64_t value = 0;
    int rc;

    if ((rc = json_peek(r, &kind, err)) != OK)
        return rc;
    from = at = r->at;
    if (kind != JSON_NUMBER)
        return unexpected(r, "a whole number", err);
    if ((rc = skip_number(r, err)) != OK)
        return rc;
    negative = r->data[at] == '-';
    for (at += negative; at < r->at; at++) {
        int digit = r->data[at] - '0';

        /* 18 digits fit for certain, and no number here comes near that */
        if (digit < 0 || digit > 9 || at - from - negative >= 18) {
            r->at = from;
            return json_error(r, err, "the number is no whole number, or too large");
        }
        value = value * 10 + digit;
    }
    *out = negative ? -value : value;
    return OK;
}

int json_read_bool(struct json_reader *r, bool *out, struct error *err)
{
    char c = next_byte(r);

    if (c != 't' && c != 'f')
        return unexpected(r, "true or false", err);
    *out = c == 't';
    return skip_word(r, c == 't' ? "true" : "false", err);
}

int json_skip(struct json_reader *r, struct error *err)
{
    uint64_t objects = 0; /* bit d: level d is an object */
    int depth = 0, rc;

    do {
        bool object = depth > 0 && (objects >> (depth - 1) & 1), more = true;
        enum json_kind kind;

        /* inside a container: to its next value, or out of it */
        if (object)
            rc = next_element(r, '}', &more, err);
        else
            rc = depth > 0 ? json_next_item(r, &more, err) : OK;
        if (rc != OK)
            return rc;
        if (!more) {
            depth--;
            continue;
        }
        if (object) {
            if ((rc = read_string(r, NULL, err)) != OK)
                return rc;
            if (next_byte(r) != ':')
                return unexpected(r, "':'", err);
            r->at++;
        }
        if ((rc = json_peek(r, &kind, err)) != OK)
            return rc;
        if (kind != JSON_OBJECT && kind != JSON_ARRAY) {
            if ((rc = skip_scalar(r, err)) != OK)
                return rc;
            continue;
        }
        if (depth == JSON_MAX_DEPTH)
            return json_error(r, err, "nested more than %d deep", JSON_MAX_DEPTH);
        objects &= ~((uint64_t)1 << depth);
        objects |= (uint64_t)(kind == JSON_OBJECT) << depth;
        depth++;
        if ((rc = json_enter(r, kind, err)) != OK)
            return rc;
    } while (depth > 0);
    return OK;
}

int json_finish(struct json_reader *r, struct error *err)
{
    skip_blanks(r);
    return r->at == r->size ? OK : unexpected(r, "the end of the file", err);
}
