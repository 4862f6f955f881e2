/* question_xml: see question_xml.h. Elements of a problem are found by their tags: they have no attributes and hold text
 * alone. No other XML is read.
 * SPDX-License-Identifier: MIT */
#include "tasks/question_xml.h"

#include "base/text.h"
#include "tokenizer/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t find(const char *text, size_t len, size_t at, const char *part)
{
    return dq_regex_find_text(text, len, at, part, strlen(part));
}

/* The character of &name; or &#number; at s[0], whose bytes it returns; 0: it is none. */
static size_t entity(dq_strbuf *out, const char *s, size_t len, dq_err *err)
{
    static const char *const names[][2] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i][0]);
        if (len < n || memcmp(s, names[i][0], n) != 0) continue;
        dq_strbuf_add(out, names[i][1], 1, err);
        return n;
    }
    char bytes[4], *end;
    if (len < 4 || s[1] != '#') return 0;
    const bool hex = s[2] == 'x';
    const unsigned long c = strtoul(s + 2 + hex, &end, hex ? 16 : 10);
    if (*end != ';' || c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    dq_strbuf_add(out, bytes, dq_utf8_put(bytes, (uint32_t)c), err);
    return (size_t)(end + 1 - s);
}

/* s[n] with its entities replaced, as a value of the record. */
static dq_status set_text(json_t *record, const char *key, const char *s, size_t n, dq_err *err)
{
    dq_strbuf text = {0};
    for (size_t i = 0; err->code == DQ_OK && i < n;) {
        const size_t used = s[i] == '&' ? entity(&text, s + i, n - i, err) : 1;
        if (used == 0)
            dq_fail(err, DQ_DAMAGED, "element %s: an entity that is not known", key);
        else if (s[i] != '&')
            dq_strbuf_add(&text, s + i, 1, err);
        i += used;
    }
    if (err->code == DQ_OK)
        json_object_set_new(record, key, json_stringn(text.n ? text.s : "", text.n));
    dq_block_free(text.s);
    return err->code;
}

/* The text of element `key` of a problem. */
static dq_status take_element(json_t *record, const char *key, const char *s, size_t len,
                              dq_err *err)
{
    char open[24], close[24];
    snprintf(open, sizeof open, "<%s>", key);
    snprintf(close, sizeof close, "</%s>", key);
    const size_t at = find(s, len, 0, open);
    const size_t end = at == SIZE_MAX ? SIZE_MAX : find(s, len, at, close);
    if (end == SIZE_MAX) return dq_fail(err, DQ_DAMAGED, "element %s is missing", key);
    const size_t begin = at + strlen(open);
    return set_text(record, key, s + begin, end - begin, err);
}

dq_status dq_question_xml_next(json_t **out, const char *text, size_t len, size_t *at, dq_err *err)
{
    static const char *const keys[] = {"Body", "Question", "Answer"};
    static const char id[] = "ID=\"";
    size_t begin, from = *at;
    *out = NULL;
    do { /* not <ProblemSet> */
        begin = find(text, len, from, "<Problem");
        if (begin == SIZE_MAX) return DQ_OK;
        from = begin + 1;
    } while (begin + 8 < len && !strchr(" \t\r\n>", text[begin + 8]));
    const size_t end = find(text, len, begin, "</Problem>");
    if (end == SIZE_MAX) return dq_fail(err, DQ_DAMAGED, "a <Problem> that does not end");
    *at = end + 1;
    json_t *record = json_object();
    const size_t name = find(text, end, begin, id), tag = find(text, end, begin, ">");
    if (name != SIZE_MAX && name < tag) {
        const char *first = text + name + sizeof id - 1, *last = memchr(first, '"', end - name);
        if (last) json_object_set_new(record, "ID", json_stringn(first, (size_t)(last - first)));
    }
    for (int i = 0; err->code == DQ_OK && i < 3; i++)
        take_element(record, keys[i], text + begin, end - begin, err);
    if (err->code == DQ_OK)
        *out = record;
    else
        json_decref(record);
    return err->code;
}
