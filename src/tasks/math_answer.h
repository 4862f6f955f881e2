/* math_answer: answers that are expressions in LaTeX: where a text gives one, and when two are the same.
 * Source: MATH, modeling/math_equivalence.py, as lm-evaluation-harness lm_eval/tasks/hendrycks_math/utils.py has it
 * (behaviour).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MATH_ANSWER_H
#define DQ_MATH_ANSWER_H

#include "tasks/answers.h"

/* What the last \boxed{...} of text[len] holds, else the last \fbox{...}; where "\boxed " stands anywhere, what follows the
 * last of it up to a '$'. s NULL: there is none, or its braces do not end. */
dq_span dq_math_answer_boxed(const char *text, size_t len);
/* The rest of the line after the last "answer is", whatever the case of its letters, without ':', '$' and spaces around it and a
 * '.' at its end. s NULL: there is none. */
dq_span dq_math_answer_stated(const char *text, size_t len);

/* The expression in one form, in the arena with a NUL; *out NULL: the reference raises an exception. */
dq_status dq_math_answer_form(const char **out, dq_span s, dq_arena *a, dq_err *err);
/* Whether both are one expression after spaces, units, degrees, percent and dollar signs are gone and fractions and
 * roots have braces; where a form is not one that can be rewritten so, whether they are the same characters. */
dq_status dq_math_answer_same(bool *same, dq_span a, dq_span b, dq_err *err);

#endif
