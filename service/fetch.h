/* fetch.h - results on their way from the cache to whoever waits: fetched once, shared by all.
 *
 * A result is opened by its key: header and first piece are there then, checked. Later pieces are
 * fetched by the pool while the earlier ones are being sent, a few ahead. All who open a key while
 * somebody holds it share one result and its memory; a sole reader leaves nothing behind itself, so
 * a large answer takes a few pieces of memory, not its size. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/cache.h"
#include "service/io.h"

struct fetch;
struct result;

int fetch_start(struct fetch **out, struct io_pool *pool, int64_t max_held_bytes,
                struct error *err);
void fetch_stop(struct fetch *f); /* after the pool stopped and all results were released */

/* From a task. On success *out is NULL when there is no such result (or it was damaged and is
 * deleted now); else the caller holds it. Who asks while another thread opens the same key waits
 * for that thread. */
int fetch_open(struct result **out, struct fetch *f, struct io *io, const char *id,
               struct error *err);
/* Whoever opens this key from now on does not get what is in memory, or on its way there. */
void fetch_forget(struct fetch *f, const char *id);
/* Over its budget: no new answers should begin. */
bool fetch_is_full(const struct fetch *f);

void result_hold(struct result *r);
void result_release(struct result *r); /* NULL is fine */
const struct cache_header *result_header(const struct result *r);

/* Told once, from a task, when something changed for the piece it waits for; the memory of both
 * must stay until then. */
struct result_reader {
    void (*wake)(void *arg);
    void *arg;
    struct result_reader *next; /* private, as is the piece it waits for */
    size_t piece;
};
/* Bytes from `offset` on: *data and their number; 0: not there yet, and `reader` (unless NULL)
 * will be told; -1: this result is broken (lost or damaged in the cache). Never blocks. */
long result_read(struct result *r, struct result_reader *reader, size_t offset,
                 const uint8_t **data);
