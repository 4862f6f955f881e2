/* task_file: see task_file.h. Lines are cut from the text in memory and parsed one at a time; a failure is
 * reported with its item and line. The readers of single fields name the key and what they expected.
 * SPDX-License-Identifier: MIT */
#include "tasks/task_file.h"

#include "base/base.h"
#include "base/random.h"
#include "base/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

dq_item *dq_task_file_add(dq_task_items *l, dq_err *err)
{
    dq_item *list = dq_grow(l->a, l->item, (size_t)l->n + 1, &l->cap, sizeof *list, err);
    if (!list) return NULL;
    l->item = list;
    l->item[l->n].delimiter = " ";
    return &l->item[l->n++];
}

bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n)
{
    if (*at >= len) return false;
    const char *nl = memchr(text + *at, '\n', len - *at);
    *line = text + *at;
    *n = nl ? (size_t)(nl - *line) : len - *at;
    *at += *n + (nl != NULL);
    return true;
}

static bool is_white(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool dq_task_file_is_blank(const char *line, size_t n)
{
    while (n > 0 && is_white(line[n - 1])) n--;
    return n == 0;
}

static dq_status read_line(dq_task_items *l, const char *line, size_t n, int64_t number,
                           dq_task_file_object *read, dq_err *err)
{
    json_t *o = NULL;
    dq_item *item = dq_task_file_add(l, err);
    if (!item) return err->code;
    item->line = number;
    if (dq_json_parse_line(&o, line, n, "item", err) == DQ_OK) {
        if (!json_is_object(o))
            dq_fail(err, DQ_DAMAGED, "expected a JSON object");
        else if (read(item, o, l->a, err) == DQ_OK)
            dq_task_file_read_cluster(&item->cluster, o, err);
    }
    json_decref(o);
    if (err->code == DQ_OK) return DQ_OK;
    return dq_in(err, "item %lld, line %lld: ", (long long)l->n - 1, (long long)number);
}

dq_status dq_task_file_read_jsonl(dq_task_items *l, const char *text, size_t len, int64_t limit,
                                  dq_task_file_object *read, dq_err *err)
{
    const char *line;
    size_t at = 0, n;
    for (int64_t number = 1; dq_task_file_next_line(text, len, &at, &line, &n); number++) {
        if (limit && l->n == limit) break;
        if (dq_task_file_is_blank(line, n)) continue;
        DQ_TRY(read_line(l, line, n, number, read, err));
    }
    return DQ_OK;
}

dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err)
{
    const json_t *v = json_object_get(o, "cluster");
    if (json_is_integer(v))
        *out = dq_random_mix((uint64_t)json_integer_value(v));
    else if (json_is_string(v))
        *out = dq_strmap_hash(json_string_value(v), json_string_length(v));
    else if (v)
        return dq_json_wrong("cluster", "a text or an integer", v, err);
    return DQ_OK;
}

dq_status dq_task_file_set_choice(const dq_item *item, dq_choice *c, const char *text, dq_arena *a,
                                  dq_err *err)
{
    c->points = dq_utf8_count(text, strlen(text));
    c->delimiter = strlen(item->delimiter);
    c->text = dq_textf(a, err, "%s%s", item->delimiter, text);
    if (!c->text) return err->code;
    c->len = strlen(c->text);
    return DQ_OK;
}

dq_status dq_task_file_set_choices(dq_item *item, const char *const *text, int n, dq_arena *a,
                                   dq_err *err)
{
    dq_choice *c = dq_alloc(a, (size_t)n, sizeof *c, err);
    if (!c) return err->code;
    for (int i = 0; i < n; i++) DQ_TRY(dq_task_file_set_choice(item, &c[i], text[i], a, err));
    item->choice = c;
    item->n_choices = n;
    return DQ_OK;
}

dq_status dq_task_file_read_choices(dq_item *item, const json_t *o, const char *key,
                                    char *(*clean)(dq_arena *, const char *, dq_err *), dq_arena *a,
                                    dq_err *err)
{
    const json_t *texts = json_object_get(o, key);
    if (!texts) return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
    size_t n = json_array_size(texts);
    if (!json_is_array(texts) || n < 2 || n > INT_MAX)
        return dq_fail(err, DQ_DAMAGED,
                       "key \"%s\": expected a list of at least two strings, found %zu", key, n);
    dq_choice *c = dq_alloc(a, n, sizeof *c, err);
    if (!c) return err->code;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(texts, i);
        const char *s = json_string_value(v);
        if (!s || strlen(s) != json_string_length(v))
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": entry %zu is not a string without NUL",
                           key, i);
        if (clean) s = clean(a, s, err);
        if (!s) return err->code;
        DQ_TRY(dq_task_file_set_choice(item, &c[i], s, a, err));
    }
    item->choice = c;
    item->n_choices = (int)n;
    return DQ_OK;
}

dq_status dq_task_file_set_context(dq_item *item, dq_arena *a, dq_err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) return dq_fail(err, DQ_RESOURCE, "a context is too long");
    char *s = dq_alloc(a, (size_t)n + 1, 1, err);
    if (!s) return err->code;
    va_start(args, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, args);
    va_end(args);
    item->ctx = s;
    item->ctx_len = (size_t)n;
    return DQ_OK;
}

int dq_task_file_index_of(const char *s, size_t len, int first, int n)
{
    int64_t x = 0;
    while (len > 0 && is_white(s[len - 1])) len--;
    while (len > 0 && is_white(*s)) s++, len--;
    if (len == 0 || len > 9) return -1;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        x = 10 * x + (s[i] - '0');
    }
    return x >= first && x < (int64_t)first + n ? (int)(x - first) : -1;
}

dq_status dq_task_file_read_index(int *out, const json_t *o, const char *key, int first, int n,
                                  const int *fallback, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    int64_t index;
    if (fallback && (!v || json_is_null(v))) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!text) {
        DQ_TRY(dq_json_int(&index, o, key, first, first + n - 1, NULL, err));
        *out = (int)index - first;
        return DQ_OK;
    }
    *out = dq_task_file_index_of(text, json_string_length(v), first, n);
    if (*out >= 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %d to %d, found \"%.40s\"", key, first,
                   first + n - 1, text);
}
