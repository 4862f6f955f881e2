/* cache_plan: dq plan MODEL --kv BITS: the widths of a KV cache; its options, and those of heads_plan.h.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CACHE_PLAN_H
#define DQ_CACHE_PLAN_H

#include "cmds/cli/logger.h"
#include "plan/plan_kv.h"

/* Options of the cache alone, as given; {0} and dq_cache_plan_rows before they are read. A number of 0, one of -1 among the last
 * three, or a NULL was not given. */
typedef struct dq_cache_plan {
    double mean, keep; /* --kv; --heads; neither: weights are planned */
    const char *text, *code, *policy, *questions, *weights, *device;
    int64_t ctx, windows, together, ask, find, recent, sink;
    dq_opt row[17];
    /* of dq plan as a whole */
    const char *out, *widths; /* widths: NULL: not given */
    int64_t trials, threads;
    bool dry_run, json, resume, force;
    dq_logger *logger;
} dq_cache_plan;

/* The options as one row of a command's table. */
#define DQ_CACHE_PLAN_OPTIONS(c)                                                                   \
    {                                                                                              \
        .kind = DQ_OPT_ROWS, .to = dq_cache_plan_rows(&(c)), .help = ""                            \
    }
dq_opt *dq_cache_plan_rows(dq_cache_plan *c);
bool dq_cache_plan_requested(const dq_cache_plan *c);
/* DQ_USAGE for an option of the cache where weights are planned, of its widths with --heads, or of heads with --kv. */
dq_status dq_cache_plan_check(const dq_cache_plan *c, dq_err *err);
/* All of a plan of widths, with results on stdout. The logger is open. */
dq_status dq_cache_plan_run(const dq_cache_plan *c, const char *model, dq_err *err);

#endif
