/* SPDX-License-Identifier: MIT */
#include "template/record_template.h"

#include "template/inside.h"

#include <string.h>

static dq_jinja_value value_of(dq_jinja_run *r, json_t *v)
{
    dq_jinja_value out = {.kind = DQ_JINJA_NONE};
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_string(v)) return dq_jinja_string(json_string_value(v), json_string_length(v));
    if (json_is_integer(v)) return dq_jinja_int(json_integer_value(v));
    if (json_is_real(v)) return dq_jinja_float(json_real_value(v));
    if (json_is_boolean(v)) return dq_jinja_bool(json_is_true(v));
    if (json_is_array(v)) {
        out = dq_jinja_list_new(r, DQ_JINJA_LIST, json_array_size(v));
        json_array_foreach(v, i, one)
        {
            if (dq_jinja_ok(r)) dq_jinja_list_add(r, out.list, value_of(r, one));
        }
    } else if (json_is_object(v)) {
        out = dq_jinja_dict_new(r, DQ_JINJA_DICT);
        json_object_foreach(v, key, one)
        {
            if (dq_jinja_ok(r))
                dq_jinja_dict_put(r, out.dict, dq_jinja_text_of(key), value_of(r, one));
        }
    }
    return out;
}

/* NULL after a failure. */
static json_t *json_of(dq_jinja_run *r, const dq_jinja_value *v)
{
    static const dq_jinja_json form = {.between = {", ", 2}, .colon = {": ", 2}};
    json_t *out = NULL;
    if (v->kind == DQ_JINJA_STRING) {
        out = json_stringn(v->text.n ? v->text.s : "", v->text.n);
        if (!out) dq_jinja_fail(r, DQ_DAMAGED, "a text that JSON does not have");
        return out;
    }
    const dq_jinja_text text = dq_jinja_print_json(r, v, &form).text;
    if (dq_jinja_ok(r)) out = json_loadb(text.s, text.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (dq_jinja_ok(r) && !out) dq_jinja_fail(r, DQ_DAMAGED, "a number that JSON does not have");
    return out;
}

void dq_jinja_check_key(dq_jinja_run *r, dq_jinja_text key, const dq_jinja_value *v)
{
    const char *name = dq_text(r->arena, key.s, key.n, r->err), *text;
    if (!name || (v->kind == DQ_JINJA_STRING && !(v->text.n && memchr(v->text.s, 0, v->text.n))))
        return;
    json_t *o = json_object();
    json_object_set_new(o, name, json_of(r, v));
    if (dq_jinja_ok(r)) dq_json_text(&text, o, name, NULL, r->err);
    json_decref(o);
}

static dq_jinja_value call_own(dq_jinja_run *r, dq_jinja_call *c)
{
    dq_jinja_value out = {0};
    if (r->own[c->which].of_each && c->p[0].kind == DQ_JINJA_LIST) {
        const dq_jinja_list all = *c->p[0].list;
        out = dq_jinja_list_new(r, DQ_JINJA_LIST, all.n);
        for (size_t i = 0; i < all.n && dq_jinja_ok(r); i++) {
            c->p[0] = all.item[i];
            dq_jinja_list_add(r, out.list, call_own(r, c));
        }
        return out;
    }
    json_t *given = json_of(r, &c->p[0]);
    json_t *made = given ? r->own[c->which].of(given, r->arena, r->err) : NULL;
    if (made == given) {
        out = c->p[0];
    } else if (made) {
        const size_t n = json_string_length(made);
        const char *s = dq_text(r->arena, json_string_value(made), n, r->err);
        if (s) out = dq_jinja_string(s, n);
    }
    json_decref(made);
    json_decref(given);
    return out;
}

dq_status dq_record_template_new(dq_record_template *out, const char *name, const json_t *text,
                                 dq_arena *a, dq_err *err)
{
    const bool is_list = json_is_array(text);
    const size_t n = is_list ? json_array_size(text) : 1;
    dq_jinja_nodes *body = dq_alloc(a, n, sizeof *body, err);
    if (!body) return err->code;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = is_list ? json_array_get(text, i) : text;
        if (!json_is_string(one))
            return dq_json_wrong(name, is_list ? "a list of texts" : "a text", one, err);
        dq_jinja_run r = {.arena = a, .err = err, .member = name};
        body[i] = dq_jinja_parse(&r, json_string_value(one), json_string_length(one));
        DQ_TRY(err->code);
    }
    *out = (dq_record_template){.name = name, .body = body, .n = n, .is_list = is_list};
    return DQ_OK;
}

static void define(dq_jinja_run *r, dq_jinja_dict *names, const char *name, json_t *v)
{
    dq_jinja_dict_put(r, names, dq_jinja_text_of(name), value_of(r, v));
}

dq_status dq_record_template_fill(json_t *record, const dq_record_template *t, int n,
                                  const dq_record_function *own, dq_err *err)
{
    dq_jinja_run r = {.err = err, .own = own, .line = 1};
    const char *key;
    json_t *v;
    if (n == 0) return DQ_OK;
    r.arena = dq_arena_new();
    if (!r.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    r.member = t->name;
    if (dq_jinja_eval_scope(&r, NULL)) {
        dq_jinja_dict *names = &r.scope->names;
        for (unsigned i = 0; own && own[i].name && dq_jinja_ok(&r); i++) {
            dq_jinja_function *f = dq_jinja_alloc(&r, 1, sizeof *f);
            if (f) *f = (dq_jinja_function){own[i].name, "_value", 1, call_own, i};
            dq_jinja_dict_put(&r, names, dq_jinja_text_of(own[i].name),
                              (dq_jinja_value){.kind = DQ_JINJA_FUNCTION, .function = f});
        }
        json_object_foreach(record, key, v) define(&r, names, key, v);
        for (int i = 0; i < n && dq_jinja_ok(&r); i++) {
            json_t *made = t[i].is_list ? json_array() : NULL;
            dq_jinja_scope *const outer = r.scope;
            r.member = t[i].name;
            for (size_t k = 0; k < t[i].n && dq_jinja_ok(&r); k++) {
                if (!dq_jinja_eval_scope(&r, outer)) break;
                const dq_jinja_value value = dq_jinja_eval_value(&r, &t[i].body[k], t[i].is_list);
                json_t *one = dq_jinja_ok(&r) ? json_of(&r, &value) : NULL;
                r.scope = outer;
                if (t[i].is_list)
                    json_array_append_new(made, one);
                else
                    made = one;
            }
            if (dq_jinja_ok(&r)) {
                json_object_set(record, t[i].name, made);
                define(&r, names, t[i].name, made);
            }
            json_decref(made);
        }
    }
    dq_arena_free(r.arena);
    return err->code;
}
