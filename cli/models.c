/* models.c - prompt-encoder models: the model cards in a queue's Redis, and how to remove one.
 *
 * A card outlives its engines, so that the queue takes work while there are none. One that nobody
 * will serve again has to be removed by hand, and requests for it are refused from then on. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "cli/commands.h"
#include "jobs/card.h"
#include "jobs/queue.h"
#include "jobs/redis.h"

enum { DIGITS = 12 }; /* of a digest, as it is shown */

struct settings {
    const char *redis_queue, *remove, *weights, *compute;
    int64_t redis_timeout_ms;
    bool force;
};

#define FIELD(name) offsetof(struct settings, name)
static const struct option options[] = {
    {"redis-queue", 0, "PE_REDIS_QUEUE", OPT_TEXT, FIELD(redis_queue), "redis://127.0.0.1:6379", 0,
     0, "URL", "Redis of the jobs"},
    {"redis-timeout-ms", 0, "PE_REDIS_TIMEOUT_MS", OPT_INT, FIELD(redis_timeout_ms), "2000", 10,
     60000, "N", "for one command"},
    {"remove", 0, NULL, OPT_TEXT, FIELD(remove), NULL, 0, 0, "ID", "removes this model's card"},
    {"weights", 0, NULL, OPT_TEXT, FIELD(weights), NULL, 0, 0, "PREFIX",
     "which card of the model: how its weights' digest begins"},
    {"compute", 0, NULL, OPT_TEXT, FIELD(compute), NULL, 0, 0, "float32|bfloat16|float8",
     "which card of the model: what it computes in"},
    {"force", 0, NULL, OPT_BOOL, FIELD(force), "0", 0, 0, "",
     "removes a live card too; its engines bring it back"},
    {0},
};

static const struct program program = {
    .name = "prompt-encoder models",
    .usage = "[options]",
    .about = "Lists the models that a queue takes work for: id, weights, what they are computed "
             "in, what\n"
             "comes of them, engines, and what waits. With --remove a model's card goes: no more "
             "work is taken for\n"
             "it.",
    .options = options,
};

/* Q's clock, which the cards' times are of. */
static int read_clock(struct redis *redis, int64_t *now_ms, struct error *err)
{
    redisReply *reply;
    int rc;

    if ((rc = redis_commandf(redis, &reply, err, "TIME")) != OK)
        return rc;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2)
        *now_ms = strtoll(reply->element[0]->str, NULL, 10) * 1000 +
                  strtoll(reply->element[1]->str, NULL, 10) / 1000;
    else
        rc = error_set(err, ERR_FORMAT, "redis at %s does not tell the time", redis_address(redis));
    freeReplyObject(reply);
    return rc;
}

/* "live", or for how long nobody has seen an engine of it. */
static void write_age(char *out, size_t cap, const struct model_card *card, int64_t now_ms)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"d", 86400000}, {"h", 3600000}, {"min", 60000}, {"s", 1000}};
    int64_t age_ms = now_ms - card->seen_ms;
    size_t i = 0;

    while (i < 3 && age_ms < 2 * units[i].ms)
        i++;
    if (card->is_live)
        snprintf(out, cap, "live");
    else
        snprintf(out, cap, "seen %" PRId64 " %s ago", age_ms / units[i].ms, units[i].name);
}

/* "49 states of 3840, video 4096, audio 2048" */
static void write_outputs(char *out, size_t cap, const struct model_card *card)
{
    char states[48] = "", video[32] = "", audio[32] = "";

    if (card->has_hidden_states)
        snprintf(states, sizeof(states), "%d states of %d", card->n_states, card->width);
    if (card->video_width > 0)
        snprintf(video, sizeof(video), "%svideo %d", states[0] != '\0' ? ", " : "",
                 card->video_width);
    if (card->audio_width > 0)
        snprintf(audio, sizeof(audio), ", audio %d", card->audio_width);
    snprintf(out, cap, "%s%s%s", states, video, audio);
}

static int read_depth(struct queue_depth *out, const struct settings *s,
                      const struct model_card *card, struct error *err)
{
    char base[QUEUE_BASE_SIZE];
    struct queue *queue = NULL;
    int rc;

    queue_base(base, card->id, card->weights, card->compute);
    if ((rc = queue_open(&queue, s->redis_queue, base, (int)s->redis_timeout_ms, err)) == OK)
        rc = queue_depth(queue, out, err);
    queue_close(queue);
    return rc;
}

static int list(const struct settings *s, const struct model_card *cards, size_t n, int64_t now_ms,
                struct error *err)
{
    int width = (int)strlen("MODEL"), outputs_width = (int)strlen("OUTPUTS");
    char outputs[128];
    int rc;

    if (n == 0) {
        printf("no models: no engine has registered one\n");
        return OK;
    }
    for (size_t i = 0; i < n; i++) {
        if ((int)strlen(cards[i].id) > width)
            width = (int)strlen(cards[i].id);
        write_outputs(outputs, sizeof(outputs), &cards[i]);
        if ((int)strlen(outputs) > outputs_width)
            outputs_width = (int)strlen(outputs);
    }
    printf("%-*s  %-*s  %-8s  %-*s  %-16s  %7s  %s\n", width, "MODEL", DIGITS, "WEIGHTS", "COMPUTE",
           outputs_width, "OUTPUTS", "SEEN", "ENGINES", "JOBS");
    for (size_t i = 0; i < n; i++) {
        struct queue_depth depth;
        char age[64];
        if ((rc = read_depth(&depth, s, &cards[i], err)) != OK)
            return rc;
        write_age(age, sizeof(age), &cards[i], now_ms);
        write_outputs(outputs, sizeof(outputs), &cards[i]);
        printf("%-*s  %.*s  %-8s  %-*s  %-16s  %7" PRId64 "  ", width, cards[i].id, DIGITS,
               cards[i].weights, cards[i].compute, outputs_width, outputs, age, depth.engines);
        printf("%" PRId64 " waiting (%" PRId64 " tokens), %" PRId64 " delayed, %" PRId64
               " running, %" PRId64 " dead\n",
               depth.waiting, depth.waiting_tokens, depth.delayed, depth.leased, depth.dead);
    }
    return OK;
}

static bool is_meant(const struct settings *s, const struct model_card *card)
{
    return strcmp(card->id, s->remove) == 0 &&
           (s->weights == NULL || strncmp(card->weights, s->weights, strlen(s->weights)) == 0) &&
           (s->compute == NULL || strcmp(card->compute, s->compute) == 0);
}

/* "a b c": what was asked for, as a sentence names it. */
static void write_wish(char *out, size_t cap, const struct settings *s)
{
    snprintf(out, cap, "'%.80s'%s%.80s%s%.40s", s->remove,
             s->weights != NULL ? " with weights " : "", s->weights != NULL ? s->weights : "",
             s->compute != NULL ? " in " : "", s->compute != NULL ? s->compute : "");
}

/* The one card that is meant. */
static int choose(const struct model_card **out, const struct settings *s,
                  const struct model_card *cards, size_t n, struct error *err)
{
    struct buf found = {.max = 16384};
    size_t n_found = 0;
    char wish[256];
    int rc = OK;

    for (size_t i = 0; i < n && rc == OK; i++)
        if (is_meant(s, &cards[i])) {
            rc = buf_printf(&found, err, "%s%.*s %s", n_found++ > 0 ? ", " : "", DIGITS,
                            cards[i].weights, cards[i].compute);
            *out = &cards[i];
        }
    write_wish(wish, sizeof(wish), s);
    if (rc == OK && n_found == 0)
        rc = error_set(err, ERR_INPUT, "there is no card of %s", wish);
    else if (rc == OK && n_found > 1)
        rc = error_set(err, ERR_INPUT,
                       "there are %zu cards of %s: %s; say which with --weights and --compute",
                       n_found, wish, found.data);
    buf_free(&found);
    return rc;
}

static int remove_card(const struct settings *s, struct redis *redis,
                       const struct model_card *cards, size_t n, struct error *err)
{
    const struct model_card *card = NULL;
    struct queue_depth depth;
    bool removed;
    int rc;

    if ((rc = choose(&card, s, cards, n, err)) != OK)
        return rc;
    if (card->is_live && !s->force)
        return error_set(err, ERR_INPUT,
                         "%s %.*s %s is live: its engines would bring it back; stop them first, or "
                         "say --force",
                         card->id, DIGITS, card->weights, card->compute);
    if ((rc = read_depth(&depth, s, card, err)) != OK ||
        (rc = card_remove(redis, card->id, card->weights, card->compute, &removed, err)) != OK)
        return rc;
    if (!removed)
        return error_set(err, ERR_INPUT, "%s %.*s %s was removed by somebody else just now",
                         card->id, DIGITS, card->weights, card->compute);
    printf("removed %s %s %s\n", card->id, card->weights, card->compute);
    if (depth.waiting + depth.delayed > 0)
        printf("jobs left in its queue, for an engine that comes back: %" PRId64 "\n",
               depth.waiting + depth.delayed);
    return OK;
}

int command_models(int argc, char **argv, struct error *err)
{
    struct settings settings = {0};
    struct model_card *cards = NULL;
    struct redis *redis = NULL;
    char left_out[1024];
    int64_t now_ms = 0;
    size_t n;
    bool help;
    int n_rest, rc;

    if ((rc = options_parse(&program, &settings, argc, argv, &n_rest, &help, err)) != OK)
        return rc;
    if (help) {
        options_help(&program, stdout);
        return OK;
    }
    if (n_rest > 0)
        return error_set(err, ERR_INPUT, "unknown argument '%s'", argv[1]);
    if (settings.remove == NULL &&
        (settings.weights != NULL || settings.compute != NULL || settings.force))
        return error_set(err, ERR_INPUT, "--weights, --compute and --force go with --remove ID");
    if ((cards = calloc(CARD_MAX, sizeof(*cards))) == NULL)
        return error_set(err, ERR_MEM, "models: no memory");
    if ((rc = redis_open(&redis, settings.redis_queue, (int)settings.redis_timeout_ms, err)) !=
            OK ||
        (rc = card_list(redis, cards, CARD_MAX, &n, left_out, sizeof(left_out), err)) != OK ||
        (rc = read_clock(redis, &now_ms, err)) != OK)
        goto out;
    if (left_out[0] != '\0')
        fprintf(stderr, "left out: %s\n", left_out);
    rc = settings.remove != NULL ? remove_card(&settings, redis, cards, n, err)
                                 : list(&settings, cards, n, now_ms, err);
out:
    redis_close(redis);
    free(cards);
    return rc;
}
