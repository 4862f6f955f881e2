/* eval_gate_expr: recursive descent, a function a level: sum, product, factor. Each appends its steps after those of its
 * parts, so that one pass over the steps gives the value.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_gate_expr.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

typedef struct reader {
    cmd_eval_gate_expr *e;
    const char *text, *p;
    int depth; /* of parentheses and signs */
    dq_err *err;
} reader;

static const char word[] = "baseline";

/* Characters before a byte, each of them once. */
static int characters(const char *text, size_t at)
{
    int n = 0;
    for (size_t i = 0; i < at; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

dq_status cmd_eval_gate_expr_refuse(const char *text, size_t at, const char *what, dq_err *err)
{
    const char *found = text + at;
    if (!*found)
        return dq_fail(err, DQ_USAGE,
                       "--fail-if \"%.200s\": character %d: expected %s, found the end.", text,
                       characters(text, at) + 1, what);
    return dq_fail(err, DQ_USAGE,
                   "--fail-if \"%.200s\": character %d: expected %s, found \"%.20s\".", text,
                   characters(text, at) + 1, what, found);
}

static dq_status refuse(const reader *r, const char *what)
{
    return cmd_eval_gate_expr_refuse(r->text, (size_t)(r->p - r->text), what, r->err);
}

static void skip_blanks(reader *r)
{
    r->p += strspn(r->p, " \t");
}

static dq_status add(reader *r, char what, double number)
{
    cmd_eval_gate_expr *e = r->e;
    if (e->n == DQ_GATE_STEPS) return refuse(r, "fewer than 64 numbers and operations before this");
    e->step[e->n++] = (cmd_eval_gate_step){what, number};
    e->baseline = e->baseline || what == 'b';
    return DQ_OK;
}

static dq_status sum(reader *r);

static dq_status in_parentheses(reader *r)
{
    if (++r->depth > DQ_GATE_DEPTH) return refuse(r, "at most 16 parentheses within each other");
    r->p++;
    DQ_TRY(sum(r));
    if (*r->p != ')') return refuse(r, "an operation or \")\"");
    r->p++;
    r->depth--;
    return DQ_OK;
}

static bool at_word(const char *p)
{
    const char next = strncmp(p, word, sizeof word - 1) == 0 ? p[sizeof word - 1] : 'x';
    return !isalnum((unsigned char)next) && next != '_' && next != '.';
}

/* Signs, then a number, the word or parentheses. */
static dq_status factor(reader *r)
{
    bool negative = false;
    for (skip_blanks(r); *r->p == '-' || *r->p == '+'; r->p++, skip_blanks(r))
        negative = negative != (*r->p == '-');
    if (*r->p == '(') {
        DQ_TRY(in_parentheses(r));
    } else if (at_word(r->p)) {
        DQ_TRY(add(r, 'b', 0));
        r->p += sizeof word - 1;
    } else {
        char *end;
        const double x = dq_real_parse(r->p, &end);
        if (end == r->p) return refuse(r, "a number, baseline or \"(\"");
        DQ_TRY(add(r, '#', x));
        r->p = end;
    }
    skip_blanks(r);
    return negative ? add(r, '_', 0) : DQ_OK;
}

static dq_status product(reader *r)
{
    DQ_TRY(factor(r));
    while (*r->p == '*' || *r->p == '/') {
        const char what = *r->p++;
        DQ_TRY(factor(r));
        DQ_TRY(add(r, what, 0));
    }
    return DQ_OK;
}

static dq_status sum(reader *r)
{
    DQ_TRY(product(r));
    while (*r->p == '+' || *r->p == '-') {
        const char what = *r->p++;
        DQ_TRY(product(r));
        DQ_TRY(add(r, what, 0));
    }
    return DQ_OK;
}

dq_status cmd_eval_gate_expr_read(cmd_eval_gate_expr *e, const char *text, size_t at, dq_err *err)
{
    reader r = {.e = e, .text = text, .p = text + at, .err = err};
    *e = (cmd_eval_gate_expr){.n = 0};
    DQ_TRY(sum(&r));
    return *r.p ? refuse(&r, "an operation or the end") : DQ_OK;
}

static double apply(char what, double x, double y)
{
    return what == '+' ? x + y : what == '-' ? x - y : what == '*' ? x * y : x / y;
}

double cmd_eval_gate_expr_value(const cmd_eval_gate_expr *e, double baseline)
{
    double stack[DQ_GATE_STEPS] = {0};
    int n = 0;
    for (int i = 0; i < e->n; i++) {
        const cmd_eval_gate_step *s = &e->step[i];
        if (s->what == '#' || s->what == 'b') {
            stack[n++] = s->what == 'b' ? baseline : s->number;
        } else if (s->what == '_') {
            stack[n - 1] = -stack[n - 1];
        } else {
            stack[n - 2] = apply(s->what, stack[n - 2], stack[n - 1]);
            n--;
        }
    }
    return stack[0];
}
