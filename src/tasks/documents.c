/* documents: see documents.h. A file of lines is parsed line by line, another is one document as it stands. Texts
 * are not copied unless a JSON string has to be decoded; words are counted before ill-formed text is repaired.
 * SPDX-License-Identifier: MIT */
#include "tasks/documents.h"

#include "base/text.h"
#include "tasks/task_file.h"

#include <string.h>

int64_t dq_documents_count_words(const char *text, size_t len)
{
    int64_t words = 1;
    bool space = false;
    for (size_t at = 0; at < len;) {
        size_t bytes = 1;
        bool ascii = (unsigned char)text[at] < 0x80;
        uint32_t c = ascii ? (uint32_t)text[at] : dq_utf8_first(text + at, &bytes);
        bool now = dq_items_is_strip_space(c);
        words += now && !space;
        space = now;
        at += bytes;
    }
    return words;
}

static dq_status add(dq_docs *d, dq_doc one, dq_arena *a, dq_err *err)
{
    dq_doc *list = dq_grow(a, d->doc, (size_t)d->n + 1, &d->cap, sizeof *list, err);
    if (!list) return err->code;
    d->doc = list;
    d->doc[d->n++] = one;
    return DQ_OK;
}

static dq_status add_line(dq_docs *d, dq_doc one, dq_arena *a, dq_err *err)
{
    json_t *o = NULL;
    const char *text;
    if (dq_json_parse_line(&o, one.text, one.len, "document", err) == DQ_OK &&
        dq_json_text(&text, o, "text", NULL, err) == DQ_OK) {
        one.len = json_string_length(json_object_get(o, "text"));
        one.text = dq_text(a, text, one.len, err);
        if (one.text) one.words = dq_documents_count_words(one.text, one.len);
        if (one.text) add(d, one, a, err);
    }
    json_decref(o);
    return err->code == DQ_OK ? DQ_OK
                              : dq_in(err, "%s: line %lld: ", one.path, (long long)one.line);
}

static dq_status add_lines(dq_docs *d, const char *path, const char *text, size_t len, dq_arena *a,
                           dq_err *err)
{
    dq_doc one = {.path = path};
    size_t at = dq_utf8_mark(text, len);
    while (dq_task_file_next_line(text, len, &at, &one.text, &one.len)) {
        one.line++;
        if (!dq_task_file_is_blank(one.text, one.len)) DQ_TRY(add_line(d, one, a, err));
    }
    return DQ_OK;
}

/* *fixed[*fixed_len]: the text with U+FFFD in place of what is ill-formed, itself where nothing is. */
static dq_status repair(dq_docs *d, const char **fixed, size_t *fixed_len, const char *path,
                        const char *text, size_t len, dq_arena *a, dq_err *err)
{
    int64_t first, bad = dq_utf8_check(text, len, &first);
    *fixed = text;
    *fixed_len = len;
    if (bad == 0) return DQ_OK;
    char *p = dq_alloc(a, len + 2 * (size_t)bad + 1, 1, err);
    if (!p) return err->code;
    *fixed_len = dq_utf8_repair(p, text, len);
    *fixed = p;
    if (!d->bad_path) d->first_bad = d->at + first;
    if (!d->bad_path) d->bad_path = path;
    d->n_bad += bad;
    return DQ_OK;
}

bool dq_documents_has_lines(const char *path)
{
    static const char suffix[] = ".jsonl";
    const size_t n = strlen(path), k = sizeof suffix - 1;
    return n >= k && strcmp(path + n - k, suffix) == 0;
}

dq_status dq_documents_add_line(dq_docs *d, const char *path, int64_t number, const char *text,
                                size_t len, dq_arena *a, dq_err *err)
{
    dq_doc one = {.path = path, .line = number};
    DQ_TRY(repair(d, &one.text, &one.len, path, text, len, a, err));
    return add_line(d, one, a, err);
}

bool dq_documents_are_json_lines(const char *text, size_t len)
{
    enum { LOOKED_AT = 16 };
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int lines = 0, objects = 0;
    while (lines < LOOKED_AT && dq_task_file_next_line(text, len, &at, &line, &n)) {
        json_t *o = NULL;
        dq_err err = {0};
        if (dq_task_file_is_blank(line, n)) continue;
        lines++;
        objects += *line == '{' && dq_json_parse_line(&o, line, n, "line", &err) == DQ_OK &&
                   json_object_size(o) > 0;
        json_decref(o);
    }
    return 2 * objects > lines;
}

dq_status dq_documents_add(dq_docs *d, const char *path, const char *text, size_t len, dq_arena *a,
                           dq_err *err)
{
    const char *fixed;
    size_t fixed_len;
    DQ_TRY(repair(d, &fixed, &fixed_len, path, text, len, a, err));
    if (dq_documents_has_lines(path)) return add_lines(d, path, fixed, fixed_len, a, err);
    dq_doc one = {.text = text, .len = len, .path = path};
    if (!d->lines_path && dq_documents_are_json_lines(fixed, fixed_len)) d->lines_path = path;
    one.words = dq_documents_count_words(fixed, fixed_len);
    return add(d, one, a, err);
}
