/* CPython's draws, and the examples that they put in front of items. Expected values: CPython 3.11's
 * random module; draws of lm-evaluation-harness are compared in test_lmeval.c.
 * SPDX-License-Identifier: MIT */
#include "base/random_mt.h"
#include "tasks/fewshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void words_and_ranges(void **state)
{
    static const struct {
        uint64_t seed;
        uint32_t word[3], five_bits[3], below_1000[3],
            last; /* last: the 700th word from there on */
    } want[] = {
        {0, {3626764237, 1654615998, 3255389356}, {28, 13, 1}, {265, 988, 523}, 2618944820},
        {1234, {4150886329, 3342196574, 1892932127}, {3, 0, 2}, {932, 965, 961}, 1440136597},
        {4294967296, {485306839, 1508871100, 1794561286}, {29, 0, 0}, {626, 897, 824}, 1415135040},
        {1000000000000000,
         {953109267, 504145481, 1577932544},
         {26, 9, 22},
         {554, 506, 273},
         3911804369},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dq_mt19937 r;
        uint32_t last = 0;
        dq_mt19937_seed(&r, want[i].seed);
        for (int k = 0; k < 3; k++) assert_int_equal(dq_mt19937_next(&r), want[i].word[k]);
        for (int k = 0; k < 3; k++) assert_int_equal(dq_mt19937_bits(&r, 5), want[i].five_bits[k]);
        for (int k = 0; k < 3; k++)
            assert_int_equal(dq_mt19937_below(&r, 1000), want[i].below_1000[k]);
        for (int k = 0; k < 700; k++) last = dq_mt19937_next(&r);
        assert_int_equal(last, want[i].last);
    }
}

enum { DRAWS = 22 };

static void samples(void **state)
{
    static const struct {
        uint64_t seed;
        int64_t n, k, first[DRAWS], second[DRAWS];
    } want[] = {
        /* as many as fit: a shuffle of a part */
        {1234, 12, 5, {7, 1, 0, 10, 9}, {10, 1, 11, 5, 3}},
        {0, 21, 5, {12, 13, 1, 8, 16}, {15, 12, 9, 20, 11}},
        {1234, 85, 6, {56, 14, 0, 11, 74, 4}, {10, 12, 45, 30, 2, 3}},
        {4294967301, 10, 10, {2, 7, 4, 8, 0, 9, 1, 6, 3, 5}, {3, 5, 9, 4, 1, 7, 6, 2, 0, 8}},
        {1, 1, 1, {0}, {0}},
        {99,
         277,
         22,
         {206, 194, 102, 91,  117, 127, 68,  44, 128, 196, 45,
          250, 274, 215, 110, 191, 198, 108, 77, 236, 273, 173},
         {42,  270, 44,  240, 161, 206, 21,  137, 3,   217, 104,
          185, 41,  236, 101, 263, 26,  183, 66,  110, 82,  226}},
        /* few of many: what is taken is drawn again */
        {0, 22, 5, {12, 13, 1, 8, 16}, {15, 12, 9, 11, 18}},
        {1234, 86, 6, {56, 14, 0, 11, 74, 4}, {85, 10, 12, 45, 30, 2}},
        {99,
         278,
         22,
         {206, 194, 102, 91,  117, 127, 68,  44,  128, 196, 271,
          275, 45,  250, 215, 110, 191, 198, 108, 77,  236, 173},
         {42,  270, 44, 240, 161, 206, 21, 137, 3,  217, 104,
          185, 273, 41, 236, 265, 101, 26, 183, 66, 110, 82}},
        {7, 4117, 6, {2652, 1235, 3234, 395, 593, 771}, {2995, 475, 1758, 307, 704, 3552}},
        {1000000000000000, 60000, 3, {14543, 7692, 24077}, {54640, 18553, 45478}},
        /* the training splits of the seven tasks, with the harness's numbers of draws */
        {1234,
         39905,
         6,
         {28883, 7657, 490, 5940, 38156, 2288},
         {5500, 6450, 23241, 15519, 1142, 2019}},
        {1234,
         40398,
         6,
         {28883, 7657, 490, 5940, 38156, 2288},
         {5500, 6450, 23241, 15519, 1142, 2019}},
        {1234,
         16113,
         6,
         {15834, 12749, 7220, 1914, 122, 1485},
         {14925, 15442, 15388, 13221, 9539, 572}},
        {1234, 9427, 6, {7220, 1914, 122, 1485, 572, 1375}, {1612, 5810, 3879, 285, 504, 259}},
        {1234, 2251, 5, {1805, 478, 30, 371, 143}, {343, 403, 1452, 969, 71}},
        {1234, 1119, 5, {902, 239, 15, 185, 71}, {171, 201, 726, 484, 35}},
        {1234, 4957, 5, {3610, 957, 61, 742, 4769}, {286, 687, 806, 2905, 1939}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dq_mt19937 r;
        dq_err err = {0};
        int64_t got[DRAWS];
        dq_mt19937_seed(&r, want[i].seed);
        for (int twice = 0; twice < 2; twice++) {
            const int64_t *w = twice ? want[i].second : want[i].first;
            assert_int_equal(dq_mt19937_sample(&r, got, want[i].n, want[i].k, &err), DQ_OK);
            for (int64_t k = 0; k < want[i].k; k++) {
                if (got[k] != w[k])
                    fail_msg("sample(%d, %d), draw %d: expected %d, found %d", (int)want[i].n,
                             (int)want[i].k, (int)k, (int)w[k], (int)got[k]);
            }
        }
    }
}

typedef struct rig {
    dq_arena *a;
    dq_items items, pool;
    dq_err err;
} rig;

static dq_status solve(rig *x, const char *task, const char *items, const char *pool, int64_t n)
{
    memset(x, 0, sizeof *x);
    x->a = dq_arena_new();
    const dq_task *t = dq_task_find(task, &x->err);
    dq_task_load(&x->items, t, "items", items, strlen(items), 0, x->a, &x->err);
    dq_task_load(&x->pool, t, "pool", pool, strlen(pool), 0, x->a, &x->err);
    assert_string_equal(x->err.text, "");
    return dq_fewshot(&x->items, &x->pool, t, n, DQ_FEWSHOT_SEED, x->a, &x->err);
}

static void check_context(const rig *x, int64_t item, int choice, const char *want)
{
    size_t n;
    const char *ctx = dq_item_context(&x->items.item[item], choice, &n);
    assert_string_equal(ctx, want);
    assert_int_equal(n, strlen(want));
}

#define MC(ctx, gold) "{\"ctx\": \"" ctx "\", \"choices\": [\"no\", \"ja\"], \"gold\": " gold "}\n"

/* Draws of two of three with seed 1234: checked with CPython, (1, 0) and (0, 2). */
static void texts(void **state)
{
    rig x;
    (void)state;
    assert_int_equal(
        solve(&x, "mc", MC("P?", "0") MC("Q?", "1"), MC("A?", "0") MC("B?", "1") MC("C?", "1"), 2),
        DQ_OK);
    check_context(&x, 0, 0, "B? ja\n\nA? no\n\nP?");
    check_context(&x, 1, 1, "A? no\n\nC? ja\n\nQ?");
    assert_string_equal(x.items.item[1].choice[1].text, " ja");
    assert_int_equal(x.items.item[1].gold, 1);
    dq_arena_free(x.a);
    assert_int_equal(solve(&x, "mc", MC("P?", "0"), MC("A?", "0"), 0), DQ_OK);
    check_context(&x, 0, 0, "P?");
    dq_arena_free(x.a);
}

#define WINO(id, s, answer)                                                                        \
    "{\"qID\": \"" id "\", \"sentence\": \"" s "\", \"option1\": \"X\", \"option2\": \"Y\", "      \
    "\"answer\": \"" answer "\"}\n"

/* Both contexts of an item get the same examples; an example has its own right option. */
static void contexts_of_choices(void **state)
{
    rig x;
    (void)state;
    assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"),
                           WINO("2", "so _ won", "2") WINO("3", "if _ lost ", "1"), 1),
                     DQ_OK);
    /* the item itself is left out, although its qID differs */
    check_context(&x, 0, 0, "if X lost\n\nso X");
    check_context(&x, 0, 1, "if X lost\n\nso Y");
    assert_string_equal(x.items.item[0].choice[1].text, " won");
    dq_arena_free(x.a);
    /* nothing behind the blank: no answer and no line ends */
    assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"),
                           WINO("2", "so _ won", "2") WINO("3", "if _ ", "1"), 1),
                     DQ_OK);
    check_context(&x, 0, 0, "if Xso X");
    dq_arena_free(x.a);
}

static void pools_that_are_too_small(void **state)
{
    static const struct {
        const char *task, *items, *pool;
        int64_t n;
        const char *part;
    } bad[] = {
        {"mc", MC("P?", "0"), MC("A?", "0"), 2, "has 1 items (expected at least 2"},
        {"winogrande", WINO("1", "so _ won", "2"), WINO("2", "so _ won", "1"), 1,
         "has 1 items (expected at least 2"},
        {"winogrande", WINO("1", "so _ won", "2"),
         WINO("2", "so _ won", "2") WINO("3", "so _ won", "2"), 1,
         "has 0 items that differ from the one that is scored, item 0, line 1 (expected 1"},
        {"winogrande", WINO("1", "if _ won", "2") "\n" WINO("1", "so _ won", "2"),
         WINO("2", "so _ won", "2") WINO("3", "so _ won", "2"), 1,
         "scored, item 1, line 3 (expected 1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig x;
        assert_int_equal(solve(&x, bad[i].task, bad[i].items, bad[i].pool, bad[i].n), DQ_MISMATCH);
        if (!strstr(x.err.text, bad[i].part))
            fail_msg("\"%s\" lacks \"%s\"", x.err.text, bad[i].part);
        dq_arena_free(x.a);
    }
}

/* Records are the same whatever the order of their keys; another answer makes another record. */
static void records(void **state)
{
    static const struct {
        const char *pool;
        const char *want;
    } all[] = {
        {"{\"option2\":\"Y\",\"sentence\":\"so _ won\",\"answer\":\"2\",\"option1\":\"X\"}\n" WINO(
             "3", "if _ lost", "1"),
         "if X lost\n\nso X"},
        {WINO("1", "so _ won", "1") WINO("3", "so _ won", "1"), "so X won\n\nso X"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        rig x;
        assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"), all[i].pool, 1),
                         DQ_OK);
        check_context(&x, 0, 0, all[i].want);
        dq_arena_free(x.a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_ranges),
        cmocka_unit_test(samples),
        cmocka_unit_test(texts),
        cmocka_unit_test(contexts_of_choices),
        cmocka_unit_test(pools_that_are_too_small),
        cmocka_unit_test(records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
