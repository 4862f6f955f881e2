/* answer_rules: see answer_rules.h. A text is narrowed down to the part that gives the answer, and that part compared.
 * SPDX-License-Identifier: MIT */
#include "tasks/answer_rules.h"

#include "tasks/math_answer.h"

#include <string.h>
#include <strings.h>

/* Without spaces and '$' around it. */
static dq_span bare(dq_span s)
{
    while (s.len && (s.s[0] == ' ' || s.s[0] == '$' || s.s[0] == '\n')) {
        s.s++;
        s.len--;
    }
    while (s.len && (s.s[s.len - 1] == ' ' || s.s[s.len - 1] == '$' || s.s[s.len - 1] == '\n'))
        s.len--;
    return s;
}

/* A number as it is compared: without commas, '$' and '%'. */
static dq_status number_of(const char **out, dq_span s, dq_arena *a, dq_err *err)
{
    char *text = dq_answer_clean(s, a, err);
    size_t n = 0;
    if (!text) return err->code;
    for (const char *c = text; *c; c++) {
        if (*c != '%' && *c != ' ') text[n++] = *c;
    }
    text[n] = 0;
    *out = text;
    return DQ_OK;
}

static dq_status same_value(bool *same, dq_span s, const char *gold, dq_arena *a, dq_err *err)
{
    const char *x, *y;
    DQ_TRY(number_of(&x, s, a, err));
    DQ_TRY(number_of(&y, (dq_span){gold, strlen(gold)}, a, err));
    *same = dq_answer_same_value(x, y);
    return DQ_OK;
}

dq_answer_rule dq_answer_rules_for(const char *gold)
{
    return dq_answer_same_value(gold, gold) ? DQ_ANSWER_VALUE : DQ_ANSWER_MATH;
}

/* Whether the part of a text that gives the answer is right. */
static dq_status judge_part(bool *right, dq_answer_rule rule, dq_span part, const char *gold,
                            dq_arena *a, dq_err *err)
{
    const dq_span want = bare((dq_span){gold, strlen(gold)});
    *right = false;
    if (!part.s) return DQ_OK;
    part = bare(part);
    if (rule == DQ_ANSWER_VALUE) {
        const dq_span last = dq_answer_last(part.s, part.len);
        return last.s ? same_value(right, last, gold, a, err) : DQ_OK;
    }
    if (rule == DQ_ANSWER_WORDS) {
        *right = part.len == want.len && strncasecmp(part.s, want.s, part.len) == 0;
        return DQ_OK;
    }
    DQ_TRY(dq_math_answer_same(right, part, want, err));
    return *right ? DQ_OK : same_value(right, part, gold, a, err);
}

dq_status dq_answer_rules_judge(dq_answer_verdict *out, dq_answer_rule rule, const char *text,
                                size_t len, const char *gold, dq_err *err)
{
    if (rule == DQ_ANSWER_GSM8K) return dq_answer_judge(out, text, len, gold, err);
    const dq_span boxed = dq_math_answer_boxed(text, len);
    dq_span part = boxed.s ? boxed : dq_math_answer_stated(text, len);
    dq_arena *a = dq_arena_new();
    *out = (dq_answer_verdict){0};
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (!part.s) part = rule == DQ_ANSWER_MATH ? dq_answer_last(text, len) : (dq_span){text, len};
    if (judge_part(&out->flexible, rule, part, gold, a, err) == DQ_OK)
        judge_part(&out->strict, rule, boxed, gold, a, err);
    dq_arena_free(a);
    return err->code;
}
