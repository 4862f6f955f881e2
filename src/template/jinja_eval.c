/* jinja_eval: see jinja_eval.h; expressions. A row of `evaluate` for each kind of node; operands are evaluated in the order
 * in which Python evaluates them.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_eval.h"

#include "template/jinja_filters.h"
#include "template/jinja_methods.h"
#include "template/jinja_operators.h"
#include "template/jinja_print.h"

#include <string.h>

typedef dq_jinja_run run;
typedef dq_jinja_node node;
typedef dq_jinja_value value;

static value eval_constant(run *r, const node *n)
{
    (void)r;
    return n->value;
}

static value eval_variable(run *r, const node *n)
{
    const value *found = NULL;
    for (const dq_jinja_scope *s = r->scope; s && !found; s = s->parent)
        found = dq_jinja_dict_get(r, &s->names, n->name);
    if (found) return *found;
    const dq_jinja_function *f = dq_jinja_functions_find(n->name);
    if (f && f->code) return (value){.kind = DQ_JINJA_FUNCTION, .function = f};
    if (f) return dq_jinja_fail(r, DQ_MISMATCH, "the function \"%s\" is not supported", f->name);
    return dq_jinja_undefined(r, "'%.*s' is undefined", (int)n->name.n, n->name.s);
}

static value eval_items(run *r, const node *n)
{
    const dq_jinja_kind kind = n->kind == DQ_JINJA_LIST_OF ? DQ_JINJA_LIST : DQ_JINJA_TUPLE;
    value out = dq_jinja_list_new(r, kind, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, out.list, dq_jinja_eval(r, n->item.at[i]));
    return out;
}

static value eval_dict(run *r, const node *n)
{
    value out = dq_jinja_dict_new(r, DQ_JINJA_DICT);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i += 2) {
        const value key = dq_jinja_eval(r, n->item.at[i]), v = dq_jinja_eval(r, n->item.at[i + 1]);
        if (key.kind != DQ_JINJA_STRING || key.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a key of type '%s' is not supported",
                                 dq_jinja_type(&key));
        dq_jinja_dict_put(r, out.dict, key.text, v);
    }
    return out;
}

static value eval_attribute(run *r, const node *n)
{
    const value of = dq_jinja_eval(r, n->a);
    return dq_jinja_ok(r) ? dq_jinja_methods_attribute(r, &of, n->name) : of;
}

static value eval_subscript(run *r, const node *n)
{
    const value of = dq_jinja_eval(r, n->a), key = dq_jinja_eval(r, n->b);
    return dq_jinja_ok(r) ? dq_jinja_methods_subscript(r, &of, &key) : of;
}

static value eval_slice(run *r, const node *n)
{
    const value of = dq_jinja_eval(r, n->a);
    value part[3] = {{0}};
    for (size_t i = 0; i < 3; i++) {
        if (n->item.at[i]) part[i] = dq_jinja_eval(r, n->item.at[i]);
    }
    return dq_jinja_ok(r) ? dq_jinja_operators_slice(r, &of, part) : of;
}

/* ---- Calls ---- */

static void eval_arguments(run *r, const node *n, dq_jinja_call *c)
{
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) {
        const node *one = n->item.at[i];
        if (one->kind == DQ_JINJA_KEYWORD)
            dq_jinja_dict_put(r, &c->named, one->name, dq_jinja_eval(r, one->a));
        else
            dq_jinja_list_add(r, &c->arg, dq_jinja_eval(r, one));
    }
    r->line = n->line;
}

value dq_jinja_eval_apply(run *r, const dq_jinja_function *f, dq_jinja_call *c)
{
    size_t i = 0, named = 0;
    for (const char *s = f->parameters; s && *s; i++) {
        const dq_jinja_text name = {s, strcspn(s, " ")};
        const value *v = *s == '_' ? NULL : dq_jinja_dict_get(r, &c->named, name);
        named += v != NULL;
        if (v && i < c->arg.n)
            return dq_jinja_fail(r, DQ_DAMAGED, "%s has two arguments \"%.*s\"", f->name,
                                 (int)name.n, name.s);
        if (!v && i < c->arg.n) v = &c->arg.item[i];
        if (!v && i < f->required)
            return dq_jinja_fail(r, DQ_DAMAGED, "%s lacks the argument \"%.*s\"", f->name,
                                 (int)name.n, name.s);
        if (v) c->p[i] = *v;
        s += name.n + (s[name.n] == ' ');
    }
    if (f->parameters && (c->arg.n > i || c->named.n > named))
        return dq_jinja_fail(r, DQ_DAMAGED, "%s has an argument too many", f->name);
    return dq_jinja_ok(r) ? f->code(r, c) : (value){0};
}

static value eval_call(run *r, const node *n)
{
    const value f = dq_jinja_eval(r, n->a);
    dq_jinja_call c = {0};
    eval_arguments(r, n, &c);
    if (!dq_jinja_ok(r)) return f;
    switch (f.kind) {
    case DQ_JINJA_FUNCTION: return dq_jinja_eval_apply(r, f.function, &c);
    case DQ_JINJA_MACRO: return dq_jinja_eval_macro(r, f.macro, &c);
    case DQ_JINJA_METHOD:
        c.self = f.method->self;
        if (c.self.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a method of what safe gives is not supported");
        return dq_jinja_eval_apply(r, f.method->function, &c);
    case DQ_JINJA_UNDEFINED: return dq_jinja_fail_undefined(r, &f);
    default: return dq_jinja_fail(r, DQ_DAMAGED, "'%s' object is not callable", dq_jinja_type(&f));
    }
}

/* A filter or a test. */
static value eval_filter(run *r, const node *n)
{
    dq_jinja_call c = {.self = dq_jinja_eval(r, n->a)};
    eval_arguments(r, n, &c);
    if (n->function) return dq_jinja_ok(r) ? dq_jinja_eval_apply(r, n->function, &c) : c.self;
    return dq_jinja_fail(r, DQ_DAMAGED, "there is no filter or test \"%.*s\"", (int)n->name.n,
                         n->name.s);
}

/* ---- Operators ---- */

static value eval_not(run *r, const node *n)
{
    const value a = dq_jinja_eval(r, n->a);
    return dq_jinja_bool(!dq_jinja_truth(&a));
}

static value eval_sign(run *r, const node *n)
{
    const value a = dq_jinja_eval(r, n->a), zero = dq_jinja_int(0);
    if (a.kind == DQ_JINJA_FLOAT && n->operation == DQ_JINJA_SUBTRACT) return dq_jinja_float(-a.f);
    if (!dq_jinja_is_integer(&a) && a.kind != DQ_JINJA_FLOAT && a.kind != DQ_JINJA_UNDEFINED)
        return dq_jinja_fail(r, DQ_DAMAGED, "a sign before '%s'", dq_jinja_type(&a));
    return dq_jinja_operators_arithmetic(r, n->operation, &zero, &a);
}

static value eval_arithmetic(run *r, const node *n)
{
    const value a = dq_jinja_eval(r, n->a), b = dq_jinja_eval(r, n->b);
    r->line = n->line;
    return dq_jinja_ok(r) ? dq_jinja_operators_arithmetic(r, n->operation, &a, &b) : a;
}

static value eval_join(run *r, const node *n)
{
    dq_strbuf mine, *before;
    value all = dq_jinja_list_new(r, DQ_JINJA_LIST, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, all.list, dq_jinja_eval(r, n->item.at[i]));
    before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) dq_jinja_print(r, &all.list->item[i]);
    return dq_jinja_captured(r, &mine, before);
}

static value eval_compare(run *r, const node *n)
{
    value a = dq_jinja_eval(r, n->a);
    bool all = true;
    for (size_t i = 0; i < n->item.n && all && dq_jinja_ok(r); i++) {
        const value b = dq_jinja_eval(r, n->item.at[i]->a);
        r->line = n->line;
        all = dq_jinja_ok(r) && dq_jinja_operators_compare(r, n->item.at[i]->operation, &a, &b);
        a = b;
    }
    return dq_jinja_bool(all);
}

static value eval_and(run *r, const node *n)
{
    const value a = dq_jinja_eval(r, n->a);
    return dq_jinja_truth(&a) == (n->kind == DQ_JINJA_AND) ? dq_jinja_eval(r, n->b) : a;
}

static value eval_if_else(run *r, const node *n)
{
    const value condition = dq_jinja_eval(r, n->b);
    if (dq_jinja_truth(&condition)) return dq_jinja_eval(r, n->a);
    if (n->c) return dq_jinja_eval(r, n->c);
    return dq_jinja_undefined(r,
                              "the inline if-expression on line %d evaluated to false and no else "
                              "section was defined.",
                              n->line);
}

/* The text of a set block, which its statement keeps under a name that no template can write. */
static value eval_captured(run *r, const node *n)
{
    (void)n;
    const value *v = dq_jinja_dict_get(r, &r->scope->names, dq_jinja_text_of(""));
    return v ? *v : (value){0};
}

value dq_jinja_eval(run *r, const node *n)
{
    static value (*const evaluate[DQ_JINJA_NODE_KINDS])(run *, const node *) = {
        [DQ_JINJA_CONSTANT] = eval_constant,
        [DQ_JINJA_VARIABLE] = eval_variable,
        [DQ_JINJA_LIST_OF] = eval_items,
        [DQ_JINJA_TUPLE_OF] = eval_items,
        [DQ_JINJA_DICT_OF] = eval_dict,
        [DQ_JINJA_ATTRIBUTE] = eval_attribute,
        [DQ_JINJA_SUBSCRIPT] = eval_subscript,
        [DQ_JINJA_SLICE] = eval_slice,
        [DQ_JINJA_CALL] = eval_call,
        [DQ_JINJA_FILTER] = eval_filter,
        [DQ_JINJA_TEST] = eval_filter,
        [DQ_JINJA_NOT] = eval_not,
        [DQ_JINJA_SIGN] = eval_sign,
        [DQ_JINJA_ARITHMETIC] = eval_arithmetic,
        [DQ_JINJA_JOIN] = eval_join,
        [DQ_JINJA_COMPARE] = eval_compare,
        [DQ_JINJA_AND] = eval_and,
        [DQ_JINJA_OR] = eval_and,
        [DQ_JINJA_IF_ELSE] = eval_if_else,
        [DQ_JINJA_CAPTURED] = eval_captured,
    };
    value v = {0};
    r->line = n->line;
    if (!dq_jinja_spend(r, DQ_JINJA_STEP) || !dq_jinja_enter(r)) return v;
    v = evaluate[n->kind](r, n);
    r->depth--;
    return dq_jinja_ok(r) ? v : (value){0};
}
