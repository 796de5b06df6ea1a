/* from_vocab.c - a tokenizer from pieces with scores, as GGUF files carry them.
 *
 * Such a vocabulary has no merges, but it was made from the same pieces, and so the merges follow:
 * every cut of a normal piece into two normal pieces is one, the highest-scoring piece first and
 * for one piece the shortest left part first. For Gemma 3's vocabulary that gives the 513511 merges
 * of its tokenizer.json in the same order, so the ids are the same for every text, not only for
 * those that a test knows. (SentencePiece itself breaks ties between two cuts of one piece by
 * place; tokenizer.json breaks them by that order, and LTX-2 reads tokenizer.json.)
 *
 * Runs of spaces are the exception. They are user-defined pieces, whose U+2581 llama.cpp's
 * converter writes as spaces; but in tokenizer.json only the literal U+2581 is an added token, and
 * spaces are joined, before anything else, the longest left part first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "tokenizer/builder.h"

#define META_LEN (sizeof(META) - 1)
#define MAX_RUN  (LEXICON_MAX_PIECE / META_LEN) /* spaces */

/* A piece in the order of joining. */
struct scored {
    float score;
    int32_t id;
};

/* Spaces in a piece that is nothing but spaces, in either form; 0: it is something else. */
static size_t run_length(const char *text, size_t len)
{
    size_t n = 0, at = 0;

    while (at < len) {
        if (text[at] == ' ')
            at++;
        else if (len - at >= META_LEN && memcmp(text + at, META, META_LEN) == 0)
            at += META_LEN;
        else
            return 0;
        n++;
    }
    return n;
}

/* Adds the user-defined run of `n` spaces as tokenizer.json has it. */
static int add_run(struct builder *b, int32_t id, size_t n, struct error *err)
{
    char text[MAX_RUN * META_LEN];

    for (size_t i = 0; i < n; i++)
        memcpy(text + i * META_LEN, META, META_LEN);
    return builder_add(b, id, text, n * META_LEN, PIECE_JOINS | PIECE_ADDED, err);
}

static int add_pieces(struct builder *b, const struct tokenizer_vocab *v, int32_t runs[],
                      const char *name, struct error *err)
{
    int rc = OK;

    for (size_t i = 0; i < v->n_pieces && rc == OK; i++) {
        size_t n = run_length(v->text[i], v->len[i]);
        unsigned may = 0;

        switch (v->kinds[i]) {
        case PIECE_NORMAL:
            if (isnan(v->scores[i]))
                return error_set(err, ERR_FORMAT, "%s: the score of piece %zu is not a number",
                                 name, i);
            may = PIECE_JOINS;
            if (n == 1)
                runs[1] = (int32_t)i;
            break;
        case PIECE_USER_DEFINED:
            may = PIECE_ADDED;
            if (n < 2)
                break;
            if (n > MAX_RUN)
                return error_set(err, ERR_FORMAT, "%s: piece %zu is %zu spaces, at most %zu", name,
                                 i, n, MAX_RUN);
            runs[n] = (int32_t)i;
            if ((rc = add_run(b, (int32_t)i, n, err)) != OK)
                return rc;
            continue;
        case PIECE_UNKNOWN:
        case PIECE_CONTROL:
            may = PIECE_ADDED;
            break;
        case PIECE_UNUSED:
        case PIECE_BYTE:
            break;
        default:
            return error_set(err, ERR_FORMAT, "%s: piece %zu is of kind %d, kinds are 1 to 6", name,
                             i, (int)v->kinds[i]);
        }
        rc = builder_add(b, (int64_t)i, v->text[i], v->len[i], may, err);
    }
    return rc;
}

static int pair_runs(struct builder *b, const int32_t runs[], struct error *err)
{
    int rc;

    for (size_t left = MAX_RUN; left > 0; left--)
        for (size_t right = MAX_RUN - left; right > 0; right--)
            if (runs[left] >= 0 && runs[right] >= 0 && runs[left + right] >= 0 &&
                (rc = builder_pair(b, runs[left], runs[right], err)) != OK)
                return rc;
    return OK;
}

static int compare_scored(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int pair_normal(struct builder *b, const struct tokenizer_vocab *v, const char *name,
                       struct error *err)
{
    struct scored *order = NULL;
    size_t size, n = 0;
    int rc = OK;

    if (!size_mul(&size, v->n_pieces, sizeof(*order)) || (order = malloc(size + 1)) == NULL)
        return error_set(err, ERR_MEM, "%s: no memory to sort %zu pieces", name, v->n_pieces);
    for (size_t i = 0; i < v->n_pieces; i++)
        if (v->kinds[i] == PIECE_NORMAL)
            order[n++] = (struct scored){v->scores[i], (int32_t)i};
    qsort(order, n, sizeof(*order), compare_scored);
    for (size_t i = 0; i < n && rc == OK; i++)
        rc = builder_pair_splits(b, order[i].id, err);
    free(order);
    return rc;
}

int tokenizer_from_vocab(struct tokenizer **out, const struct tokenizer_vocab *vocab,
                         const char *name, struct error *err)
{
    int32_t runs[MAX_RUN + 1]; /* the ids of runs of so many spaces */
    struct builder *b = NULL;
    int rc;

    *out = NULL;
    for (size_t i = 0; i <= MAX_RUN; i++)
        runs[i] = -1;
    if (vocab->n_pieces > LEXICON_MAX_IDS)
        return error_set(err, ERR_FORMAT, "%s: %zu pieces, at most %zu", name, vocab->n_pieces,
                         LEXICON_MAX_IDS);
    if ((rc = builder_new(&b, name, err)) != OK)
        goto out;
    if ((rc = add_pieces(b, vocab, runs, name, err)) != OK)
        goto out;
    if ((rc = pair_runs(b, runs, err)) != OK)
        goto out;
    if ((rc = pair_normal(b, vocab, name, err)) != OK)
        goto out;
    rc = builder_finish(b, vocab->bos_id, vocab->add_bos, out, err);
out:
    builder_free(b);
    return rc;
}
