/* What other rooms and tests see of dq eval.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_EVAL_H
#define DQ_CMD_EVAL_H

#include "base/base.h"

/* ---- Eval gate expr ----
 * What a gate compares a number with: numbers, the word `baseline`, + - * / and parentheses. */

enum { DQ_GATE_STEPS = 64, DQ_GATE_DEPTH = 16 };

/* Steps of a stack machine: a number is pushed, an operation takes one or two and pushes one. */
typedef struct cmd_eval_gate_step {
    char what; /* '#' number, 'b' baseline, '_' negation, or + - * / */
    double number;
} cmd_eval_gate_step;

typedef struct cmd_eval_gate_expr {
    cmd_eval_gate_step step[DQ_GATE_STEPS];
    int n;
    bool baseline; /* the word stands in it */
} cmd_eval_gate_expr;

/* Reads text[at..] to its end. DQ_USAGE with the place, counted in characters of the whole text from 1: something else
 * stands there, or there are more than DQ_GATE_STEPS steps or DQ_GATE_DEPTH parentheses within each other. */
dq_status cmd_eval_gate_expr_read(cmd_eval_gate_expr *e, const char *text, size_t at, dq_err *err);
/* Not finite where it divides by 0 or leaves the range of doubles. `baseline` is looked at where the word stands in it. */
double cmd_eval_gate_expr_value(const cmd_eval_gate_expr *e, double baseline);

#endif
