/* encode.h - POST /v1/encode and POST /v1/tokenize: from a body to a ticket, or to ids.
 *
 * All that can be wrong with a request is found here, before anything is queued: names, layers,
 * lengths, and the size of what would come back, which the model's card tells. */
#pragma once
#include "service/http.h"
#include "service/service.h"

void encode_handle(const struct service *s, struct exchange *x);
void tokenize_handle(const struct service *s, struct exchange *x);
