/* stats_rounding: what dq stats --forecast and --sensitivity hand over: tables, members of the document, arrays of the file.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_ROUNDING_H
#define DQ_STATS_ROUNDING_H

#include "cmds/stats/stats_out.h"

/* Of n models, with the n_places heads of largest predicted error, all: with `layers`, and the n_places most sensitive units of a kind.
 * Nothing where nobody asked. */
dq_status cmd_stats_rounding_print(const cmd_stats_entry *e, int n, int n_places, bool layers,
                                   dq_err *err);
/* Adds "forecast" and "sensitivity" to an element of `results`; all: the models of the run, of which e is one. */
dq_status cmd_stats_rounding_json(json_t *result, const cmd_stats_entry *e,
                                  const cmd_stats_entry *all, dq_err *err);
dq_status cmd_stats_rounding_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                dq_arena *a, dq_err *err);

#endif
