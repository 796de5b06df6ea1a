/* test_log.c - one whole line an event, on stderr. */
#include <unistd.h>

#include "base/log.h"
#include "tests/check.h"

static FILE *captured;

/* What is logged between begin() and end() goes to a file of its own. */
static int begin(void)
{
    int saved = dup(STDERR_FILENO);

    captured = tmpfile();
    CHECK(saved >= 0 && captured != NULL);
    CHECK(dup2(fileno(captured), STDERR_FILENO) == STDERR_FILENO);
    return saved;
}

static void end(int saved, char *text, size_t cap)
{
    size_t n;

    CHECK(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    close(saved);
    rewind(captured);
    n = fread(text, 1, cap - 1, captured);
    text[n] = '\0';
    fclose(captured);
}

static void a_line_an_event(void)
{
    char text[4096];
    int saved = begin();

    log_info("job_done", "id=%s tokens=%d", "abc", 7);
    log_debug("quiet", "x=%d", 1);
    end(saved, text, sizeof(text));
    CHECK(strlen(text) > 25);
    CHECK(text[4] == '-' && text[10] == 'T' && text[23] == 'Z'); /* 2026-01-31T12:00:00.000Z */
    CHECK_TEXT(text + 24, " info job_done id=abc tokens=7\n");
}

static void levels_and_long_lines(void)
{
    char text[4096], big[3000];
    int saved;

    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_set_level(LOG_DEBUG);
    saved = begin();
    log_debug("seen", "x=%s", big);
    end(saved, text, sizeof(text));
    log_set_level(LOG_INFO);
    CHECK(strstr(text, " debug seen x=xxx") != NULL);
    CHECK_INT(strlen(text), 1023); /* cut, but a line */
    CHECK(text[1022] == '\n' && strchr(text, '\n') == text + 1022);
}

int main(void)
{
    RUN(a_line_an_event);
    RUN(levels_and_long_lines);
    return check_result();
}
