/* test_options.c - one table: flags, environment, defaults, ranges, help. */
#include "base/options.h"
#include "tests/check.h"

struct settings {
    const char *name;
    int64_t count;
    bool loud;
    int colour;
    struct option_list files;
};

#define FIELD(member) offsetof(struct settings, member)
static const struct option options[] = {
    {"name", 'n', "TEST_NAME", OPT_TEXT, FIELD(name), NULL, 0, 0, "TEXT", "what it is called"},
    {"count", 0, "TEST_COUNT", OPT_INT, FIELD(count), "3", 1, 10, "N", "how many"},
    {"loud", 'l', "TEST_LOUD", OPT_BOOL, FIELD(loud), NULL, 0, 0, NULL, "say more"},
    {"colour", 0, NULL, OPT_CHOICE, FIELD(colour), "red", 0, 0, "green|red|blue", "which"},
    {"file", 'f', "TEST_FILES", OPT_LIST, FIELD(files), NULL, 0, 2, "PATH", "which files"},
    {0},
};
static const struct program program = {"tool run", "[options] FILE...", "Runs.", options};

static struct error err;
static struct settings got;
static int n_rest;
static bool help;
static char *rest[16];

/* Parses "tool" and up to 8 words. */
static int parse(const char *a, const char *b, const char *c, const char *d)
{
    const char *words[] = {"tool", a, b, c, d};
    static char copies[5][64];
    int argc = 0;

    got = (struct settings){0};
    for (int i = 0; i < 5 && words[i] != NULL; i++) {
        snprintf(copies[i], sizeof(copies[i]), "%s", words[i]);
        rest[argc++] = copies[i];
    }
    return options_parse(&program, &got, argc, rest, &n_rest, &help, &err);
}

static void defaults_hold(void)
{
    CHECK_OK(parse(NULL, NULL, NULL, NULL));
    CHECK(got.name == NULL && !got.loud);
    CHECK_INT(got.count, 3);
    CHECK_INT(got.colour, 1);
    CHECK_INT(n_rest, 0);
}

static void flags_win_over_the_environment(void)
{
    setenv("TEST_COUNT", "7", 1);
    setenv("TEST_LOUD", "1", 1);
    CHECK_OK(parse(NULL, NULL, NULL, NULL));
    CHECK_INT(got.count, 7);
    CHECK(got.loud);
    CHECK_OK(parse("--count", "5", NULL, NULL));
    CHECK_INT(got.count, 5);
    setenv("TEST_COUNT", "many", 1);
    CHECK_ERR(parse(NULL, NULL, NULL, NULL), ERR_INPUT,
              "TEST_COUNT: 'many' is not a whole number from 1 to 10");
    unsetenv("TEST_COUNT");
    unsetenv("TEST_LOUD");
}

static void every_form_of_a_flag(void)
{
    CHECK_OK(parse("--name=x=y", "--colour", "blue", "-l"));
    CHECK_TEXT(got.name, "x=y");
    CHECK_INT(got.colour, 2);
    CHECK(got.loud);
    CHECK_OK(parse("-n", "z", "file", "-"));
    CHECK_TEXT(got.name, "z");
    CHECK_INT(n_rest, 2);
    CHECK_TEXT(rest[1], "file");
    CHECK_TEXT(rest[2], "-");
    CHECK_OK(parse("a", "--", "--count", "b"));
    CHECK_INT(n_rest, 3);
    CHECK_TEXT(rest[2], "--count");
    CHECK_INT(got.count, 3);
}

static void lists_take_several(void)
{
    char large[OPTION_LIST_BYTES + 1] = {0};

    CHECK_OK(parse(NULL, NULL, NULL, NULL));
    CHECK_INT(got.files.n, 0);
    CHECK(option_list_at(&got.files, 0) == NULL);
    CHECK_OK(parse("--file", "a,b", "-f", "c"));
    CHECK_INT(got.files.n, 2);
    CHECK_TEXT(option_list_at(&got.files, 0), "a,b"); /* a flag's value is one */
    CHECK_TEXT(option_list_at(&got.files, 1), "c");
    CHECK(option_list_at(&got.files, 2) == NULL);
    setenv("TEST_FILES", "d,/e f", 1);
    CHECK_OK(parse(NULL, NULL, NULL, NULL));
    CHECK_INT(got.files.n, 2);
    CHECK_TEXT(option_list_at(&got.files, 0), "d");
    CHECK_TEXT(option_list_at(&got.files, 1), "/e f");
    CHECK_OK(parse("--file=g", NULL, NULL, NULL)); /* instead of what the environment says */
    CHECK_INT(got.files.n, 1);
    CHECK_TEXT(option_list_at(&got.files, 0), "g");
    setenv("TEST_FILES", "d,e,f", 1);
    CHECK_ERR(parse(NULL, NULL, NULL, NULL), ERR_INPUT,
              "TEST_FILES: 'f' is one too many, at most 2");
    setenv("TEST_FILES", "d,", 1);
    CHECK_ERR(parse(NULL, NULL, NULL, NULL), ERR_INPUT, "TEST_FILES: the value is empty");
    memset(large, 'x', sizeof(large) - 1);
    setenv("TEST_FILES", large, 1);
    CHECK_ERR(parse(NULL, NULL, NULL, NULL), ERR_INPUT, "TEST_FILES: longer than 8191 bytes");
    memcpy(large, "y,", 2);
    setenv("TEST_FILES", large, 1);
    CHECK_ERR(parse(NULL, NULL, NULL, NULL), ERR_INPUT, "TEST_FILES: longer than 8189 bytes");
    large[sizeof(large) - 2] = '\0'; /* just fits */
    setenv("TEST_FILES", large, 1);
    CHECK_OK(parse(NULL, NULL, NULL, NULL));
    CHECK_INT(strlen(option_list_at(&got.files, 1)), OPTION_LIST_BYTES - 3);
    unsetenv("TEST_FILES");
    CHECK_ERR(parse("-f", "a", "-fb", NULL), ERR_INPUT, "unknown flag -fb");
    CHECK_ERR(parse("--file=a", "--file=b", "--file=c", NULL), ERR_INPUT,
              "--file: 'c' is one too many, at most 2");
    CHECK_ERR(parse("--file=", NULL, NULL, NULL), ERR_INPUT, "--file: the value is empty");
}

static void what_is_wrong_is_named(void)
{
    CHECK_ERR(parse("--colours", "red", NULL, NULL), ERR_INPUT,
              "unknown flag --colours; 'tool run --help' lists them");
    CHECK_ERR(parse("-x", NULL, NULL, NULL), ERR_INPUT, "unknown flag -x");
    CHECK_ERR(parse("--colour", "pink", NULL, NULL), ERR_INPUT,
              "--colour: 'pink' is none of green|red|blue");
    CHECK_ERR(parse("--colour", "re", NULL, NULL), ERR_INPUT, "'re' is none of");
    CHECK_ERR(parse("--count", NULL, NULL, NULL), ERR_INPUT, "--count needs a value: N");
    CHECK_ERR(parse("--count", "11", NULL, NULL), ERR_INPUT, "from 1 to 10");
    CHECK_ERR(parse("--count", "0", NULL, NULL), ERR_INPUT, "from 1 to 10");
    CHECK_ERR(parse("--count", "5x", NULL, NULL), ERR_INPUT, "'5x'");
    CHECK_ERR(parse("--count", " 5", NULL, NULL), ERR_INPUT, "' 5'");
    CHECK_ERR(parse("--count", "\t5", NULL, NULL), ERR_INPUT, "whole number");
    CHECK_ERR(parse("--count", "+5", NULL, NULL), ERR_INPUT, "'+5'");
    CHECK_ERR(parse("--count", "-", NULL, NULL), ERR_INPUT, "'-'");
    CHECK_ERR(parse("--count", "", NULL, NULL), ERR_INPUT, "''");
    CHECK_ERR(parse("--count", "99999999999999999999", NULL, NULL), ERR_INPUT, "whole number");
    CHECK_ERR(parse("--loud=1", NULL, NULL, NULL), ERR_INPUT, "--loud takes no value");
    CHECK_ERR(parse("--name", "", NULL, NULL), ERR_INPUT, "--name: the value is empty");
}

static void help_shows_the_table(void)
{
    char text[4096] = {0};
    FILE *out = tmpfile();

    CHECK_OK(parse("--count", "nonsense", "--help", NULL)); /* help first, whatever else is there */
    CHECK(help);
    CHECK(out != NULL);
    options_help(&program, out);
    rewind(out);
    CHECK(fread(text, 1, sizeof(text) - 1, out) > 0);
    fclose(out);
    CHECK(strstr(text, "usage: tool run [options] FILE...") != NULL);
    CHECK(strstr(text, "-n, --name TEXT") != NULL);
    CHECK(strstr(text, "how many (1 to 10) [3] {TEST_COUNT}") != NULL);
    CHECK(strstr(text, "--colour green|red|blue") != NULL);
    CHECK(strstr(text, "which files (up to 2 times) {TEST_FILES}") != NULL);
}

static void a_name_twice_is_our_mistake(void)
{
    static const struct option doubled[] = {
        {"name", 'n', NULL, OPT_TEXT, FIELD(name), NULL, 0, 0, "TEXT", "what it is called"},
        {"number", 'n', NULL, OPT_INT, FIELD(count), "3", 1, 10, "N", "how many"},
        {0},
    };
    static const struct program wrong = {"tool run", "", "Runs.", doubled};
    char *words[] = {rest[0], NULL};

    CHECK_ERR(options_parse(&wrong, &got, 1, words, &n_rest, &help, &err), ERR_INPUT,
              "tool run: its options have a name twice");
}

static void lists_are_taken_apart(void)
{
    const char *list = "61,,abc", *long_one = "1234567,8";
    char item[8];

    CHECK(options_next_item(item, sizeof(item), &list) && strcmp(item, "61") == 0);
    CHECK(options_next_item(item, sizeof(item), &list) && item[0] == '\0');
    CHECK(options_next_item(item, sizeof(item), &list) && strcmp(item, "abc") == 0);
    CHECK(list == NULL);
    CHECK(options_next_item(item, 8, &long_one) && strcmp(item, "1234567") == 0);
    long_one = "12345678,9";
    CHECK(!options_next_item(item, 8, &long_one) && strcmp(long_one, "12345678,9") == 0);
    CHECK(strcmp(item, "1234567") == 0); /* as it was */
    list = "";
    CHECK(options_next_item(item, sizeof(item), &list) && item[0] == '\0' && list == NULL);
}

int main(void)
{
    RUN(defaults_hold);
    RUN(flags_win_over_the_environment);
    RUN(every_form_of_a_flag);
    RUN(lists_take_several);
    RUN(what_is_wrong_is_named);
    RUN(help_shows_the_table);
    RUN(a_name_twice_is_our_mistake);
    RUN(lists_are_taken_apart);
    return check_result();
}
