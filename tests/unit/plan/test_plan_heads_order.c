/* test_plan_heads_order: texts of heads against what the cache reads from them, tokens with which all groups but one are whole
 * against what the budget gives, numbers that grow, and an order whose equal ones stay as they were.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "plan/plan_cache.h"

#include <string.h>

TEST(a_text_is_read_as_it_was_made)
{
    enum { LAYERS = 12, GROUPS = 5, N = LAYERS * GROUPS };
    dq_kv_heads_group order[N];
    dq_kv_heads r;
    char text[DQ_KV_HEADS_TEXT];
    dq_err err = {0};
    for (int i = 0; i < N; i++)
        order[i] = (dq_kv_heads_group){(int16_t)(LAYERS - 1 - i / GROUPS), (int16_t)(i % GROUPS)};
    for (int sharing = 1; sharing <= N; sharing++) {
        assert_int_equal(dq_plan_heads_order_text(text, order, N, sharing, &err), DQ_OK);
        assert_int_equal(dq_kv_heads_parse(&r, text, &err), DQ_OK);
        assert_int_equal(dq_kv_heads_fit(&r, LAYERS, GROUPS, LAYERS, &err), DQ_OK);
        assert_int_equal(r.sharing, sharing);
        for (int i = 0; i < N; i++) {
            assert_int_equal(r.at[i].layer, order[i].layer);
            assert_int_equal(r.at[i].group, order[i].group);
        }
    }
    assert_int_equal(dq_plan_heads_order_text(text, order, 2, 1, &err), DQ_OK);
    assert_string_equal(text, "11.0/11.1");
    assert_int_equal(dq_plan_heads_order_text(text, order, 2, 2, &err), DQ_OK);
    assert_string_equal(text, "11.0,11.1/");
}

TEST(a_text_that_is_too_long_is_refused)
{
    enum { N = DQ_KV_HEADS_MAX + 1 };
    static dq_kv_heads_group order[N];
    char text[DQ_KV_HEADS_TEXT];
    for (int i = 0; i < N; i++)
        order[i] = (dq_kv_heads_group){(int16_t)(i / 10), (int16_t)(i % 10)};
    for (int longer = 0; longer < 2; longer++) {
        const int n = longer ? DQ_KV_HEADS_MAX : N; /* too many groups; too many characters */
        dq_err err = {0};
        for (int i = 0; longer && i < n; i++)
            order[i] = (dq_kv_heads_group){(int16_t)(1000 + i), 1000};
        assert_int_equal(dq_plan_heads_order_text(text, order, n, 1, &err), DQ_MISMATCH);
        assert_non_null(strstr(err.text, "more than a text of heads holds"));
    }
}

/* What dq_kv_budget_of_heads makes of it: the last group keeps what always stays, others lack one token at most. */
TEST(all_but_the_last_are_whole)
{
    enum { MOST = 40, TOKENS = 300 };
    static int32_t pos[TOKENS];
    static double score[TOKENS];
    dq_random r = dq_random_of(3, 0);
    for (int i = 0; i < TOKENS; i++) pos[i] = i;
    for (int k = 0; k < 200; k++) {
        const int n = 2 + (int)dq_random_below(&r, MOST - 1);
        const dq_kv_protected safe = {.sink = (int)dq_random_below(&r, 5),
                                      .recent = 1 + (int)dq_random_below(&r, 90),
                                      .end = TOKENS};
        const int64_t least = safe.sink + safe.recent;
        dq_pool_group group[MOST];
        dq_kv_heads heads = {.n = n, .sharing = n - 1};
        int64_t share[MOST];
        for (int i = 0; i < n; i++) group[i] = (dq_pool_group){score, pos, TOKENS};
        for (int i = 0; i < n; i++) heads.at[i] = (dq_kv_heads_group){0, (int16_t)i};
        const dq_pool pool = {.group = group,
                              .n_groups = n,
                              .budget = dq_plan_heads_order_whole(TOKENS, least, n),
                              .safe = safe};
        dq_kv_budget_of_heads(share, &pool, &heads, n);
        assert_int_equal(share[n - 1], least);
        for (int i = 0; i < n - 1; i++) assert_true(share[i] >= TOKENS - 1 && share[i] <= TOKENS);
    }
}

TEST(numbers_grow)
{
    enum { TRIES = 16 };
    int out[TRIES];
    assert_int_equal(dq_plan_heads_order_numbers(out, 1, 8, TRIES), 8);
    for (int i = 0; i < 8; i++) assert_int_equal(out[i], i + 1);
    assert_int_equal(dq_plan_heads_order_numbers(out, 1, TRIES, TRIES), TRIES);
    assert_int_equal(out[TRIES - 1], TRIES);
    /* round(256 ** (i / 15)) of Python, once each */
    const int many[] = {1, 2, 3, 4, 6, 9, 13, 19, 28, 40, 58, 84, 122, 177, 256};
    assert_int_equal(dq_plan_heads_order_numbers(out, 1, 256, TRIES), sizeof many / sizeof *many);
    assert_memory_equal(out, many, sizeof many);
    /* round(22 (90 / 22) ** (i / 15)) */
    const int later[] = {22, 24, 27, 29, 32, 35, 39, 42, 47, 51, 56, 62, 68, 75, 82, 90};
    assert_int_equal(dq_plan_heads_order_numbers(out, 22, 90, TRIES), TRIES);
    assert_memory_equal(out, later, sizeof later);
    assert_int_equal(dq_plan_heads_order_numbers(out, 85, 90, TRIES), 6);
    assert_int_equal(out[0], 85);
    assert_int_equal(dq_plan_heads_order_numbers(out, 1, 17, 2), 2);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[1], 17);
}

/* 90 groups that keep 128 of 512 tokens, 20 of them always, on average: 19 can be whole. */
TEST(fewer_than_can_be_whole_are_one_cache)
{
    assert_int_equal(dq_plan_heads_order_least(512, 20, 128, 90), 90 * 108 / 492);
    assert_int_equal(dq_plan_heads_order_least(512, 20, 21, 90), 1);
    assert_int_equal(dq_plan_heads_order_least(512, 20, 512, 90), 90);
}

TEST(what_is_missed_most_comes_first)
{
    const double missed[] = {0.5, 2, 0.5, -1, 2, 7};
    const int want[] = {5, 1, 4, 0, 2, 3};
    int order[6];
    dq_plan_heads_order_sort(order, missed, 6);
    assert_memory_equal(order, want, sizeof want);
}
