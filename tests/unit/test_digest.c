/* The digest of a model's weights, and when an old one may stand for it. */
#include "engine/files/digest.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/files/digest_cache.h"
#include "engine/ltx/ltx_weights.h"
#include "tests/check.h"
#include "tests/safetensors_edit.h"

#define CACHE  PE_SCRATCH_DIR "/digest-cache"
#define FOLDER PE_SCRATCH_DIR "/digest-model"
#define FILES  "/model 1 2 3 4 5\n"

static struct error err;

static const char *const one = "1111111111111111111111111111111111111111111111111111111111111111";
static const char *const two = "2222222222222222222222222222222222222222222222222222222222222222";

/* The shell is at hand for what C has no call for. */
static void shell(const char *command)
{
    if (system(command) != 0)
        CHECK_FAIL("%s", command);
}

static void empty_cache(void)
{
    shell("rm -rf " CACHE);
}

static void copy_model(void)
{
    shell("rm -rf " FOLDER " && cp -r " PE_TESTS_DIR "/golden/gemma3-tiny " FOLDER);
}

/* Past the time within which a file may be written again without a trace. */
static void wait_for_the_clock(void)
{
    const struct timespec t = {2, 100000000};

    nanosleep(&t, NULL);
}

static void digest_of(char digest[MODEL_DIGEST_SIZE], const char *path, bool cached)
{
    struct model_file *m;

    CHECK_OK(model_file_open(&m, path, &err));
    if (cached)
        CHECK_OK(model_file_cached_digest(m, NULL, 2, digest, &err));
    else
        CHECK_OK(model_file_digest(m, NULL, 2, digest, &err));
    model_file_close(m);
}

/* The only file in the cache's folder. */
static void entry_path(char out[1024])
{
    FILE *f = popen("echo " CACHE "/prompt-encoder/*.digest", "r");

    CHECK(f != NULL && fgets(out, 1024, f) != NULL);
    pclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static bool has_entry(void)
{
    char path[1024];

    entry_path(path);
    return file_exists(path);
}

/* ---- the cache ---- */

static void what_was_kept_is_found(void)
{
    char got[DIGEST_CACHE_SIZE];

    empty_cache();
    CHECK(!digest_cache_find("/model", FILES, got));
    digest_cache_keep("/model", FILES, one);
    CHECK(digest_cache_find("/model", FILES, got));
    CHECK_TEXT(got, one);
    CHECK(!digest_cache_find("/other", FILES, got));
    CHECK(!digest_cache_find("/model", "/model 1 2 3 4 6\n", got));
    CHECK(!digest_cache_find("/model", FILES FILES, got));
    CHECK(!digest_cache_find("/model", "", got));
    digest_cache_keep("/model", FILES, two); /* takes its place */
    CHECK(digest_cache_find("/model", FILES, got));
    CHECK_TEXT(got, two);
}

static void a_damaged_one_is_none(void)
{
    struct buf entry = {.max = 4096};
    char path[1024], got[DIGEST_CACHE_SIZE], cut[4096];

    empty_cache();
    digest_cache_keep("/model", FILES, one);
    entry_path(path);
    CHECK_OK(file_read(&entry, path, &err));
    for (size_t i = 0; i < entry.len; i++) {
        entry.data[i] ^= 1;
        CHECK_OK(file_write_text(path, entry.data, &err));
        CHECK(!digest_cache_find("/model", FILES, got));
        entry.data[i] ^= 1;
        memcpy(cut, entry.data, i);
        cut[i] = '\0';
        CHECK_OK(file_write_text(path, cut, &err));
        CHECK(!digest_cache_find("/model", FILES, got));
    }
    CHECK_OK(file_write_text(path, entry.data, &err));
    CHECK(digest_cache_find("/model", FILES, got));
    buf_free(&entry);
}

/* ---- models ---- */

static void it_is_that_of_a_fresh_hash(void)
{
    char fresh[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];

    empty_cache();
    copy_model();
    digest_of(fresh, FOLDER, false);
    digest_of(got, FOLDER, true);
    CHECK_TEXT(got, fresh);
    CHECK(!has_entry()); /* it may be written to without a trace */
    wait_for_the_clock();
    digest_of(got, FOLDER, true);
    CHECK_TEXT(got, fresh);
    CHECK(has_entry());
    digest_of(got, FOLDER, true);
    CHECK_TEXT(got, fresh);
}

static void a_known_one_costs_no_reading(void)
{
    char want[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];
    struct model_file *m;

    copy_model();
    wait_for_the_clock();
    digest_of(want, FOLDER, true);
    CHECK_OK(model_file_open(&m, FOLDER, &err));
    CHECK(truncate(FOLDER "/model.safetensors", 0) == 0); /* whoever reads it now gets SIGBUS */
    CHECK_OK(model_file_cached_digest(m, NULL, 1, got, &err));
    CHECK_TEXT(got, want);
    model_file_close(m);
}

static void a_changed_file_is_hashed_anew(void)
{
    char first[MODEL_DIGEST_SIZE], fresh[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];
    FILE *f;

    copy_model();
    wait_for_the_clock();
    digest_of(first, FOLDER, true);
    /* the same size, and a time of writing set back to what it was */
    shell("touch -r " FOLDER "/model.safetensors " PE_SCRATCH_DIR "/digest-time");
    CHECK((f = fopen(FOLDER "/model.safetensors", "r+b")) != NULL);
    CHECK(fseek(f, -1, SEEK_END) == 0 && fputc(0x3f, f) != EOF && fclose(f) == 0);
    shell("touch -r " PE_SCRATCH_DIR "/digest-time " FOLDER "/model.safetensors");
    digest_of(fresh, FOLDER, false);
    CHECK(strcmp(fresh, first) != 0);
    digest_of(got, FOLDER, true);
    CHECK_TEXT(got, fresh);
    /* another file of the same bytes as the first has the first's digest */
    copy_model();
    digest_of(got, FOLDER, true);
    CHECK_TEXT(got, first);
}

static void without_a_folder_it_is_hashed(void)
{
    char fresh[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];

    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    digest_of(fresh, PE_TESTS_DIR "/golden/gemma3-tiny", false);
    digest_of(got, PE_TESTS_DIR "/golden/gemma3-tiny", true);
    CHECK_TEXT(got, fresh);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    digest_of(got, PE_TESTS_DIR "/golden/gemma3-tiny", true);
    CHECK_TEXT(got, fresh);
}

/* A model that is one file is remembered by that file. */
static void a_packed_model_is_remembered(void)
{
    static const char packed[] = PE_SCRATCH_DIR "/digest-packed.safetensors";
    char want[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];
    struct model_file *m;

    empty_cache();
    shell("cp " PE_TESTS_DIR "/golden/gemma4-tiny-te-single-file.safetensors " PE_SCRATCH_DIR
          "/digest-packed.safetensors");
    wait_for_the_clock();
    digest_of(want, packed, true);
    CHECK(has_entry());
    CHECK_OK(model_file_open(&m, packed, &err));
    CHECK(truncate(packed, 0) == 0);
    CHECK_OK(model_file_cached_digest(m, NULL, 1, got, &err));
    CHECK_TEXT(got, want);
    model_file_close(m);
}

/* The same tensors compute other numbers under other settings. */
static void settings_are_part_of_it(void)
{
    static const char *const edits[] = {
        "s/\"rope_theta\": 1000000/\"rope_theta\": 500000/",
        "s/\"factor\": 8.0/\"factor\": 4.0/",
        "s/\"rope_local_base_freq\": 10000/\"rope_local_base_freq\": 10001/",
        "s/\"sliding_window\": 32/\"sliding_window\": 33/",
        "s/\"sliding_window_pattern\": 6/\"sliding_window_pattern\": 5/",
        "s/\"query_pre_attn_scalar\": 48/\"query_pre_attn_scalar\": 64/",
        "s/\"rms_norm_eps\": 1e-06/\"rms_norm_eps\": 1e-05/",
        "s/\"model_type\": \"gemma3\"/\"gemma_version\": \"x\", \"model_type\": \"gemma3\"/"};
    enum { N = sizeof(edits) / sizeof(edits[0]) };
    char digests[N + 1][MODEL_DIGEST_SIZE], fresh[MODEL_DIGEST_SIZE], command[4096];

    empty_cache();
    copy_model();
    wait_for_the_clock();
    digest_of(digests[N], FOLDER, true);
    for (int i = 0; i < N; i++) { /* the weights' file stays the one that is remembered */
        snprintf(command, sizeof(command),
                 "sed '%s' " PE_TESTS_DIR "/golden/gemma3-tiny/config.json > " FOLDER
                 "/config.json",
                 edits[i]);
        shell(command);
        digest_of(digests[i], FOLDER, true);
        digest_of(fresh, FOLDER, false);
        CHECK_TEXT(digests[i], fresh);
        CHECK(strcmp(digests[i], digests[N]) != 0);
        for (int k = 0; k < i; k++)
            CHECK(strcmp(digests[i], digests[k]) != 0);
    }
    /* what decides nothing is no part of it */
    shell("sed 's/\"use_cache\": true/\"use_cache\": false/' " PE_TESTS_DIR
          "/golden/gemma3-tiny/config.json > " FOLDER "/config.json");
    digest_of(fresh, FOLDER, true);
    CHECK_TEXT(fresh, digests[N]);
}

/* ---- with an LTX checkpoint ---- */

#define LTX PE_SCRATCH_DIR "/digest-ltx.safetensors"

/* The model's digest with the tensors of a checkpoint; NULL: without. */
static void digest_with(char digest[MODEL_DIGEST_SIZE], const char *ltx, bool cached)
{
    struct digest_addition more = {0};
    struct ltx_checkpoint *checkpoint = NULL;
    struct tensor *tensors = NULL;
    struct model_file *m;

    CHECK_OK(model_file_open(&m, FOLDER, &err));
    if (ltx != NULL) {
        CHECK_OK(ltx_checkpoint_open(&checkpoint, &ltx, 1, &err));
        CHECK_OK(ltx_weights_find(checkpoint, 8, 128, &tensors, &more.n, &err));
        more.checkpoint = checkpoint;
        more.tensors = tensors;
    }
    if (cached)
        CHECK_OK(model_file_cached_digest(m, ltx != NULL ? &more : NULL, 2, digest, &err));
    else
        CHECK_OK(model_file_digest(m, ltx != NULL ? &more : NULL, 2, digest, &err));
    free(tensors);
    ltx_checkpoint_close(checkpoint);
    model_file_close(m);
}

/* The model alone, with one checkpoint and with another: none is taken for another, whichever was
 * kept last. */
static void a_checkpoint_is_part_of_it(void)
{
    static const char *const with[] = {NULL, LTX, PE_TESTS_DIR "/golden/ltx-tiny-v1.safetensors"};
    char fresh[3][MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE];

    empty_cache();
    copy_model();
    shell("cp " PE_TESTS_DIR "/golden/ltx-tiny-v2.safetensors " LTX);
    wait_for_the_clock();
    for (int i = 0; i < 3; i++)
        digest_with(fresh[i], with[i], false);
    CHECK(strcmp(fresh[0], fresh[1]) != 0 && strcmp(fresh[0], fresh[2]) != 0 &&
          strcmp(fresh[1], fresh[2]) != 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            digest_with(got, with[i], true);
            CHECK_TEXT(got, fresh[i]);
        }
    shell("test $(ls " CACHE "/prompt-encoder/*.digest | wc -l) = 3"); /* all are kept */
}

static void a_changed_checkpoint_is_hashed_anew(void)
{
    char first[MODEL_DIGEST_SIZE], got[MODEL_DIGEST_SIZE], fresh[MODEL_DIGEST_SIZE];
    struct edit f;
    size_t n;

    digest_with(first, LTX, true);
    edit_load(&f, LTX);
    edit_floats(&f, "text_embedding_projection.audio_aggregate_embed.bias", &n)[0] += 1.0f;
    edit_write(&f, LTX, 0);
    digest_with(fresh, LTX, false);
    digest_with(got, LTX, true);
    CHECK_TEXT(got, fresh);
    CHECK(strcmp(got, first) != 0);
    /* what answers tell of it is part of it, too */
    edit_set_metadata(&f, "model_version", "2.3.1");
    edit_write(&f, LTX, 0);
    edit_free(&f);
    digest_with(got, LTX, true);
    CHECK(strcmp(got, fresh) != 0);
}

int main(void)
{
    setenv("XDG_CACHE_HOME", CACHE, 1);
    RUN(what_was_kept_is_found);
    RUN(a_damaged_one_is_none);
    RUN(it_is_that_of_a_fresh_hash);
    RUN(a_known_one_costs_no_reading);
    RUN(a_changed_file_is_hashed_anew);
    RUN(a_packed_model_is_remembered);
    RUN(settings_are_part_of_it);
    RUN(a_checkpoint_is_part_of_it);
    RUN(a_changed_checkpoint_is_hashed_anew);
    RUN(without_a_folder_it_is_hashed);
    return check_result();
}
