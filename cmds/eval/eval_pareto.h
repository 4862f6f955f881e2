/* eval_pareto: what the bytes of a KV cache buy: of all caches that one model was scored with, those that nothing of no
 * more bytes does as well as, as far as paired intervals decide it. Only of runs that compare policies,
 * budgets, or codes of the same widths.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_PARETO_H
#define DQ_EVAL_PARETO_H

#include "cmds/eval/eval_view.h"

/* Prints a table for every model and source. */
dq_status cmd_eval_pareto(const cmd_eval_view *v, dq_err *err);
/* "pareto_fronts" of the document. */
dq_status cmd_eval_pareto_json(json_t *document, const cmd_eval_view *v, dq_err *err);

#endif
