/* stats_attention: what dq stats hands over about the attention maps of each output head.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_ATTENTION_H
#define DQ_STATS_ATTENTION_H

#include "cmds/stats/stats_out.h"

/* One line per model, or per model and layer: means over the heads. */
dq_status cmd_stats_attention_print(const cmd_stats_entry *e, int n, bool layers, dq_err *err);
/* What heads of a profile do, by kind. */
dq_status cmd_stats_kinds_print(const cmd_stats_entry *e, dq_err *err);
/* "attention" of one layer: {"mean": {...}, "heads": [{...}]}. */
json_t *cmd_stats_attention_json(const cmd_stats_entry *e, int layer);
/* Arrays [n_layers, n_out(, 2 or 4)] under `group`/attention. */
dq_status cmd_stats_attention_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                 dq_arena *a, dq_err *err);

#endif
