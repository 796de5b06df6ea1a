/* routes.h - the table of routes: which paths and methods there are and what they are answered by.
 * What is true of all routes is checked here: path, method, Accept, Content-Type. */
#pragma once
#include "service/http.h"
#include "service/service.h"

/* An http_handler for a service that stays as long as the server runs. */
struct http_handler routes_handler(struct service *s);
