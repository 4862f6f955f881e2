/* Examples before items, drawn as CPython does (test_random.c); draws of lm-evaluation-harness are compared
 * in test_lmeval.c.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "tasks/tasks.h"

#include <stdio.h>
#include <string.h>

typedef struct rig {
    dq_arena *a;
    dq_items items, pool;
    int64_t n_own;
    dq_err err;
} rig;

static dq_status solve(rig *x, const char *task, const char *items, const char *pool, int64_t n)
{
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    const dq_task *t = given_task(task);
    dq_task_load(&x->items, t, "items", items, strlen(items), 0, x->a, &x->err);
    dq_task_load(&x->pool, t, "pool", pool, strlen(pool), 0, x->a, &x->err);
    assert_string_equal(x->err.text, "");
    return dq_fewshot(&x->items, &x->n_own, &x->pool, t, n, DQ_FEWSHOT_SEED, x->a, &x->err);
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
TEST(texts)
{
    rig x;
    assert_int_equal(
        solve(&x, "mc", MC("P?", "0") MC("Q?", "1"), MC("A?", "0") MC("B?", "1") MC("C?", "1"), 2),
        DQ_OK);
    check_context(&x, 0, 0, "B? ja\n\nA? no\n\nP?");
    check_context(&x, 1, 1, "A? no\n\nC? ja\n\nQ?");
    assert_string_equal(x.items.item[1].choice[1].text, " ja");
    assert_int_equal(x.items.item[1].gold, 1);
    assert_int_equal(solve(&x, "mc", MC("P?", "0"), MC("A?", "0"), 0), DQ_OK);
    check_context(&x, 0, 0, "P?");
}

#define WINO(id, s, answer)                                                                        \
    "{\"qID\": \"" id "\", \"sentence\": \"" s "\", \"option1\": \"X\", \"option2\": \"Y\", "      \
    "\"answer\": \"" answer "\"}\n"

/* Both contexts of an item get the same examples; an example has its own right option. */
TEST(contexts_of_choices)
{
    rig x;
    assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"),
                           WINO("2", "so _ won", "2") WINO("3", "if _ lost ", "1"), 1),
                     DQ_OK);
    /* the item itself is left out, although its qID differs */
    check_context(&x, 0, 0, "if X lost\n\nso X");
    check_context(&x, 0, 1, "if X lost\n\nso Y");
    assert_string_equal(x.items.item[0].choice[1].text, " won");
    /* nothing after the blank: no answer and no line ends */
    assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"),
                           WINO("2", "so _ won", "2") WINO("3", "if _ ", "1"), 1),
                     DQ_OK);
    check_context(&x, 0, 0, "if Xso X");
}

TEST(pools_that_are_too_small)
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
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig x;
        assert_int_equal(solve(&x, bad[i].task, bad[i].items, bad[i].pool, bad[i].n), DQ_MISMATCH);
        if (!strstr(x.err.text, bad[i].part))
            fail_msg("\"%s\" lacks \"%s\"", x.err.text, bad[i].part);
    }
}

/* An item is itself whatever the order of its keys and choices, its other members and the answer that a copy gives. */
TEST(own_content)
{
    static const struct {
        const char *pool;
        const char *want;
    } all[] = {
        {"{\"option2\":\"Y\",\"sentence\":\"so _ won\",\"answer\":\"2\",\"option1\":\"X\"}\n" WINO(
             "3", "if _ lost", "1"),
         "if X lost\n\nso X"},
        {WINO("1", "so _ won", "1") WINO("3", "if _ lost", "1"), "if X lost\n\nso X"},
        {WINO("7", "if _ lost",
              "1") "{\"option1\":\"Y\",\"option2\":\"X\",\"sentence\":\"so _ won\","
                   "\"answer\":\"1\"}",
         "if X lost\n\nso X"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        rig x;
        assert_int_equal(solve(&x, "winogrande", WINO("1", "so _ won", "2"), all[i].pool, 1),
                         DQ_OK);
        check_context(&x, 0, 0, all[i].want);
        assert_int_equal(x.n_own, 1);
    }
    /* a task that draws no example more: the draw of the reference, (1, 0), but where it has the item */
    rig x;
    assert_int_equal(
        solve(&x, "mc", MC("P?", "0") MC("Q?", "1"), MC("A?", "0") MC("P?", "1") MC("C?", "1"), 2),
        DQ_OK);
    size_t n;
    assert_null(strstr(dq_item_context(&x.items.item[0], 0, &n), "P? ja"));
    assert_int_equal(x.n_own, 1);
}
