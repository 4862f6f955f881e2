/* test_grow: lists that make themselves room, in an arena and as blocks.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/text.h"

#include <string.h>

enum { MANY = 5000 };

/* One by one, and with a jump: nothing is lost, the rest is zero, and copies are few. */
static void check_growth(dq_arena *a)
{
    dq_err err = {0};
    int64_t *list = NULL;
    size_t cap = 0;
    int moves = 0;
    for (size_t n = 0; n < MANY; n++) {
        int64_t *now = dq_grow(a, list, n + 1, &cap, sizeof *now, &err);
        assert_non_null(now);
        assert_true(cap > n);
        assert_int_equal((uintptr_t)now % 64, 0);
        moves += now != list;
        list = now;
        for (size_t i = n; i < cap && i < n + 3; i++) assert_true(list[i] == 0);
        list[n] = (int64_t)n + 1;
    }
    assert_in_range(moves, 2, 16);
    list = dq_grow(a, list, 10 * MANY, &cap, sizeof *list, &err);
    assert_non_null(list);
    assert_int_equal(cap, 10 * MANY);
    for (size_t i = 0; i < cap; i++) assert_true(list[i] == (i < MANY ? (int64_t)i + 1 : 0));
    if (!a) dq_block_free(list);
}

TEST(lists_grow)
{
    dq_arena *a = given_arena();
    check_growth(a);
    check_growth(NULL);
}

TEST(nothing_is_a_list_too)
{
    dq_err err = {0};
    size_t cap = 0;
    char *list = dq_grow(NULL, NULL, 0, &cap, 1, &err);
    assert_non_null(list);
    assert_true(cap > 0);
    dq_block_free(list);
}

/* Sizes that wrap, in the product and in the doubling, are refused; what was there stays. */
TEST(sizes_beyond_memory_are_refused)
{
    static const size_t want[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1};
    dq_arena *a = given_arena();
    for (int in_arena = 0; in_arena < 2; in_arena++) {
        dq_err fine = {0};
        size_t cap = 0;
        int64_t *list = dq_grow(in_arena ? a : NULL, NULL, 1, &cap, sizeof *list, &fine);
        assert_non_null(list);
        list[0] = 7;
        for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
            dq_err err = {0};
            const size_t before = cap;
            assert_null(dq_grow(in_arena ? a : NULL, list, want[i], &cap, sizeof *list, &err));
            assert_int_equal(err.code, DQ_RESOURCE);
            assert_int_equal(cap, before);
            assert_true(list[0] == 7);
        }
        if (!in_arena) dq_block_free(list);
    }
    dq_err err = {0};
    dq_strbuf b = {0};
    assert_int_equal(dq_strbuf_add(&b, "x", 1, &err), DQ_OK);
    assert_int_equal(dq_strbuf_reserve(&b, SIZE_MAX, &err), DQ_RESOURCE);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.s[0], 'x');
    dq_block_free(b.s);
}

TEST(a_failed_allocation_keeps_the_list)
{
    dq_err err = {0};
    size_t cap = 0;
    int32_t *list = dq_grow(NULL, NULL, 3, &cap, sizeof *list, &err);
    assert_non_null(list);
    const size_t before = cap;
    list[2] = 9;
    dq_alloc_fail_at(1);
    assert_null(dq_grow(NULL, list, before + 1, &cap, sizeof *list, &err));
    dq_alloc_fail_at(0);
    assert_int_equal(err.code, DQ_RESOURCE);
    assert_int_equal(cap, before);
    assert_int_equal(list[2], 9);
    dq_err again = {0};
    list = dq_grow(NULL, list, before + 1, &cap, sizeof *list, &again);
    assert_non_null(list);
    assert_int_equal(list[2], 9);
    dq_block_free(list);
}
