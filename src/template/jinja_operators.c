/* jinja_operators: see jinja_operators.h. Integers are checked, since Python's have no end; a comparison goes by the order
 * or the equality of values.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_operators.h"

#include "base/text.h"
#include "template/jinja_strings.h"

#include <math.h>
#include <string.h>

/* ---- Arithmetic ---- */

/* a ** b by repeated products; false on overflow. */
static bool power(int64_t a, int64_t b, int64_t *out)
{
    *out = 1;
    if (b > 64) b = a == 0 || a == 1 || a == -1 ? 2 + b % 2 : 64;
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(*out, a, out)) return false;
    }
    return true;
}

/* Division that rounds down. */
static int64_t floor_divide(int64_t a, int64_t b)
{
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
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
        if (!over) c = floor_divide(a, b);
        if (operation == DQ_JINJA_MODULO) c = over ? 0 : a - b * c;
        break;
    }
    if (over) return dq_jinja_fail(r, DQ_MISMATCH, "an integer beyond 64 bits is not supported");
    return dq_jinja_int(c);
}

/* a // b and a % b of reals as Python has them: the rest has b's sign. */
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

/* v, so many times one after the other. */
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

/* a + b of two strings, lists or tuples. */
static dq_jinja_value concatenate(dq_jinja_run *r, const dq_jinja_value *a, const dq_jinja_value *b)
{
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
    if (operation == DQ_JINJA_ADD && a->kind == b->kind && is_repeatable(a))
        return concatenate(r, a, b);
    if (multiplies && is_repeatable(a) && dq_jinja_is_integer(b))
        return repeat(r, a, dq_jinja_integer(b));
    if (multiplies && is_repeatable(b) && dq_jinja_is_integer(a))
        return repeat(r, b, dq_jinja_integer(a));
    return dq_jinja_fail(r, DQ_DAMAGED, "an operator between '%s' and '%s'", dq_jinja_type(a),
                         dq_jinja_type(b));
}

/* ---- Comparison ---- */

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

/* ---- Items and slices ---- */

/* Bytes of the first n characters. */
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

/* A bound of a slice of n items, limited to low .. high; a negative one counts from the end. */
static int64_t bound(dq_jinja_run *r, const dq_jinja_value *v, int64_t n, int64_t fallback,
                     int64_t low, int64_t high)
{
    if (v->kind == DQ_JINJA_ABSENT || v->kind == DQ_JINJA_NONE) return fallback;
    int64_t i = dq_jinja_strings_int(r, v, 0);
    if (i < 0) i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

dq_jinja_value dq_jinja_operators_slice(dq_jinja_run *r, const dq_jinja_value *v,
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
