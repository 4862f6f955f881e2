/* eval_gate_table: numbers of gates beside those of the baseline.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_GATE_TABLE_H
#define DQ_EVAL_GATE_TABLE_H

#include "cmds/eval/eval_gate.h"

/* To stdout: a row for each condition and result, and what the change is. Of the members "gates" of the document of this
 * run. Nothing without a baseline. */
dq_status cmd_eval_gate_table(const cmd_eval_gates *g, const cmd_eval_view *v,
                              const json_t *document, dq_err *err);

#endif
