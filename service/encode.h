/* encode.h - POST /v1/encode and POST /v1/tokenize: from a body to a ticket, or to ids.
 *
 * All that can be wrong with a request is found here, before anything is queued: names, layers,
 * lengths, and the size of what would come back, which the model's card tells. */
#pragma once
#include "jobs/card.h"
#include "service/http.h"
#include "service/request.h"
#include "service/service.h"

/* Of a request that names none: as far as the model goes. */
enum request_output encode_default_output(const struct model_card *card);

void encode_handle(const struct service *s, struct exchange *x);
void tokenize_handle(const struct service *s, struct exchange *x);
