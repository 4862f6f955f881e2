/* jinja_functions: functions that a template finds without being given them, a row of `functions` each.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_filters.h"
#include "template/jinja_print.h"
#include "template/jinja_strings.h"

#include <string.h>
#include <time.h>

typedef dq_jinja_run run;
typedef dq_jinja_call call;
typedef dq_jinja_value value;

static value run_range(run *r, call *c)
{
    enum { MAX_RANGE = 100000 }; /* of Jinja2's sandbox */
    int64_t part[3] = {0, 0, 1}, i;
    if (c->arg.n < 1 || c->arg.n > 3 || c->named.n)
        return dq_jinja_fail(r, DQ_DAMAGED, "range takes one to three arguments");
    for (size_t k = 0; k < c->arg.n; k++) {
        if (!dq_jinja_is_integer(&c->arg.item[k]))
            return dq_jinja_fail(r, DQ_DAMAGED, "range of '%s'", dq_jinja_type(&c->arg.item[k]));
        part[c->arg.n == 1 ? 1 : k] = dq_jinja_integer(&c->arg.item[k]);
    }
    if (part[2] == 0) return dq_jinja_fail(r, DQ_DAMAGED, "range with a step of 0");
    value out = dq_jinja_list_new(r, DQ_JINJA_RANGE, 0);
    for (i = part[0]; (part[2] > 0 ? i < part[1] : i > part[1]) && dq_jinja_ok(r);) {
        dq_jinja_list_add(r, out.list, dq_jinja_int(i));
        if (dq_jinja_ok(r) && out.list->n > MAX_RANGE)
            dq_jinja_fail(r, DQ_DAMAGED, "a range of more than %d integers", MAX_RANGE);
        if (__builtin_add_overflow(i, part[2], &i)) break;
    }
    return out;
}

/* dict(...) and namespace(...): another dict, and names. */
static value make_dict(run *r, const call *c, dq_jinja_kind kind)
{
    value out = dq_jinja_dict_new(r, kind);
    if (c->arg.n > 1 || (c->arg.n && c->arg.item[0].kind != DQ_JINJA_DICT))
        return dq_jinja_fail(r, DQ_MISMATCH, "a dict of other things than a dict is not supported");
    for (size_t k = 0; k < 2 && dq_jinja_ok(r); k++) {
        const dq_jinja_dict *from = k ? &c->named : c->arg.n ? c->arg.item[0].dict : NULL;
        for (size_t i = 0; from && i < from->n; i++)
            dq_jinja_dict_put(r, out.dict, from->entry[i].key, from->entry[i].value);
    }
    return out;
}

static value run_dict(run *r, call *c)
{
    return make_dict(r, c, DQ_JINJA_DICT);
}

static value run_namespace(run *r, call *c)
{
    return make_dict(r, c, DQ_JINJA_NAMESPACE);
}

static value run_raise_exception(run *r, call *c)
{
    const dq_jinja_text t = dq_jinja_print_text(r, &c->p[0]);
    return dq_jinja_fail(r, DQ_MISMATCH, "%.*s", (int)t.n, t.n ? t.s : "");
}

/* The local time as C's strftime writes it, which Python's own hands the format to. */
static value run_strftime_now(run *r, call *c)
{
    const dq_jinja_text t = dq_jinja_strings_text(r, &c->p[0]);
    const time_t now = time(NULL);
    char format[200], text[4096]; /* room for a format of %c alone */
    struct tm local;
    dq_jinja_spend(r, (t.n + 1) * DQ_JINJA_NUMBER);
    if (t.n + 1 >= sizeof format || !localtime_r(&now, &local))
        return dq_jinja_fail(r, DQ_MISMATCH, "strftime_now: the format is too long");
    memcpy(format, t.s, t.n);
    format[t.n] = 0;
    for (const char *s = format; (s = strchr(s, '%')); s += 2) {
        if (!s[1] || !strchr("aAbBdHIjmMpSUwWxXyYc%", s[1]))
            return dq_jinja_fail(r, DQ_MISMATCH, "strftime_now: %%%c is not supported",
                                 s[1] ? s[1] : ' ');
    }
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    dq_jinja_put(r, text, strftime(text, sizeof text, format, &local));
#pragma GCC diagnostic pop
    return dq_jinja_captured(r, &mine, before);
}

static const dq_jinja_function functions[] = {
    {"cycler", NULL, 0, NULL},
    {"dict", NULL, 0, run_dict},
    {"joiner", NULL, 0, NULL},
    {"lipsum", NULL, 0, NULL},
    {"namespace", NULL, 0, run_namespace},
    {"raise_exception", "message", 1, run_raise_exception},
    {"range", NULL, 0, run_range},
    {"strftime_now", "format", 1, run_strftime_now},
};

const dq_jinja_function *dq_jinja_functions_find(dq_jinja_text name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (dq_jinja_text_is(name, functions[i].name)) return &functions[i];
    }
    return NULL;
}
