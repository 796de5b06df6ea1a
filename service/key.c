#include "service/key.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

#define SCHEMA "prompt-encoder key 2"

enum { DIGEST_BYTES = 32 };

/* RFC 4648 in lower case, without padding: 52 characters, a to z and 2 to 7. */
static void base32(char out[JOB_ID_SIZE], const uint8_t digest[DIGEST_BYTES])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
    unsigned bits = 0, n_bits = 0;
    size_t n = 0;

    for (int i = 0; i < DIGEST_BYTES; i++) {
        bits = (bits << 8 | digest[i]) & 0xffff;
        for (n_bits += 8; n_bits >= 5; n_bits -= 5)
            out[n++] = alphabet[bits >> (n_bits - 5) & 31];
    }
    if (n_bits > 0)
        out[n++] = alphabet[bits << (5 - n_bits) & 31];
    out[n] = '\0';
}

int key_secret_load(struct key_secret *out, const char *path, struct error *err)
{
    struct file_map map;
    size_t len;
    int rc;

    *out = (struct key_secret){0};
    if ((rc = file_map_open(&map, path, err)) != OK)
        return rc;
    len = map.size;
    if (len > 0 && map.data[len - 1] == '\n')
        len--;
    if (len < KEY_SECRET_MIN || len > KEY_SECRET_MAX) {
        rc = error_set(err, ERR_INPUT, "%s: a key secret has %d to %d bytes, this has %zu", path,
                       KEY_SECRET_MIN, KEY_SECRET_MAX, len);
    } else {
        memcpy(out->bytes, map.data, len);
        out->len = len;
    }
    file_map_close(&map);
    return rc;
}

/* Each part behind its length, so that no two lists of parts run into the same bytes. */
static int add_part(gnutls_hmac_hd_t mac, const void *data, size_t len)
{
    uint8_t prefix[8];

    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)((uint64_t)len >> (8 * i));
    if (gnutls_hmac(mac, prefix, sizeof(prefix)) != 0)
        return -1;
    return len == 0 ? 0 : gnutls_hmac(mac, data, len);
}

static int add_text(gnutls_hmac_hd_t mac, const char *text)
{
    return add_part(mac, text, strlen(text));
}

int key_make(char out[JOB_ID_SIZE], const struct key_secret *secret, const struct key_parts *parts,
             struct error *err)
{
    uint8_t digest[DIGEST_BYTES];
    struct buf numbers = {.max = 4096};
    gnutls_hmac_hd_t mac = NULL;
    int failed, rc = OK;

    out[0] = '\0';
    for (int i = 0; i < parts->n_layers && rc == OK; i++)
        rc = buf_printf(&numbers, err, "%d,", parts->layers[i]);
    if (rc != OK || (rc = buf_printf(&numbers, err, ";%d", parts->token_limit)) != OK)
        goto out;
    if (gnutls_hmac_init(&mac, GNUTLS_MAC_SHA256, secret->bytes, secret->len) != 0) {
        rc = error_set(err, ERR_MEM, "key: GnuTLS gives no HMAC-SHA-256");
        goto out;
    }
    failed = add_text(mac, SCHEMA) != 0 || add_text(mac, parts->tenant) != 0 ||
             add_text(mac, parts->model) != 0 || add_text(mac, parts->weights) != 0 ||
             add_text(mac, parts->compute) != 0 || add_text(mac, parts->tokenizer) != 0 ||
             add_text(mac, parts->output) != 0 || add_text(mac, parts->modalities) != 0 ||
             add_text(mac, parts->dtype) != 0 || add_part(mac, numbers.data, numbers.len) != 0 ||
             add_part(mac, parts->prompt, parts->prompt_len) != 0;
    gnutls_hmac_deinit(mac, digest);
    if (failed)
        rc = error_set(err, ERR_MEM, "key: GnuTLS failed");
    else
        base32(out, digest);
out:
    buf_free(&numbers);
    return rc;
}

int key_make_random(char out[JOB_ID_SIZE], struct error *err)
{
    uint8_t bytes[DIGEST_BYTES];

    out[0] = '\0';
    if (gnutls_rnd(GNUTLS_RND_NONCE, bytes, sizeof(bytes)) != 0)
        return error_set(err, ERR_IO, "key: no random bytes");
    base32(out, bytes);
    return OK;
}

bool key_is_good(const char *text, size_t len)
{
    if (len != KEY_LENGTH)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!((text[i] >= 'a' && text[i] <= 'z') || (text[i] >= '2' && text[i] <= '7')))
            return false;
    return true;
}
