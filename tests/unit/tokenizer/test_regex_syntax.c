/* Tests of what the tokenizer stands on: patterns, character classes, UTF-8, the byte table. The
 * reference's classes are in golden/tokenizer/classes.json (golden/tokenizer.py).
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "tokenizer/regex.c" /* what is private there */

#include <string.h>

/* Is c matched? The pattern is matched against the one character. */
static bool matches(pcre2_code *code, pcre2_match_data *data, uint32_t c)
{
    uint8_t s[4];
    size_t n;
    if (c < 0x80) {
        s[0] = (uint8_t)c;
        n = 1;
    } else if (c < 0x800) {
        s[0] = (uint8_t)(0xC0 | c >> 6);
        s[1] = (uint8_t)(0x80 | (c & 63));
        n = 2;
    } else if (c < 0x10000) {
        s[0] = (uint8_t)(0xE0 | c >> 12);
        s[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        s[2] = (uint8_t)(0x80 | (c & 63));
        n = 3;
    } else {
        s[0] = (uint8_t)(0xF0 | c >> 18);
        s[1] = (uint8_t)(0x80 | (c >> 12 & 63));
        s[2] = (uint8_t)(0x80 | (c >> 6 & 63));
        s[3] = (uint8_t)(0x80 | (c & 63));
        n = 4;
    }
    return pcre2_match(code, s, n, 0, PCRE2_NO_UTF_CHECK, data, NULL) >= 0;
}

static pcre2_code *compiled(const char *pattern)
{
    dq_err err = {0};
    pcre2_code *code;
    bool jit;
    if (dq_regex_syntax_compile(&code, &jit, pattern, strlen(pattern), false, given_arena(),
                                &err) != DQ_OK)
        fail_msg("%s", err.text);
    return code;
}

/* The whole of Unicode: only characters that PCRE2's own tables do not know yet (category Cn) may be
 * in another class than the reference's newer tables say. */
TEST(test_classes)
{
    json_t *classes = given_json(DQ_TEST_DIR "/golden/tokenizer/classes.json"), *list;
    const char *pattern;
    pcre2_code *unknown = compiled("\\p{Cn}");
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    json_object_foreach(classes, pattern, list)
    {
        pcre2_code *code = compiled(pattern);
        size_t at = 0, newer = 0;
        for (uint32_t c = 0; c < 0x110000; c++) {
            if (c >= 0xD800 && c < 0xE000) continue;
            while (at < json_array_size(list) &&
                   (uint32_t)json_integer_value(json_array_get(json_array_get(list, at), 1)) < c)
                at++;
            const json_t *range = json_array_get(list, at);
            bool want = range && (uint32_t)json_integer_value(json_array_get(range, 0)) <= c;
            if (strcmp(pattern, "\\s") == 0) assert_true(dq_utf8_is_space(c) == want);
            if (matches(code, data, c) == want) continue;
            if (!matches(unknown, data, c))
                fail_msg("%s: U+%04X differs from the reference", pattern, (unsigned)c);
            newer++;
        }
        print_message("%s: %zu characters newer than PCRE2's tables differ\n", pattern, newer);
        pcre2_code_free(code);
    }
    pcre2_code_free(unknown);
    pcre2_match_data_free(data);
    json_decref(classes);
}

/* Word characters of added tokens, against the reference's [\w] and its two joiners. */
TEST(test_word_characters)
{
    json_t *classes = given_json(DQ_TEST_DIR "/golden/tokenizer/classes.json");
    const json_t *list = json_object_get(classes, "[\\w]");
    pcre2_code *unknown = compiled("\\p{Cn}");
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    size_t at = 0;
    assert_true(json_array_size(list) > 100);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        while (at < json_array_size(list) &&
               (uint32_t)json_integer_value(json_array_get(json_array_get(list, at), 1)) < c)
            at++;
        const json_t *range = json_array_get(list, at);
        bool want = range && (uint32_t)json_integer_value(json_array_get(range, 0)) <= c;
        want = want || c == 0x200C || c == 0x200D;
        if (dq_utf8_is_word(c) != want && !matches(unknown, data, c))
            fail_msg("U+%04X differs from the reference", (unsigned)c);
    }
    pcre2_code_free(unknown);
    pcre2_match_data_free(data);
    json_decref(classes);
}

TEST(test_patterns)
{
    static const struct {
        const char *pattern, *translated; /* NULL: refused, saying ... */
        const char *says;
    } rows[] = {
        {"\\s+(?!\\S)|[^\\s\\d]",
         "\\p{White_Space}+(?!\\P{White_Space})|[^\\p{White_Space}\\p{Nd}]", ""},
        {"\\p{N}{1,3}+", "(?:\\p{N}{1,3})+", ""},
        {"(?:a|b){2}+c", "(?:(?:a|b){2})+c", ""},
        {"x++y*+z?+", "x++y*+z?+", ""},
        {"[a-z]{2,}?", "[a-z]{2,}?", ""},
        {"\\p{Han}\\P{^Lu}", "\\p{sc:Han}\\P{^Lu}", ""},
        {"\\u4e00\\x{1F600}\\x41", "\\x{4e00}\\x{1f600}\\x{41}", ""},
        {"\\-\\/ {}", "\\x{2d}\\x{2f} \\x{7b}\\x{7d}", ""},
        {"^\\s+$", "(?:\\A|(?<=\\n)(?!\\z))\\p{White_Space}+(?=\\n|\\z)", ""},
        {"a{x", "a\\x{7b}x", ""},
        {"[\\p{L}&&[^a-z]]", NULL, "operations on classes"},
        {"[a--b]", NULL, "operations on classes"},
        {"[a~~b]", NULL, "operations on classes"},
        {"[a[b]]", NULL, "a class inside a class"},
        {"[]a]", NULL, "begins with ]"},
        {"[abc", NULL, "a class without end"},
        {"[\\W]", NULL, "\\W inside a class"},
        {"\\h", NULL, "this escape"},
        {"\\1", NULL, "this escape"},
        {"\\b", NULL, "this escape"},
        {"\\", NULL, "ends in a backslash"},
        {"\\pL", NULL, "braces"},
        {"\\p{L&}", NULL, "property name"},
        {"\\xff", NULL, "character escape"},
        {"\\ud800", NULL, "character escape"},
        {"\\x{110000}", NULL, "character escape"},
        {"a{,3}", NULL, "without lower bound"},
        {"a{2}?", NULL, "{n}?"},
        {"a**", NULL, "a repetition of"},
        {"+a", NULL, "a repetition of"},
        {"(?=a)*", NULL, "a repetition of"},
        {"(?i)a", NULL, "this kind of group"},
        {"(?<n>a)", NULL, "this kind of group"},
        {"(a", NULL, "a ( without )"},
        {"a)", NULL, "a ) without ("},
        {"(?i:ss)", NULL, "fold into one"},
        {"(?i:\xC3\x9F)", NULL, "above U+007F"},
        {"(?i:\\p{Lu})", NULL, "a property of case"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_err err = {0};
        char *out = NULL;
        size_t n = 0;
        dq_status status =
            translate(&out, &n, rows[i].pattern, strlen(rows[i].pattern), given_arena(), &err);
        if (rows[i].translated) {
            if (status != DQ_OK) fail_msg("%s: %s", rows[i].pattern, err.text);
            assert_int_equal(n, strlen(rows[i].translated));
            assert_memory_equal(out, rows[i].translated, n);
        } else if (status != DQ_MISMATCH || !strstr(err.text, rows[i].says)) {
            fail_msg("%s: status %d, \"%s\"", rows[i].pattern, (int)status, err.text);
        }
    }
}

/* What PCRE2 itself refuses comes out by name too. */
TEST(test_pattern_errors)
{
    static const char *const rows[] = {"\\p{Letter}", "a{70000}", "(?<=a+)b", "[z-a]",
                                       "((((a{900}){900}){900}){900})"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_err err = {0};
        pcre2_code *code;
        bool jit;
        assert_int_equal(dq_regex_syntax_compile(&code, &jit, rows[i], strlen(rows[i]), false,
                                                 given_arena(), &err),
                         DQ_MISMATCH);
        assert_non_null(strstr(err.text, "PCRE2 says: "));
    }
}

/* Ill-formed text: number of subparts and offset of the first, cut as Unicode recommends. */
TEST(test_utf8)
{
    static const struct {
        const char *s;
        size_t len;
        int64_t bad, first;
        const char *repaired;
    } rows[] = {
        {"", 0, 0, -1, ""},
        {"plain text, long", 16, 0, -1, "plain text, long"},
        {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82", 9, 0, -1, "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82"},
        {"a\xFFz", 3, 1, 1, "a\xEF\xBF\xBDz"},
        {"\xC0\xAF", 2, 2, 0, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE0\x80", 2, 2, 0, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", 3, 3, 0, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"12345678\xF0\x9F\x99", 11, 1, 8, "12345678\xEF\xBF\xBD"},
        {"\xF0\x9F\x99 x", 5, 1, 0, "\xEF\xBF\xBD x"},
        {"\xF4\x90", 2, 2, 0, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE4\xB8\xE4\xB8\xAD", 5, 1, 0, "\xEF\xBF\xBD\xE4\xB8\xAD"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[64];
        int64_t first;
        assert_int_equal(dq_utf8_check(rows[i].s, rows[i].len, &first), rows[i].bad);
        assert_int_equal(first, rows[i].first);
        size_t n = dq_utf8_repair(out, rows[i].s, rows[i].len);
        assert_int_equal(n, strlen(rows[i].repaired));
        assert_memory_equal(out, rows[i].repaired, n);
    }
}

TEST(test_byte_table)
{
    for (int b = 0; b < 256; b++) {
        char text[2], back[2];
        size_t len = dq_utf8_of_byte(text, (uint8_t)b), n = 0;
        assert_true(dq_utf8_to_bytes(back, &n, text, len));
        assert_int_equal(n, 1);
        assert_int_equal((uint8_t)back[0], b);
    }
    char out[8];
    size_t n;
    assert_false(dq_utf8_to_bytes(out, &n, " ", 1));
    assert_false(dq_utf8_to_bytes(out, &n, "\xC5\x84", 2)); /* U+0144 */
}
