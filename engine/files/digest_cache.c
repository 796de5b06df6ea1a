/* digest_cache.c - see digest_cache.h.
 *
 * A model's digest is one small file, named by the SHA-256 of the model's path: a head with the
 * version, the files' text, the digest, and the SHA-256 of all before it, so that a damaged one is
 * known as such. It appears under its name as a whole. */
#include "engine/files/digest_cache.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "engine/files/digest.h"

#define HEAD "prompt-encoder weights digest 1\n"

enum { NAME_DIGITS = 32, ENTRY_MAX = 1 << 20 };

_Static_assert((int)DIGEST_CACHE_SIZE == (int)MODEL_DIGEST_SIZE, "it keeps what is made there");

static int folder_of(char out[PATH_MAX], struct error *err)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (base != NULL && base[0] == '/')
        return file_join(out, PATH_MAX, base, "prompt-encoder", err);
    if (home != NULL && home[0] == '/')
        return file_join(out, PATH_MAX, home, ".cache/prompt-encoder", err);
    return error_set(err, ERR_IO, "digest: no home directory to keep digests in");
}

static int path_of(char out[PATH_MAX], const char *folder, const char *model, struct error *err)
{
    char sum[DIGEST_CACHE_SIZE], name[NAME_DIGITS + 16];
    int rc;

    if ((rc = digest_bytes(sum, model, strlen(model), err)) != OK)
        return rc;
    snprintf(name, sizeof(name), "%.*s.digest", NAME_DIGITS, sum);
    return file_join(out, PATH_MAX, folder, name, err);
}

/* What a sound entry of these files and this digest is. */
static int write_entry(struct buf *out, const char *files, const char *digest, struct error *err)
{
    char sum[DIGEST_CACHE_SIZE];
    int rc;

    if ((rc = buf_printf(out, err, HEAD "%s%s\n", files, digest)) != OK ||
        (rc = digest_bytes(sum, out->data, out->len, err)) != OK)
        return rc;
    return buf_printf(out, err, "%s\n", sum);
}

bool digest_cache_find(const char *model, const char *files, char digest[DIGEST_CACHE_SIZE])
{
    struct buf found = {.max = ENTRY_MAX}, want = {.max = ENTRY_MAX};
    char folder[PATH_MAX], path[PATH_MAX];
    size_t at = strlen(HEAD) + strlen(files);
    struct error err = {0};
    bool sound = false;

    if (folder_of(folder, &err) != OK || path_of(path, folder, model, &err) != OK ||
        file_read(&found, path, &err) != OK)
        goto out;
    if (found.len <= at + DIGEST_CACHE_SIZE)
        goto out; /* of other files, or cut short */
    memcpy(digest, found.data + at, DIGEST_CACHE_SIZE - 1);
    digest[DIGEST_CACHE_SIZE - 1] = '\0';
    if (write_entry(&want, files, digest, &err) == OK)
        sound = want.len == found.len && memcmp(want.data, found.data, want.len) == 0;
out:
    if (err.code != OK)
        log_debug("digest_not_cached", "text=\"%s\"", err.text);
    buf_free(&found);
    buf_free(&want);
    return sound;
}

void digest_cache_keep(const char *model, const char *files, const char *digest)
{
    struct buf entry = {.max = ENTRY_MAX};
    char folder[PATH_MAX], path[PATH_MAX];
    struct error err = {0};

    if (folder_of(folder, &err) != OK || file_make_folder(folder, &err) != OK ||
        path_of(path, folder, model, &err) != OK ||
        write_entry(&entry, files, digest, &err) != OK ||
        file_write_text(path, entry.data, &err) != OK)
        log_debug("digest_not_kept", "text=\"%s\"", err.text);
    buf_free(&entry);
}
