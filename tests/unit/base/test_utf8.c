/* test_utf8: what a terminal is not to get.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/text.h"

#include <string.h>

TEST(control_characters)
{
    static const struct {
        const char *s;
        size_t len, bytes; /* of a control character; 0: another */
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
        {"\x9B", 1, 1},
        {"\x9F", 1, 1},
        {"\xA0", 1, 0},
        {"\xFF", 1, 0},
        {"\xC3\x9F", 2, 0},
        {"\xE2\x80\xA7", 3, 0},
        {"\xE2\x80\xA8", 3, 3},
        {"\xE2\x80\xAE", 3, 3},
        {"\xE2\x80\x8D", 3, 0},
        {"\xE2\x80\x8E", 3, 3},
        {"\xE2\x80\x8F", 3, 3},
        {"\xD8\x9C", 2, 2},
        {"\xD8\x9D", 2, 0},
        {"\xE2\x80\xAF", 3, 0},
        {"\xE2\x81\xA5", 3, 0},
        {"\xE2\x81\xA6", 3, 3},
        {"\xE2\x81\xA9", 3, 3},
        {"\xF0\x9F\x99\x82", 4, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool control;
        const size_t n = dq_utf8_next(cases[i].s, cases[i].len, &control);
        assert_int_equal(control ? n : 0, cases[i].bytes);
    }
    /* pieces of a character that is cut, too, and in place */
    char text[] = "a\x1b[m\xE2\x9B"
                  "b\xC3\x9F\xC2\x85\xE2\x80\xAE\n";
    text[dq_utf8_plain(text, text, strlen(text))] = 0;
    assert_string_equal(text, "a?[m\xE2?b\xC3\x9F??\n");
    dq_one_line(text);
    assert_string_equal(text, "a?[m\xE2?b\xC3\x9F???");
}

/* What is no text is named; a stray byte in a text is not refused. */
TEST(no_text)
{
    static char utf16[600], latin[600], stray[4000], nul[4000];
    memset(latin, 'a', sizeof latin);
    memset(stray, 'a', sizeof stray);
    memset(nul, 'a', sizeof nul);
    for (size_t i = 0; i < sizeof utf16; i += 2) utf16[i] = 'a';
    for (size_t i = 0; i < 5; i++) latin[100 * i + 50] = '\xe9';
    for (size_t i = 0; i < 4; i++) stray[900 * i] = '\xe9';
    for (size_t i = 0; i < 5; i++) nul[800 * i + 1] = 0;
    const struct {
        const char *s;
        size_t len;
        const char *message; /* NULL: a text */
    } all[] = {{"PAR1....", 8, "is a Parquet file"},
               {"\x1f\x8b\x08", 3, "gunzip"},
               {"BZh91", 5, "bunzip2"},
               {"\xff\xfe"
                "a\0",
                4, "is UTF-16 (expected UTF-8 text)"},
               {"\xfe\xff\0a", 4, "is UTF-16"},
               {"\xff\xfe\0\0", 4, "is UTF-32"},
               {"GGUF\3\0\0\0", 8, "is a GGUF file"},
               {utf16, sizeof utf16, "UTF-16 without a mark"},
               {utf16 + 1, sizeof utf16 - 1, "UTF-16 without a mark"},
               {latin, sizeof latin, "5 ill-formed sequences and 0 zero bytes in 600 bytes"},
               {nul, sizeof nul, "0 ill-formed sequences and 5 zero bytes in 4000 bytes"},
               {stray, sizeof stray, NULL},
               {"caf\xe9", 4, NULL},
               {"\xef\xbb\xbftext", 7, NULL},
               {"", 0, NULL},
               {"\x1f", 1, NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_err err = {0};
        dq_utf8_check_text(all[i].s, all[i].len, &err);
        assert_int_equal(err.code, all[i].message ? DQ_MISMATCH : DQ_OK);
        if (all[i].message && !strstr(err.text, all[i].message))
            fail_msg("\"%s\" lacks \"%s\"", err.text, all[i].message);
    }
}
