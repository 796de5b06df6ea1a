/* admin.h - the small listener every program has beside its work: /livez, /readyz, /metrics.
 *
 * Serves on its own thread, so that it answers while the work is stuck. Answers GET and HEAD only.
 * The callbacks run on that thread and must not block. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

struct admin;

struct admin_callbacks {
    void *arg;
    /* Whether the program works at all (200, else 503), and whether it should get work. `why` gets
     * a sentence for a person, also when all is well. */
    bool (*is_live)(void *arg, char *why, size_t cap);
    bool (*is_ready)(void *arg, char *why, size_t cap);
    int (*metrics)(void *arg, struct buf *out, struct error *err);
};

/* `address`: HOST:PORT, [IPV6]:PORT or unix:PATH; port 0 takes a free one.
 * ERR_INPUT: the address cannot be read; ERR_IO: it cannot be listened on. */
int admin_start(struct admin **out, const char *address, const struct admin_callbacks *callbacks,
                struct error *err);
void admin_stop(struct admin *a);                 /* joins its thread; NULL is fine */
const char *admin_address(const struct admin *a); /* where it really listens */
