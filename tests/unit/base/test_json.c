/* test_json: numbers of any size, whole numbers however they are written, and memory that ends.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"

#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>

TEST(test_numbers_of_any_size)
{
    static const struct {
        const char *text;
        double value;
    } reals[] = {
        {"1000000000000000019884624838656", 1000000000000000019884624838656.0},
        {"9223372036854775808", 9223372036854775808.0},
        {"-9223372036854775809", -9223372036854775808.0},
        {"18446744073709551615", 18446744073709551616.0},
        {"1e400", DBL_MAX},
        {"-1E+400", -DBL_MAX},
        {"1e-400", 0.0},
    };
    char text[512];
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        json_t *v = given_document(reals[i].text);
        assert_true(json_is_real(v) && json_real_value(v) == reals[i].value);
        json_decref(v);
    }
    memset(text, '9', 400); /* beyond every double, without an exponent */
    text[400] = 0;
    json_t *v = given_document(text);
    assert_true(json_real_value(v) == DBL_MAX);
    json_decref(v);
}

/* What stands beside a large number keeps its digits and its text. */
TEST(test_the_rest_is_untouched)
{
    json_t *v = given_document(
        "{\"a 99999999999999999999\\\" 1e999\": [9223372036854775807, -0, 1e2],\n"
        " \"b\": 99999999999999999999, \"c\": \"\\\\\", \"d\": -9223372036854775808}");
    const json_t *a = json_object_get(v, "a 99999999999999999999\" 1e999");
    assert_int_equal(json_integer_value(json_array_get(a, 0)), INT64_MAX);
    assert_int_equal(json_integer_value(json_array_get(a, 1)), 0);
    assert_true(json_real_value(json_array_get(a, 2)) == 100);
    assert_true(json_real_value(json_object_get(v, "b")) == 1e20);
    assert_string_equal(json_string_value(json_object_get(v, "c")), "\\");
    assert_int_equal(json_integer_value(json_object_get(v, "d")), INT64_MIN);
    json_decref(v);
}

TEST(test_what_is_no_json_stays_refused)
{
    static const char *const texts[] = {"[1e400",
                                        "[1e400, 1e]",
                                        "[99999999999999999999, 01]",
                                        "[1e400, NaN]",
                                        "{\"a\": 1e400, \"a\": 1}",
                                        "99999999999999999999x",
                                        "\"1e400",
                                        "[1e999, 1.]",
                                        "--99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dq_err err = {0};
        json_t *v = NULL;
        assert_int_equal(dq_json_parse(&v, texts[i], strlen(texts[i]), "test", &err), DQ_DAMAGED);
        assert_null(v);
        assert_non_null(strstr(err.text, "test: not valid JSON at line 1"));
    }
}

/* Python's json writes them without being asked; a value that is read is refused, others stand. */
TEST(test_configurations_may_hold_numbers_that_are_not_finite)
{
    static const char text[] =
        "{\"limit\": [0.0, Infinity], \"a\": NaN, \"b\":-Infinity, \"NaN\": \"Infinity \\\" NaN\","
        " \"c\": 1e400, \"d\": 2}";
    static const char *const wrong[] = {"[Infinityx]", "[NaN",  "[1NaN]",      "[--Infinity]",
                                        "[nan]",       "[NAN]", "[+Infinity]", "[Infinity 1]"};
    dq_err err = {0};
    json_t *v = NULL;
    assert_int_equal(dq_json_parse(&v, text, strlen(text), "test", &err), DQ_DAMAGED);
    err = (dq_err){0};
    assert_int_equal(dq_json_parse_config(&v, text, strlen(text), "test", &err), DQ_OK);
    assert_string_equal(json_string_value(json_object_get(v, "NaN")), "Infinity \" NaN");
    assert_int_equal(json_integer_value(json_object_get(v, "d")), 2);
    for (const char *const *key = (const char *const[]){"a", "b", "c", NULL}; *key; key++) {
        double x;
        int64_t n;
        err = (dq_err){0};
        assert_int_equal(dq_json_float(&x, v, *key, NULL, &err), DQ_DAMAGED);
        assert_non_null(strstr(err.text, "the number is too large, or not finite"));
        assert_false(dq_json_whole(&n, json_object_get(v, *key)));
    }
    json_decref(v);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (dq_err){0};
        assert_int_equal(dq_json_parse_config(&v, wrong[i], strlen(wrong[i]), "test", &err),
                         DQ_DAMAGED);
        assert_non_null(strstr(err.text, "test: not valid JSON at line 1"));
    }
}

TEST(test_whole_numbers)
{
    json_t *o = given_document(
        "{\"a\": 1E5, \"b\": 4096.0, \"c\": 1.5, \"d\": 9007199254740993.0e3, \"e\": \"1\","
        " \"f\": 1e400, \"g\": -0, \"h\": -0.0, \"i\": 99999999999999999999, \"j\": true}");
    static const struct {
        const char *key;
        int64_t value; /* -1: none */
    } want[] = {{"a", 100000}, {"b", 4096}, {"c", -1}, {"d", -1}, {"e", -1},
                {"f", -1},     {"g", 0},    {"h", 0},  {"i", -1}, {"j", -1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dq_err err = {0};
        int64_t x = -1;
        assert_int_equal(dq_json_whole(&x, json_object_get(o, want[i].key)), want[i].value >= 0);
        assert_int_equal(x, want[i].value);
        assert_int_equal(dq_json_int(&x, o, want[i].key, 0, 1 << 20, NULL, &err),
                         want[i].value < 0 ? DQ_DAMAGED : DQ_OK);
    }
    json_decref(o);
}

TEST(test_numbers_too_large_to_be_values)
{
    json_t *o = given_document("{\"a\": 1e400, \"b\": -1e400, \"c\": 1e308}");
    double x;
    for (const char *const *key = (const char *const[]){"a", "b", NULL}; *key; key++) {
        dq_err err = {0};
        assert_int_equal(dq_json_float(&x, o, *key, NULL, &err), DQ_DAMAGED);
        assert_non_null(strstr(err.text, "the number is too large"));
    }
    dq_err err = {0};
    assert_int_equal(dq_json_float(&x, o, "c", NULL, &err), DQ_OK);
    assert_true(x == 1e308);
    json_decref(o);
}

/* The n-th allocation of the second pass of a document fails. */
TEST(test_memory_ends_while_numbers_are_held)
{
    static const char text[] = "[99999999999999999999]";
    json_t *v = NULL;
    dq_err err = {0};
    dq_alloc_fail_at(1);
    assert_int_equal(dq_json_parse(&v, text, strlen(text), "test", &err), DQ_RESOURCE);
    dq_alloc_fail_at(0);
    assert_null(v);
}

TEST(test_dump)
{
    char *text;
    dq_err err = {0};
    json_t *v = given_document("{\"a\": [1, 2]}");
    assert_int_equal(dq_json_dump(&text, v, JSON_COMPACT, &err), DQ_OK);
    assert_string_equal(text, "{\"a\":[1,2]}");
    free(text);
    json_decref(v);
    assert_int_equal(dq_json_dump(&text, NULL, 0, &err), DQ_RESOURCE);
    assert_null(text);
}
