#include "service/key.h"

#include <stdio.h>

#include "tests/check.h"

enum { N_PARTS = 13 };

static struct error err;
static const int layers[] = {0, 12};
static const struct key_secret secret = {.len = 20, .bytes = "twenty secret bytes."};
static const struct key_parts base = {
    .tenant = "tenant",
    .model = "model",
    .weights = "weights",
    .compute = "compute",
    .tokenizer = "tokenizer",
    .output = "hidden_states",
    .layers = layers,
    .n_layers = 2,
    .modalities = "",
    .dtype = "bfloat16",
    .token_limit = 1024,
    .prompt = "a red fox",
    .prompt_len = 9,
};

static void one_key_is_known(void)
{
    char key[JOB_ID_SIZE];

    /* python3: hmac.new(secret, b"".join(struct.pack("<Q", len(p)) + p for p in parts), sha256) */
    CHECK_OK(key_make(key, &secret, &base, &err));
    CHECK_TEXT(key, "j4ani7przbg55dtw6oesvtw67hx3oltytyubslsyrulvd7yeg2na");
    CHECK(key_is_good(key, strlen(key)));
}

static void every_part_counts(void)
{
    static const int other_layers[] = {12, 0};
    struct key_parts parts[N_PARTS + 1];
    struct key_secret other = secret;
    char keys[N_PARTS + 2][JOB_ID_SIZE];

    for (int i = 0; i <= N_PARTS; i++)
        parts[i] = base;
    parts[1].tenant = "tenan";
    parts[2].model = "tmodel"; /* the t of the tenant: lengths keep them apart */
    parts[3].weights = "other";
    parts[4].compute = "other";
    parts[5].tokenizer = "other";
    parts[6].output = "features";
    parts[7].layers = other_layers;
    parts[8].n_layers = 1;
    parts[9].modalities = "video";
    parts[10].dtype = "float16";
    parts[11].token_limit = 512;
    parts[12].prompt = "a red foX";
    parts[13].prompt_len = 8;
    for (int i = 0; i <= N_PARTS; i++)
        CHECK_OK(key_make(keys[i], &secret, &parts[i], &err));
    other.bytes[0] ^= 1;
    CHECK_OK(key_make(keys[N_PARTS + 1], &other, &base, &err));
    for (int i = 0; i < N_PARTS + 2; i++)
        for (int k = 0; k < i; k++)
            CHECK(strcmp(keys[i], keys[k]) != 0);
}

static void forms(void)
{
    char a[JOB_ID_SIZE], b[JOB_ID_SIZE];

    CHECK_OK(key_make_random(a, &err));
    CHECK_OK(key_make_random(b, &err));
    CHECK(strcmp(a, b) != 0);
    CHECK(key_is_good(a, strlen(a)));
    CHECK(!key_is_good(a, 51));
    a[3] = '1';
    CHECK(!key_is_good(a, 52));
    a[3] = 'A';
    CHECK(!key_is_good(a, 52));
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void secret_files(void)
{
    static const char path[] = PE_SCRATCH_DIR "/key-secret";
    struct key_secret s;

    write_file(path, "sixteen bytes...\n");
    CHECK_OK(key_secret_load(&s, path, &err));
    CHECK_INT(s.len, 16);
    write_file(path, "fifteen bytes..\n");
    CHECK_ERR(key_secret_load(&s, path, &err), ERR_INPUT, "this has 15");
    CHECK_ERR(key_secret_load(&s, "/no/such/file", &err), ERR_IO, "/no/such/file");
}

int main(void)
{
    RUN(one_key_is_known);
    RUN(every_part_counts);
    RUN(forms);
    RUN(secret_files);
    return check_result();
}
