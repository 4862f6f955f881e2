/* What other rooms and tests see of dq eval.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_EVAL_H
#define DQ_CMD_EVAL_H

#include "base/base.h"

/* The limit of a gate: numbers, the word `baseline`, + - * / and parentheses. */

enum { DQ_GATE_STEPS = 64, DQ_GATE_DEPTH = 16 };

/* A step of a stack machine pushes a number, or replaces one or two by a result. */
typedef struct cmd_eval_gate_step {
    char what; /* '#' number, 'b' baseline, '_' negation, or + - * / */
    double number;
} cmd_eval_gate_step;

typedef struct cmd_eval_gate_expr {
    cmd_eval_gate_step step[DQ_GATE_STEPS];
    int n;
    bool baseline; /* the word stands in it */
} cmd_eval_gate_expr;

/* Reads text[at..] to its end. DQ_USAGE with the place, in characters from 1: a syntax error, more
 * than DQ_GATE_STEPS steps, or DQ_GATE_DEPTH nested parentheses. */
dq_status cmd_eval_gate_expr_read(cmd_eval_gate_expr *e, const char *text, size_t at, dq_err *err);
/* Not finite on division by 0 or overflow. `baseline` counts only where the word occurs. */
double cmd_eval_gate_expr_value(const cmd_eval_gate_expr *e, double baseline);

#endif
