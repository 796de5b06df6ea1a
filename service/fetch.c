#include "service/fetch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "service/counters.h"

enum {
    READ_AHEAD = 4, /* pieces */
    N_BUCKETS = 1024
};

enum result_state { RESULT_OPENING, RESULT_OPEN, RESULT_ABSENT };

struct result {
    struct fetch *fetch;
    struct result *next; /* in its bucket; guarded, as all that follows, by fetch->lock */
    bool listed;
    char id[JOB_ID_SIZE];
    int refs;
    enum result_state state;
    struct error why;           /* of RESULT_ABSENT: code OK when it simply is not there */
    struct cache_header header; /* written before RESULT_OPEN, then constant */
    size_t n_pieces;
    struct buf *pieces; /* [n_pieces]; data NULL: not in memory */
    bool broken;
    struct result_reader *readers; /* that wait */
    size_t wanted_from, wanted_to; /* pieces */
    bool loading;                  /* `task` was given to the pool */
    struct io_task task;
};

struct fetch {
    struct io_pool *pool;
    int64_t max_held_bytes;
    pthread_mutex_t lock; /* guards the table and the results in it; never held across I/O */
    pthread_cond_t opened;
    struct result *buckets[N_BUCKETS];
};

/* Keys are HMACs: any of their characters will do. */
static struct result **bucket_of(struct fetch *f, const char *id)
{
    uint32_t hash = 0;

    for (int i = 0; i < 8 && id[i] != '\0'; i++)
        hash = hash * 31 + (unsigned char)id[i];
    return &f->buckets[hash % N_BUCKETS];
}

static void unlist(struct result *r)
{
    struct result **at = bucket_of(r->fetch, r->id);

    if (!r->listed)
        return;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->listed = false;
}

static void drop_piece(struct result *r, size_t i)
{
    count(C_BYTES_HELD, -(int)r->pieces[i].len);
    buf_free(&r->pieces[i]);
}

void result_hold(struct result *r)
{
    pthread_mutex_lock(&r->fetch->lock);
    r->refs++;
    pthread_mutex_unlock(&r->fetch->lock);
}

void result_release(struct result *r)
{
    struct fetch *f;
    bool last;

    if (r == NULL)
        return;
    f = r->fetch;
    pthread_mutex_lock(&f->lock);
    if ((last = --r->refs == 0))
        unlist(r);
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    for (size_t i = 0; i < r->n_pieces; i++)
        drop_piece(r, i);
    free(r->pieces);
    free(r);
}

const struct cache_header *result_header(const struct result *r)
{
    return &r->header;
}

/* ---- opening ---- */

/* What a cache says of a result is not believed before it adds up. */
static bool header_adds_up(const struct cache_header *h)
{
    size_t bytes = 0;

    if (h->n_tensors < 1 || h->n_tensors > CACHE_MAX_TENSORS)
        return false;
    for (int i = 0; i < h->n_tensors; i++) {
        if (h->tensors[i].n_dims < 1 || h->tensors[i].n_dims > CACHE_MAX_DIMS ||
            h->tensors[i].bytes > h->bytes - bytes)
            return false;
        bytes += h->tensors[i].bytes;
    }
    return bytes == h->bytes && bytes > 0;
}

static void count_piece(const struct buf *piece, int64_t start_ns)
{
    count(C_PIECES, 1);
    count(C_PIECE_BYTES, (int)piece->len);
    count(C_BYTES_HELD, (int)piece->len);
    metric_observe(&counters[C_FETCH_SECONDS], clock_ms_since(start_ns) / 1e3);
}

static int load_piece(struct result *r, struct io *io, size_t index, struct buf *out, bool *found,
                      struct error *err)
{
    int64_t start_ns = clock_now_ns();
    bool damaged = false;
    int rc;

    *found = false;
    *out = (struct buf){.max = CACHE_PIECE};
    rc = cache_get_piece(io_cache(io), r->id, &r->header, index, out, found, &damaged, err);
    if (damaged)
        count(C_DAMAGED, 1);
    if (rc != OK)
        io_cache_failed(io, err);
    if (rc != OK || !*found) {
        buf_free(out);
        return rc; /* gone or damaged: a damaged one was deleted, and what replaced it is good */
    }
    count_piece(out, start_ns);
    return OK;
}

/* Header and first piece; *found tells whether they are there. */
static int load_begin(struct result *r, struct io *io, bool *found, struct error *err)
{
    struct buf piece = {.max = CACHE_PIECE};
    int64_t start_ns = clock_now_ns();
    bool damaged = false;
    int rc;

    *found = false;
    rc = cache_get_begin(io_cache(io), r->id, &r->header, &piece, found, &damaged, err);
    if (rc == OK && *found && !header_adds_up(&r->header)) {
        *found = false;
        damaged = true;
        rc = cache_delete(io_cache(io), r->id, err);
    }
    if (damaged)
        count(C_DAMAGED, 1);
    if (rc != OK)
        io_cache_failed(io, err);
    if (rc == OK && *found &&
        (r->pieces = calloc(cache_n_pieces(&r->header), sizeof(*r->pieces))) == NULL)
        rc = error_set(err, ERR_MEM, "fetch: no memory for the pieces of a result");
    if (rc != OK || !*found) {
        buf_free(&piece);
        return rc;
    }
    r->n_pieces = cache_n_pieces(&r->header);
    r->pieces[0] = piece; /* handed over */
    count(C_FETCHES, 1);
    count_piece(&piece, start_ns);
    return OK;
}

static void run_load(struct io *io, void *arg);

/* With the lock held: the listed result of that key, or a new one to be opened (*mine). */
static struct result *find_or_add(struct fetch *f, const char *id, bool *mine)
{
    struct result **bucket = bucket_of(f, id), *r = *bucket;

    *mine = false;
    while (r != NULL && strcmp(r->id, id) != 0)
        r = r->next;
    if (r != NULL) {
        r->refs++;
        return r;
    }
    if ((r = calloc(1, sizeof(*r))) == NULL)
        return NULL;
    r->fetch = f;
    r->refs = 1;
    memcpy(r->id, id, strnlen(id, JOB_ID_SIZE - 1));
    r->task = (struct io_task){.run = run_load, .arg = r};
    r->listed = true;
    r->next = *bucket;
    *bucket = r;
    *mine = true;
    return r;
}

int fetch_open(struct result **out, struct fetch *f, struct io *io, const char *id,
               struct error *err)
{
    struct result *r;
    bool mine, found = false;
    int rc = OK;

    *out = NULL;
    pthread_mutex_lock(&f->lock);
    if ((r = find_or_add(f, id, &mine)) == NULL) {
        pthread_mutex_unlock(&f->lock);
        return error_set(err, ERR_MEM, "fetch: no memory for a result");
    }
    if (mine) {
        struct error why = {0};
        pthread_mutex_unlock(&f->lock);
        rc = load_begin(r, io, &found, &why);
        pthread_mutex_lock(&f->lock);
        r->why = why;
        r->state = found && rc == OK ? RESULT_OPEN : RESULT_ABSENT;
        if (r->state == RESULT_ABSENT)
            unlist(r);
        pthread_cond_broadcast(&f->opened);
    }
    while (r->state == RESULT_OPENING)
        pthread_cond_wait(&f->opened, &f->lock);
    found = r->state == RESULT_OPEN && !r->broken;
    pthread_mutex_unlock(&f->lock);
    if (found) {
        *out = r;
        return OK;
    }
    rc = r->why.code == OK ? OK : error_set(err, r->why.code, "%s", r->why.text);
    result_release(r);
    return rc;
}

void fetch_forget(struct fetch *f, const char *id)
{
    struct result *r;

    pthread_mutex_lock(&f->lock);
    r = *bucket_of(f, id);
    while (r != NULL && strcmp(r->id, id) != 0)
        r = r->next;
    if (r != NULL) /* one that is being opened may have been read already */
        unlist(r);
    pthread_mutex_unlock(&f->lock);
}

bool fetch_is_full(const struct fetch *f)
{
    return metric_value(&counters[C_BYTES_HELD]) > f->max_held_bytes;
}

/* ---- reading ---- */

/* With the lock held: takes out the readers, who are told without it. */
static struct result_reader *take_readers(struct result *r)
{
    struct result_reader *list = r->readers;

    r->readers = NULL;
    return list;
}

/* With the lock held: the next piece to fetch, first of all one that is waited for; n_pieces: none.
 */
static size_t next_wanted(const struct result *r)
{
    for (const struct result_reader *reader = r->readers; reader != NULL; reader = reader->next)
        if (r->pieces[reader->piece].data == NULL)
            return reader->piece;
    for (size_t i = r->wanted_from; i < r->wanted_to; i++)
        if (r->pieces[i].data == NULL)
            return i;
    return r->n_pieces;
}

/* The task: fetches what is wanted, piece after piece. It holds the result. */
static void run_load(struct io *io, void *arg)
{
    struct result *r = arg;
    struct fetch *f = r->fetch;

    for (;;) {
        struct result_reader *readers, *next;
        struct error err = {0};
        struct buf piece;
        bool found;
        size_t i;

        pthread_mutex_lock(&f->lock);
        i = r->broken ? r->n_pieces : next_wanted(r);
        if (i == r->n_pieces)
            r->loading = false;
        pthread_mutex_unlock(&f->lock);
        if (i == r->n_pieces)
            break;
        if (load_piece(r, io, i, &piece, &found, &err) != OK)
            found = false;
        pthread_mutex_lock(&f->lock);
        if (found) {
            r->pieces[i] = piece;
        } else {
            r->broken = true;
            unlist(r);
        }
        readers = take_readers(r);
        pthread_mutex_unlock(&f->lock);
        for (; readers != NULL; readers = next) {
            next = readers->next; /* a reader that was told may be gone */
            readers->wake(readers->arg);
        }
    }
    result_release(r);
}

/* With the lock held: pieces from `from` on are wanted. True: the task must be given to the pool.
 */
static bool want(struct result *r, size_t from)
{
    size_t ahead = fetch_is_full(r->fetch) ? 1 : READ_AHEAD;

    r->wanted_from = from;
    r->wanted_to = r->n_pieces - from < ahead ? r->n_pieces : from + ahead;
    if (r->loading || r->broken || next_wanted(r) == r->n_pieces)
        return false;
    r->loading = true;
    r->refs++;
    return true;
}

long result_read(struct result *r, struct result_reader *reader, size_t offset,
                 const uint8_t **data)
{
    size_t index = offset / CACHE_PIECE, inside = offset % CACHE_PIECE;
    struct fetch *f = r->fetch;
    bool load;
    long n = 0;

    if (offset >= r->header.bytes)
        return -1;
    pthread_mutex_lock(&f->lock);
    /* the piece before stays: a base64 group may begin in it */
    if (r->refs == 1 + r->loading)
        for (size_t i = 0; i + 1 < index; i++)
            if (r->pieces[i].data != NULL)
                drop_piece(r, i);
    if (r->pieces[index].data != NULL && inside < r->pieces[index].len) {
        *data = (const uint8_t *)r->pieces[index].data + inside;
        n = (long)(r->pieces[index].len - inside);
    } else if (r->broken) {
        n = -1;
    } else if (reader != NULL) {
        reader->piece = index;
        reader->next = r->readers;
        r->readers = reader;
    }
    load = want(r, index);
    pthread_mutex_unlock(&f->lock);
    if (load)
        io_pool_run(f->pool, &r->task);
    return n;
}

int fetch_start(struct fetch **out, struct io_pool *pool, int64_t max_held_bytes, struct error *err)
{
    struct fetch *f = calloc(1, sizeof(*f));

    *out = NULL;
    if (f == NULL)
        return error_set(err, ERR_MEM, "fetch: no memory");
    f->pool = pool;
    f->max_held_bytes = max_held_bytes;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->opened, NULL);
    *out = f;
    return OK;
}

void fetch_stop(struct fetch *f)
{
    if (f == NULL)
        return;
    pthread_cond_destroy(&f->opened);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
