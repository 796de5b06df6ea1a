/* gguf.h - one GGUF file: typed metadata and tensors.
 *
 * Versions 2 and 3, little-endian (ggml, docs/gguf.md). Opening checks every count, length, offset
 * and type against the bytes that are there; afterwards nothing can be out of bounds. Tensors whose
 * kind only has a name here (IQ2_XS ...) are listed, so that a file can be inspected; a kind that
 * is unknown altogether is refused.
 * Never changes after opening: share one among any number of threads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "engine/files/tensor.h"

struct gguf;

/* On success *out belongs to the caller (gguf_close). On failure *out is NULL.
 * ERR_IO: cannot read `path`. ERR_FORMAT: it breaks the format; the sentence says where. */
int gguf_open(struct gguf **out, const char *path, struct error *err);
/* The same over bytes that the caller keeps until the close. `name` stands for them in messages. */
int gguf_parse(struct gguf **out, const void *data, size_t size, const char *name,
               struct error *err);
void gguf_close(struct gguf *g); /* NULL is fine */

/* Whether the bytes begin as a GGUF file does; says nothing about the rest. */
bool gguf_recognise(const void *data, size_t size);

const char *gguf_name(const struct gguf *g); /* the last part of its path */
const struct file_identity *gguf_identity(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g); /* 2 or 3 */

size_t gguf_n_tensors(const struct gguf *g);
const struct tensor *gguf_tensor_at(const struct gguf *g, size_t i); /* in the file's order */
/* NULL when there is none of that name. */
const struct tensor *gguf_find(const struct gguf *g, const char *name);

enum gguf_type { /* the numbers of the format (enum gguf_metadata_value_type) */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STRING,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64
};

struct gguf_text {
    const char *data; /* not NUL-terminated; any bytes */
    size_t len;
};

/* The elements of an array lie one after another at any alignment: use the functions below. */
struct gguf_array {
    enum gguf_type type; /* never GGUF_ARRAY */
    size_t n;
    const uint8_t *data;
};

bool gguf_has(const struct gguf *g, const char *key);

/* A value of the wanted kind: any integer that is not negative; any float or integer; a bool; a
 * text; an array whose elements are `type`.
 * ERR_FORMAT: there is no such key, or it holds something else; the sentence says what. */
int gguf_get_size(const struct gguf *g, const char *key, uint64_t *out, struct error *err);
int gguf_get_number(const struct gguf *g, const char *key, double *out, struct error *err);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *err);
int gguf_get_text(const struct gguf *g, const char *key, struct gguf_text *out, struct error *err);
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type,
                   struct gguf_array *out, struct error *err);
/* GGUF_ARRAY for an array of any kind; false when there is no such key. */
bool gguf_type_of(const struct gguf *g, const char *key, enum gguf_type *out);

/* Element `i` of an array of F32, I32 or BOOL. */
float gguf_array_f32(const struct gguf_array *a, size_t i);
int32_t gguf_array_i32(const struct gguf_array *a, size_t i);
bool gguf_array_bool(const struct gguf_array *a, size_t i);
/* The next text of an array of STRING: `at` starts as a->data and is moved on. Call it a->n times.
 */
struct gguf_text gguf_array_next_text(const uint8_t **at);

/* For listings: key `i` in the file's order, and its value as one line of printable text; long
 * texts and arrays are shortened. */
size_t gguf_n_keys(const struct gguf *g);
const char *gguf_key_at(const struct gguf *g, size_t i);
void gguf_value_text(const struct gguf *g, size_t i, char *out, size_t cap);
