/* cmd_needle_table: what is printed of needles after the large table, and their entries over all depths as JSON.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CMD_NEEDLE_TABLE_H
#define DQ_CMD_NEEDLE_TABLE_H

#include "cmds/eval/eval_kind.h"

/* "over_depths": for every N:R and length the accuracy over all depths, with its paired differences. */
dq_status cmd_eval_needle_entries(json_t *needle, const cmd_eval_view *v, int row, dq_err *err);
/* Accuracy by depth and length; with --attention where attention goes. */
dq_status cmd_eval_needle_tables(const cmd_eval_view *v, dq_err *err);

#endif
