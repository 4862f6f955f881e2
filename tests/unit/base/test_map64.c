/* test_map64: a map against plain arrays.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/base.h"
#include "base/random.h"

#include <stdlib.h>

enum { KEYS = 3000, STEPS = 20000 };

/* Keys that a hash may treat badly: dense, pairs of small ids, the ends of the range, multiples of the table. */
static uint64_t key_of(size_t i)
{
    static const uint64_t ends[] = {0, UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 63};
    switch (i % 4) {
    case 0: return i / 4 < 4 ? ends[i / 4] : i;
    case 1: return (uint64_t)(i % 50) << 32 | i;
    case 2: return (uint64_t)i << 40;
    default: return dq_random_mix(i);
    }
}

static void check(dq_arena *a, size_t capacity)
{
    static uint64_t want[KEYS];
    dq_err err = {0};
    dq_map64 m;
    dq_random r = {capacity};
    assert_int_equal(dq_map64_new(&m, capacity, a, &err), DQ_OK);
    for (int round = 0; round < 2; round++) {
        size_t n = 0;
        for (size_t i = 0; i < KEYS; i++) want[i] = 0;
        for (int step = 0; step < STEPS; step++) {
            const size_t i = dq_random_below(&r, KEYS);
            n += want[i] == 0;
            if (step % 3 == 0) {
                want[i] = dq_random_next(&r) | 1;
                assert_int_equal(dq_map64_put(&m, key_of(i), want[i], &err), DQ_OK);
            } else if (want[i] != UINT64_MAX) {
                want[i]++;
                assert_int_equal(dq_map64_count(&m, key_of(i), &err), DQ_OK);
            }
            assert_int_equal(m.n, n);
            assert_true(2 * m.n <= m.mask + 1);
        }
        for (size_t i = 0; i < KEYS; i++) assert_true(dq_map64_get(&m, key_of(i)) == want[i]);
        dq_map64_clear(&m);
        for (size_t i = 0; i < KEYS; i++) assert_true(dq_map64_get(&m, key_of(i)) == 0);
    }
    dq_map64_free(&m);
    dq_map64_free(&m);
}

TEST(values_are_those_put)
{
    dq_arena *a = given_arena();
    check(a, 0);
    check(NULL, 0);
    check(NULL, KEYS);
}

TEST(failures_keep_the_map)
{
    dq_err err = {0}, full = {0}, zero = {0}, huge = {0};
    dq_map64 m, none;
    assert_int_equal(dq_map64_new(&m, 8, NULL, &err), DQ_OK);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(dq_map64_put(&m, i, i + 1, &err), DQ_OK);
    dq_alloc_fail_at(1);
    assert_int_equal(dq_map64_count(&m, 8, &full), DQ_RESOURCE);
    dq_alloc_fail_at(0);
    assert_int_equal(dq_map64_put(&m, 9, 0, &zero), DQ_BUG);
    for (uint64_t i = 0; i < 10; i++) assert_true(dq_map64_get(&m, i) == (i < 8 ? i + 1 : 0));
    assert_int_equal(dq_map64_count(&m, 8, &err), DQ_OK);
    for (uint64_t i = 0; i < 9; i++) assert_true(dq_map64_get(&m, i) == (i < 8 ? i + 1 : 1));
    dq_map64_free(&m);
    assert_int_equal(dq_map64_new(&none, SIZE_MAX / 2, NULL, &huge), DQ_RESOURCE);
    assert_null(none.slot);
}
