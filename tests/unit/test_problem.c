#include "service/problem.h"

#include <jansson.h>

#include "tests/check.h"

static struct error err;

static void body_is_json(void)
{
    struct problem p = {0};
    struct buf body = {.max = 4096};
    json_t *root;

    problem_add_number(&p, "bytes", INT64_C(1) << 40);
    CHECK(!problem_set(&p, PROBLEM_RESULT_TOO_LARGE, "too \"large\": %d", 7));
    CHECK(!problem_set(&p, PROBLEM_BAD_JSON, "the first one stays"));
    CHECK_OK(problem_write(&body, &p, "id-1", &err));
    root = json_loadb(body.data, body.len, JSON_REJECT_DUPLICATES, NULL);
    CHECK(root != NULL);
    CHECK_TEXT(json_string_value(json_object_get(root, "code")), "result_too_large");
    CHECK_TEXT(json_string_value(json_object_get(root, "detail")), "too \"large\": 7");
    CHECK_TEXT(json_string_value(json_object_get(root, "request_id")), "id-1");
    CHECK_INT(json_integer_value(json_object_get(root, "status")), 422);
    CHECK_INT(json_integer_value(json_object_get(root, "bytes")), INT64_C(1) << 40);
    json_decref(root);
    buf_free(&body);
}

static void every_kind_is_described(void)
{
    for (int i = PROBLEM_NONE + 1; i < PROBLEM_KINDS; i++) {
        int status = problem_status((enum problem_kind)i);
        CHECK(status >= 400 && status < 600);
        CHECK(problem_code((enum problem_kind)i)[0] != '\0');
        for (int k = 1; k < i; k++)
            CHECK(strcmp(problem_code((enum problem_kind)i), problem_code((enum problem_kind)k)) !=
                  0);
    }
}

int main(void)
{
    RUN(body_is_json);
    RUN(every_kind_is_described);
    return check_result();
}
