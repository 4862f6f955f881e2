/* Failures and their remedies: what the library keeps of them, and what the program makes of it.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "settings/inputs.h"

#include <stdio.h>
#include <string.h>

#define OF(...) ((dq_remedy){__VA_ARGS__})

TEST(test_whole_text)
{
    dq_err err = {0};
    assert_int_equal(
        dq_fail_with(&err, DQ_FILE, OF(.code = DQ_REMEDY_FORCE), "%s: exists.", "a.h5"), DQ_FILE);
    assert_string_equal(err.text, "a.h5: exists.");
    assert_int_equal(err.n_remedies, 1);
    dq_advice_apply(&err);
    assert_string_equal(err.text, "a.h5: exists. Add --force to replace it.");
    dq_advice_apply(&err); /* used up */
    assert_string_equal(err.text, "a.h5: exists. Add --force to replace it.");
}

/* A place before the text moves what is reworded. */
TEST(test_place)
{
    dq_err err = {0};
    dq_fail_with(&err, DQ_USAGE, OF(.code = DQ_REMEDY_KV_OPTION), "keep %g: no share", 2.0);
    dq_in(&err, "%s: ", "model");
    dq_in(&err, "row %d, ", 3);
    assert_string_equal(err.text, "row 3, model: keep 2: no share");
    dq_advice_apply(&err);
    assert_string_equal(err.text, "row 3, model: --kv-keep 2: no share");
}

/* Parts that follow each other, with and without a remedy. */
TEST(test_parts)
{
    dq_err err = {0}, copy = {0};
    assert_int_equal(dq_fail_more(&err, dq_remedy_none, "nothing failed"), DQ_OK);
    assert_string_equal(err.text, "");
    dq_fail_with(&err, DQ_RESOURCE, OF(.code = DQ_REMEDY_CPU), "out of memory");
    dq_fail_more(&err, dq_remedy_none, ", or fewer rows: %d fit", 5);
    dq_fail_more(&err, OF(.code = DQ_REMEDY_KV_BITS_ROWS, .number = {7}), ", 7 with 8 bits");
    dq_fail_more(&err, OF(.code = DQ_REMEDY_CTX_OF_TEXT, .number = {5}), " (windows of 5)");
    assert_string_equal(err.text,
                        "out of memory, or fewer rows: 5 fit, 7 with 8 bits (windows of 5)");
    assert_int_equal(dq_fail_as(&copy, &err), DQ_RESOURCE);
    dq_advice_apply(&copy);
    assert_string_equal(copy.text, "out of memory. Use --device cpu, or fewer rows: 5 fit, 7 with "
                                   "--kv-bits 8 (--ctx 5 for a text)");
    dq_err other = {0};
    dq_fail(&other, DQ_USAGE, "later");
    assert_int_equal(dq_fail_as(&copy, &other), DQ_RESOURCE); /* the first failure stays */
    assert_int_equal(dq_fail_with(&err, DQ_USAGE, OF(.code = DQ_REMEDY_FORCE), "x"), DQ_RESOURCE);
    assert_int_equal(err.n_remedies, 3);
}

TEST(test_words)
{
    dq_err err = {0};
    dq_fail_with(&err, DQ_FILE, OF(.code = DQ_REMEDY_DOWNLOAD, .word = "some/model"), "%s: no such",
                 "some/model");
    dq_advice_apply(&err);
    assert_string_equal(err.text,
                        "some/model: no such. dq downloads nothing; for a name on the Hugging Face "
                        "hub run hf download some/model --local-dir model first, and "
                        "name that folder");
    err = (dq_err){0};
    dq_fail_with(&err, DQ_MISMATCH,
                 OF(.code = DQ_REMEDY_NEEDLES, .number = {500, 300}, .word = "4:2"), "too many");
    dq_advice_apply(&err);
    assert_string_equal(
        err.text, "--needles 4:2 with their question, room for answers and some filler need "
                  "500 tokens, --lengths 300 is less. Use longer --lengths or fewer --needles");
}

/* Every code has words, and none goes beyond what an error holds. */
TEST(test_all)
{
    char word[2 * DQ_REMEDY_WORD];
    memset(word, 'w', sizeof word);
    word[1] = '\n';
    word[sizeof word - 1] = 0;
    for (int code = DQ_REMEDY_NONE + 1; code < DQ_REMEDIES; code++) {
        for (int width = 1; width < 1200; width += 149) {
            dq_err err = {0};
            const dq_remedy r = {
                .code = (dq_remedy_code)code, .number = {INT64_MIN, INT64_MAX}, .word = word};
            dq_fail_with(&err, DQ_FILE, r, "%*d", width, 7);
            for (int i = 0; i < DQ_ERR_REMEDIES + 2; i++) dq_fail_more(&err, r, " %d", i);
            dq_in(&err, "%*d", 100, 7);
            const bool whole = strlen(err.text) < sizeof err.text - 1;
            char before[sizeof err.text];
            memcpy(before, err.text, sizeof before);
            dq_advice_apply(&err);
            assert_true(strlen(err.text) < sizeof err.text && !strchr(err.text, '\n'));
            assert_null(strstr(err.text, "%"));
            if (whole) assert_string_not_equal(err.text, before);
        }
    }
}

/* More remedies than an error keeps: the first ones stay, the text is whole. */
TEST(test_many)
{
    dq_err err = {0};
    dq_fail(&err, DQ_FILE, "a");
    for (int i = 0; i < DQ_ERR_REMEDIES + 1; i++)
        dq_fail_more(&err, OF(.code = DQ_REMEDY_EXAMPLES, .number = {i}), ",%d", i);
    assert_int_equal(err.n_remedies, DQ_ERR_REMEDIES);
    dq_advice_apply(&err);
    assert_string_equal(err.text,
                        "a--num-fewshot 0--num-fewshot 1--num-fewshot 2--num-fewshot 3,4");
}
