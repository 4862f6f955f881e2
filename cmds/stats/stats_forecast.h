/* stats_forecast: what dq stats --forecast hands over: tables, a member of the document, arrays of the file. Nothing where nobody asked.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_FORECAST_H
#define DQ_STATS_FORECAST_H

#include "cmds/stats/stats_out.h"

/* Of n models, with the n_places heads of largest predicted error, all of them with `layers`. */
dq_status cmd_stats_forecast_print(const cmd_stats_entry *e, int n, int n_places, bool layers,
                                   dq_err *err);
/* Adds "forecast" to an element of `results`; all: the models of the run, of which e is one. */
dq_status cmd_stats_forecast_json(json_t *result, const cmd_stats_entry *e,
                                  const cmd_stats_entry *all, dq_err *err);
dq_status cmd_stats_forecast_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                dq_arena *a, dq_err *err);

#endif
