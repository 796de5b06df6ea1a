/* from_json.c - a tokenizer from Hugging Face's tokenizer.json.
 *
 * The format describes many algorithms; we know the one that Gemma uses and refuse the rest, for a
 * setting that is ignored would give wrong ids without a word. So each section but the vocabulary
 * is compared, leaf by leaf, with a table of what it must say ("normalizer.pattern.String" is " "),
 * and what is not in the table is refused too. truncation, padding and decoder say nothing about
 * how a text becomes ids: the caller cuts, nobody pads, and we only print pieces.
 *
 * The file is read once, front to back. Only where a section needs one that comes later (the added
 * tokens need the vocabulary) is it skipped and come back to. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/builder.h"
#include "tokenizer/json_reader.h"

#define NOT_SEEN SIZE_MAX
#define MAX_PATH 256

/* One leaf of a section. */
struct rule {
    const char *path;  /* "pattern.String"; "pair*": all that begin so */
    const char *value; /* what it must be; NULL: anything */
    const char *other; /* or this; NULL: no other choice */
    bool optional;
};

/* A section that is being compared with its rules. */
struct comparison {
    const char *section; /* for messages */
    const struct rule *rules;
    size_t n_rules;
    uint32_t seen; /* bit i: rules[i] has been met */
    char path[MAX_PATH];
};

#define RULES(section, rules)                                                                      \
    {                                                                                              \
        (section), (rules), sizeof(rules) / sizeof((rules)[0]), 0, ""                              \
    }

static const struct rule normalizer_rules[] = {
    {"type", "Replace", NULL, false},
    {"pattern.String", " ", NULL, false},
    {"content", META, NULL, false},
};

/* Splits at spaces, of which the normalizer leaves none: it never does anything. */
static const struct rule pre_tokenizer_rules[] = {
    {"type", "Split", NULL, false},
    {"pattern.String", " ", NULL, false},
    {"behavior", "MergedWithPrevious", NULL, false},
    {"invert", "false", NULL, false},
};

static const struct rule model_rules[] = {
    {"type", "BPE", NULL, false},
    {"dropout", "null", NULL, true},
    {"unk_token", NULL, NULL, true}, /* no character is unknown where all bytes have pieces */
    {"fuse_unk", NULL, NULL, true},
    {"continuing_subword_prefix", "null", "", true},
    {"end_of_word_suffix", "null", "", true},
    {"byte_fallback", "true", NULL, false},
    {"ignore_merges", "false", NULL, true},
};

/* The text alone (Gemma 4). */
static const struct rule no_bos_rules[] = {
    {"type", "TemplateProcessing", NULL, false},     {"single.0.Sequence.id", "A", NULL, false},
    {"single.0.Sequence.type_id", NULL, NULL, true}, {"pair*", NULL, NULL, true},
    {"special_tokens*", NULL, NULL, true},
};

/* Where the sections lie that are read after the walk over the whole. */
struct sections {
    size_t added_tokens, normalizer, pre_tokenizer, post_processor, model;
};

static bool path_fits(const struct rule *rule, const char *path)
{
    size_t len = strlen(rule->path);

    if (rule->path[len - 1] == '*')
        return strncmp(rule->path, path, len - 1) == 0;
    return strcmp(rule->path, path) == 0;
}

/* The value at c->path: neither object nor array, or an empty one, "{}" or "[]". */
static int compare_leaf(const struct json_reader *r, struct comparison *c,
                        const struct json_text *value, struct error *err)
{
    char shown[LEXICON_SHOWN], wanted[2][LEXICON_SHOWN];
    const struct rule *rule = NULL;

    lexicon_show(shown, value->data, value->len);
    for (size_t i = 0; i < c->n_rules && rule == NULL; i++)
        if (path_fits(&c->rules[i], c->path)) {
            rule = &c->rules[i];
            if (c->seen >> i & 1 && rule->value != NULL)
                return json_error(r, err, "%s.%s is given twice", c->section, c->path);
            c->seen |= (uint32_t)1 << i;
        }
    if (rule == NULL)
        return json_error(r, err, "%s.%s is \"%s\", a setting that is not known here", c->section,
                          c->path, shown);
    if (rule->value == NULL || json_text_is(value, rule->value) ||
        (rule->other != NULL && json_text_is(value, rule->other)))
        return OK;
    lexicon_show(wanted[0], rule->value, strlen(rule->value));
    return json_error(r, err, "%s.%s is \"%s\", expected \"%s\"", c->section, c->path, shown,
                      wanted[0]);
}

static int path_push(const struct json_reader *r, struct comparison *c, const char *name,
                     size_t name_len, struct error *err)
{
    size_t len = strlen(c->path);

    /* a name with a dot could pass for two */
    if (name_len >= sizeof(c->path) - len - 1 || memchr(name, '\0', name_len) != NULL ||
        memchr(name, '.', name_len) != NULL)
        return json_error(r, err, "%s.%s has a setting with a strange name", c->section, c->path);
    if (len > 0)
        c->path[len++] = '.';
    memcpy(c->path + len, name, name_len);
    c->path[len + name_len] = '\0';
    return OK;
}

static int compare_value(struct json_reader *r, struct comparison *c, int depth, struct error *err);

static int compare_members(struct json_reader *r, struct comparison *c, enum json_kind kind,
                           int depth, struct error *err)
{
    size_t path_len = strlen(c->path);
    int rc;

    if (depth == 0)
        return json_error(r, err, "%s.%s is nested too deep", c->section, c->path);
    if ((rc = json_enter(r, kind, err)) != OK)
        return rc;
    for (unsigned i = 0;; i++) {
        struct json_text key;
        char index[16];
        bool more;

        if (kind == JSON_OBJECT) {
            rc = json_next_key(r, &key, &more, err);
        } else {
            rc = json_next_item(r, &more, err);
            key = (struct json_text){index, (size_t)snprintf(index, sizeof(index), "%u", i)};
        }
        if (rc != OK)
            return rc;
        if (!more && i == 0 && path_len > 0)
            return compare_leaf(r, c, &(struct json_text){kind == JSON_OBJECT ? "{}" : "[]", 2},
                                err);
        if (!more)
            return OK;
        if ((rc = path_push(r, c, key.data, key.len, err)) != OK ||
            (rc = compare_value(r, c, depth - 1, err)) != OK)
            return rc;
        c->path[path_len] = '\0';
    }
}

static int compare_value(struct json_reader *r, struct comparison *c, int depth, struct error *err)
{
    struct json_text value;
    enum json_kind kind;
    int rc;

    if ((rc = json_peek(r, &kind, err)) != OK)
        return rc;
    if (kind == JSON_OBJECT || kind == JSON_ARRAY)
        return compare_members(r, c, kind, depth, err);
    if ((rc = json_read_scalar(r, &value, err)) != OK)
        return rc;
    return compare_leaf(r, c, &value, err);
}

/* What must be there is there. */
static int compare_end(const struct json_reader *r, const struct comparison *c, struct error *err)
{
    char wanted[LEXICON_SHOWN];

    for (size_t i = 0; i < c->n_rules; i++)
        if (!c->rules[i].optional && !(c->seen >> i & 1))
            return json_error(r, err, "%s.%s is missing, expected \"%s\"", c->section,
                              c->rules[i].path,
                              lexicon_show(wanted, c->rules[i].value, strlen(c->rules[i].value)));
    return OK;
}

/* A section that is an object, all of it. */
static int compare_section(struct json_reader *r, size_t at, struct comparison *c,
                           struct error *err)
{
    enum json_kind kind;
    int rc;

    json_seek(r, at);
    if ((rc = json_peek(r, &kind, err)) != OK)
        return rc;
    if (kind != JSON_OBJECT)
        return json_error(r, err, "%s is no object", c->section);
    if ((rc = compare_value(r, c, 8, err)) != OK)
        return rc;
    return compare_end(r, c, err);
}

static int read_vocab(struct json_reader *r, struct builder *b, struct error *err)
{
    struct json_text piece;
    int64_t id;
    bool more;
    int rc;

    if ((rc = json_enter(r, JSON_OBJECT, err)) != OK)
        return rc;
    for (;;) {
        char text[LEXICON_MAX_PIECE];

        if ((rc = json_next_key(r, &piece, &more, err)) != OK || !more)
            return rc;
        if (piece.len > sizeof(text))
            return json_error(r, err, "a piece of %zu bytes, at most %zu", piece.len, sizeof(text));
        if ((rc = json_read_int(r, &id, err)) != OK ||
            (rc = builder_add(b, id, piece.data, piece.len, PIECE_JOINS, err)) != OK)
            return rc;
    }
}

static int find_part(const struct json_reader *r, const struct builder *b, const char *text,
                     size_t len, int32_t *id, struct error *err)
{
    char shown[LEXICON_SHOWN];

    if ((*id = builder_find(b, text, len)) < 0)
        return json_error(r, err, "a merge of \"%s\", which is not in the vocabulary",
                          lexicon_show(shown, text, len));
    return OK;
}

/* ["left", "right"] */
static int read_merge_list(struct json_reader *r, const struct builder *b, int32_t part[2],
                           struct error *err)
{
    struct json_text text;
    bool more;
    int rc;

    if ((rc = json_enter(r, JSON_ARRAY, err)) != OK)
        return rc;
    for (int i = 0; i < 2; i++) {
        if ((rc = json_next_item(r, &more, err)) != OK)
            return rc;
        if (!more)
            return json_error(r, err, "a merge of %d parts, expected 2", i);
        if ((rc = json_read_text(r, &text, err)) != OK ||
            (rc = find_part(r, b, text.data, text.len, &part[i], err)) != OK)
            return rc;
    }
    if ((rc = json_next_item(r, &more, err)) != OK)
        return rc;
    return more ? json_error(r, err, "a merge of more than 2 parts") : OK;
}

/* "left right", as older files have it; no part can contain a space. */
static int read_merge_text(struct json_reader *r, const struct builder *b, int32_t part[2],
                           struct error *err)
{
    struct json_text text;
    const char *space;
    size_t len;
    int rc;

    if ((rc = json_read_text(r, &text, err)) != OK)
        return rc;
    space = memchr(text.data, ' ', text.len);
    len = space == NULL ? 0 : (size_t)(space - text.data);
    if (space == NULL || memchr(space + 1, ' ', text.len - len - 1) != NULL)
        return json_error(r, err, "a merge that is not two parts with a space between");
    if ((rc = find_part(r, b, text.data, len, &part[0], err)) != OK)
        return rc;
    return find_part(r, b, space + 1, text.len - len - 1, &part[1], err);
}

static int read_merges(struct json_reader *r, struct builder *b, struct error *err)
{
    int32_t part[2];
    enum json_kind kind;
    bool more;
    int rc;

    if ((rc = json_enter(r, JSON_ARRAY, err)) != OK)
        return rc;
    for (;;) {
        if ((rc = json_next_item(r, &more, err)) != OK || !more)
            return rc;
        if ((rc = json_peek(r, &kind, err)) != OK)
            return rc;
        rc = kind == JSON_STRING ? read_merge_text(r, b, part, err)
                                 : read_merge_list(r, b, part, err);
        if (rc != OK || (rc = builder_pair(b, part[0], part[1], err)) != OK)
            return rc;
    }
}

/* The vocabulary is read where it stands; the merges too, when they come after it as they do. */
static int read_model(struct json_reader *r, struct builder *b, struct error *err)
{
    struct comparison c = RULES("model", model_rules);
    size_t merges = NOT_SEEN, end;
    bool has_vocab = false, has_merges = false, more;
    struct json_text key;
    int rc;

    if ((rc = json_enter(r, JSON_OBJECT, err)) != OK)
        return rc;
    for (;;) {
        if ((rc = json_next_key(r, &key, &more, err)) != OK)
            return rc;
        if (!more)
            break;
        if (json_text_is(&key, "vocab")) {
            if (has_vocab)
                return json_error(r, err, "model.vocab is given twice");
            has_vocab = true;
            rc = read_vocab(r, b, err);
        } else if (json_text_is(&key, "merges")) {
            if (has_merges)
                return json_error(r, err, "model.merges is given twice");
            has_merges = true;
            merges = has_vocab ? NOT_SEEN : r->at;
            rc = has_vocab ? read_merges(r, b, err) : json_skip(r, err);
        } else if ((rc = path_push(r, &c, key.data, key.len, err)) == OK) {
            rc = compare_value(r, &c, 2, err);
            c.path[0] = '\0';
        }
        if (rc != OK)
            return rc;
    }
    if (!has_vocab || !has_merges)
        return json_error(r, err, "model.%s is missing", has_vocab ? "merges" : "vocab");
    if ((rc = compare_end(r, &c, err)) != OK)
        return rc;
    if (merges == NOT_SEEN)
        return OK;
    end = r->at;
    json_seek(r, merges);
    rc = read_merges(r, b, err);
    json_seek(r, end);
    return rc;
}

/* An added token: what it is, and that it is found by its bytes alone. */
static int read_added_token(struct json_reader *r, struct builder *b, struct error *err)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word", "normalized"};
    char text[LEXICON_MAX_PIECE], shown[LEXICON_SHOWN];
    const char *raised = NULL;
    bool has_id = false, more, on;
    size_t len = 0;
    struct json_text key, content;
    int64_t id = -1;
    int32_t known;
    int rc;

    if ((rc = json_enter(r, JSON_OBJECT, err)) != OK)
        return rc;
    for (;;) {
        if ((rc = json_next_key(r, &key, &more, err)) != OK)
            return rc;
        if (!more)
            break;
        if (json_text_is(&key, "id")) {
            if ((rc = json_read_int(r, &id, err)) != OK)
                return rc;
            has_id = true;
            continue;
        }
        if (json_text_is(&key, "content")) {
            if ((rc = json_read_text(r, &content, err)) != OK)
                return rc;
            if (content.len == 0 || content.len > sizeof(text))
                return json_error(r, err, "an added token of %zu bytes, they have 1 to %zu",
                                  content.len, sizeof(text));
            len = content.len;
            memcpy(text, content.data, len);
            continue;
        }
        for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
            if (json_text_is(&key, flags[i])) {
                if ((rc = json_read_bool(r, &on, err)) != OK)
                    return rc;
                raised = on ? flags[i] : raised;
                goto next;
            }
        if (!json_text_is(&key, "special"))
            return json_error(r, err, "an added token has \"%s\", which is not known here",
                              lexicon_show(shown, key.data, key.len));
        if ((rc = json_read_bool(r, &on, err)) != OK)
            return rc;
    next:;
    }
    lexicon_show(shown, text, len);
    if (!has_id || len == 0)
        return json_error(r, err, "an added token lacks its %s", has_id ? "content" : "id");
    if (raised != NULL)
        return json_error(r, err, "added token \"%s\" has %s true, expected false", shown, raised);
    known = builder_find(b, text, len);
    if (known < 0)
        return builder_add(b, id, text, len, PIECE_ADDED, err);
    if (known != id)
        return json_error(r, err, "added token \"%s\" has id %lld, but %d in the vocabulary", shown,
                          (long long)id, (int)known);
    if (builder_may(b, known) & PIECE_ADDED)
        return json_error(r, err, "added token \"%s\" is given twice", shown);
    builder_allow(b, known, PIECE_ADDED);
    return OK;
}

static int read_added_tokens(struct json_reader *r, size_t at, struct builder *b, struct error *err)
{
    bool more;
    int rc;

    json_seek(r, at);
    if ((rc = json_enter(r, JSON_ARRAY, err)) != OK)
        return rc;
    for (;;) {
        if ((rc = json_next_item(r, &more, err)) != OK || !more)
            return rc;
        if ((rc = read_added_token(r, b, err)) != OK)
            return rc;
    }
}

/* Whether <bos>, whose id is `bos`, goes before the text always. */
static int read_post_processor(struct json_reader *r, size_t at, int32_t bos, bool *adds_bos,
                               struct error *err)
{
    char bos_id[16];
    const struct rule bos_rules[] = {
        /* <bos>, then the text (Gemma 3) */
        {"type", "TemplateProcessing", NULL, false},
        {"single.0.SpecialToken.id", "<bos>", NULL, false},
        {"single.0.SpecialToken.type_id", NULL, NULL, true},
        {"single.1.Sequence.id", "A", NULL, false},
        {"single.1.Sequence.type_id", NULL, NULL, true},
        {"pair*", NULL, NULL, true},
        {"special_tokens.<bos>.id", "<bos>", NULL, false},
        {"special_tokens.<bos>.ids.0", bos_id, NULL, false},
        {"special_tokens.<bos>.tokens.0", "<bos>", NULL, false},
    };
    struct comparison with = RULES("post_processor", bos_rules);
    struct comparison without = RULES("post_processor", no_bos_rules);
    struct error with_err = {0}, without_err = {0};
    enum json_kind kind;
    int rc;

    *adds_bos = false;
    if (at == NOT_SEEN)
        return OK;
    json_seek(r, at);
    if ((rc = json_peek(r, &kind, err)) != OK)
        return rc;
    if (kind == JSON_NULL || compare_section(r, at, &without, &without_err) == OK)
        return OK;
    snprintf(bos_id, sizeof(bos_id), "%d", (int)bos);
    if ((rc = compare_section(r, at, &with, &with_err)) != OK)
        return error_set(err, (enum err_code)rc, "%s", with_err.text);
    *adds_bos = true;
    return OK;
}

/* normalizer and pre_tokenizer, where the latter may be absent. */
static int read_settings(struct json_reader *r, const struct sections *s, struct error *err)
{
    struct comparison normalizer = RULES("normalizer", normalizer_rules);
    struct comparison pre_tokenizer = RULES("pre_tokenizer", pre_tokenizer_rules);
    enum json_kind kind;
    int rc;

    if (s->normalizer == NOT_SEEN)
        return json_error(r, err, "normalizer is missing, expected \" \" replaced by U+2581");
    if ((rc = compare_section(r, s->normalizer, &normalizer, err)) != OK)
        return rc;
    if (s->pre_tokenizer == NOT_SEEN)
        return OK;
    json_seek(r, s->pre_tokenizer);
    if ((rc = json_peek(r, &kind, err)) != OK || kind == JSON_NULL)
        return rc;
    return compare_section(r, s->pre_tokenizer, &pre_tokenizer, err);
}

/* The walk over the whole: reads the model, notes where the rest lies. */
static int read_sections(struct json_reader *r, struct builder *b, struct sections *s,
                         struct error *err)
{
    const struct {
        const char *key;
        size_t *at; /* NULL: says nothing about ids */
    } known[] = {
        {"version", NULL},
        {"truncation", NULL},
        {"padding", NULL},
        {"decoder", NULL},
        {"added_tokens", &s->added_tokens},
        {"normalizer", &s->normalizer},
        {"pre_tokenizer", &s->pre_tokenizer},
        {"post_processor", &s->post_processor},
        {"model", &s->model},
    };
    struct json_text key;
    char shown[LEXICON_SHOWN];
    size_t i;
    bool more;
    int rc;

    if ((rc = json_enter(r, JSON_OBJECT, err)) != OK)
        return rc;
    for (;;) {
        if ((rc = json_next_key(r, &key, &more, err)) != OK)
            return rc;
        if (!more)
            return json_finish(r, err);
        for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            if (json_text_is(&key, known[i].key))
                break;
        if (i == sizeof(known) / sizeof(known[0]))
            return json_error(r, err, "\"%s\" is a section that is not known here",
                              lexicon_show(shown, key.data, key.len));
        if (known[i].at != NULL) {
            if (*known[i].at != NOT_SEEN)
                return json_error(r, err, "%s is given twice", known[i].key);
            *known[i].at = r->at;
        }
        rc = known[i].at == &s->model ? read_model(r, b, err) : json_skip(r, err);
        if (rc != OK)
            return rc;
    }
}

int tokenizer_from_json(struct tokenizer **out, const void *json, size_t size, const char *name,
                        struct error *err)
{
    struct sections s = {NOT_SEEN, NOT_SEEN, NOT_SEEN, NOT_SEEN, NOT_SEEN};
    struct builder *b = NULL;
    struct json_reader r;
    bool adds_bos;
    int32_t bos;
    int rc;

    *out = NULL;
    json_reader_init(&r, json, size, name);
    if ((rc = builder_new(&b, name, err)) != OK)
        goto out;
    if ((rc = read_sections(&r, b, &s, err)) != OK)
        goto out;
    if (s.model == NOT_SEEN || s.added_tokens == NOT_SEEN) {
        rc = json_error(&r, err, "%s is missing", s.model == NOT_SEEN ? "model" : "added_tokens");
        goto out;
    }
    if ((rc = read_settings(&r, &s, err)) != OK)
        goto out;
    if ((rc = read_added_tokens(&r, s.added_tokens, b, err)) != OK)
        goto out;
    if ((bos = builder_find(b, "<bos>", 5)) < 0) {
        rc = error_set(err, ERR_FORMAT, "%s: the vocabulary lacks <bos>", name);
        goto out;
    }
    if ((rc = read_post_processor(&r, s.post_processor, bos, &adds_bos, err)) != OK)
        goto out;
    rc = builder_finish(b, bos, adds_bos, out, err);
out:
    builder_free(b);
    return rc;
}
