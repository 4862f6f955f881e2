/* eval_report: a finished sweep as JSON.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_REPORT_H
#define DQ_EVAL_REPORT_H

#include "cmds/eval/eval_view.h"

/* One object per shown row, appended to `results`. */
dq_status cmd_eval_json(json_t *results, const cmd_eval_view *v, dq_err *err);
/* JSON lines of --dump-items, of every shown row. */
dq_status cmd_eval_dump(const cmd_eval_view *v, const char *path, dq_err *err);

#endif
