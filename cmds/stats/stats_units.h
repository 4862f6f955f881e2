/* stats_units: what dq stats --sensitivity hands over: tables, a member of the document, arrays of the file. Nothing where nobody asked.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_UNITS_H
#define DQ_STATS_UNITS_H

#include "cmds/stats/stats_out.h"

/* With the n_places most sensitive units of a kind. */
dq_status cmd_stats_units_print(const cmd_stats_entry *e, int n_places, dq_err *err);
/* Adds "sensitivity" to an element of `results`. */
dq_status cmd_stats_units_json(json_t *result, const cmd_stats_entry *e, dq_err *err);
dq_status cmd_stats_units_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                             dq_arena *a, dq_err *err);

#endif
