#include "service/trouble.h"

#include "base/log.h"

static const char *const places[] = {
    [TROUBLE_QUEUE] = "queue", [TROUBLE_CACHE] = "cache", [TROUBLE_HERE] = "service"};

static enum problem_kind unavailable(enum trouble_place place)
{
    return place == TROUBLE_QUEUE   ? PROBLEM_QUEUE_UNAVAILABLE
           : place == TROUBLE_CACHE ? PROBLEM_CACHE_UNAVAILABLE
                                    : PROBLEM_OVERLOADED;
}

void trouble_describe(struct problem *out, const struct error *err, enum trouble_place place,
                      const char *request_id)
{
    switch (err->code) {
    case ERR_INPUT:
        if (place == TROUBLE_HERE) { /* the client's own data */
            problem_set(out, PROBLEM_INVALID_FIELD, "%s", err->text);
            return;
        }
        problem_set(out, unavailable(place), "the %s refused a command", places[place]);
        break;
    case ERR_SIZE:
        if (place == TROUBLE_HERE) {
            problem_set(out, PROBLEM_RESULT_TOO_LARGE, "%s", err->text);
            return;
        }
        problem_set(out, unavailable(place), "the %s answered more than it should", places[place]);
        break;
    case ERR_IO:
    case ERR_TIME:
        problem_set(out, unavailable(place), "the %s cannot be reached just now", places[place]);
        break;
    case ERR_BUSY:
        problem_set(out, unavailable(place), "the %s takes no writes just now", places[place]);
        break;
    case ERR_MEM:
        problem_set(out, unavailable(place), "the %s has no memory left", places[place]);
        break;
    case OK:
    case ERR_FORMAT:
    case ERR_GPU:
        problem_set(out, place == TROUBLE_HERE ? PROBLEM_INTERNAL : unavailable(place),
                    "the %s is not as it should be", places[place]);
        break;
    }
    out->retry_after_s = 2;
    log_error("trouble", "id=%s place=%s why=\"%s\"", request_id, places[place], err->text);
}
