#include "service/headers.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *media_type, *name;
} formats[FORMAT_COUNT] = {[FORMAT_SAFETENSORS] = {"application/safetensors", "safetensors"},
                           [FORMAT_JSON] = {"application/json", "json"},
                           [FORMAT_NPY] = {"application/x-npy", "npy"}};

const char *format_media_type(enum answer_format format)
{
    return formats[format].media_type;
}

const char *format_name(enum answer_format format)
{
    return formats[format].name;
}

static const char *skip_space(const char *s)
{
    return s + strspn(s, " \t");
}

/* The end of a list's item: the next comma outside quotes. */
static const char *item_end(const char *s)
{
    bool quoted = false;

    for (; *s != '\0' && (quoted || *s != ','); s++) {
        if (quoted && *s == '\\' && s[1] != '\0')
            s++;
        else if (*s == '"')
            quoted = !quoted;
    }
    return s;
}

static bool text_is(const char *s, size_t len, const char *want)
{
    return strlen(want) == len && strncasecmp(s, want, len) == 0;
}

/* ";q=0.5" among the parameters in [s, end), in thousandths; 1000 when it is not there. */
static int read_quality(const char *s, const char *end)
{
    while (s < end && (s = memchr(s, ';', (size_t)(end - s))) != NULL) {
        int q = 0, scale = 1000;
        s = skip_space(s + 1);
        if ((*s != 'q' && *s != 'Q') || s[1] != '=')
            continue;
        for (s += 2; s < end && ((*s >= '0' && *s <= '9') || *s == '.'); s++) {
            if (*s == '.')
                continue;
            if (scale > 0)
                q += (*s - '0') * scale;
            scale /= 10;
        }
        return q > 1000 ? 1000 : q;
    }
    return 1000;
}

/* How much Accept likes a media type, in thousandths: the most specific range that fits counts. */
static int quality_of(const char *accept, const char *media_type)
{
    size_t main_len = (size_t)(strchr(media_type, '/') - media_type) + 1;
    int best = 0, best_rank = 0;

    for (const char *s = accept, *end; *(s = skip_space(s)) != '\0';
         s = *end == ',' ? end + 1 : end) {
        size_t len;
        int rank = 0;
        end = item_end(s);
        len = strcspn(s, "; \t,");
        if (text_is(s, len, media_type))
            rank = 3;
        else if (len == main_len + 1 && strncasecmp(s, media_type, main_len) == 0 &&
                 s[main_len] == '*')
            rank = 2;
        else if (text_is(s, len, "*/*"))
            rank = 1;
        if (rank > best_rank) {
            best_rank = rank;
            best = read_quality(s, end);
        }
    }
    return best;
}

static bool takes_all(const char *accept)
{
    return accept == NULL || *skip_space(accept) == '\0';
}

bool headers_accept(const char *accept, const char *media_type)
{
    return takes_all(accept) || quality_of(accept, media_type) > 0;
}

bool headers_choose_format(enum answer_format *out, const char *accept)
{
    int best = 0;

    *out = FORMAT_SAFETENSORS;
    if (takes_all(accept))
        return true;
    for (int i = 0; i < FORMAT_COUNT; i++) {
        int quality = quality_of(accept, formats[i].media_type);
        if (quality > best) {
            best = quality;
            *out = (enum answer_format)i;
        }
    }
    return best > 0;
}

bool headers_body_is_json(const char *content_type)
{
    const char *s;
    size_t len;

    if (content_type == NULL)
        return false;
    s = skip_space(content_type);
    len = strcspn(s, "; \t");
    if (!text_is(s, len, "application/json"))
        return false;
    s = skip_space(s + len);
    if (*s == '\0')
        return true;
    if (*s != ';')
        return false;
    s = skip_space(s + 1);
    if (strncasecmp(s, "charset=", 8) != 0)
        return *s == '\0';
    s += 8;
    len = strcspn(s, "; \t");
    return text_is(s, len, "utf-8") || text_is(s, len, "\"utf-8\"");
}

void headers_read_prefer(struct prefer *out, const char *prefer)
{
    *out = (struct prefer){.wait_s = -1};
    if (prefer == NULL)
        return;
    for (const char *s = prefer, *end; *(s = skip_space(s)) != '\0';
         s = *end == ',' ? end + 1 : end) {
        size_t len;
        end = item_end(s);
        len = strcspn(s, "=;, \t");
        if (text_is(s, len, "respond-async")) {
            out->respond_async = true;
        } else if (text_is(s, len, "wait") && out->wait_s < 0) {
            const char *digit = skip_space(s + len);
            int value = 0;
            if (*digit != '=')
                continue;
            digit = skip_space(digit + 1);
            for (len = 0; digit[len] >= '0' && digit[len] <= '9'; len++)
                value = value > 100000 ? value : value * 10 + (digit[len] - '0');
            digit = skip_space(digit + len);
            if (len > 0 && (digit == end || *digit == ';'))
                out->wait_s = value;
        }
    }
}

bool headers_match_etag(const char *if_none_match, const char *etag)
{
    size_t etag_len = strlen(etag);

    if (if_none_match == NULL)
        return false;
    for (const char *s = if_none_match, *end; *(s = skip_space(s)) != '\0';
         s = *end == ',' ? end + 1 : end) {
        end = item_end(s);
        if (*s == '*')
            return true;
        if (s[0] == 'W' && s[1] == '/')
            s += 2;
        if ((size_t)(end - s) >= etag_len && strncmp(s, etag, etag_len) == 0 &&
            skip_space(s + etag_len) == end)
            return true;
    }
    return false;
}

bool headers_origin_is_good(const char *text)
{
    size_t scheme_len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+.-"), len;
    const char *host, *port;

    if (strcmp(text, "*") == 0)
        return true;
    if (scheme_len == 0 || strncmp(text + scheme_len, "://", 3) != 0)
        return false;
    host = text + scheme_len + 3;
    if (*host == '[') {
        len = 1 + strspn(host + 1, "0123456789abcdef:.");
        len = len > 2 && host[len] == ']' ? len + 1 : 0;
    } else {
        len = strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    }
    if (len == 0 || host[len] == '\0')
        return len > 0;
    port = host + len + 1;
    len = strspn(port, "0123456789");
    return port[-1] == ':' && len >= 1 && len <= 5 && port[len] == '\0' && *port != '0' &&
           !(strncmp(text, "http://", 7) == 0 && strcmp(port, "80") == 0) &&
           !(strncmp(text, "https://", 8) == 0 && strcmp(port, "443") == 0);
}

bool headers_request_id_is_good(const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strspn(text, allowed);

    return len >= 1 && len <= 64 && text[len] == '\0';
}
