/* test_name_order: numbers inside names count as numbers.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/text.h"

#include <stdlib.h>

/* In the order that they are to have. */
static const char *const names[] = {"",
                                    "lm_head.weight",
                                    "model.layers.0.mlp.up_proj.weight",
                                    "model.layers.0.norm",
                                    "model.layers.1",
                                    "model.layers.1.mlp.up_proj.weight",
                                    "model.layers.01.mlp.up_proj.weight",
                                    "model.layers.2.mlp.up_proj.weight",
                                    "model.layers.9.mlp.up_proj.weight",
                                    "model.layers.10.a",
                                    "model.layers.10.mlp.up_proj.weight",
                                    "model.layers.100.a",
                                    "model.layers.18446744073709551615.a",
                                    "model.layers.18446744073709551616.a",
                                    "model.layers.x",
                                    "model.norm.weight",
                                    "\xc3\xa4"};
enum { N = sizeof names / sizeof *names };

static int sign(int x)
{
    return (x > 0) - (x < 0);
}

TEST(numbers_count_as_numbers)
{
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++)
            assert_int_equal(sign(dq_name_order_compare(names[i], names[k])), sign(i - k));
    }
}

static const char *backwards(const void *arg, int64_t i)
{
    (void)arg;
    return names[N - 1 - i];
}

TEST(indices_are_sorted)
{
    dq_err err = {0};
    dq_arena *a = given_arena();
    int64_t *order;
    assert_int_equal(dq_name_order_make(&order, N, backwards, NULL, a, &err), DQ_OK);
    for (int64_t i = 0; i < N; i++) assert_int_equal(order[i], N - 1 - i);
}
