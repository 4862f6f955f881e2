/* Which roundings of logits there are, and what they tie together.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "kv/kv.h"

#include <stdlib.h>

TEST(widths_and_names)
{
    for (int64_t bits = -1; bits <= 33; bits++) {
        for (int g = 0; g < DQ_GRANULARITIES; g++) {
            dq_logit_spec s = {.bits = 99};
            const bool there = bits == 16 || (bits >= 2 && bits <= 8);
            assert_int_equal(dq_logit_parse(&s, bits, dq_granularity_name[g]), there);
            assert_int_equal(s.bits, there ? bits : 99);
            if (there) assert_int_equal(s.granularity, g);
        }
    }
    dq_logit_spec s = dq_logit_plain;
    assert_false(dq_logit_parse(&s, 8, "Row"));
    assert_false(dq_logit_parse(&s, 8, ""));
    assert_false(dq_logit_parse(&s, INT64_C(1) << 32 | 8, "row"));
    assert_true(dq_logit_same(s, dq_logit_plain));
}

TEST(what_is_tied)
{
    static const bool ties[] = {true, true, false, true}, whole[] = {true, true, false, false};
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        const dq_logit_spec s = {4, (dq_granularity)g}, wide = {16, (dq_granularity)g},
                            row = {4, DQ_GRANULARITY_ROW};
        assert_int_equal(dq_logit_ties_rows(s), ties[g]);
        assert_int_equal(dq_logit_needs_absmax(s), whole[g]);
        assert_int_equal(dq_logit_by_tile(s), g == DQ_GRANULARITY_TILE);
        assert_false(dq_logit_rounds(wide) || dq_logit_ties_rows(wide) ||
                     dq_logit_needs_absmax(wide) || dq_logit_by_tile(wide));
        assert_true(
            dq_logit_same(wide, dq_logit_plain)); /* of 16 bits the granularity says nothing */
        assert_int_equal(dq_logit_same(s, row), g == DQ_GRANULARITY_ROW);
    }
}
