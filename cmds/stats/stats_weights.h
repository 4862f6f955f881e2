/* stats_weights: what dq stats hands over about the matrices of a model.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_WEIGHTS_H
#define DQ_STATS_WEIGHTS_H

#include "cmds/stats/stats_out.h"

/* One line per role: the matrix with the largest crest factor. */
dq_status cmd_stats_weights_print(const cmd_stats_entry *e, dq_err *err);
/* A list of all matrices. */
json_t *cmd_stats_weights_json(const cmd_stats_entry *e);

#endif
