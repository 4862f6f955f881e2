/* test_json_edit: a member is set, put in its place or left out, and every other byte stays.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/json.h"

#include <stdint.h>
#include <string.h>

static void check(const char *text, const char *key, const char *value, const char *want)
{
    dq_strbuf b = {0};
    dq_err err = {0};
    assert_int_equal(dq_json_edit_member(&b, text, strlen(text), key, value, &err), DQ_OK);
    assert_int_equal(dq_strbuf_add(&b, "", 1, &err), DQ_OK);
    assert_string_equal(b.s, want);
    dq_block_free(b.s);
}

TEST(members_are_added)
{
    check("{}", "k", "1", "{\n  \"k\": 1}");
    check(" { } \n", "k", "1", " { \n  \"k\": 1} \n");
    check("{\"a\": 1e-05}\n", "k", "1", "{\"a\": 1e-05,\n  \"k\": 1}\n");
    check("{\n  \"a\": [1, {\"k\": 2}]\n}", "k", "{\n  \"b\": 1\n}",
          "{\n  \"a\": [1, {\"k\": 2}],\n  \"k\": {\n    \"b\": 1\n  }\n}");
    check("{\"x\": \"\\\"k\\\": 1}\\\\\"}", "k", "1",
          "{\"x\": \"\\\"k\\\": 1}\\\\\",\n  \"k\": 1}");
}

TEST(members_are_replaced)
{
    check("{\"k\": {\"k\": [\"}\", 1]} , \"b\": 99999999999999999999}", "k", "null",
          "{\"k\": null , \"b\": 99999999999999999999}");
    check("{\"a\": true,\"k\":\"x\\\\\"}", "k", "2", "{\"a\": true,\"k\":2}");
    check("{\"kk\": 1, \"k\": -1.5e3\n}", "k", "2", "{\"kk\": 1, \"k\": 2\n}");
}

TEST(members_are_left_out)
{
    check("{\"k\": 1}", "k", NULL, "{}");
    check("{\"k\": [1, 2], \"b\": 1}", "k", NULL, "{\"b\": 1}");
    check("{\"a\": 1, \"k\": {}, \"b\": 1}", "k", NULL, "{\"a\": 1, \"b\": 1}");
    check("{\"a\": 1,\n  \"k\": {\"x\": 1}\n}", "k", NULL, "{\"a\": 1\n}");
    check("{\"a\": {\"k\": 1}}", "k", NULL, "{\"a\": {\"k\": 1}}");
}
