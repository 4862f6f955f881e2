/* Integers are checked, since Python's have no end; a comparison goes by the order or the equality
 * of values.
 * SPDX-License-Identifier: MIT */
#include "template/inside.h"

#include <math.h>
#include <string.h>

static dq_jinja_value evaluate_node(dq_jinja_run *r, const dq_jinja_node *n);
static dq_jinja_value call_macro(dq_jinja_run *r, const struct dq_jinja_macro *m,
                                 const dq_jinja_call *c);
static void assign(dq_jinja_run *r, const dq_jinja_node *target, dq_jinja_value v);

/* By repeated products; false on overflow. */
static bool power(int64_t a, int64_t b, int64_t *out)
{
    *out = 1;
    if (b > 64) b = a == 0 || a == 1 || a == -1 ? 2 + b % 2 : 64;
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(*out, a, out)) return false;
    }
    return true;
}

static dq_jinja_value integers(dq_jinja_run *r, dq_jinja_operation operation, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool over = false;
    const bool divides = operation == DQ_JINJA_FLOOR_DIVIDE || operation == DQ_JINJA_MODULO;
    if (divides && b == 0) return dq_jinja_fail(r, DQ_DAMAGED, "division by zero");
    switch (operation) {
    case DQ_JINJA_ADD: over = __builtin_add_overflow(a, b, &c); break;
    case DQ_JINJA_SUBTRACT: over = __builtin_sub_overflow(a, b, &c); break;
    case DQ_JINJA_MULTIPLY: over = __builtin_mul_overflow(a, b, &c); break;
    case DQ_JINJA_POWER: over = !power(a, b, &c); break;
    default:
        over = a == INT64_MIN && b == -1;
        if (!over) {
            const int64_t q = a / b;
            c = a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
        }
        if (operation == DQ_JINJA_MODULO) c = over ? 0 : a - b * c;
        break;
    }
    if (over) return dq_jinja_fail(r, DQ_MISMATCH, "an integer beyond 64 bits is not supported");
    return dq_jinja_int(c);
}

/* As in Python, the rest has b's sign. */
static double floor_divide_reals(double a, double b, double *rest)
{
    double q;
    *rest = fmod(a, b);
    q = (a - *rest) / b;
    if (*rest != 0 && (b < 0) != (*rest < 0)) {
        *rest += b;
        q -= 1;
    } else if (*rest == 0) {
        *rest = copysign(0.0, b);
    }
    if (q == 0) return copysign(0.0, a / b);
    return q - floor(q) > 0.5 ? floor(q) + 1 : floor(q);
}

static dq_jinja_value reals(dq_jinja_run *r, dq_jinja_operation operation, double a, double b)
{
    const bool divides = operation >= DQ_JINJA_DIVIDE && operation <= DQ_JINJA_MODULO;
    double rest, c = 0;
    if (divides && !dq_jinja_spend(r, DQ_JINJA_DIVISION)) return (dq_jinja_value){0};
    if ((divides && b == 0) || (operation == DQ_JINJA_POWER && a == 0 && b < 0))
        return dq_jinja_fail(r, DQ_DAMAGED, "division by zero");
    switch (operation) {
    case DQ_JINJA_ADD: c = a + b; break;
    case DQ_JINJA_SUBTRACT: c = a - b; break;
    case DQ_JINJA_MULTIPLY: c = a * b; break;
    case DQ_JINJA_DIVIDE: c = a / b; break;
    case DQ_JINJA_FLOOR_DIVIDE: c = floor_divide_reals(a, b, &rest); break;
    case DQ_JINJA_MODULO: floor_divide_reals(a, b, &c); break;
    default:
        c = pow(a, b);
        if (isfinite(a) && isfinite(b) && isinf(c))
            return dq_jinja_fail(r, DQ_DAMAGED, "a power is too large");
        if (a < 0 && c != c)
            return dq_jinja_fail(r, DQ_MISMATCH, "complex numbers are not supported");
        break;
    }
    return dq_jinja_float(c);
}

static double real(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_FLOAT ? v->f : (double)dq_jinja_integer(v);
}

static dq_jinja_value repeat(dq_jinja_run *r, const dq_jinja_value *v, int64_t times)
{
    if (v->kind == DQ_JINJA_STRING) {
        dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
        for (int64_t k = 0; k < times && v->text.n && dq_jinja_ok(r); k++)
            dq_jinja_put(r, v->text.s, v->text.n);
        return dq_jinja_captured(r, &mine, before);
    }
    dq_jinja_value out = dq_jinja_list_new(r, v->kind, 0);
    for (int64_t k = 0; k < times && v->list->n && dq_jinja_ok(r); k++) {
        for (size_t i = 0; i < v->list->n; i++) dq_jinja_list_add(r, out.list, v->list->item[i]);
    }
    return out;
}

static bool is_repeatable(const dq_jinja_value *v)
{
    return v->kind == DQ_JINJA_STRING || v->kind == DQ_JINJA_LIST || v->kind == DQ_JINJA_TUPLE;
}

dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b)
{
    const bool whole = dq_jinja_is_integer(a) && dq_jinja_is_integer(b);
    const bool numbers = (dq_jinja_is_integer(a) || a->kind == DQ_JINJA_FLOAT) &&
                         (dq_jinja_is_integer(b) || b->kind == DQ_JINJA_FLOAT);
    const bool multiplies = operation == DQ_JINJA_MULTIPLY;
    if (a->is_safe || b->is_safe)
        return dq_jinja_fail(r, DQ_MISMATCH, "an operator on what safe gives is not supported");
    if (operation == DQ_JINJA_MODULO && a->kind == DQ_JINJA_STRING)
        return dq_jinja_fail(r, DQ_MISMATCH, "%% of a string is not supported");
    if (a->kind == DQ_JINJA_UNDEFINED || b->kind == DQ_JINJA_UNDEFINED)
        return dq_jinja_fail_undefined(r, a->kind == DQ_JINJA_UNDEFINED ? a : b);
    if (whole && operation != DQ_JINJA_DIVIDE &&
        (operation != DQ_JINJA_POWER || dq_jinja_integer(b) >= 0))
        return integers(r, operation, dq_jinja_integer(a), dq_jinja_integer(b));
    if (numbers) return reals(r, operation, real(a), real(b));
    if (operation == DQ_JINJA_ADD && a->kind == b->kind && is_repeatable(a)) {
        if (a->kind == DQ_JINJA_STRING) {
            char *s = dq_jinja_alloc_text(r, a->text.n + b->text.n);
            if (!s) return (dq_jinja_value){0};
            if (a->text.n) memcpy(s, a->text.s, a->text.n);
            if (b->text.n) memcpy(s + a->text.n, b->text.s, b->text.n);
            return dq_jinja_string(s, a->text.n + b->text.n);
        }
        dq_jinja_value out = repeat(r, a, 1);
        for (size_t i = 0; i < b->list->n; i++) dq_jinja_list_add(r, out.list, b->list->item[i]);
        return out;
    }
    if (multiplies && is_repeatable(a) && dq_jinja_is_integer(b))
        return repeat(r, a, dq_jinja_integer(b));
    if (multiplies && is_repeatable(b) && dq_jinja_is_integer(a))
        return repeat(r, b, dq_jinja_integer(a));
    return dq_jinja_fail(r, DQ_DAMAGED, "an operator between '%s' and '%s'", dq_jinja_type(a),
                         dq_jinja_type(b));
}

static bool contains(dq_jinja_run *r, const dq_jinja_value *in, const dq_jinja_value *v)
{
    bool found = false;
    if (in->kind == DQ_JINJA_STRING) {
        if (v->kind == DQ_JINJA_STRING)
            return dq_jinja_strings_find(r, in->text, v->text, 0) <= in->text.n;
        dq_jinja_fail(r, DQ_DAMAGED, "'in <string>' requires a string, not %s", dq_jinja_type(v));
    } else if (in->kind == DQ_JINJA_DICT) {
        if (v->kind == DQ_JINJA_LIST || v->kind == DQ_JINJA_DICT)
            dq_jinja_fail(r, DQ_DAMAGED, "unhashable type: '%s'", dq_jinja_type(v));
        found = v->kind == DQ_JINJA_STRING && dq_jinja_dict_get(r, in->dict, v->text);
    } else if (in->kind == DQ_JINJA_ITERATOR) {
        dq_jinja_fail(r, DQ_MISMATCH, "\"in\" of what map, select and others give");
    } else {
        const dq_jinja_list items = dq_jinja_items(r, in);
        for (size_t i = 0; i < items.n && !found; i++) found = dq_jinja_equal(r, &items.item[i], v);
    }
    return found;
}

bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b)
{
    switch (operation) {
    case DQ_JINJA_EQUAL: return dq_jinja_equal(r, a, b);
    case DQ_JINJA_NOT_EQUAL: return !dq_jinja_equal(r, a, b);
    case DQ_JINJA_IN: return contains(r, b, a);
    case DQ_JINJA_NOT_IN: return !contains(r, b, a);
    default: break;
    }
    const int order = dq_jinja_order(r, a, b);
    switch (operation) {
    case DQ_JINJA_LESS: return order == -1;
    case DQ_JINJA_GREATER: return order == 1;
    case DQ_JINJA_NOT_GREATER: return order == -1 || order == 0;
    default: return order == 1 || order == 0;
    }
}

static size_t bytes_of(dq_jinja_run *r, dq_jinja_text t, int64_t n)
{
    size_t at = 0;
    for (; n > 0 && at < t.n; n--) dq_jinja_text_next(r, t, &at);
    return at;
}

dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i)
{
    const int64_t n = (int64_t)dq_jinja_length(r, v);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return (dq_jinja_value){0};
    if (v->kind != DQ_JINJA_STRING) return v->list->item[i];
    const size_t begin = bytes_of(r, v->text, i);
    size_t end = begin;
    if (dq_jinja_ok(r)) dq_jinja_text_next(r, v->text, &end);
    return dq_jinja_string(v->text.s + begin, end - begin);
}

/* A slice's bound within low .. high; negative: from the end. */
static int64_t bound(dq_jinja_run *r, const dq_jinja_value *v, int64_t n, int64_t fallback,
                     int64_t low, int64_t high)
{
    if (v->kind == DQ_JINJA_ABSENT || v->kind == DQ_JINJA_NONE) return fallback;
    int64_t i = dq_jinja_strings_int(r, v, 0);
    if (i < 0) i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Absent parts count as None. */
static dq_jinja_value slice_of(dq_jinja_run *r, const dq_jinja_value *v,
                               const dq_jinja_value part[3])
{
    const int64_t step = dq_jinja_strings_int(r, &part[2], 1);
    if (v->kind == DQ_JINJA_UNDEFINED) return dq_jinja_fail_undefined(r, v);
    if (v->is_safe)
        return dq_jinja_fail(r, DQ_MISMATCH, "a slice of what safe gives is not supported");
    if (!is_repeatable(v) && v->kind != DQ_JINJA_RANGE)
        return dq_jinja_fail(r, DQ_MISMATCH, "a slice of '%s' is not supported", dq_jinja_type(v));
    if (step == 0) return dq_jinja_fail(r, DQ_DAMAGED, "slice step cannot be zero");
    const int64_t n = (int64_t)dq_jinja_length(r, v), low = step < 0 ? -1 : 0, high = n + low;
    const int64_t from = bound(r, &part[0], n, step < 0 ? high : low, low, high);
    const int64_t to = bound(r, &part[1], n, step < 0 ? low : high, low, high);
    if (v->kind == DQ_JINJA_STRING && step == 1) {
        const size_t begin = bytes_of(r, v->text, from);
        const dq_jinja_text rest = {v->text.s + begin, v->text.n - begin};
        return dq_jinja_string(rest.s, to == n ? rest.n : bytes_of(r, rest, to - from));
    }
    const dq_jinja_list items = dq_jinja_items(r, v);
    const bool is_string = v->kind == DQ_JINJA_STRING;
    dq_jinja_value out = dq_jinja_list_new(r, is_string ? DQ_JINJA_LIST : v->kind, 0);
    for (int64_t i = from; (step > 0 ? i < to : i > to) && dq_jinja_ok(r);) {
        dq_jinja_list_add(r, out.list, items.item[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return is_string && dq_jinja_ok(r) ? dq_jinja_strings_join(r, (dq_jinja_text){0}, out.list)
                                       : out;
}

/* Each kind of node has a row of `evaluate`; operands are evaluated in Python's order. */

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
    const dq_jinja_function *f = dq_jinja_find(DQ_JINJA_FUNCTIONS, n->name);
    if (f && f->code) return (value){.kind = DQ_JINJA_FUNCTION, .function = f};
    if (f) return dq_jinja_fail(r, DQ_MISMATCH, "the function \"%s\" is not supported", f->name);
    if (r->member) return dq_jinja_no_key(n->name);
    return dq_jinja_undefined(r, "'%.*s' is undefined", (int)n->name.n, n->name.s);
}

static value eval_items(run *r, const node *n)
{
    const dq_jinja_kind kind = n->kind == DQ_JINJA_LIST_OF ? DQ_JINJA_LIST : DQ_JINJA_TUPLE;
    value out = dq_jinja_list_new(r, kind, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, out.list, evaluate_node(r, n->item.at[i]));
    return out;
}

static value eval_dict(run *r, const node *n)
{
    value out = dq_jinja_dict_new(r, DQ_JINJA_DICT);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i += 2) {
        const value key = evaluate_node(r, n->item.at[i]), v = evaluate_node(r, n->item.at[i + 1]);
        if (key.kind != DQ_JINJA_STRING || key.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a key of type '%s' is not supported",
                                 dq_jinja_type(&key));
        dq_jinja_dict_put(r, out.dict, key.text, v);
    }
    return out;
}

static value eval_attribute(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a);
    return dq_jinja_ok(r) ? dq_jinja_methods_attribute(r, &of, n->name) : of;
}

static value eval_subscript(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a), key = evaluate_node(r, n->b);
    return dq_jinja_ok(r) ? dq_jinja_methods_subscript(r, &of, &key) : of;
}

static value eval_slice(run *r, const node *n)
{
    const value of = evaluate_node(r, n->a);
    value part[3] = {{0}};
    for (size_t i = 0; i < 3; i++) {
        if (n->item.at[i]) part[i] = evaluate_node(r, n->item.at[i]);
    }
    return dq_jinja_ok(r) ? slice_of(r, &of, part) : of;
}

static void eval_arguments(run *r, const node *n, dq_jinja_call *c)
{
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) {
        const node *one = n->item.at[i];
        if (one->kind == DQ_JINJA_KEYWORD)
            dq_jinja_dict_put(r, &c->named, one->name, evaluate_node(r, one->a));
        else
            dq_jinja_list_add(r, &c->arg, evaluate_node(r, one));
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
    c->which = f->which;
    return dq_jinja_ok(r) ? f->code(r, c) : (value){0};
}

static value eval_call(run *r, const node *n)
{
    const value f = evaluate_node(r, n->a);
    dq_jinja_call c = {0};
    eval_arguments(r, n, &c);
    if (!dq_jinja_ok(r)) return f;
    switch (f.kind) {
    case DQ_JINJA_FUNCTION: return dq_jinja_eval_apply(r, f.function, &c);
    case DQ_JINJA_MACRO: return call_macro(r, f.macro, &c);
    case DQ_JINJA_METHOD:
        c.self = f.method->self;
        if (c.self.is_safe)
            return dq_jinja_fail(r, DQ_MISMATCH, "a method of what safe gives is not supported");
        return dq_jinja_eval_apply(r, f.method->function, &c);
    case DQ_JINJA_UNDEFINED: return dq_jinja_fail_undefined(r, &f);
    default: return dq_jinja_fail(r, DQ_DAMAGED, "'%s' object is not callable", dq_jinja_type(&f));
    }
}

static value eval_filter(run *r, const node *n)
{
    dq_jinja_call c = {.self = evaluate_node(r, n->a)};
    eval_arguments(r, n, &c);
    if (n->function) return dq_jinja_ok(r) ? dq_jinja_eval_apply(r, n->function, &c) : c.self;
    return dq_jinja_fail(r, DQ_DAMAGED, "there is no filter or test \"%.*s\"", (int)n->name.n,
                         n->name.s);
}

static value eval_not(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a);
    return dq_jinja_bool(!dq_jinja_truth(&a));
}

static value eval_sign(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a), zero = dq_jinja_int(0);
    if (a.kind == DQ_JINJA_FLOAT && n->operation == DQ_JINJA_SUBTRACT) return dq_jinja_float(-a.f);
    if (!dq_jinja_is_integer(&a) && a.kind != DQ_JINJA_FLOAT && a.kind != DQ_JINJA_UNDEFINED)
        return dq_jinja_fail(r, DQ_DAMAGED, "a sign before '%s'", dq_jinja_type(&a));
    return dq_jinja_operators_arithmetic(r, n->operation, &zero, &a);
}

static value eval_arithmetic(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a), b = evaluate_node(r, n->b);
    r->line = n->line;
    return dq_jinja_ok(r) ? dq_jinja_operators_arithmetic(r, n->operation, &a, &b) : a;
}

static value eval_join(run *r, const node *n)
{
    dq_strbuf mine, *before;
    value all = dq_jinja_list_new(r, DQ_JINJA_LIST, n->item.n);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++)
        dq_jinja_list_add(r, all.list, evaluate_node(r, n->item.at[i]));
    before = dq_jinja_capture(r, &mine);
    for (size_t i = 0; i < n->item.n && dq_jinja_ok(r); i++) dq_jinja_print(r, &all.list->item[i]);
    return dq_jinja_captured(r, &mine, before);
}

static value eval_compare(run *r, const node *n)
{
    value a = evaluate_node(r, n->a);
    bool all = true;
    for (size_t i = 0; i < n->item.n && all && dq_jinja_ok(r); i++) {
        const value b = evaluate_node(r, n->item.at[i]->a);
        r->line = n->line;
        all = dq_jinja_ok(r) && dq_jinja_operators_compare(r, n->item.at[i]->operation, &a, &b);
        a = b;
    }
    return dq_jinja_bool(all);
}

static value eval_and(run *r, const node *n)
{
    const value a = evaluate_node(r, n->a);
    return dq_jinja_truth(&a) == (n->kind == DQ_JINJA_AND) ? evaluate_node(r, n->b) : a;
}

static value eval_if_else(run *r, const node *n)
{
    const value condition = evaluate_node(r, n->b);
    if (dq_jinja_truth(&condition)) return evaluate_node(r, n->a);
    if (n->c) return evaluate_node(r, n->c);
    return dq_jinja_undefined(r,
                              "the inline if-expression on line %d evaluated to false and no else "
                              "section was defined.",
                              n->line);
}

/* The text of a set block, kept under a name that no template can write. */
static value eval_captured(run *r, const node *n)
{
    (void)n;
    const value *v = dq_jinja_dict_get(r, &r->scope->names, dq_jinja_text_of(""));
    return v ? *v : (value){0};
}

static value evaluate_node(run *r, const node *n)
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

/* Every iteration has its own names; else runs where no iteration completed, as in Jinja2. */

static bool has_item(dq_jinja_run *r, dq_jinja_loop *l, size_t number)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_node *condition = l->node->c;
    while (l->taken.n <= number && l->at < l->source.n && dq_jinja_ok(r)) {
        const dq_jinja_value item = l->source.item[l->at++];
        dq_jinja_value yes = dq_jinja_bool(true);
        if (condition && dq_jinja_eval_scope(r, l->scope)) {
            assign(r, l->node->a, item);
            yes = evaluate_node(r, condition);
        }
        if (dq_jinja_truth(&yes)) dq_jinja_list_add(r, &l->taken, item);
    }
    r->scope = before;
    return number < l->taken.n && dq_jinja_ok(r);
}

dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name)
{
    const int64_t index = (int64_t)l->index;
    if (dq_jinja_text_is(name, "index")) return dq_jinja_int(index + 1);
    if (dq_jinja_text_is(name, "index0")) return dq_jinja_int(index);
    if (dq_jinja_text_is(name, "first")) return dq_jinja_bool(index == 0);
    if (dq_jinja_text_is(name, "last")) return dq_jinja_bool(!has_item(r, l, l->index + 1));
    if (dq_jinja_text_is(name, "previtem"))
        return index ? l->taken.item[index - 1]
                     : dq_jinja_undefined(r, "there is no previous item");
    if (dq_jinja_text_is(name, "nextitem"))
        return has_item(r, l, l->index + 1) ? l->taken.item[index + 1]
                                            : dq_jinja_undefined(r, "there is no next item");
    has_item(r, l, SIZE_MAX);
    const int64_t n = (int64_t)l->taken.n;
    if (dq_jinja_text_is(name, "length")) return dq_jinja_int(n);
    if (dq_jinja_text_is(name, "revindex")) return dq_jinja_int(n - index);
    if (dq_jinja_text_is(name, "revindex0")) return dq_jinja_int(n - index - 1);
    return (dq_jinja_value){0};
}

static void run_for(dq_jinja_run *r, const dq_jinja_node *n)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_value over = evaluate_node(r, n->b);
    dq_jinja_loop *l = dq_jinja_ok(r) ? dq_jinja_alloc(r, 1, sizeof *l) : NULL;
    bool ended = false;
    if (!l) return;
    *l = (dq_jinja_loop){.node = n, .scope = before, .source = dq_jinja_items(r, &over)};
    for (; has_item(r, l, l->index); l->index++) {
        const dq_jinja_value self = {.kind = DQ_JINJA_LOOP, .loop = l};
        if (!dq_jinja_eval_scope(r, before)) break;
        dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of("loop"), self);
        assign(r, n->a, l->taken.item[l->index]);
        dq_jinja_eval_body(r, &n->body);
        r->scope = before;
        const dq_jinja_flow flow = r->flow;
        r->flow = DQ_JINJA_ON;
        if (flow == DQ_JINJA_ON) ended = true;
        if (flow == DQ_JINJA_BREAK) break;
    }
    r->scope = before;
    if (ended || !n->item.n || !dq_jinja_ok(r)) return;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->item);
    r->scope = before;
}

/* Each kind of statement has a row of `execute`; macros see the names around their definition. */

typedef struct dq_jinja_macro {
    const node *node;
    dq_jinja_scope *scope;
} dq_jinja_macro;

bool dq_jinja_eval_scope(run *r, dq_jinja_scope *parent)
{
    dq_jinja_scope *s = dq_jinja_alloc(r, 1, sizeof *s);
    if (!s) return false;
    s->parent = parent;
    r->scope = s;
    return true;
}

static void assign(run *r, const node *target, value v)
{
    if (target->kind == DQ_JINJA_VARIABLE) {
        dq_jinja_dict_put(r, &r->scope->names, target->name, v);
    } else if (target->kind == DQ_JINJA_ATTRIBUTE) {
        const value space = evaluate_node(r, target->a);
        if (space.kind == DQ_JINJA_NAMESPACE)
            dq_jinja_dict_put(r, space.dict, target->name, v);
        else
            dq_jinja_fail(r, DQ_DAMAGED, "cannot assign attribute on non-namespace object");
    } else {
        const dq_jinja_list items = dq_jinja_items(r, &v);
        if (items.n != target->item.n)
            dq_jinja_fail(r, DQ_DAMAGED, "%zu values for %zu names", items.n, target->item.n);
        for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
            assign(r, target->item.at[i], items.item[i]);
    }
}

/* The caller has set r->scope to the body's own names. */
static value capture_body(run *r, const dq_jinja_nodes *body)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    dq_jinja_eval_body(r, body);
    return dq_jinja_captured(r, &mine, before);
}

static value call_macro(run *r, const dq_jinja_macro *m, const dq_jinja_call *c)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_nodes *parameters = &m->node->item;
    value out = {0};
    size_t named = 0;
    if (c->arg.n > parameters->n)
        return dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' takes not more than %zu argument(s)",
                             (int)m->node->name.n, m->node->name.s, parameters->n);
    if (!dq_jinja_enter(r) || !dq_jinja_eval_scope(r, m->scope)) return out;
    for (size_t i = 0; i < parameters->n && dq_jinja_ok(r); i++) {
        const node *parameter = parameters->at[i];
        const dq_jinja_text name = parameter->name;
        const value *by_name = dq_jinja_dict_get(r, &c->named, name);
        value v = {0};
        if (i < c->arg.n) {
            v = c->arg.item[i]; /* an argument of this name as well is one too many */
        } else if (by_name) {
            v = *by_name;
            ++named;
        } else if (parameter->a) {
            v = evaluate_node(r, parameter->a);
        } else {
            v = dq_jinja_undefined(r, "parameter '%.*s' was not provided", (int)name.n, name.s);
        }
        dq_jinja_dict_put(r, &r->scope->names, name, v);
    }
    if (named < c->named.n)
        dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' has a keyword argument too many",
                      (int)m->node->name.n, m->node->name.s);
    if (dq_jinja_ok(r)) out = capture_body(r, &m->node->body);
    r->scope = before;
    r->depth--;
    return out;
}

static void run_text(run *r, const node *n)
{
    dq_jinja_put(r, n->name.s, n->name.n);
}

static void run_output(run *r, const node *n)
{
    const value v = evaluate_node(r, n->a);
    r->line = n->line;
    if (r->member && v.kind == DQ_JINJA_UNDEFINED) dq_jinja_fail_undefined(r, &v);
    if (r->member && (n->a->kind == DQ_JINJA_VARIABLE || n->a->kind == DQ_JINJA_ATTRIBUTE))
        dq_jinja_check_key(r, n->a->name, &v);
    if (dq_jinja_ok(r)) dq_jinja_print(r, &v);
}

static void run_if(run *r, const node *n)
{
    for (; n && dq_jinja_ok(r); n = n->c) {
        const value condition = evaluate_node(r, n->a);
        const bool yes = dq_jinja_truth(&condition);
        dq_jinja_eval_body(r, yes ? &n->body : &n->item);
        if (yes) break;
    }
}

static void run_set(run *r, const node *n)
{
    const value v = evaluate_node(r, n->b);
    if (dq_jinja_ok(r)) assign(r, n->a, v);
}

static void run_set_text(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (!dq_jinja_eval_scope(r, before)) return;
    const value text = capture_body(r, &n->body);
    dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of(""), text);
    const value v = evaluate_node(r, n->b);
    r->scope = before;
    if (dq_jinja_ok(r) && r->flow == DQ_JINJA_ON) assign(r, n->a, v);
}

static void run_macro(run *r, const node *n)
{
    dq_jinja_macro *m = dq_jinja_alloc(r, 1, sizeof *m);
    if (!m) return;
    *m = (dq_jinja_macro){n, r->scope};
    dq_jinja_dict_put(r, &r->scope->names, n->name, (value){.kind = DQ_JINJA_MACRO, .macro = m});
}

static void run_scope(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->body);
    r->scope = before;
}

static void run_leave(run *r, const node *n)
{
    r->flow = n->value.truth ? DQ_JINJA_CONTINUE : DQ_JINJA_BREAK;
}

void dq_jinja_eval_body(run *r, const dq_jinja_nodes *body)
{
    static void (*const execute[DQ_JINJA_NODE_KINDS])(run *, const node *) = {
        [DQ_JINJA_TEXT] = run_text,      [DQ_JINJA_OUTPUT] = run_output,
        [DQ_JINJA_FOR] = run_for,        [DQ_JINJA_IF] = run_if,
        [DQ_JINJA_SET] = run_set,        [DQ_JINJA_SET_TEXT] = run_set_text,
        [DQ_JINJA_MACRO_OF] = run_macro, [DQ_JINJA_SCOPE] = run_scope,
        [DQ_JINJA_LEAVE] = run_leave,
    };
    if (!dq_jinja_enter(r)) return;
    for (size_t i = 0; i < body->n && r->flow == DQ_JINJA_ON; i++) {
        r->line = body->at[i]->line;
        if (!dq_jinja_spend(r, DQ_JINJA_STEP)) return;
        execute[body->at[i]->kind](r, body->at[i]);
    }
    r->depth--;
}

value dq_jinja_eval_value(run *r, const dq_jinja_nodes *body, bool text)
{
    const bool one = !text && body->n == 1 && body->at[0]->kind == DQ_JINJA_OUTPUT;
    return one ? evaluate_node(r, body->at[0]->a) : capture_body(r, body);
}
