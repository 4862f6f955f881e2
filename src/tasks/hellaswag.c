/* hellaswag: see hellaswag.h. The first character tells the official file of JSON lines from the one of six lines
 * an item. The official texts are cleaned step by step as lm-evaluation-harness cleans them; each step only
 * shortens, so buffers of the text's length do.
 * SPDX-License-Identifier: MIT */
#include "tasks/hellaswag.h"

#include "base/text.h"

#include <string.h>
#include <utf8proc.h>

char *dq_hellaswag_capitalize(dq_arena *a, const char *s, dq_err *err)
{
    size_t len = strlen(s), used = 0;
    char *out = dq_alloc(a, 4 * len + 1, 1, err); /* a mapping may need more bytes */
    for (size_t i = 0; out && i < len;) {
        size_t bytes;
        int32_t c = (int32_t)dq_utf8_first(s + i, &bytes);
        c = i == 0 ? utf8proc_totitle(c) : utf8proc_tolower(c);
        used += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out + used);
        i += bytes;
    }
    return out;
}

/* s with every `from` replaced, left to right; `out` has room. */
static void replace_all(char *out, const char *s, const char *from, const char *to)
{
    size_t n = strlen(from), m = strlen(to);
    while (*s) {
        if (strncmp(s, from, n) == 0) {
            memcpy(out, to, m);
            out += m;
            s += n;
        } else {
            *out++ = *s++;
        }
    }
    *out = 0;
}

/* Deletes the shortest "[...]" on one line, in place. */
static void delete_brackets(char *s)
{
    char *out = s;
    while (*s) {
        size_t n = *s == '[' ? strcspn(s, "]\n") : 0;
        if (n && s[n] == ']')
            s += n + 1;
        else
            *out++ = *s++;
    }
    *out = 0;
}

char *dq_hellaswag_clean(dq_arena *a, const char *s, dq_err *err)
{
    size_t bytes;
    while (*s && dq_items_is_strip_space(dq_utf8_first(s, &bytes))) s += bytes;
    size_t len = dq_items_strip_end(s, strlen(s));
    char *stripped = dq_text(a, s, len, err);
    char *titled = dq_alloc(a, len + 1, 1, err);
    char *out = dq_alloc(a, len + 1, 1, err);
    if (!stripped || !titled || !out) return NULL;
    replace_all(titled, stripped, " [title]", ". "); /* shrinks */
    delete_brackets(titled);
    replace_all(out, titled, "  ", " ");
    return out;
}

static dq_status read_official(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *activity, *ctx_a, *ctx_b;
    DQ_TRY(dq_json_text(&activity, o, "activity_label", NULL, err));
    DQ_TRY(dq_json_text(&ctx_a, o, "ctx_a", NULL, err));
    DQ_TRY(dq_json_text(&ctx_b, o, "ctx_b", NULL, err));
    DQ_TRY(dq_task_file_read_choices(item, o, "endings", dq_hellaswag_clean, a, err));
    DQ_TRY(dq_task_file_read_index(&item->gold, o, "label", 0, item->n_choices, NULL, err));
    char *second = dq_hellaswag_capitalize(a, ctx_b, err);
    char *all = second ? dq_textf(a, err, "%s: %s %s", activity, ctx_a, second) : NULL;
    item->ctx = all ? dq_hellaswag_clean(a, all, err) : NULL;
    if (!item->ctx) return err->code;
    item->ctx_len = strlen(item->ctx);
    return DQ_OK;
}

enum { TEXT_LINES = 6, TEXT_ENDINGS = 4 };

/* Context, label, four endings, all as stored. */
static dq_status read_six(dq_item *item, int64_t index, char *const *line, dq_arena *a, dq_err *err)
{
    const char *label = line[1];
    if (label[0] < '0' || label[0] >= '0' + TEXT_ENDINGS || label[1])
        return dq_fail(err, DQ_DAMAGED,
                       "item %lld, line %lld: expected a label from 0 to %d, found \"%.40s\"",
                       (long long)index, (long long)item->line + 1, TEXT_ENDINGS - 1, label);
    item->ctx = line[0];
    item->ctx_len = strlen(line[0]);
    item->gold = label[0] - '0';
    return dq_task_file_set_choices(item, (const char *const *)line + 2, TEXT_ENDINGS, a, err);
}

static dq_status load_six(dq_task_items *l, const char *text, size_t len, int64_t limit,
                          dq_err *err)
{
    const char *s;
    char *line[TEXT_LINES];
    size_t at = 0, n;
    int64_t number = 0;
    int have = 0;
    while (!(limit && l->n == limit) && dq_task_file_next_line(text, len, &at, &s, &n)) {
        number++;
        n -= n > 0 && s[n - 1] == '\r'; /* lines end at U+000A; before it, U+000D is no text */
        if (memchr(s, 0, n))
            return dq_fail(err, DQ_DAMAGED, "item %lld, line %lld: contains a NUL", (long long)l->n,
                           (long long)number);
        line[have] = dq_text(l->a, s, n, err);
        if (!line[have]) return err->code;
        if (++have < TEXT_LINES) continue;
        dq_item *item = dq_task_file_add(l, err);
        if (!item) return err->code;
        item->line = number - TEXT_LINES + 1;
        DQ_TRY(read_six(item, l->n - 1, line, l->a, err));
        have = 0;
    }
    if (have)
        return dq_fail(err, DQ_DAMAGED,
                       "item %lld, line %lld: the last item has %d lines (expected %d: context, "
                       "label, four endings)",
                       (long long)l->n, (long long)number, have, TEXT_LINES);
    return DQ_OK;
}

dq_status dq_hellaswag_load(dq_task_items *l, const char *text, size_t len, int64_t limit,
                            dq_err *err)
{
    size_t first = 0;
    while (first < len && dq_task_file_is_blank(text + first, 1)) first++;
    if (first < len && text[first] == '{')
        return dq_task_file_read_jsonl(l, text, len, limit, read_official, err);
    return load_six(l, text, len, limit, err);
}
