/* Widths by layer and map: what is read, written, refused, and what it comes to.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kv/kv.h"

#include <stdio.h>
#include <string.h>

/* As written for a model of n_layers; 0: for none. */
static const char *fitted(const char *given, int n_layers)
{
    static char text[DQ_KV_LISTS];
    dq_kv_widths w;
    dq_err err = {0};
    assert_int_equal(dq_kv_widths_parse(&w, given, &err), DQ_OK);
    if (n_layers) assert_int_equal(dq_kv_widths_fit(&w, n_layers, &err), DQ_OK);
    assert_int_equal(dq_kv_widths_text(text, &w, &err), DQ_OK);
    return text;
}

TEST(texts_come_back)
{
    static const char *const same[] = {"3|5+3:3|6", "4+2:16", "8:4*30|2|3", "4|4*|5+6:3",
                                       "4*2|6:5"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_string_equal(fitted(same[i], 0), same[i]);
    assert_string_equal(fitted("3|5", 0), "3|5:3|5");
    assert_string_equal(fitted("3|5", 2), "3|5:3|5");
    assert_string_equal(fitted("3*|5+3:6", 32), "3*31|5+3:6");
    assert_string_equal(fitted("3|3|5*1:6*3", 3), "3*2|5:6");
    assert_string_equal(fitted("2|4*|2:8", 3), "2|4|2:8");
    assert_string_equal(fitted("4*:4|4*", 5), "4:4");
    assert_string_equal(fitted("4*6:3*1", 0),
                        "4*6:3*1"); /* a model of other layers still refuses it */
    assert_string_equal(fitted("4*6:4|5*5", 6), "4:4|5*5");
}

TEST(numbers_are_those_of_layers)
{
    static const int keys[5][2] = {{3, 3}, {5, 2}, {5, 2}, {5, 2}, {8, 8}};
    dq_kv_widths w;
    dq_err err = {0};
    assert_int_equal(dq_kv_widths_parse(&w, "3|5+2*|8:4*2|2*3", &err), DQ_OK);
    assert_int_equal(dq_kv_widths_fit(&w, 5, &err), DQ_OK);
    for (int l = 0; l < 5; l++) {
        for (int map = 0; map < 2; map++) {
            assert_int_equal(dq_kv_widths_of(&w, 0, l, map), keys[l][map]);
            assert_int_equal(dq_kv_widths_of(&w, 1, l, map), l < 2 ? 4 : 2);
        }
    }
    assert_true(dq_kv_widths_mean(&w, 0) == (6 + 3 * 7 + 16) / 10.0);
    assert_true(dq_kv_widths_mean(&w, 1) == 14 / 5.0);
    assert_int_equal(dq_kv_widths_largest(&w, 0), 8);
    assert_int_equal(dq_kv_widths_largest(&w, 1), 4);
    assert_true(dq_kv_widths_by_map(&w));
    assert_false(dq_kv_widths_uniform(&w, 0) || dq_kv_widths_uniform(&w, 1));
}

TEST(nonsense_is_refused)
{
    static const char *const bad[][2] = {
        {"", "expected widths by layer"},
        {"3|", "at \"\""},
        {"|3", "expected"},
        {"3||5", "expected"},
        {"3|5:", "expected"},
        {"3|5:4:4", "at \":4\""},
        {"3|5+:4", "expected"},
        {"3+5+4:4", "expected"},
        {"3*0|5", "expected"},
        {"3|5x", "at \"x\""},
        {" 3|5", "expected"},
        {"7|5", "7 bits for keys are not offered (8, 6, 5, 4, 3, 2)"},
        {"3|5:1|4", "1 bits for values"},
        {"3|12", "12 bits for keys"},
        {"4294967300|5", "4294 bits"},
        {"5+3", "values have no maps"},
        {"4:5+3", "values have no maps, found \"5+3\""},
        {"16|4:4", "16 bits for some keys"},
        {"4:16*2|8", "16 bits for some values"},
        {"16+4:4", "16 bits for some keys"},
        {"4*|5|4*:4", "two entries for keys are for the layers that are left"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_kv_widths w;
        dq_err err = {0};
        assert_int_equal(dq_kv_widths_parse(&w, bad[i][0], &err), DQ_USAGE);
        if (!strstr(err.text, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.text);
    }
}

TEST(other_models_are_refused)
{
    static const struct {
        const char *text;
        int layers;
    } bad[] = {{"3|5", 3}, {"3|5", 1}, {"3*4:4", 3}, {"4:3*2", 4}, {"3|4*|5", 2}, {"4:4|2*", 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_kv_widths w;
        dq_err err = {0};
        assert_int_equal(dq_kv_widths_parse(&w, bad[i].text, &err), DQ_OK);
        assert_int_equal(dq_kv_widths_fit(&w, bad[i].layers, &err), DQ_MISMATCH);
    }
}

TEST(long_texts_are_refused)
{
    char text[8 * DQ_KV_RUNS] = "4", wide[DQ_KV_LISTS];
    dq_kv_widths w;
    dq_err err = {0};
    for (int i = 1; i < DQ_KV_RUNS; i++) strcat(text, i % 2 ? "|5" : "|4");
    assert_int_equal(dq_kv_widths_parse(&w, text, &err), DQ_OK); /* both sides: 255 characters */
    assert_int_equal(dq_kv_widths_text(wide, &w, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "take 255 characters (at most 239)"));
    err = (dq_err){0};
    strcat(text, "|5");
    assert_int_equal(dq_kv_widths_parse(&w, text, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "more than 64 entries"));
}
