/* digest.c - see digest.h. Threads take tensors as they come; SHA-256 is GnuTLS's. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "engine/files/digest.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/files/digest_cache.h"

enum {
    SHA256_BYTES = 32,
    MAX_THREADS = 64,
    FILES_TEXT_MAX = 1 << 19,
    SETTINGS_MAX = 4096,
    /* a file system's clock may stand still for so long: a file written within it may be written
     * again without a trace */
    CLOCK_NS = 2000000000
};

int digest_bytes(char out[MODEL_DIGEST_SIZE], const void *data, size_t size, struct error *err)
{
    unsigned char sum[SHA256_BYTES];

    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, data, size, sum) != 0)
        return error_set(err, ERR_IO, "digest: GnuTLS cannot hash");
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
    return OK;
}

struct job {
    const struct tensor *const *tensors;
    size_t n;
    uint8_t (*sums)[SHA256_BYTES]; /* [n] */
    _Atomic size_t next;
    _Atomic bool failed;
};

static void *hash_tensors(void *arg)
{
    struct job *j = arg;
    size_t i;

    while ((i = atomic_fetch_add(&j->next, 1)) < j->n)
        if (gnutls_hash_fast(GNUTLS_DIG_SHA256, j->tensors[i]->data, j->tensors[i]->bytes,
                             j->sums[i]) != 0)
            atomic_store(&j->failed, true);
    return NULL;
}

/* The sums of all tensors; the caller's thread works too. A thread that cannot be started is done
 * without. */
static void hash_all(struct job *j, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int n = 0;

    while (n < n_threads - 1 && n < MAX_THREADS &&
           pthread_create(&threads[n], NULL, hash_tensors, j) == 0)
        n++;
    hash_tensors(j);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static int hash_list(const struct job *j, const char *settings, uint8_t sum[SHA256_BYTES])
{
    gnutls_hash_hd_t hash;
    char text[512];
    int rc;

    if ((rc = gnutls_hash_init(&hash, GNUTLS_DIG_SHA256)) != 0)
        return rc;
    for (size_t i = 0; i < j->n && rc == 0; i++) {
        const struct tensor *t = j->tensors[i];
        int len = snprintf(text, sizeof(text), "%s %s ", dtype_info(t->type)->name,
                           tensor_shape_text(t->n_dims, t->shape).text);
        /* the name's NUL parts it from what follows */
        if ((rc = gnutls_hash(hash, t->name, strlen(t->name) + 1)) == 0 &&
            (rc = gnutls_hash(hash, text, (size_t)len)) == 0)
            rc = gnutls_hash(hash, j->sums[i], SHA256_BYTES);
    }
    if (rc == 0)
        rc = gnutls_hash(hash, settings, strlen(settings));
    gnutls_hash_deinit(hash, sum);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static bool is_among(const struct tensor *t, const struct digest_addition *more)
{
    for (size_t i = 0; more != NULL && i < more->n; i++)
        if (strcmp(more->tensors[i].name, t->name) == 0)
            return true;
    return false;
}

/* What is no tensor and yet in results: settings, and the versions that answers tell. */
static int describe_settings(struct buf *out, const struct model_file *m,
                             const struct digest_addition *more, struct error *err)
{
    const char *version;
    int rc;

    if ((rc = buf_printf(out, err, "%s\n", gemma_config_text(model_file_config(m)).text)) != OK ||
        more == NULL)
        return rc;
    version = ltx_checkpoint_model_version(more->checkpoint);
    return buf_printf(out, err, "%s, version %s\n",
                      ltx_config_text(ltx_checkpoint_config(more->checkpoint)).text,
                      version != NULL ? version : "not given");
}

int model_file_digest(const struct model_file *m, const struct digest_addition *more, int n_threads,
                      char digest[MODEL_DIGEST_SIZE], struct error *err)
{
    size_t max = model_file_n_tensors(m) + (more != NULL ? more->n : 0);
    const struct tensor **tensors = calloc(max + 1, sizeof(*tensors));
    struct job j = {.tensors = tensors, .sums = calloc(max + 1, sizeof(*j.sums))};
    struct buf settings = {.max = SETTINGS_MAX};
    uint8_t sum[SHA256_BYTES];
    int rc = OK;

    if (tensors == NULL || j.sums == NULL) {
        rc = error_set(err, ERR_MEM, "digest: no memory for %zu tensors", max);
        goto out;
    }
    for (size_t i = 0; i < model_file_n_tensors(m); i++)
        if (!is_among(model_file_tensor_at(m, i), more))
            tensors[j.n++] = model_file_tensor_at(m, i);
    for (size_t i = 0; more != NULL && i < more->n; i++)
        tensors[j.n++] = &more->tensors[i];
    qsort(tensors, j.n, sizeof(*tensors), compare_names);
    if ((rc = describe_settings(&settings, m, more, err)) != OK)
        goto out;
    hash_all(&j, n_threads);
    if (atomic_load(&j.failed) || hash_list(&j, settings.data, sum) != 0) {
        rc = error_set(err, ERR_IO, "digest: GnuTLS cannot hash");
        goto out;
    }
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(digest + 2 * i, 3, "%02x", sum[i]);
out:
    buf_free(&settings);
    free(tensors);
    free(j.sums);
    return rc;
}

/* One file's line: where it lies, and which writing of it is there. */
static int describe_file(struct buf *out, char real[PATH_MAX], int64_t *newest_ns, const char *path,
                         const struct file_identity *opened, struct error *err)
{
    struct file_identity id;
    int rc;

    if (opened != NULL)
        id = *opened;
    else if ((rc = file_identify(&id, path, err)) != OK)
        return rc;
    if (realpath(path, real) == NULL)
        return error_set(err, ERR_IO, "%s: no such path", path);
    if (id.changed_ns > *newest_ns)
        *newest_ns = id.changed_ns;
    return buf_printf(out, err, "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 "\n",
                      real, id.device, id.inode, id.size, id.modified_ns, id.changed_ns);
}

/* What the digest is of: a line for each file, and the settings. `place`
 * becomes the paths of the model and of those. `as_opened`: what is open here, else what lies there
 * now. *newest_ns is when one of them was written last. */
static int describe_files(struct buf *out, struct buf *place, int64_t *newest_ns,
                          const struct model_file *m, const struct digest_addition *more,
                          bool as_opened, struct error *err)
{
    const struct ltx_checkpoint *ltx = more != NULL ? more->checkpoint : NULL;
    char path[PATH_MAX], real[PATH_MAX];
    int rc;

    *newest_ns = 0;
    for (size_t i = 0; i < model_file_n_sources(m); i++) {
        struct file_identity id;
        if ((rc = model_file_source_at(m, i, path, sizeof(path), &id, err)) != OK ||
            (rc = describe_file(out, real, newest_ns, path, as_opened ? &id : NULL, err)) != OK ||
            (i == 0 && (rc = buf_append(place, real, strlen(real), err)) != OK))
            return rc;
    }
    for (int i = 0; ltx != NULL && i < ltx_checkpoint_n_files(ltx); i++)
        if ((rc = describe_file(out, real, newest_ns, ltx_checkpoint_path_at(ltx, i),
                                as_opened ? ltx_checkpoint_identity_at(ltx, i) : NULL, err)) !=
                OK ||
            (rc = buf_printf(place, err, "\n%s", real)) != OK)
            return rc;
    return describe_settings(out, m, more, err);
}

int model_file_cached_digest(const struct model_file *m, const struct digest_addition *more,
                             int n_threads, char digest[MODEL_DIGEST_SIZE], struct error *err)
{
    struct buf opened = {.max = FILES_TEXT_MAX}, now = {.max = FILES_TEXT_MAX};
    struct buf place = {.max = FILES_TEXT_MAX}, same_place = {.max = FILES_TEXT_MAX};
    struct timespec clock;
    int64_t newest_ns, start_ns;
    bool known;
    int rc = OK;

    clock_gettime(CLOCK_REALTIME, &clock);
    start_ns = (int64_t)clock.tv_sec * 1000000000 + clock.tv_nsec;
    known = describe_files(&opened, &place, &newest_ns, m, more, true, NULL) == OK;
    if (known && digest_cache_find(place.data, opened.data, digest))
        goto out;
    if ((rc = model_file_digest(m, more, n_threads, digest, err)) != OK)
        goto out;
    /* what was written to meanwhile has no digest that could be kept */
    if (known && start_ns - newest_ns > CLOCK_NS &&
        describe_files(&now, &same_place, &newest_ns, m, more, false, NULL) == OK &&
        strcmp(now.data, opened.data) == 0)
        digest_cache_keep(place.data, opened.data, digest);
out:
    buf_free(&opened);
    buf_free(&now);
    buf_free(&place);
    buf_free(&same_place);
    return rc;
}
