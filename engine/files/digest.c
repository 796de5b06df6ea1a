/* digest.c - see digest.h. Threads take tensors as they come; SHA-256 is GnuTLS's. */
#include "engine/files/digest.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHA256_BYTES = 32, MAX_THREADS = 64 };

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
    if (rc == 0 && settings != NULL)
        rc = gnutls_hash(hash, settings, strlen(settings));
    gnutls_hash_deinit(hash, sum);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    const struct tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

int model_file_digest_with(const struct model_file *m, const struct tensor *more, size_t n_more,
                           const char *settings, int n_threads, char digest[MODEL_DIGEST_SIZE],
                           struct error *err)
{
    size_t n_model = model_file_n_tensors(m), n = n_model + n_more;
    const struct tensor **tensors = calloc(n + 1, sizeof(*tensors));
    struct job j = {.n = n, .sums = calloc(n + 1, sizeof(*j.sums))};
    uint8_t sum[SHA256_BYTES];
    int rc = OK;

    if (tensors == NULL || j.sums == NULL) {
        rc = error_set(err, ERR_MEM, "digest: no memory for %zu tensors", n);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        tensors[i] = i < n_model ? model_file_tensor_at(m, i) : &more[i - n_model];
    qsort(tensors, n, sizeof(*tensors), compare_names);
    j.tensors = tensors;
    hash_all(&j, n_threads);
    if (atomic_load(&j.failed) || hash_list(&j, settings, sum) != 0) {
        rc = error_set(err, ERR_IO, "digest: GnuTLS cannot hash");
        goto out;
    }
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(digest + 2 * i, 3, "%02x", sum[i]);
out:
    free(tensors);
    free(j.sums);
    return rc;
}

int model_file_digest(const struct model_file *m, int n_threads, char digest[MODEL_DIGEST_SIZE],
                      struct error *err)
{
    return model_file_digest_with(m, NULL, 0, NULL, n_threads, digest, err);
}
