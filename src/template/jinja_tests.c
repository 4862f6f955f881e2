/* jinja_tests: tests (x is NAME), a row of `tests` each.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_filters.h"
#include "template/jinja_operators.h"

typedef dq_jinja_run run;
typedef dq_jinja_call call;
typedef dq_jinja_value value;

/* Whether the kind of v is one of a set of bits. */
static value is_of(const call *c, unsigned kinds)
{
    return dq_jinja_bool(kinds >> c->self.kind & 1U);
}

#define IS_OF(name, kinds)                                                                         \
    static value is_##name(run *r, call *c)                                                        \
    {                                                                                              \
        (void)r;                                                                                   \
        return is_of(c, (kinds));                                                                  \
    }

enum {
    UNDEFINED = 1 << DQ_JINJA_UNDEFINED,
    NONE = 1 << DQ_JINJA_NONE,
    BOOL = 1 << DQ_JINJA_BOOL,
    INT = 1 << DQ_JINJA_INT,
    FLOAT = 1 << DQ_JINJA_FLOAT,
    STRING = 1 << DQ_JINJA_STRING,
    DICT = 1 << DQ_JINJA_DICT,
    LISTS = 1 << DQ_JINJA_LIST | 1 << DQ_JINJA_TUPLE | 1 << DQ_JINJA_RANGE,
    READ = 1 << DQ_JINJA_VIEW | 1 << DQ_JINJA_ITERATOR | 1 << DQ_JINJA_LOOP,
    CALLED =
        1 << DQ_JINJA_LOOP | 1 << DQ_JINJA_MACRO | 1 << DQ_JINJA_FUNCTION | 1 << DQ_JINJA_METHOD
};
IS_OF(defined, ~(unsigned)UNDEFINED)
IS_OF(undefined, UNDEFINED)
IS_OF(none, NONE)
IS_OF(boolean, BOOL)
IS_OF(integer, INT)
IS_OF(float, FLOAT)
IS_OF(number, BOOL | INT | FLOAT)
IS_OF(string, STRING)
IS_OF(mapping, DICT)
IS_OF(sequence,
      UNDEFINED | STRING | LISTS | DICT) /* what has a length and items by number or key */
IS_OF(iterable, UNDEFINED | STRING | LISTS | DICT | READ)
IS_OF(callable, UNDEFINED | CALLED)

static value is_true(run *r, call *c)
{
    (void)r;
    return dq_jinja_bool(c->self.kind == DQ_JINJA_BOOL && c->self.truth);
}

static value is_false(run *r, call *c)
{
    (void)r;
    return dq_jinja_bool(c->self.kind == DQ_JINJA_BOOL && !c->self.truth);
}

#define COMPARES(name, operation)                                                                  \
    static value is_##name(run *r, call *c)                                                        \
    {                                                                                              \
        return dq_jinja_bool(dq_jinja_operators_compare(r, operation, &c->self, &c->p[0]));        \
    }

COMPARES(equal, DQ_JINJA_EQUAL)
COMPARES(not_equal, DQ_JINJA_NOT_EQUAL)
COMPARES(less, DQ_JINJA_LESS)
COMPARES(not_greater, DQ_JINJA_NOT_GREATER)
COMPARES(greater, DQ_JINJA_GREATER)
COMPARES(not_less, DQ_JINJA_NOT_LESS)
COMPARES(in, DQ_JINJA_IN)

/* Whether self % n is `rest`. */
static value has_rest(run *r, const call *c, value n, int64_t rest)
{
    const value found = dq_jinja_operators_arithmetic(r, DQ_JINJA_MODULO, &c->self, &n);
    const value wanted = dq_jinja_int(rest);
    return dq_jinja_bool(dq_jinja_equal(r, &found, &wanted));
}

static value is_odd(run *r, call *c)
{
    return has_rest(r, c, dq_jinja_int(2), 1);
}

static value is_even(run *r, call *c)
{
    return has_rest(r, c, dq_jinja_int(2), 0);
}

static value is_divisibleby(run *r, call *c)
{
    return has_rest(r, c, c->p[0], 0);
}

/* Identity, which Python leaves open for numbers, strings and tuples. */
static value is_sameas(run *r, call *c)
{
    const dq_jinja_kind kind = c->self.kind;
    if (kind != c->p[0].kind) return dq_jinja_bool(false);
    if (kind == DQ_JINJA_NONE || kind == DQ_JINJA_BOOL) return is_equal(r, c);
    if (kind == DQ_JINJA_LIST || kind == DQ_JINJA_DICT || kind == DQ_JINJA_NAMESPACE)
        return dq_jinja_bool((const void *)c->self.list == (const void *)c->p[0].list);
    return dq_jinja_fail(r, DQ_MISMATCH, "sameas of '%s' is not supported",
                         dq_jinja_type(&c->self));
}

static const dq_jinja_function tests[] = {
    {"!=", "other", 1, is_not_equal},
    {"<", "other", 1, is_less},
    {"<=", "other", 1, is_not_greater},
    {"==", "other", 1, is_equal},
    {">", "other", 1, is_greater},
    {">=", "other", 1, is_not_less},
    {"boolean", "", 0, is_boolean},
    {"callable", "", 0, is_callable},
    {"defined", "", 0, is_defined},
    {"divisibleby", "num", 1, is_divisibleby},
    {"eq", "other", 1, is_equal},
    {"equalto", "other", 1, is_equal},
    {"escaped", NULL, 0, NULL},
    {"even", "", 0, is_even},
    {"false", "", 0, is_false},
    {"filter", NULL, 0, NULL},
    {"float", "", 0, is_float},
    {"ge", "other", 1, is_not_less},
    {"greaterthan", "other", 1, is_greater},
    {"gt", "other", 1, is_greater},
    {"in", "seq", 1, is_in},
    {"integer", "", 0, is_integer},
    {"iterable", "", 0, is_iterable},
    {"le", "other", 1, is_not_greater},
    {"lessthan", "other", 1, is_less},
    {"lower", NULL, 0, NULL},
    {"lt", "other", 1, is_less},
    {"mapping", "", 0, is_mapping},
    {"ne", "other", 1, is_not_equal},
    {"none", "", 0, is_none},
    {"number", "", 0, is_number},
    {"odd", "", 0, is_odd},
    {"sameas", "other", 1, is_sameas},
    {"sequence", "", 0, is_sequence},
    {"string", "", 0, is_string},
    {"test", NULL, 0, NULL},
    {"true", "", 0, is_true},
    {"undefined", "", 0, is_undefined},
    {"upper", NULL, 0, NULL},
};

const dq_jinja_function *dq_jinja_tests_find(dq_jinja_text name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (dq_jinja_text_is(name, tests[i].name)) return &tests[i];
    }
    return NULL;
}
