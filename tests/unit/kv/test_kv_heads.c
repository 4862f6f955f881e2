/* retrieval heads: what is read, refused, and what groups get of a budget.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kv/kv.h"

#include <stdio.h>
#include <string.h>

enum { LAYERS = 2, GROUPS = 3, LISTS = LAYERS * GROUPS, TOKENS = 100 };

static dq_kv_heads roles_of(const char *text)
{
    dq_kv_heads r;
    dq_err err = {0};
    dq_kv_heads_parse(&r, text, &err);
    assert_string_equal(err.text, "");
    return r;
}

TEST(texts_are_read)
{
    dq_kv_heads r = roles_of("12.0,9999.3/0.10");
    assert_int_equal(r.n, 3);
    assert_int_equal(r.sharing, 2);
    assert_true(r.at[0].layer == 12 && r.at[0].group == 0);
    assert_true(r.at[1].layer == 9999 && r.at[1].group == 3);
    assert_true(r.at[2].layer == 0 && r.at[2].group == 10);
    r = roles_of("0.0,0.1/");
    assert_true(r.n == 2 && r.sharing == 2);
    r = roles_of("0.0");
    assert_true(r.n == 1 && r.sharing == 0);
}

TEST(wrong_texts_are_refused)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"", "at \"\""},
               {"1", "at \"1\""},
               {"1.0,", "at \"\""},
               {"1.0/,", "at \",\""},
               {"1.0,/", "at \"/\""},
               {"/", "at \"/\""},
               {",1.0", "at \",1.0\""},
               {"/1.0", "at \"/1.0\""},
               {"1.0 ,1.1", "at \"1.0 ,1.1\""},
               {"1.0/0.0/0.1", "at \"/0.1\""},
               {"01.0", "at \"01.0\""},
               {"1.-1", "at \"1.-1\""},
               {"12345.0", "at \"12345.0\""},
               {"0.1,1.0,0.1", "group 0.1 stands twice"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_kv_heads r;
        dq_err err = {0};
        if (dq_kv_heads_parse(&r, bad[i].text, &err) != DQ_USAGE || !strstr(err.text, bad[i].says))
            fail_msg("\"%s\": expected \"%s\", found %d \"%s\"", bad[i].text, bad[i].says,
                     (int)err.code, err.text);
    }
}

/* As long as a text and as many as groups may be, and one more. */
TEST(ends_are_where_they_are_said)
{
    char text[2 * DQ_KV_HEADS_TEXT] = "";
    size_t n = 0;
    dq_kv_heads r;
    dq_err err = {0};
    for (int i = 0; n < DQ_KV_HEADS_TEXT; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d.%d", i ? "," : "", 1000 + i / 10,
                              100 + i % 10);
    assert_int_equal(dq_kv_heads_parse(&r, text, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "characters (at most 8191)"));
    for (n = DQ_KV_HEADS_TEXT - 1; text[n] != ','; n--) continue;
    text[n] = 0;
    err = (dq_err){0};
    assert_int_equal(dq_kv_heads_parse(&r, text, &err), DQ_OK);
    assert_in_range(r.n, 700, DQ_KV_HEADS_MAX);
}

TEST(models_are_told_apart)
{
    const dq_kv_heads r = roles_of("1.0,1.1,0.0,0.1");
    dq_err err = {0};
    assert_int_equal(dq_kv_heads_fit(&r, 2, 2, 2, &err), DQ_OK);
    assert_int_equal(dq_kv_heads_fit(&r, 2, 1, 2, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "name group 1.1, and the model has 2 layers of 1"));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_KV_HEADS);
    err = (dq_err){0};
    assert_int_equal(dq_kv_heads_fit(&r, 1, 4, 1, &err), DQ_MISMATCH);
    err = (dq_err){0};
    assert_int_equal(dq_kv_heads_fit(&r, 3, 2, 3, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "name 4 of the 6 groups"));
}

/* Tokens beside 2 first and 8 last ones, in the order of the groups in the text. */
static void expect_shares(const char *text, int64_t budget, const int64_t *beside)
{
    static int32_t pos[TOKENS];
    const dq_kv_heads r = roles_of(text);
    dq_pool_group group[LISTS];
    const dq_pool pool = {
        .group = group, .n_groups = LISTS, .budget = budget, .safe = {2, 8, TOKENS}};
    int64_t share[LISTS], sum = 0;
    for (int32_t i = 0; i < TOKENS; i++) pos[i] = i;
    for (int i = 0; i < LISTS; i++) group[i] = (dq_pool_group){NULL, pos, TOKENS};
    dq_kv_budget_of_heads(share, &pool, &r, GROUPS);
    for (int i = 0; i < LISTS; i++) {
        const int64_t got = share[r.at[i].layer * GROUPS + r.at[i].group];
        if (got != 10 + beside[i])
            fail_msg("%s, %d: group %d keeps %d, not %d", text, (int)budget, i, (int)got,
                     (int)beside[i] + 10);
        sum += got;
    }
    assert_int_equal(sum, LISTS * (budget > 10 ? budget : 10)); /* as many as with uniform */
}

TEST(the_first_get_most)
{
    static const char order[] = "1.2,0.0,1.1,0.2,0.1,1.0";
    expect_shares(order, 10, (const int64_t[]){0, 0, 0, 0, 0, 0});
    expect_shares(order, 4, (const int64_t[]){0, 0, 0, 0, 0, 0});
    expect_shares(order, 11, (const int64_t[]){6, 0, 0, 0, 0, 0});
    expect_shares(order, 25, (const int64_t[]){90, 0, 0, 0, 0, 0});
    expect_shares(order, 60, (const int64_t[]){90, 90, 90, 30, 0, 0});
    expect_shares(order, 100, (const int64_t[]){90, 90, 90, 90, 90, 90});
}

TEST(sharing_is_even_and_loses_nothing)
{
    expect_shares("1.2,0.0/1.1,0.2,0.1,1.0", 25, (const int64_t[]){45, 45, 0, 0, 0, 0});
    expect_shares("1.2,0.0,1.1,0.2/0.1,1.0", 25, (const int64_t[]){23, 23, 22, 22, 0, 0});
    expect_shares("1.2/0.0,1.1,0.2,0.1,1.0", 30, (const int64_t[]){90, 30, 0, 0, 0, 0});
    expect_shares("1.2,0.0,1.1,0.2,0.1,1.0/", 55, (const int64_t[]){45, 45, 45, 45, 45, 45});
    expect_shares("1.2,0.0/1.1,0.2,0.1,1.0", 55, (const int64_t[]){90, 90, 90, 0, 0, 0});
    expect_shares("1.2,0.0,1.1,0.2,0.1/1.0", 11, (const int64_t[]){2, 1, 1, 1, 1, 0});
}

/* Lists of layers with a window are empty here: they neither give nor take. */
TEST(windows_take_no_part)
{
    static int32_t pos[TOKENS];
    const dq_kv_heads r = roles_of("0.0,2.0,2.1/0.1");
    dq_pool_group group[6] = {{0}};
    const dq_pool pool = {.group = group, .n_groups = 6, .budget = 40, .safe = {2, 8, TOKENS}};
    static const int64_t want[] = {50, 10, 0, 0, 50, 50};
    int64_t share[6];
    dq_err err = {0};
    for (int32_t i = 0; i < TOKENS; i++) pos[i] = i;
    for (int g = 0; g < 6; g++)
        if (g / 2 != 1) group[g] = (dq_pool_group){NULL, pos, TOKENS};
    dq_kv_budget_of_heads(share, &pool, &r, 2);
    for (int i = 0; i < 6; i++) assert_int_equal(share[i], want[i]);
    assert_int_equal(dq_kv_heads_fit(&r, 3, 2, 2, &err), DQ_OK);
    assert_int_equal(dq_kv_heads_fit(&r, 3, 2, 3, &err), DQ_MISMATCH);
    err = (dq_err){0};
    assert_int_equal(dq_kv_heads_fit(&r, 3, 2, 1, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "layers with a window have none to share"));
}

/* After an earlier eviction groups have as many tokens as they kept: what some lack goes to the others that share. */
TEST(what_is_gone_is_given_on)
{
    static int32_t whole[TOKENS], rest[20];
    static const int64_t want[] = {20, 65, 65, 10};
    const dq_kv_heads r = roles_of("0.0,0.1,1.0/1.1");
    const dq_pool_group group[] = {
        {NULL, rest, 20}, {NULL, whole, TOKENS}, {NULL, whole, TOKENS}, {NULL, rest, 20}};
    const dq_pool pool = {.group = group, .n_groups = 4, .budget = 40, .safe = {2, 8, TOKENS}};
    int64_t share[4];
    for (int32_t i = 0; i < TOKENS; i++) whole[i] = i;
    for (int32_t i = 0; i < 20; i++) rest[i] = i < 10 ? i : 80 + i;
    dq_kv_budget_of_heads(share, &pool, &r, 2);
    for (int i = 0; i < 4; i++) assert_int_equal(share[i], want[i]);
}
