/* test_address_list: a list against a plain array of what is in it.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/random.h"

#include "tests/rigs/suite.h"

enum { ADDRESSES = 60, STEPS = 4000 };

typedef struct item {
    const void *address;
    int value, other[3];
} item;

TEST(finds_what_was_added)
{
    static const char at[ADDRESSES];
    int want[ADDRESSES] = {0}; /* 0: not in the list */
    dq_address_list l = {.size = sizeof(item)};
    dq_random r = {5};
    dq_err err = {0};
    size_t n = 0;
    for (int step = 1; step <= STEPS; step++) {
        const size_t i = dq_random_below(&r, ADDRESSES);
        item *found = dq_address_list_find(&l, at + i);
        assert_int_equal(found ? found->value : 0, want[i]);
        if (found) {
            dq_address_list_remove(&l, found);
            want[i] = 0;
            n--;
        } else {
            const item one = {.address = at + i, .value = step};
            assert_true(dq_address_list_reserve(&l, &err));
            dq_address_list_add(&l, &one);
            want[i] = step;
            n++;
        }
        assert_int_equal(l.n, n);
        const item *all = l.item;
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(all[k].value, want[(const char *)all[k].address - at]);
            if (k) assert_true((uintptr_t)all[k - 1].address < (uintptr_t)all[k].address);
        }
    }
    dq_address_list_free(&l);
    assert_null(dq_address_list_find(&l, at));
}

TEST(short_memory_leaves_the_list)
{
    const item one = {.address = &one, .value = 1};
    dq_address_list l = {.size = sizeof(item)};
    dq_err err = {0};
    assert_true(dq_address_list_reserve(&l, &err));
    dq_address_list_add(&l, &one);
    l.capacity = 1; /* the next one needs memory */
    dq_alloc_fail_at(1);
    assert_false(dq_address_list_reserve(&l, &err));
    dq_alloc_fail_at(0);
    assert_int_equal(err.code, DQ_RESOURCE);
    assert_memory_equal(dq_address_list_find(&l, &one), &one, sizeof one);
    dq_address_list_free(&l);
}
