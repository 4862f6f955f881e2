/* answer_rules: how an answer in generated text is judged, a rule for each kind of right answer.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ANSWER_RULES_H
#define DQ_ANSWER_RULES_H

#include "tasks/answers.h"

/* All but the first look at what the text puts into a \boxed{}, else at the line after "answer is", else at the whole text. Their
 * strict verdict looks into the \boxed{} only. */
typedef enum dq_answer_rule {
    DQ_ANSWER_GSM8K, /* dq_answer_judge */
    DQ_ANSWER_VALUE, /* its last number, without '%', has the gold answer's value */
    DQ_ANSWER_MATH, /* it is the gold expression, as dq_math_answer_same says, or has its value; of a whole text its last number
                        is looked at */
    DQ_ANSWER_WORDS /* it has the gold answer's characters, whatever the case of ASCII letters */
} dq_answer_rule;

/* The rule for a gold answer that is a number or else an expression. */
dq_answer_rule dq_answer_rules_for(const char *gold);
/* value of *out is not set but by DQ_ANSWER_GSM8K. */
dq_status dq_answer_rules_judge(dq_answer_verdict *out, dq_answer_rule rule, const char *text,
                                size_t len, const char *gold, dq_err *err);

#endif
