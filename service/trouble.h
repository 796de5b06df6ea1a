/* trouble.h - our own failures as clients see them: the one place where an err_code becomes a
 * problem, and by its kind a status. The sentence goes to the log, with the request's id; clients
 * get what they can act on. */
#pragma once
#include "base/error.h"
#include "service/problem.h"

enum trouble_place { TROUBLE_QUEUE, TROUBLE_CACHE, TROUBLE_HERE };

void trouble_describe(struct problem *out, const struct error *err, enum trouble_place place,
                      const char *request_id);
