/* jinja_print: see jinja_print.h. One walk over a value writes both forms: with a dq_jinja_json it writes JSON, without
 * one what repr() gives. A real has the fewest digits that read back as itself, in Python's places.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_print.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void put(dq_jinja_run *r, const char *s)
{
    dq_jinja_put(r, s, strlen(s));
}

static void put_real(dq_jinja_run *r, double x, bool json)
{
    enum { DIGITS = 17, FIXED = 16 };
    char text[64], *e;
    int digits = 1, exponent;
    if (x != x) {
        put(r, json ? "NaN" : "nan");
        return;
    }
    if (isinf(x)) {
        if (x < 0) put(r, "-");
        put(r, json ? "Infinity" : "inf");
        return;
    }
    if (!dq_jinja_spend(r, DQ_JINJA_DIVISION)) return;
    do snprintf(text, sizeof text, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && digits++ < DIGITS);
    e = strchr(text, 'e');
    exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= FIXED)
        snprintf(e, sizeof text - (size_t)(e - text), "e%+03d", exponent);
    else
        snprintf(text, sizeof text, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 1, x);
    put(r, text);
}

static bool is_printable(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

/* \, the letter and so many hexadecimal digits; returns the place after them. */
static char *escape_number(char *out, char letter, uint32_t c, int digits)
{
    *out++ = '\\';
    *out++ = letter;
    while (digits-- > 0) *out++ = "0123456789abcdef"[c >> 4 * digits & 15];
    *out = 0;
    return out;
}

/* \n and its like, \xHH, \uHHHH, \UHHHHHHHH, of JSON pairs of surrogates; no text: the character stands for itself. */
static void escape(char out[16], uint32_t c, char quote, const dq_jinja_json *json)
{
    const char *all = json ? "\nn\rr\tt\bb\ff" : "\nn\rr\tt", *s = all;
    while (*s && (uint32_t)*s != c) s += 2;
    out[0] = 0;
    if (c == '\\' || c == (uint8_t)quote)
        escape_number(out, (char)c, 0, 0);
    else if (*s)
        escape_number(out, s[1], 0, 0);
    else if (json ? c >= 0x20 && (!json->ascii || c < 0x7F) : is_printable(c))
        return;
    else if (json && c > 0xFFFF)
        escape_number(escape_number(out, 'u', 0xD7C0 + (c >> 10), 4), 'u', 0xDC00 + (c & 0x3FF), 4);
    else if (!json && c < 0x100)
        escape_number(out, 'x', c, 2);
    else
        escape_number(out, c > 0xFFFF ? 'U' : 'u', c, c > 0xFFFF ? 8 : 4);
}

static void put_string(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_json *json)
{
    const bool single = t.n && memchr(t.s, '\'', t.n), twice = t.n && memchr(t.s, '"', t.n);
    const char quote = json || (single && !twice) ? '"' : '\'';
    dq_jinja_put(r, &quote, 1);
    for (size_t at = 0, from = 0; at < t.n && dq_jinja_ok(r); from = at) {
        char text[16];
        escape(text, dq_jinja_text_next(r, t, &at), quote, json);
        dq_jinja_put(r, text[0] ? text : t.s + from, text[0] ? strlen(text) : at - from);
    }
    dq_jinja_put(r, &quote, 1);
}

static void put_value(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json,
                      int level);

static void put_line(dq_jinja_run *r, const dq_jinja_json *json, int level)
{
    if (!json || !json->indent.s) return;
    put(r, "\n");
    for (int i = 0; i < level; i++) dq_jinja_put(r, json->indent.s, json->indent.n);
}

/* What stands before item i of a list or dict. */
static void put_before(dq_jinja_run *r, const dq_jinja_json *json, int level, size_t i)
{
    static const dq_jinja_text comma = {", ", 2};
    const dq_jinja_text between = json ? json->between : comma;
    if (i > 0) dq_jinja_put(r, between.s, between.n);
    put_line(r, json, level);
}

static void put_list(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json, int level)
{
    const bool tuple = !json && v->kind == DQ_JINJA_TUPLE;
    put(r, tuple ? "(" : "[");
    for (size_t i = 0; i < v->list->n && dq_jinja_ok(r); i++) {
        put_before(r, json, level + 1, i);
        put_value(r, &v->list->item[i], json, level + 1);
    }
    if (v->list->n) put_line(r, json, level);
    if (tuple && v->list->n == 1) put(r, ",");
    put(r, tuple ? ")" : "]");
}

static void sort_by_key(dq_jinja_run *r, dq_jinja_entry *e, size_t n)
{
    for (size_t i = 1; i < n && dq_jinja_ok(r); i++) {
        const dq_jinja_entry one = e[i];
        size_t at = i;
        for (; at > 0 && dq_jinja_text_order(r, one.key, e[at - 1].key) < 0; at--)
            e[at] = e[at - 1];
        e[at] = one;
    }
}

static void put_dict(dq_jinja_run *r, const dq_jinja_dict *d, const dq_jinja_json *json, int level)
{
    dq_jinja_entry *e = dq_jinja_alloc(r, d->n, sizeof *e);
    if (!e) return;
    if (d->n) memcpy(e, d->entry, d->n * sizeof *e);
    if (json && json->sorted) sort_by_key(r, e, d->n);
    put(r, "{");
    for (size_t i = 0; i < d->n && dq_jinja_ok(r); i++) {
        put_before(r, json, level + 1, i);
        put_string(r, e[i].key, json);
        dq_jinja_put(r, json ? json->colon.s : ": ", json ? json->colon.n : 2);
        put_value(r, &e[i].value, json, level + 1);
    }
    if (d->n) put_line(r, json, level);
    put(r, "}");
}

static void put_other(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json)
{
    if (json)
        dq_jinja_fail(r, DQ_DAMAGED, "Object of type %s is not JSON serializable",
                      dq_jinja_type(v));
    else if (v->kind == DQ_JINJA_UNDEFINED)
        put(r, "Undefined");
    else
        dq_jinja_fail(r, DQ_MISMATCH, "printing a value of type '%s' is not supported",
                      dq_jinja_type(v));
}

static void put_value(dq_jinja_run *r, const dq_jinja_value *v, const dq_jinja_json *json,
                      int level)
{
    char text[32];
    if (!dq_jinja_spend(r, DQ_JINJA_STEP) || !dq_jinja_enter(r)) return;
    switch (v->kind) {
    case DQ_JINJA_NONE: put(r, json ? "null" : "None"); break;
    case DQ_JINJA_BOOL:
        put(r, v->truth ? (json ? "true" : "True") : (json ? "false" : "False"));
        break;
    case DQ_JINJA_INT:
        snprintf(text, sizeof text, "%lld", (long long)v->i);
        put(r, text);
        break;
    case DQ_JINJA_FLOAT: put_real(r, v->f, json != NULL); break;
    case DQ_JINJA_STRING:
        if (v->is_safe && !json)
            dq_jinja_fail(r, DQ_MISMATCH, "printing what safe gives within a list or dict");
        put_string(r, v->text, json);
        break;
    case DQ_JINJA_LIST:
    case DQ_JINJA_TUPLE: put_list(r, v, json, level); break;
    case DQ_JINJA_DICT: put_dict(r, v->dict, json, level); break;
    default: put_other(r, v, json); break;
    }
    r->depth--;
}

void dq_jinja_print(dq_jinja_run *r, const dq_jinja_value *v)
{
    if (v->kind == DQ_JINJA_STRING)
        dq_jinja_put(r, v->text.s, v->text.n);
    else if (v->kind != DQ_JINJA_UNDEFINED)
        put_value(r, v, NULL, 0);
    else
        dq_jinja_put(r, "", 0);
}

dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v)
{
    dq_strbuf mine, *before;
    if (v->kind == DQ_JINJA_STRING) return v->text;
    before = dq_jinja_capture(r, &mine);
    dq_jinja_print(r, v);
    return dq_jinja_captured(r, &mine, before).text;
}

dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    put_value(r, v, form, 0);
    return dq_jinja_captured(r, &mine, before);
}
