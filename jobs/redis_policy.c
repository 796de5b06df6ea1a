#include "jobs/redis_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/redis.h"

/* Copies a setting's value; what does not fit was not read. */
static void copy(char *out, size_t cap, const char *text, size_t len)
{
    out[0] = '\0';
    if (len < cap)
        snprintf(out, cap, "%.*s", (int)len, text);
}

static int64_t number(const char *text, size_t len)
{
    char copy_of[24], *end;
    long long n;

    copy(copy_of, sizeof(copy_of), text, len);
    n = strtoll(copy_of, &end, 10);
    return end == copy_of || *end != '\0' || n < 0 ? -1 : (int64_t)n;
}

static void keep(struct redis_policy *p, const char *name, size_t name_len, const char *text,
                 size_t len)
{
#define IS(word) (name_len == sizeof(word) - 1 && memcmp(name, word, name_len) == 0)
    if (IS("maxmemory-policy") || IS("maxmemory_policy"))
        copy(p->maxmemory_policy, sizeof(p->maxmemory_policy), text, len);
    else if (IS("appendonly"))
        copy(p->appendonly, sizeof(p->appendonly), text, len);
    else if (IS("aof_enabled"))
        snprintf(p->appendonly, sizeof(p->appendonly), "%s",
                 len == 1 && text[0] == '1' ? "yes" : "no");
    else if (IS("appendfsync"))
        copy(p->appendfsync, sizeof(p->appendfsync), text, len);
    else if (IS("maxmemory"))
        p->maxmemory = number(text, len);
    else if (IS("redis_version"))
        p->version = (int)number(text, strcspn(text, ".\r"));
#undef IS
}

/* Asks, and takes a refusal for "cannot be read". */
static int ask(struct redis *r, redisReply **out, int argc, const char **argv, struct error *err)
{
    struct error mine = {0};

    if (redis_command(r, out, argc, argv, NULL, &mine) == OK || mine.code == ERR_INPUT)
        return OK;
    return error_set(err, mine.code, "%s", mine.text);
}

static int read_config(struct redis_policy *p, struct redis *r, const char *setting,
                       struct error *err)
{
    const char *argv[] = {"CONFIG", "GET", setting};
    redisReply *reply;
    int rc;

    if ((rc = ask(r, &reply, 3, argv, err)) != OK || reply == NULL)
        return rc;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        reply->element[0]->type == REDIS_REPLY_STRING &&
        reply->element[1]->type == REDIS_REPLY_STRING)
        keep(p, reply->element[0]->str, reply->element[0]->len, reply->element[1]->str,
             reply->element[1]->len);
    freeReplyObject(reply);
    return OK;
}

static int read_info(struct redis_policy *p, struct redis *r, const char *section,
                     struct error *err)
{
    const char *argv[] = {"INFO", section};
    redisReply *reply;
    int rc;

    if ((rc = ask(r, &reply, 2, argv, err)) != OK || reply == NULL)
        return rc;
    /* lines of name:value */
    for (const char *line = reply->type == REDIS_REPLY_STRING ? reply->str : ""; *line != '\0';) {
        size_t len = strcspn(line, "\r\n"), name_len = strcspn(line, ":\r\n");

        if (name_len < len)
            keep(p, line, name_len, line + name_len + 1, len - name_len - 1);
        line += len;
        line += strspn(line, "\r\n");
    }
    freeReplyObject(reply);
    return OK;
}

int redis_policy_read(struct redis_policy *out, struct redis *r, struct error *err)
{
    static const char *const sections[] = {"server", "memory", "persistence"};
    static const char *const settings[] = {"maxmemory-policy", "maxmemory", "appendonly",
                                           "appendfsync"};
    int rc = OK;

    *out = (struct redis_policy){.maxmemory = -1, .version = -1};
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]) && rc == OK; i++)
        rc = read_info(out, r, sections[i], err);
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]) && rc == OK; i++)
        rc = read_config(out, r, settings[i], err);
    return rc;
}

int redis_policy_object(const struct redis *r, const char *role, const char *setting,
                        const char *is, const char *needs, const char *set, bool assumed,
                        char *warning, size_t warning_cap, struct error *err)
{
    if (is[0] != '\0')
        return error_set(err, ERR_FORMAT, "redis at %s: %s is %s, a %s needs %s: CONFIG SET %s %s",
                         redis_address(r), setting, is, role, needs, setting, set);
    if (!assumed)
        return error_set(err, ERR_FORMAT,
                         "redis at %s: %s cannot be read (CONFIG is refused, INFO is silent), a %s "
                         "needs %s: allow CONFIG GET, or say --redis-durability=assumed",
                         redis_address(r), setting, role, needs);
    if (warning != NULL && warning[0] == '\0')
        snprintf(warning, warning_cap, "redis at %s: %s cannot be read, %s is assumed",
                 redis_address(r), setting, needs);
    return OK;
}
