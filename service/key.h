/* key.h - a result's key: HMAC-SHA-256 over everything that decides it, in base32.
 *
 * The key is the job's id too. It is an HMAC, so that ids in logs or in Redis cannot be matched by
 * hashing guessed prompts; the tenant is part of it, as a cache shared between tenants tells one
 * what the other asked. Bytes in, bytes hashed: no Unicode normalisation. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jobs/job.h"

enum { KEY_SECRET_MIN = 16, KEY_SECRET_MAX = 1024, KEY_LENGTH = JOB_ID_SIZE - 4 };

struct key_secret {
    size_t len;
    uint8_t bytes[KEY_SECRET_MAX];
};
/* The file's bytes without one newline at their end. ERR_IO; ERR_INPUT: too short or too long. */
int key_secret_load(struct key_secret *out, const char *path, struct error *err);

struct key_parts {
    const char *tenant;     /* or "global" */
    const char *model;      /* its id: answers name it */
    const char *weights;    /* digest */
    const char *compute;    /* what matrix products compute in */
    const char *tokenizer;  /* digest */
    const char *output;     /* level */
    const int *layers;      /* [n_layers], all written out */
    int n_layers;           /* 0 where the level has none */
    const char *modalities; /* "" where the level has none */
    const char *dtype;
    int token_limit;
    const char *prompt; /* stripped */
    size_t prompt_len;  /* bytes */
};
int key_make(char out[JOB_ID_SIZE], const struct key_secret *secret, const struct key_parts *parts,
             struct error *err);
/* A key nobody can ask for again. */
int key_make_random(char out[JOB_ID_SIZE], struct error *err);

/* Whether these bytes have a key's form. */
bool key_is_good(const char *text, size_t len);
