/* jinja_parse: see jinja_parse.h; expressions, by recursive descent with a function for each level of precedence, which
 * is Jinja2's own: not as Python has it, ** binds to the left, ~ more than +, and a filter more than all operators.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_parse.h"

#include "template/jinja_filters.h"
#include "template/jinja_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef dq_jinja_parser parser;
typedef dq_jinja_node node;

enum { MAX_NESTING = 200 };

/* ---- Tokens and nodes ---- */

node *dq_jinja_parse_fail(parser *p, dq_status code, const char *fmt, ...)
{
    static const dq_jinja_token end[2]; /* one to look at, and one ahead */
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->r->line = p->t->line;
    dq_jinja_fail(p->r, code, "%s", text);
    p->t = end;
    return &p->none;
}

node *dq_jinja_parse_unexpected(parser *p, const char *expected)
{
    const dq_jinja_text t = p->t->text;
    if (p->t->kind == DQ_JINJA_END)
        return dq_jinja_parse_fail(p, DQ_DAMAGED, "the template ends where %s is expected",
                                   expected);
    return dq_jinja_parse_fail(p, DQ_DAMAGED, "expected %s, found \"%.*s\"", expected,
                               (int)(t.n < 50 ? t.n : 50), t.s);
}

static bool is_word(const dq_jinja_token *t, const char *word)
{
    return (t->kind == DQ_JINJA_OPERATOR || t->kind == DQ_JINJA_NAME) &&
           dq_jinja_text_is(t->text, word);
}

bool dq_jinja_parse_is(const parser *p, const char *word)
{
    return is_word(p->t, word);
}

void dq_jinja_parse_next(parser *p)
{
    if (p->t->kind != DQ_JINJA_END) p->t++;
}

bool dq_jinja_parse_skip(parser *p, const char *word)
{
    const bool is = dq_jinja_parse_is(p, word);
    if (is) dq_jinja_parse_next(p);
    return is;
}

void dq_jinja_parse_expect(parser *p, const char *word)
{
    if (!dq_jinja_parse_skip(p, word)) dq_jinja_parse_unexpected(p, word);
}

dq_jinja_text dq_jinja_parse_name(parser *p)
{
    const dq_jinja_text t = p->t->text;
    if (p->t->kind == DQ_JINJA_NAME)
        dq_jinja_parse_next(p);
    else
        dq_jinja_parse_unexpected(p, "a name");
    return t;
}

static bool is_literal(const dq_jinja_token *t, dq_jinja_kind kind)
{
    return t->kind == DQ_JINJA_LITERAL && t->value.kind == kind;
}

node *dq_jinja_parse_node(parser *p, dq_jinja_node_kind kind)
{
    node *n = dq_alloc(p->r->arena, 1, sizeof *n, p->r->err);
    if (!n) n = &p->none;
    *n = (node){.kind = kind, .line = p->t->line};
    return n;
}

void dq_jinja_parse_add(parser *p, dq_jinja_nodes *list, const node *n)
{
    const node **more =
        dq_grow(p->r->arena, list->at, list->n + 1, &list->capacity, sizeof *more, p->r->err);
    if (!more) return;
    list->at = more;
    list->at[list->n++] = n;
}

static void measure(node *n, const node *part)
{
    if (part && part->depth >= n->depth) n->depth = part->depth + 1;
}

node *dq_jinja_parse_end(parser *p, node *n)
{
    measure(n, n->a);
    measure(n, n->b);
    measure(n, n->c);
    for (size_t i = 0; i < n->item.n; i++) measure(n, n->item.at[i]);
    for (size_t i = 0; i < n->body.n; i++) measure(n, n->body.at[i]);
    if (n->depth <= MAX_NESTING) return n;
    return dq_jinja_parse_fail(p, DQ_MISMATCH, "the template nests too deeply (limit %d)",
                               MAX_NESTING);
}

bool dq_jinja_parse_deeper(parser *p)
{
    if (p->r->depth++ < MAX_NESTING) return true;
    dq_jinja_parse_fail(p, DQ_MISMATCH, "the template nests too deeply (limit %d)", MAX_NESTING);
    return false;
}

/* A node of one or two parts. */
static node *with(parser *p, dq_jinja_node_kind kind, const node *a, const node *b)
{
    node *n = dq_jinja_parse_node(p, kind);
    n->line = a->line;
    n->a = a;
    n->b = b;
    return dq_jinja_parse_end(p, n);
}

/* Items up to the bracket `close`, with commas between them; one gives an item and may add another before it. */
static node *parse_items(parser *p, node *n, const char *close, node *(*one)(parser *, node *))
{
    dq_jinja_parse_next(p);
    while (dq_jinja_ok(p->r) && !dq_jinja_parse_skip(p, close)) {
        if (n->item.n) {
            dq_jinja_parse_expect(p, ",");
            if (dq_jinja_parse_skip(p, close)) break;
        }
        dq_jinja_parse_add(p, &n->item, one(p, n));
    }
    return dq_jinja_parse_end(p, n);
}

/* ---- Primary expressions ---- */

static node *parse_item(parser *p, node *list)
{
    (void)list;
    return dq_jinja_parse_expression(p);
}

static node *parse_pair(parser *p, node *dict)
{
    dq_jinja_parse_add(p, &dict->item, dq_jinja_parse_expression(p));
    dq_jinja_parse_expect(p, ":");
    return dq_jinja_parse_expression(p);
}

static node *parse_parentheses(parser *p)
{
    node *n = dq_jinja_parse_node(p, DQ_JINJA_TUPLE_OF);
    dq_jinja_parse_next(p);
    if (!dq_jinja_parse_is(p, ")")) n = dq_jinja_parse_tuple(p, false);
    dq_jinja_parse_expect(p, ")");
    return n;
}

/* Strings side by side, which are one. */
static dq_jinja_value join_literals(parser *p)
{
    size_t n = 0, at = 0;
    for (const dq_jinja_token *t = p->t; is_literal(t, DQ_JINJA_STRING); t++) n += t->value.text.n;
    char *s = dq_alloc(p->r->arena, n, 1, p->r->err);
    for (; is_literal(p->t, DQ_JINJA_STRING); dq_jinja_parse_next(p)) {
        const dq_jinja_text one = p->t->value.text;
        if (s) memcpy(s + at, one.s, one.n);
        at += one.n;
    }
    return dq_jinja_string(s ? s : "", s ? n : 0);
}

static node *parse_literal(parser *p)
{
    node *n = dq_jinja_parse_node(p, DQ_JINJA_CONSTANT);
    const bool joins = is_literal(p->t, DQ_JINJA_STRING) && is_literal(p->t + 1, DQ_JINJA_STRING);
    n->value = p->t->value;
    if (joins)
        n->value = join_literals(p);
    else
        dq_jinja_parse_next(p);
    return n;
}

static node *parse_name(parser *p)
{
    static const struct {
        const char *name;
        dq_jinja_value value;
    } constant[] = {
        {"true", {.kind = DQ_JINJA_BOOL, .truth = true}},
        {"True", {.kind = DQ_JINJA_BOOL, .truth = true}},
        {"false", {.kind = DQ_JINJA_BOOL}},
        {"False", {.kind = DQ_JINJA_BOOL}},
        {"none", {.kind = DQ_JINJA_NONE}},
        {"None", {.kind = DQ_JINJA_NONE}},
    };
    node *n = dq_jinja_parse_node(p, DQ_JINJA_VARIABLE);
    for (size_t i = 0; i < sizeof constant / sizeof *constant; i++) {
        if (!dq_jinja_parse_is(p, constant[i].name)) continue;
        n->kind = DQ_JINJA_CONSTANT;
        n->value = constant[i].value;
    }
    if (p->macros && (dq_jinja_parse_is(p, "caller") || dq_jinja_parse_is(p, "varargs") ||
                      dq_jinja_parse_is(p, "kwargs")))
        return dq_jinja_parse_fail(p, DQ_MISMATCH,
                                   "caller, varargs and kwargs of a macro are not supported");
    n->name = dq_jinja_parse_name(p);
    return n;
}

static node *parse_primary(parser *p)
{
    if (p->t->kind == DQ_JINJA_NAME) return parse_name(p);
    if (p->t->kind == DQ_JINJA_LITERAL) return parse_literal(p);
    if (dq_jinja_parse_is(p, "(")) return parse_parentheses(p);
    if (dq_jinja_parse_is(p, "["))
        return parse_items(p, dq_jinja_parse_node(p, DQ_JINJA_LIST_OF), "]", parse_item);
    if (dq_jinja_parse_is(p, "{"))
        return parse_items(p, dq_jinja_parse_node(p, DQ_JINJA_DICT_OF), "}", parse_pair);
    return dq_jinja_parse_unexpected(p, "an expression");
}

/* ---- What follows an expression ---- */

static node *parse_argument(parser *p, node *call)
{
    const dq_jinja_nodes *before = &call->item;
    node *n = dq_jinja_parse_node(p, DQ_JINJA_KEYWORD);
    if (dq_jinja_parse_is(p, "*") || dq_jinja_parse_is(p, "**"))
        return dq_jinja_parse_fail(p, DQ_MISMATCH, "arguments with * and ** are not supported");
    if (p->t->kind != DQ_JINJA_NAME || !is_word(p->t + 1, "=")) {
        if (before->n && before->at[before->n - 1]->kind == DQ_JINJA_KEYWORD)
            return dq_jinja_parse_fail(p, DQ_DAMAGED,
                                       "an argument without a name after one with it");
        return dq_jinja_parse_expression(p);
    }
    for (size_t i = 0; i < before->n; i++) {
        if (before->at[i]->kind == DQ_JINJA_KEYWORD &&
            dq_jinja_text_same(p->r, before->at[i]->name, p->t->text))
            return dq_jinja_parse_fail(p, DQ_DAMAGED, "two arguments have one name");
    }
    n->name = dq_jinja_parse_name(p);
    dq_jinja_parse_next(p);
    n->a = dq_jinja_parse_expression(p);
    return dq_jinja_parse_end(p, n);
}

/* What stands between brackets after a: b, or up to three parts of a slice. */
static node *parse_subscript(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_SUBSCRIPT, a, NULL);
    dq_jinja_parse_next(p);
    if (dq_jinja_parse_is(p, "]"))
        return dq_jinja_parse_fail(p, DQ_MISMATCH, "an empty subscript is not supported");
    if (!dq_jinja_parse_is(p, ":")) n->b = dq_jinja_parse_expression(p);
    if (dq_jinja_parse_is(p, ":")) {
        n->kind = DQ_JINJA_SLICE;
        dq_jinja_parse_add(p, &n->item, n->b);
        n->b = NULL;
        for (int i = 0; i < 2; i++) {
            const bool there = dq_jinja_parse_skip(p, ":") && !dq_jinja_parse_is(p, ":") &&
                               !dq_jinja_parse_is(p, "]");
            dq_jinja_parse_add(p, &n->item, there ? dq_jinja_parse_expression(p) : NULL);
        }
    }
    if (dq_jinja_parse_is(p, ","))
        return dq_jinja_parse_fail(p, DQ_MISMATCH, "several subscripts are not supported");
    dq_jinja_parse_expect(p, "]");
    return dq_jinja_parse_end(p, n);
}

static node *parse_attribute(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_ATTRIBUTE, a, NULL);
    dq_jinja_parse_next(p);
    if (is_literal(p->t, DQ_JINJA_INT)) { /* a.0 is a[0] */
        n->kind = DQ_JINJA_SUBSCRIPT;
        n->b = parse_literal(p);
    } else {
        n->name = dq_jinja_parse_name(p);
    }
    return n;
}

static node *parse_call(parser *p, node *a)
{
    return parse_items(p, with(p, DQ_JINJA_CALL, a, NULL), ")", parse_argument);
}

static node *parse_postfix(parser *p, node *a)
{
    for (;;) {
        if (dq_jinja_parse_is(p, "."))
            a = parse_attribute(p, a);
        else if (dq_jinja_parse_is(p, "["))
            a = parse_subscript(p, a);
        else if (dq_jinja_parse_is(p, "("))
            a = parse_call(p, a);
        else
            return a;
    }
}

/* Name and row of a filter or test. */
static void parse_function(parser *p, node *n, const dq_jinja_function *find(dq_jinja_text))
{
    n->name = dq_jinja_parse_name(p);
    n->function = find(n->name);
    while (dq_jinja_parse_skip(p, ".")) { /* no function of Jinja2 has such a name */
        dq_jinja_parse_name(p);
        n->function = NULL;
    }
    if (n->function && !n->function->code)
        dq_jinja_parse_fail(p, DQ_MISMATCH, "the filter or test \"%.*s\" is not supported",
                            (int)n->name.n, n->name.s);
    if (!n->function && !p->is_branch && !p->missing) p->missing = n;
}

static node *parse_filter(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_FILTER, a, NULL);
    dq_jinja_parse_next(p);
    parse_function(p, n, dq_jinja_filters_find);
    return dq_jinja_parse_is(p, "(") ? parse_items(p, n, ")", parse_argument) : n;
}

node *dq_jinja_parse_filters(parser *p, node *a)
{
    while (dq_jinja_parse_is(p, "|")) a = parse_filter(p, a);
    return a;
}

/* Whether the token begins an argument of a test that has no parentheses. */
static bool begins_argument(const parser *p)
{
    if (dq_jinja_parse_is(p, "else") || dq_jinja_parse_is(p, "or") || dq_jinja_parse_is(p, "and"))
        return false;
    return p->t->kind == DQ_JINJA_NAME || p->t->kind == DQ_JINJA_LITERAL ||
           dq_jinja_parse_is(p, "[") || dq_jinja_parse_is(p, "{");
}

static node *parse_test(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_TEST, a, NULL);
    dq_jinja_parse_next(p);
    const bool negated = dq_jinja_parse_skip(p, "not");
    parse_function(p, n, dq_jinja_tests_find);
    if (dq_jinja_parse_is(p, "(")) {
        n = parse_items(p, n, ")", parse_argument);
    } else if (begins_argument(p)) {
        if (dq_jinja_parse_is(p, "is")) return dq_jinja_parse_unexpected(p, "no second test");
        dq_jinja_parse_add(p, &n->item, parse_postfix(p, parse_primary(p)));
        n = dq_jinja_parse_end(p, n);
    }
    return negated ? with(p, DQ_JINJA_NOT, n, NULL) : n;
}

static node *parse_unary(parser *p, bool with_filters)
{
    const bool minus = dq_jinja_parse_is(p, "-");
    node *n;
    if (!dq_jinja_parse_deeper(p)) return &p->none;
    if (minus || dq_jinja_parse_is(p, "+")) {
        dq_jinja_parse_next(p);
        n = with(p, DQ_JINJA_SIGN, parse_unary(p, false), NULL);
        n->operation = minus ? DQ_JINJA_SUBTRACT : DQ_JINJA_ADD;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (dq_jinja_parse_is(p, "|"))
            n = parse_filter(p, n);
        else if (dq_jinja_parse_is(p, "is"))
            n = parse_test(p, n);
        else if (dq_jinja_parse_is(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->r->depth--;
    return n;
}

/* ---- Operators ---- */

typedef struct operator_row {
    const char *sign;
    dq_jinja_operation operation;
} operator_row;

static const operator_row *find_operator(const parser *p, const operator_row *row)
{
    while (row->sign && !dq_jinja_parse_is(p, row->sign)) row++;
    return row->sign ? row : NULL;
}

/* next, then operators of the rows with next between them, from the left. */
static node *parse_chain(parser *p, const operator_row *rows, node *next(parser *))
{
    node *a = next(p);
    for (const operator_row *row; (row = find_operator(p, rows));) {
        dq_jinja_parse_next(p);
        a = with(p, DQ_JINJA_ARITHMETIC, a, next(p));
        a->operation = row->operation;
    }
    return a;
}

static node *parse_factor(parser *p)
{
    return parse_unary(p, true);
}

static node *parse_power(parser *p)
{
    static const operator_row rows[] = {{"**", DQ_JINJA_POWER}, {0}};
    return parse_chain(p, rows, parse_factor);
}

static node *parse_product(parser *p)
{
    static const operator_row rows[] = {{"*", DQ_JINJA_MULTIPLY},
                                        {"/", DQ_JINJA_DIVIDE},
                                        {"//", DQ_JINJA_FLOOR_DIVIDE},
                                        {"%", DQ_JINJA_MODULO},
                                        {0}};
    return parse_chain(p, rows, parse_power);
}

static node *parse_join(parser *p)
{
    node *a = parse_product(p), *n = NULL;
    if (!dq_jinja_parse_is(p, "~")) return a;
    n = dq_jinja_parse_node(p, DQ_JINJA_JOIN);
    dq_jinja_parse_add(p, &n->item, a);
    while (dq_jinja_parse_skip(p, "~")) dq_jinja_parse_add(p, &n->item, parse_product(p));
    return dq_jinja_parse_end(p, n);
}

static node *parse_sum(parser *p)
{
    static const operator_row rows[] = {{"+", DQ_JINJA_ADD}, {"-", DQ_JINJA_SUBTRACT}, {0}};
    return parse_chain(p, rows, parse_join);
}

static node *parse_compare(parser *p)
{
    static const operator_row rows[] = {
        {"==", DQ_JINJA_EQUAL},       {"!=", DQ_JINJA_NOT_EQUAL}, {"<", DQ_JINJA_LESS},
        {"<=", DQ_JINJA_NOT_GREATER}, {">", DQ_JINJA_GREATER},    {">=", DQ_JINJA_NOT_LESS},
        {"in", DQ_JINJA_IN},          {"not", DQ_JINJA_NOT_IN},   {0}};
    node *a = parse_sum(p), *n = NULL;
    for (const operator_row *row; (row = find_operator(p, rows));) {
        const bool negated = row->operation == DQ_JINJA_NOT_IN;
        if (negated && !is_word(p->t + 1, "in")) break;
        dq_jinja_parse_next(p);
        if (negated) dq_jinja_parse_next(p);
        if (!n) n = with(p, DQ_JINJA_COMPARE, a, NULL);
        node *operand = with(p, DQ_JINJA_OPERAND, parse_sum(p), NULL);
        operand->operation = row->operation;
        dq_jinja_parse_add(p, &n->item, operand);
    }
    return n ? dq_jinja_parse_end(p, n) : a;
}

static node *parse_not(parser *p)
{
    int negations = 0;
    while (dq_jinja_parse_skip(p, "not")) negations++;
    node *n = parse_compare(p);
    while (negations-- > 0) n = with(p, DQ_JINJA_NOT, n, NULL);
    return n;
}

static node *parse_and(parser *p)
{
    node *a = parse_not(p);
    while (dq_jinja_parse_skip(p, "and")) a = with(p, DQ_JINJA_AND, a, parse_not(p));
    return a;
}

static node *parse_condition(parser *p)
{
    node *a = parse_and(p);
    while (dq_jinja_parse_skip(p, "or")) a = with(p, DQ_JINJA_OR, a, parse_and(p));
    return a;
}

node *dq_jinja_parse_expression(parser *p)
{
    const node *missing = p->missing;
    if (!dq_jinja_parse_deeper(p)) return &p->none;
    node *a = parse_condition(p);
    while (dq_jinja_parse_skip(p, "if")) {
        a = with(p, DQ_JINJA_IF_ELSE, a, parse_condition(p));
        if (dq_jinja_parse_skip(p, "else")) a->c = dq_jinja_parse_expression(p);
        a = dq_jinja_parse_end(p, a);
        p->missing = missing; /* what does not exist matters where it is used */
    }
    p->r->depth--;
    return a;
}

node *dq_jinja_parse_tuple(parser *p, bool is_condition)
{
    node *(*const one)(parser *) = is_condition ? parse_condition : dq_jinja_parse_expression;
    node *a = one(p), *n = NULL;
    if (!dq_jinja_parse_is(p, ",")) return a;
    n = dq_jinja_parse_node(p, DQ_JINJA_TUPLE_OF);
    dq_jinja_parse_add(p, &n->item, a);
    while (dq_jinja_parse_skip(p, ",")) {
        if (dq_jinja_parse_is(p, ")") || p->t->kind == DQ_JINJA_PRINT_END ||
            p->t->kind == DQ_JINJA_BLOCK_END)
            break;
        dq_jinja_parse_add(p, &n->item, one(p));
    }
    return dq_jinja_parse_end(p, n);
}
