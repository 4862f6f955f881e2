/* test_utf8: what a terminal is not to get.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/utf8.h"

#include <string.h>

TEST(control_characters)
{
    static const struct {
        const char *s;
        size_t len, bytes;
    } cases[] = {
        {"\0", 1, 1},
        {"\x01", 1, 1},
        {"\x1b[2J", 4, 1},
        {"\x1f", 1, 1},
        {"\r", 1, 1},
        {"\t", 1, 0},
        {"\n", 1, 0},
        {" ", 1, 0},
        {"~", 1, 0},
        {"\x7f", 1, 1},
        {"\xC2\x80", 2, 2},
        {"\xC2\x9B"
         "2J",
         4, 2},
        {"\xC2\x9F", 2, 2},
        {"\xC2\xA0", 2, 0},
        {"\xC3\x80", 2, 0},
        {"\xE2\x82\xAC", 3, 0},
        {"\xC2", 1, 0},
        {"", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(dq_utf8_control(cases[i].s, cases[i].len), cases[i].bytes);
}
